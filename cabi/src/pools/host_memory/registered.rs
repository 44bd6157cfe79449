//! Page-locked memory that is taken from the system, touched by several threads
//! at once and then registered, which some drivers do faster than they
//! allocate.
//!
//! Owns the mappings. A program must not be able to tell: to it, this is memory
//! of `cuMemHostAlloc`. So for each kind of request there is one page that
//! really is, the *stand-in*. Questions about a block that the driver would
//! answer differently for registered memory are asked about that page.
//!
//! The mappings are shared ones, as the driver's own memory is: a fork leaves
//! them where the device sees them.
//!
//! Invariant: a mapping is registered as long as it is in the list, and is
//! unmapped only after the driver has unregistered it or its context has ended.
//! Cost: a look-up in a small tree for each question and each free; nothing if
//! the option is off.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, thread};

use spin::rwlock::RwLock;
use vramalloc_core::patience::Brief;
use vramalloc_core::{Address, Code};

use crate::driver::context::Context;
use crate::process::threads;
use crate::real;

/// The size of the host's pages.
const PAGE: usize = 4096;

/// One thread touches at least this much.
const PART: usize = 8 << 20;

/// A mapping that is registered.
#[derive(Copy, Clone)]
struct Mapping {
    size: usize,
    /// Address of the stand-in.
    stand_in: usize,
}

static MAPPINGS: RwLock<BTreeMap<usize, Mapping>, Brief> = RwLock::new(BTreeMap::new());
/// Whether there ever was one: asked before anything else. Relaxed: a thread
/// that asks about a block got it from the thread that stored here before.
static ANY: AtomicBool = AtomicBool::new(false);

/// For all contexts, and mapped: to a program, the driver's memory is both.
const FLAGS: u32 = 3;

/// Takes `size` bytes, aligned to `align`, and registers them in the context
/// after `threads` threads have touched them.
///
/// # Errors
/// Out of memory, or what the driver returns; then nothing is held.
pub(crate) fn take(
    context: &Context,
    size: usize,
    align: usize,
    stand_in: usize,
    threads: u32,
) -> Result<Address, Code> {
    let size = size
        .checked_next_multiple_of(PAGE)
        .ok_or(Code::OUT_OF_MEMORY)?;
    let start = map(size, align)?;
    touch(start, size, threads);
    let host = ptr::with_exposed_provenance_mut(start);
    // SAFETY: a mapping of this size, which no other code knows yet.
    let register = || unsafe { real::cuMemHostRegister_v2(host, size, FLAGS) };
    if let Err(code) = context.call(register) {
        unmap(start, size);
        return Err(code);
    }
    ANY.store(true, Ordering::Relaxed);
    MAPPINGS.write().insert(start, Mapping { size, stand_in });
    // Who forgets the context's mappings may have missed it.
    if context.has_ended() && MAPPINGS.write().remove(&start).is_some() {
        unmap(start, size);
        return Err(Code::INVALID_CONTEXT);
    }
    Ok(Address::new(start as u64))
}

/// Whether a mapping begins here.
pub(crate) fn begins_at(address: Address) -> bool {
    let Some(start) = number(address) else {
        return false;
    };
    ANY.load(Ordering::Relaxed) && MAPPINGS.read().contains_key(&start)
}

/// Gives back a mapping that the device is done with.
///
/// # Errors
/// What the driver returns; the memory stays then: the device may reach it.
pub(crate) fn give_back(context: &Context, address: Address) -> Result<(), Code> {
    let start = number(address).ok_or(Code::INVALID_VALUE)?;
    let removed = MAPPINGS.write().remove(&start);
    let Some(Mapping { size, .. }) = removed else {
        return Err(Code::INVALID_VALUE);
    };
    let host = ptr::with_exposed_provenance_mut(start);
    // SAFETY: what `take` registered; it is not used any more.
    let unregistered = context.call(|| unsafe { real::cuMemHostUnregister(host) });
    // Nothing reaches it where the context is gone.
    if unregistered.is_err() && !context.has_ended() {
        return unregistered;
    }
    unmap(start, size);
    Ok(())
}

