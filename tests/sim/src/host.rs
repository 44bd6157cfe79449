//! Pinned host memory: allocated, or the program's own and registered.
//!
//! Owns the blocks. Invariant: blocks do not overlap. A freed block is
//! unmapped, so that a later use of it is found; no block is aligned better
//! than the environment says, so that a program that relies on more is found,
//! too. Cost: a mapping per block.

use std::ffi::c_void;

use vramalloc_core::{Address, Bytes, Code};

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, NOT_REGISTERED, Out, REGISTERED};
use crate::machine::Machine;
use crate::state::{HostBlock, PAGE};

/// The flags that `cuMemHostAlloc` and `cuMemHostRegister` accept.
const ALLOC_FLAGS: u32 = 7;
const REGISTER_FLAGS: u32 = 15;

/// The flags that are reported for memory of `cuMemAllocHost`: for all
/// contexts, and mapped.
const PLAIN: u32 = 3;

/// Host and devices share addresses, so all page-locked memory is mapped.
const MAPPED: u32 = 2;

/// Blocks up to this size are packed together, if the environment says so.
const PACKED: u64 = 64 << 20;

impl Machine {
    /// Locks a block, if the host allows so much locked memory.
    fn lock_host(&mut self, start: u64, block: HostBlock) -> Done {
        let used = self.host.used.saturating_add(block.pages());
        if used > self.environment.host_memory.get() {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.host.used = used;
        self.host.peak = self.host.peak.max(used);
        self.host.made += 1;
        self.host.blocks.insert(start, block);
        let (start, size) = (Address::new(start), Bytes::new(block.size));
        self.model.note_host(start, size);
        Ok(())
    }

    /// Unlocks a block. Memory that the driver allocated is freed when the work
    /// that touches it is done; registered memory is not waited for, and such
    /// work is a violation.
    fn unlock_host(&mut self, start: u64) {
        let Some(block) = self.host.blocks.remove(&start) else {
            return;
        };
        let (from, size) = (Address::new(start), Bytes::new(block.size));
        if !block.registered {
            let used = self.model.used_until(from, size).unwrap_or(0);
            self.model.advance_to(used);
            self.settle();
        }
        self.model.forget_host(from);
        self.announce();
        self.host.used -= block.pages();
        if !block.registered {
            unmap(start, block.pages());
        }
    }

    /// Frees the pinned memory of a context that ends.
    pub(crate) fn drop_host_of(&mut self, context: Handle) {
        let own = |b: &HostBlock| b.context == context;
        let blocks = self.host.blocks.iter();
        let gone: Vec<u64> = blocks.filter(|(_, b)| own(b)).map(|(&s, _)| s).collect();
        gone.into_iter().for_each(|start| self.unlock_host(start));
    }

    /// Waits for all work on all devices, since any of it may use host memory.
    fn wait_for_all(&mut self) {
        for device in 0..self.environment.devices {
            self.wait_for_device(device);
        }
    }
}

fn unmap(start: u64, size: u64) {
    let length = usize::try_from(size).unwrap_or(0);
    if length > 0 {
        // SAFETY: mapped by `map`, and out of the table now.
        unsafe { libc::munmap(start as *mut c_void, length) };
    }
}

/// Maps whole pages for `size` bytes, aligned to `align` and to no more.
fn map(size: u64, align: u64) -> Result<u64, Code> {
    let pages = size.checked_next_multiple_of(PAGE);
    let pages = pages.ok_or(Code::OUT_OF_MEMORY)?;
    // Of two consecutive multiples of `align` one is odd.
    let all = pages
        .checked_add(2 * align)
        .and_then(|all| usize::try_from(all).ok())
        .ok_or(Code::OUT_OF_MEMORY)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), all, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY);
    }
    let mapped = mapped as u64;
    let mut start = mapped.next_multiple_of(align);
    if start.is_multiple_of(2 * align) {
        start += align;
    }
    unmap(mapped, start - mapped);
    unmap(start + pages, mapped + all as u64 - start - pages);
    Ok(start)
}

impl Call<'_> {
    fn host_alloc(&mut self, to: &Out<u64>, size: u64, asked: u32, flags: u32) -> Done {
        to.required()?;
        let context = self.context()?;
        if asked & !ALLOC_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if size == 0 {
            return to.set(0);
        }
        self.unsafe_in_capture()?;
        let start = map(size, self.sim.environment.host_align.get());
        let start = start.inspect_err(|_| to.maybe(0))?;
        let block = HostBlock {
            size,
            context,
            flags,
            registered: false,
            number: self.sim.host.made,
        };
        if let Err(code) = self.sim.lock_host(start, block) {
            unmap(start, block.pages());
            to.maybe(0);
            return Err(code);
        }
        to.set(start)
    }

    fn host_register(&mut self, start: u64, size: u64, flags: u32) -> Done {
        let context = self.context()?;
        let end = start.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        if start == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.unsafe_in_capture()?;
        match self.sim.host.in_range(start, end) {
            Some(block) if block.registered => return Err(REGISTERED),
            Some(_) => return Err(Code::INVALID_VALUE),
            None => {}
        }
        let block = HostBlock {
            size,
            context,
            flags,
            registered: true,
            number: self.sim.host.made,
        };
        self.sim.lock_host(start, block)
    }

    fn host_forget(&mut self, start: u64, registered: bool, code: Code) -> Done {
        self.context()?;
        if start == 0 && !registered {
            return Ok(());
        }
        let (first, block) = self.sim.host.at(start).ok_or(code)?;
        if block.registered != registered {
            return Err(Code::INVALID_VALUE);
        }
        if first != start {
            return Err(code);
        }
        self.unsafe_in_capture()?;
        if !registered {
            self.sim.wait_for_all();
        }
        self.sim.unlock_host(start);
        Ok(())
    }
}

driver! {
    fn cuMemHostAlloc(call, to: Out<u64>, size: u64, flags: u32) {
        call.host_alloc(&to, size, flags, flags)
    }

    fn cuMemAllocHost_v2(call, to: Out<u64>, size: u64) {
        call.host_alloc(&to, size, 0, PLAIN)
    }

    fn cuMemFreeHost(call, start: u64) {
        call.host_forget(start, false, Code::INVALID_VALUE)
    }

    fn cuMemHostRegister(call, start: u64, size: u64, flags: u32) {
        call.host_register(start, size, flags)
    }

    fn cuMemHostRegister_v2(call, start: u64, size: u64, flags: u32) {
        call.host_register(start, size, flags)
    }

    fn cuMemHostUnregister(call, start: u64) {
        call.host_forget(start, true, NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(call, to: Out<u64>, start: u64, flags: u32) {
        to.required()?;
        if flags != 0 || call.sim.host.at(start).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        to.set(start)
    }

    fn cuMemHostGetFlags(call, flags: Out<u32>, start: u64) {
        flags.required()?;
        let (_, mut block) = call.sim.host.at(start).ok_or(Code::INVALID_VALUE)?;
        let is_packed = !block.registered && block.size <= PACKED;
        if is_packed && call.sim.environment.host_packed {
            block = call.sim.host.oldest_up_to(PACKED).unwrap_or(block);
        }
        flags.set(block.flags | MAPPED)
    }
}
