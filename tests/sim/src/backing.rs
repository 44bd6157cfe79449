//! The memory behind device addresses.
//!
//! Owns one sparse file per device, mapped twice: at the device addresses,
//! where the host may not touch it, and at an inner address, through which the
//! simulation reads and writes. Invariant: every address of a device's span has
//! its byte at an inner address. Cost: host memory is used when it is touched
//! and given back when its pages are freed.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::RawFd;

use vramalloc_core::{Address, Bytes, Code};

/// Memory of another process that is mapped here.
#[derive(Copy, Clone, Debug)]
struct Foreign {
    inner: u64,
    size: u64,
}

pub(crate) struct Backing {
    /// The first address of the first device.
    base: u64,
    /// The inner address of the same byte.
    inner: u64,
    span: u64,
    files: Vec<RawFd>,
    foreign: BTreeMap<u64, Foreign>,
}

impl Backing {
    /// Reserves and maps `devices` times `span` bytes.
    pub(crate) fn map(devices: u32, span: Bytes, page: Bytes) -> Result<Backing, Code> {
        let span = span.get();
        let all = span * u64::from(devices);
        let reserved = reserve(all + page.get())?;
        let base = reserved.next_multiple_of(page.get());
        let inner = reserve(all)?;
        let mut files = Vec::new();
        for device in 0..u64::from(devices) {
            let file = create(span)?;
            map_file(file, base + device * span, span, 0, libc::PROT_NONE)?;
            map_file(file, inner + device * span, span, 0, READ_WRITE)?;
            files.push(file);
        }
        Ok(Backing {
            base,
            inner,
            span,
            files,
            foreign: BTreeMap::new(),
        })
    }

    pub(crate) fn base(&self) -> Address {
        Address::new(self.base)
    }

    /// The device that this address belongs to.
    pub(crate) fn device_at(&self, address: u64) -> Option<u32> {
        let device = address.checked_sub(self.base)? / self.span;
        let device = u32::try_from(device).ok()?;
        (usize::try_from(device).ok()? < self.files.len()).then_some(device)
    }

    /// The file of a device, and the offset of an address in it.
    pub(crate) fn file_at(&self, address: u64) -> Option<(RawFd, u64)> {
        let device = self.device_at(address)?;
        let file = *self.files.get(device as usize)?;
        Some((file, (address - self.base) % self.span))
    }

    /// The inner address of a device address; other addresses, which are the
    /// host's, are their own.
    pub(crate) fn inner(&self, address: u64) -> *mut u8 {
        let ours = if self.device_at(address).is_some() {
            address - self.base + self.inner
        } else {
            match self.foreign.range(..=address).next_back() {
                Some((&start, f)) if address - start < f.size => address - start + f.inner,
                _ => address,
            }
        };
        ours as *mut u8
    }

    /// Gives the host memory behind unused pages back; they are zero when used
    /// again.
    pub(crate) fn discard(&self, start: Address, size: Bytes) {
        let Some((file, offset)) = self.file_at(start.get()) else {
            return;
        };
        let (Ok(offset), Ok(size)) = (i64::try_from(offset), i64::try_from(size.get())) else {
            return;
        };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the file is ours and stays open; a refusal changes nothing.
        unsafe { libc::fallocate(file, mode, offset, size) };
    }

    /// Allows or forbids the host to touch these pages (managed memory).
    pub(crate) fn expose(&self, start: Address, size: Bytes, visible: bool) {
        let protection = if visible { READ_WRITE } else { libc::PROT_NONE };
        let length = usize::try_from(size.get()).unwrap_or(0);
        // SAFETY: whole pages inside the device's own mapping.
        unsafe { libc::mprotect(start.get() as *mut c_void, length, protection) };
    }

    /// Maps `size` bytes of another process's file. Returns the device address.
    fn map_foreign(&mut self, file: RawFd, offset: u64, size: u64) -> Result<u64, Code> {
        let start = reserve(size)?;
        let inner = reserve(size)?;
        map_file(file, inner, size, offset, READ_WRITE)?;
        self.foreign.insert(start, Foreign { inner, size });
        Ok(start)
    }

    /// Maps the whole pages that hold `size` bytes at `offset` of another
    /// process's file. Returns the device address of the first byte.
    pub(crate) fn map_inside(
        &mut self,
        file: RawFd,
        offset: u64,
        size: u64,
        page: Bytes,
    ) -> Result<u64, Code> {
        let first = Bytes::new(offset).round_down(page).get();
        let inside = offset - first;
        let all = inside.checked_add(size).map(Bytes::new);
        let all = all.and_then(|all| all.round_up(page));
        let start = self.map_foreign(file, first, all.ok_or(Code::INVALID_VALUE)?.get())?;
        Ok(start + inside)
    }

    /// The start of the mapping of another process's memory that holds an
    /// address.
    pub(crate) fn foreign_start(&self, address: u64) -> Option<u64> {
        let (&start, f) = self.foreign.range(..=address).next_back()?;
        (address - start < f.size).then_some(start)
    }

    pub(crate) fn unmap_foreign(&mut self, start: u64) {
        if let Some(f) = self.foreign.remove(&start) {
            let length = usize::try_from(f.size).unwrap_or(0);
            // SAFETY: both ranges were reserved by `map_foreign` and nothing
            // refers to them any more.
            unsafe {
                libc::munmap(start as *mut c_void, length);
                libc::munmap(f.inner as *mut c_void, length);
            }
        }
    }
}

/// Gets the host's pages for memory that is about to be written, all in one
/// call: one by one, as they are touched, they cost several times as much. For
/// few it is not worth the call; a kernel that cannot do it refuses.
pub(crate) fn populate(start: *mut u8, length: usize) {
    const PAGE: usize = 4096;
    const WORTH: usize = 16 * PAGE;
    let before = start.addr() % PAGE;
    let length = length.saturating_add(before) / PAGE * PAGE;
    if length >= WORTH {
        let start = start.wrapping_sub(before).cast();
        // SAFETY: these pages are about to be written, all but the last in
        // full or in part; getting them changes no byte.
        unsafe { libc::madvise(start, length, libc::MADV_POPULATE_WRITE) };
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Reserves address space in which nothing else will be mapped.
fn reserve(size: u64) -> Result<u64, Code> {
    let length = usize::try_from(size).map_err(|_| Code::OUT_OF_MEMORY)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(start as u64)
}

/// Creates a sparse file of this size without a name.
fn create(size: u64) -> Result<RawFd, Code> {
    let length = i64::try_from(size).map_err(|_| Code::OUT_OF_MEMORY)?;
    // SAFETY: the name is NUL-terminated.
    let file = unsafe { libc::memfd_create(c"simulated-device".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: `file` is checked before it counts, and is ours.
    if file < 0 || unsafe { libc::ftruncate(file, length) } != 0 {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(file)
}

/// Maps a file's bytes at `start`, which was reserved.
fn map_file(file: RawFd, start: u64, size: u64, offset: u64, protection: i32) -> Result<(), Code> {
    let length = usize::try_from(size).map_err(|_| Code::OUT_OF_MEMORY)?;
    let offset = i64::try_from(offset).map_err(|_| Code::INVALID_VALUE)?;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: replaces only what `reserve` returned.
    let mapped = unsafe {
        libc::mmap(
            start as *mut c_void,
            length,
            protection,
            flags,
            file,
            offset,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(())
}
