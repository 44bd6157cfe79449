//! Pageable host memory for the C API: Paddle's pool of CPU memory.
//!
//! Chunks are anonymous mappings of one size (see `PageableConfig::chunk`); a
//! larger request gets a mapping of its own. The arena is that of devices, over
//! a driver that maps memory: a chunk costs address space alone until it is
//! written to. No GPU uses pageable memory by itself, so a freed block can be
//! handed out again at once.
//!
//! Owns the pool, from the first request until the process ends, and the
//! lengths of its mappings. Cost: the arena's, and a system call per chunk.

use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use vramalloc_core::arena::Watch;
use vramalloc_core::config::{Config, FreeSync, PageableConfig, StrategyKind};
use vramalloc_core::driver::Whose;
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::page_map::{ArenaId, Owner, PageMap};
use vramalloc_core::patience::Brief;
use vramalloc_core::quota::Quota;
use vramalloc_core::stats::{ArenaReport, RecordedArena, RecordedPlace};
use vramalloc_core::{Address, AllocError, Arena, Bytes, Code, Driver, FreeError, MemInfo};

use crate::process::{self, forking};
use crate::recording;

/// Chunks are aligned to this, the size of the system's huge pages.
const ALIGNMENT: usize = 2 << 20;

static POOL: OnceLock<Pool> = OnceLock::new();

struct Pool {
    arena: Arena<System>,
    pages: Arc<PageMap>,
}

fn pool() -> &'static Pool {
    POOL.get().unwrap_or_else(|| make_pool())
}

#[cold]
fn make_pool() -> &'static Pool {
    let told = RecordedArena {
        place: RecordedPlace::Pageable,
        device: None,
        device_name: None,
        device_total: None,
        limit: None,
        context: None,
        lane: false,
    };
    // Before the pool is made: no thread waits for a file.
    let watch = Watch {
        recording: recording::of(&told, tell_blocks),
        ..Watch::default()
    };
    POOL.get_or_init(|| {
        forking::use_begins();
        // Its own map: addresses of a simulated device may equal the host's.
        let pages = Arc::new(PageMap::new());
        let pageable = process::options(|loaded| loaded.settings.pageable);
        let arena = Arena::new(
            ArenaId(0),
            System::default(),
            &config(pageable, total()),
            Arc::clone(&pages),
            Arc::new(Quota::new(Bytes::MAX)),
        );
        let arena = arena.watched(watch);
        Pool { arena, pages }
    })
}

/// Has the arena tell the recording what it holds.
fn tell_blocks() {
    POOL.get().iter().for_each(|pool| pool.arena.tell_blocks());
}

/// The strategy that takes chunks of one size and passes larger requests on.
fn config(pageable: PageableConfig, total: Bytes) -> Config {
    let chunk = Some(pageable.chunk(total));
    Config {
        strategy: StrategyKind::NaiveBestFit,
        initial_chunk: chunk,
        reallocate_chunk: chunk,
        free_sync: FreeSync::Immediate,
        ..Config::default()
    }
}

/// Allocates memory of the host.
///
/// # Errors
/// Out of memory.
pub(crate) fn allocate(size: Bytes) -> Result<Address, AllocError> {
    pool().arena.allocate(size)
}

/// Frees what `allocate` gave; `None` if the address is not of this pool.
pub(crate) fn free(address: Address) -> Option<Result<(), FreeError>> {
    let pool = POOL.get()?;
    match pool.pages.owner(address) {
        Owner::Foreign => None,
        Owner::Arena(_) => Some(pool.arena.free(address)),
    }
}

/// Whether an address lies in memory of this pool.
pub(crate) fn owns(address: Address) -> bool {
    POOL.get()
        .is_some_and(|pool| pool.pages.owner(address) != Owner::Foreign)
}

/// Whether the pool was ever asked for memory.
pub(crate) fn is_in_use() -> bool {
    POOL.get().is_some()
}

/// Gives back memory in which no block lies; returns how many bytes.
pub(crate) fn trim() -> Bytes {
    POOL.get().map_or(Bytes::ZERO, |pool| pool.arena.trim())
}

/// A report of the pool, if it was ever asked for memory.
pub(crate) fn report() -> Option<ArenaReport> {
    POOL.get().map(|Pool { arena, .. }| ArenaReport {
        pageable: true,
        stats: arena.stats(),
        calls: arena.driver_calls(),
        ooms: arena.ooms(),
        ..ArenaReport::default()
    })
}

/// How much memory the machine has.
fn total() -> Bytes {
    // SAFETY: numbers in and out.
    let (pages, page) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    let bytes = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
    Bytes::new(bytes(pages).saturating_mul(bytes(page)))
}

/// The operating system's memory as a driver.
#[derive(Default)]
struct System {
    /// Lengths of the mappings, by where they start.
    lengths: SpinMutex<HashMap<u64, usize>, Brief>,
}

impl Mapping for System {}

impl Driver for System {
    type Fence = ();

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let size = usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)?;
        let start = map_aligned(size).ok_or(Code::OUT_OF_MEMORY)?;
        self.lengths.lock().insert(start as u64, size);
        Ok(Address::new(start as u64))
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        let length = self.lengths.lock().remove(&address.get());
        let start = usize::try_from(address.get()).map_err(|_| Code::INVALID_VALUE)?;
        unmap(start, length.ok_or(Code::INVALID_VALUE)?);
        Ok(())
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        // SAFETY: a number in and out.
        let free = unsafe { libc::sysconf(libc::_SC_AVPHYS_PAGES) };
        // SAFETY: as above.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let bytes = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
        Ok(MemInfo {
            free: Bytes::new(bytes(free).saturating_mul(bytes(page))),
            total: total(),
        })
    }

    fn fence(&self) -> Result<(), Code> {
        Ok(())
    }

    fn reached(&self, (): &()) -> Result<bool, Code> {
        Ok(true)
    }

    fn wait(&self, (): &(), _whose: Whose) -> Result<bool, Code> {
        Ok(true)
    }
}

/// Maps `size` bytes that start at a multiple of [`ALIGNMENT`].
fn map_aligned(size: usize) -> Option<usize> {
    let length = size.checked_add(ALIGNMENT)?;
    // SAFETY: a new mapping, wherever the system puts it.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.expose_provenance();
    let aligned = start.next_multiple_of(ALIGNMENT);
    // What lies before and after the aligned part goes back.
    unmap(start, aligned - start);
    let end = (aligned + size).next_multiple_of(page());
    unmap(end, start + length.next_multiple_of(page()) - end);
    Some(aligned)
}

fn page() -> usize {
    // SAFETY: a number in and out.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Unmaps whole pages of a mapping of ours that nothing uses any more.
fn unmap(start: usize, length: usize) {
    if length > 0 {
        // SAFETY: part of a mapping of `map_aligned`, which the caller has
        // taken out of use.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_and_can_be_written() {
        let system = System::default();
        for size in [1, 4096, 4097, ALIGNMENT, 3 * ALIGNMENT + 1] {
            let address = system.alloc(Bytes::new(size as u64)).unwrap();
            let start = usize::try_from(address.get()).unwrap();
            assert_eq!(start % ALIGNMENT, 0);
            let last: *mut u8 = ptr::with_exposed_provenance_mut(start + size - 1);
            // SAFETY: the last byte of the mapping.
            unsafe { last.write_volatile(7) };
            system.free(address).unwrap();
            assert_eq!(system.free(address), Err(Code::INVALID_VALUE));
        }
        assert_eq!(system.alloc(Bytes::MAX), Err(Code::OUT_OF_MEMORY));
    }
}
