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
    /// Addresses that the program reserved, to map memory there by itself.
    ranges: BTreeMap<u64, Foreign>,
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
            ranges: BTreeMap::new(),
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
            let inside = |all| inner_of(all, address);
            inside(&self.ranges)
                .or_else(|| inside(&self.foreign))
                .unwrap_or(address)
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

    /// Writes garbage to the beginning of each of these pages of a device, as far as
    /// the host's first page of it.
    pub(crate) fn spoil(&self, start: Address, size: Bytes, page: Bytes) {
        const GARBAGE: u8 = 0xc5;
        const SPOILED: usize = 4096;
        for at in (0..size.get()).step_by(usize::try_from(page.get()).unwrap_or(SPOILED)) {
            let inner = self.inner(start.get() + at);
            // SAFETY: the first bytes of a page of the device's, which nobody uses.
            unsafe { inner.write_bytes(GARBAGE, SPOILED) };
        }
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
            unreserve(start, f.size);
            unreserve(f.inner, f.size);
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

/// Addresses that the program reserves, and what it maps there.
impl Backing {
    /// Reserves addresses, at `hint` if they are free there.
    pub(crate) fn reserve_range(
        &mut self,
        size: u64,
        alignment: u64,
        hint: u64,
    ) -> Result<u64, Code> {
        let start = match reserve_at(hint, size) {
            Some(start) if start.is_multiple_of(alignment) => start,
            other => {
                other.into_iter().for_each(|start| unreserve(start, size));
                reserve_aligned(size, alignment)?
            }
        };
        let inner = reserve(size)?;
        self.ranges.insert(start, Foreign { inner, size });
        Ok(start)
    }

    /// How many reservations there are.
    pub(crate) fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// The reservation that holds an address: its start and size.
    pub(crate) fn range_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.size).then_some((start, range.size))
    }

    /// Ends a reservation in which nothing is mapped.
    pub(crate) fn free_range(&mut self, start: u64) {
        if let Some(range) = self.ranges.remove(&start) {
            unreserve(start, range.size);
            unreserve(range.inner, range.size);
        }
    }

    /// Maps a file's bytes inside a reservation; the host may not touch them.
    pub(crate) fn map_range(
        &self,
        start: u64,
        size: u64,
        file: RawFd,
        offset: u64,
    ) -> Result<(), Code> {
        let inner = inner_of(&self.ranges, start).ok_or(Code::INVALID_VALUE)?;
        map_file(file, start, size, offset, libc::PROT_NONE)?;
        map_file(file, inner, size, offset, READ_WRITE)
    }

    /// Makes a mapped part of a reservation free again.
    pub(crate) fn unmap_range(&self, start: u64, size: u64) {
        let inner = inner_of(&self.ranges, start);
        for at in [Some(start), inner].into_iter().flatten() {
            let length = usize::try_from(size).unwrap_or(0);
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: replaces what `map_range` mapped there.
            unsafe { libc::mmap(at as *mut c_void, length, libc::PROT_NONE, flags, -1, 0) };
        }
    }
}

/// The inner address of an address in one of these mappings.
fn inner_of(all: &BTreeMap<u64, Foreign>, address: u64) -> Option<u64> {
    let (&start, f) = all.range(..=address).next_back()?;
    (address - start < f.size).then(|| address - start + f.inner)
}

/// Reserves address space at this place, if it is free there.
fn reserve_at(place: u64, size: u64) -> Option<u64> {
    let length = usize::try_from(size).ok().filter(|_| place != 0)?;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let at = place as *mut c_void;
    // SAFETY: a new mapping, which replaces nothing.
    let start = unsafe { libc::mmap(at, length, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as u64)
}

/// Aligned so, and no better: who needs more has to ask for it.
fn reserve_aligned(size: u64, alignment: u64) -> Result<u64, Code> {
    let all = (alignment.checked_mul(2)).and_then(|twice| size.checked_add(twice));
    let all = all.ok_or(Code::OUT_OF_MEMORY)?;
    let reserved = reserve(all)?;
    let mut start = reserved.next_multiple_of(alignment);
    if start.is_multiple_of(2 * alignment) {
        start += alignment;
    }
    unreserve(reserved, start - reserved);
    unreserve(start + size, reserved + all - start - size);
    Ok(start)
}

/// Gives address space back that was reserved.
fn unreserve(start: u64, size: u64) {
    let length = usize::try_from(size).unwrap_or(0);
    if length > 0 {
        // SAFETY: reserved by us, and nothing refers to it any more.
        unsafe { libc::munmap(start as *mut c_void, length) };
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
pub(crate) fn create(size: u64) -> Result<RawFd, Code> {
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
