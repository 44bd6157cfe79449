//! Mapped memory of contexts that have ended, which could not be unmapped then.
//!
//! Nothing is unmapped while a stream of the process captures a graph. An arena whose
//! context has ended gives its mapped memory back at once and is not asked again, and
//! a capture of another context may be open. What is refused so stays mapped, as do
//! its addresses, until memory is next taken or unmapped while none is open.
//!
//! Owns the list of it, whose lock is taken alone and spans no driver call. Invariant:
//! addresses are given back after all that is mapped there. Cost: an atomic load while
//! there is none.

use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use crate::driver::context::Context;
use crate::driver::{capture, reserved};
use crate::real;
use crate::types::CUdeviceptr;

/// A range of addresses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Extent {
    at: CUdeviceptr,
    size: usize,
}

impl Extent {
    fn holds(&self, other: &Extent) -> bool {
        other.at >= self.at && other.at - self.at < self.size as u64
    }
}

/// What is left.
struct Leavings {
    mapped: Vec<Extent>,
    /// Reservations, behind some of whose addresses something is mapped.
    reserved: Vec<Extent>,
}

static LEFT: SpinMutex<Leavings, Brief> = SpinMutex::new(Leavings {
    mapped: Vec::new(),
    reserved: Vec::new(),
});

/// Whether there is anything. Relaxed: it is looked at again before long.
static ANY: AtomicBool = AtomicBool::new(false);

/// Leaves memory mapped.
pub(super) fn leave(at: CUdeviceptr, size: usize) {
    LEFT.lock().mapped.push(Extent { at, size });
    ANY.store(true, Ordering::Relaxed);
}

/// Keeps a reservation if something is left in it.
pub(super) fn keeps(at: CUdeviceptr, size: usize) -> bool {
    if !ANY.load(Ordering::Relaxed) {
        return false;
    }
    let range = Extent { at, size };
    let mut left = LEFT.lock();
    let is_used = left.mapped.iter().any(|mapped| range.holds(mapped));
    if is_used {
        left.reserved.push(range);
    }
    is_used
}

/// Gives back what is left, if that may be now.
pub(super) fn tend() {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    capture::outside(|| {
        let (mapped, ranges) = {
            let mut left = LEFT.lock();
            ANY.store(false, Ordering::Relaxed);
            let mapped = std::mem::take(&mut left.mapped);
            (mapped, std::mem::take(&mut left.reserved))
        };
        let mut stays = Vec::new();
        for extent in mapped {
            // SAFETY: mapped memory of a context that has ended, and that its arena
            // gave up.
            let unmapped = Context::beside(|| unsafe { real::cuMemUnmap(extent.at, extent.size) });
            if unmapped.is_err() {
                stays.push(extent);
            }
        }
        for range in ranges {
            // What the driver does not let go stays for good, with its addresses.
            if !stays.iter().any(|extent| range.holds(extent)) {
                reserved::remove(range.at);
                // SAFETY: addresses that nothing is mapped to.
                let free = || unsafe { real::cuMemAddressFree(range.at, range.size) };
                let _ = Context::beside(free);
            }
        }
    });
}