/// The stand-in for the memory around this address.
pub(crate) fn stand_in(address: *mut c_void) -> Option<*mut c_void> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let mappings = MAPPINGS.read();
    let (&start, mapping) = mappings.range(..=address.addr()).next_back()?;
    (address.addr() - start < mapping.size)
        .then(|| ptr::with_exposed_provenance_mut(mapping.stand_in))
}

/// Whether an address lies in a mapping.
pub(super) fn holds(address: Address) -> bool {
    let at = number(address).map(ptr::with_exposed_provenance_mut);
    at.and_then(stand_in).is_some()
}

/// Mappings, by start and size, of a context that is gone: the device could
/// reach them until it was.
#[must_use]
#[derive(Default)]
pub(crate) struct Leftovers(Vec<(usize, usize)>);

impl Leftovers {
    /// Adds others to these.
    pub(crate) fn and(mut self, mut others: Leftovers) -> Leftovers {
        self.0.append(&mut others.0);
        self
    }

    /// Unmaps them, once the context is gone.
    pub(crate) fn unmap(self) {
        for (start, size) in self.0 {
            unmap(start, size);
        }
    }
}

/// Takes the mappings with this stand-in off the list: their context ends.
pub(crate) fn end(stand_in: usize) -> Leftovers {
    let mut ended = Leftovers::default();
    MAPPINGS.write().retain(|&start, mapping| {
        let ends = mapping.stand_in == stand_in;
        if ends {
            ended.0.push((start, mapping.size));
        }
        !ends
    });
    ended
}

fn number(address: Address) -> Option<usize> {
    usize::try_from(address.get()).ok()
}

/// New pages, aligned to `align`, a power of two.
fn map(size: usize, align: usize) -> Result<usize, Code> {
    let slack = align.saturating_sub(PAGE);
    let all = size.checked_add(slack).ok_or(Code::OUT_OF_MEMORY)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), all, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY);
    }
    let mapped = mapped.expose_provenance();
    let start = mapped.next_multiple_of(align.max(PAGE));
    unmap(mapped, start - mapped);
    unmap(start + size, mapped + all - start - size);
    Ok(start)
}

fn unmap(start: usize, size: usize) {
    if size > 0 {
        // SAFETY: pages of `map` that nothing refers to any more.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), size) };
    }
}

/// Brings all pages into memory, a part by each thread.
fn touch(start: usize, size: usize, threads: u32) {
    let threads = usize::try_from(threads).unwrap_or(1);
    let parts = threads.min(size / PART).max(1);
    let part = (size / parts).next_multiple_of(PAGE);
    let end = start + size;
    thread::scope(|scope| {
        for from in (start + part..end).step_by(part) {
            let work = move || touch_pages(from, (from + part).min(end));
            if threads::spawn_in(scope, "touch", work).is_err() {
                work();
            }
        }
        touch_pages(start, (start + part).min(end));
    });
}

fn touch_pages(from: usize, to: usize) {
    for page in (from..to).step_by(PAGE) {
        let page: *mut u8 = ptr::with_exposed_provenance_mut(page);
        // SAFETY: a page of our own that no other code knows yet; it holds
        // zeros, and does so afterwards.
        unsafe { page.write_volatile(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_aligned_and_touched_by_any_number_of_threads() {
        for (size, align, threads) in [
            (PAGE, PAGE, 1),
            (3 * PAGE, 64 << 10, 4),
            (3 * PART + PAGE, 64 << 10, 2),
            (5 * PART, 2 << 20, 128),
        ] {
            let start = map(size, align).unwrap();
            assert_eq!(start % align, 0);
            touch(start, size, threads);
            let mut resident = vec![0_u8; size / PAGE];
            let pages = ptr::with_exposed_provenance_mut(start);
            // SAFETY: the mapping, and a byte for each of its pages.
            let asked = unsafe { libc::mincore(pages, size, resident.as_mut_ptr()) };
            assert_eq!(asked, 0);
            assert!(resident.iter().all(|page| page & 1 == 1));
            unmap(start, size);
        }
        assert_eq!(map(usize::MAX - PAGE, PAGE), Err(Code::OUT_OF_MEMORY));
    }
}
