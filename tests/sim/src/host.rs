//! Pinned host memory: taken from the system, or the program's own registered.
//!
//! Owns the blocks. Invariant: blocks do not overlap; one that is freed is
//! unmapped, so that whoever uses it later is found out. Cost: a mapping per
//! block.

use std::ffi::c_void;

use vramalloc::Code;

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, NOT_REGISTERED, Out, REGISTERED};
use crate::machine::Machine;

/// Flags that `cuMemHostAlloc` and `cuMemHostRegister` know.
const ALLOC_FLAGS: u32 = 7;
const REGISTER_FLAGS: u32 = 15;

#[derive(Copy, Clone, Debug)]
pub(crate) struct HostBlock {
    pub(crate) size: u64,
    pub(crate) context: Handle,
    flags: u32,
    registered: bool,
}

impl Machine {
    /// The pinned block that holds this address.
    pub(crate) fn host_at(&self, address: u64) -> Option<(u64, HostBlock)> {
        let (&start, &block) = self.host.range(..=address).next_back()?;
        (address - start < block.size).then_some((start, block))
    }

    /// Forgets the pinned memory of a context that ends.
    pub(crate) fn drop_host_of(&mut self, context: Handle) {
        let (gone, kept): (Vec<_>, Vec<_>) = (std::mem::take(&mut self.host))
            .into_iter()
            .partition(|(_, b)| b.context == context);
        self.host = kept.into_iter().collect();
        for (start, block) in gone {
            unmap(start, block);
        }
    }

    /// Waits for all work on all devices, which may use host memory.
    fn wait_for_all(&mut self) {
        for device in 0..self.environment.devices {
            self.wait_for_device(device);
        }
    }
}

fn unmap(start: u64, block: HostBlock) {
    if block.registered {
        return;
    }
    let length = usize::try_from(block.size).unwrap_or(0);
    // SAFETY: mapped by `map` with this size, and out of the table now.
    unsafe { libc::munmap(start as *mut c_void, length) };
}

fn map(size: u64) -> Result<u64, Code> {
    let length = usize::try_from(size).map_err(|_| Code::OUT_OF_MEMORY)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(start as u64)
}

impl Call<'_> {
    fn host_alloc(&mut self, to: &Out<u64>, size: u64, flags: u32) -> Done {
        to.required()?;
        let context = self.context()?;
        if size == 0 || flags & !ALLOC_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.unsafe_in_capture()?;
        let start = map(size)?;
        let block = HostBlock {
            size,
            context,
            flags,
            registered: false,
        };
        self.sim.host.insert(start, block);
        to.set(start)
    }

    fn host_register(&mut self, start: u64, size: u64, flags: u32) -> Done {
        let context = self.context()?;
        let end = start.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        if start == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.unsafe_in_capture()?;
        let below = self.sim.host.range(..end).next_back();
        if below.is_some_and(|(&s, b)| s + b.size > start) {
            return Err(REGISTERED);
        }
        let block = HostBlock {
            size,
            context,
            flags,
            registered: true,
        };
        self.sim.host.insert(start, block);
        Ok(())
    }

    fn host_forget(&mut self, start: u64, registered: bool, code: Code) -> Done {
        self.context()?;
        let block = self.sim.host.get(&start).copied();
        let block = block.filter(|b| b.registered == registered).ok_or(code)?;
        self.unsafe_in_capture()?;
        self.sim.wait_for_all();
        self.sim.host.remove(&start);
        unmap(start, block);
        Ok(())
    }
}

driver! {
    fn cuMemHostAlloc(call, to: Out<u64>, size: u64, flags: u32) {
        call.host_alloc(&to, size, flags)
    }

    fn cuMemAllocHost_v2(call, to: Out<u64>, size: u64) {
        call.host_alloc(&to, size, 0)
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
        if flags != 0 || call.sim.host_at(start).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        to.set(start)
    }

    fn cuMemHostGetFlags(call, flags: Out<u32>, start: u64) {
        let (_, block) = call.sim.host_at(start).ok_or(Code::INVALID_VALUE)?;
        flags.set(block.flags)
    }
}
