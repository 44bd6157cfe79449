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
use vramalloc_core::Bytes;
use vramalloc_core::patience::Brief;

use crate::driver::context::Context;
use crate::driver::devices::Device;
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
    /// With the devices whose memory is mapped, towards whose limits it counts still.
    mapped: Vec<(Extent, Option<&'static Device>)>,
    /// What the driver does not unmap, which stays for good, with its addresses.
    stuck: Vec<Extent>,
    /// Reservations, behind some of whose addresses something is mapped.
    reserved: Vec<Extent>,
    /// A thread unmaps.
    is_tended: bool,
}

impl Leavings {
    fn is_in(&self, range: &Extent) -> bool {
        let mapped = self.mapped.iter().map(|(extent, _)| extent);
        let mut left = mapped.chain(&self.stuck);
        left.any(|mapped| range.holds(mapped))
    }
}

static LEFT: SpinMutex<Leavings, Brief> = SpinMutex::new(Leavings {
    mapped: Vec::new(),
    stuck: Vec::new(),
    reserved: Vec::new(),
    is_tended: false,
});

/// Whether there is anything. Relaxed: it is looked at again before long.
static ANY: AtomicBool = AtomicBool::new(false);

/// Leaves memory of a device mapped. Its arena counts it no longer.
pub(super) fn leave(at: CUdeviceptr, size: usize, device: Option<&'static Device>) {
    if let Some(device) = device {
        device.quota.take_anyway(Bytes::new(size as u64));
    }
    let mut left = LEFT.lock();
    left.mapped.push((Extent { at, size }, device));
    ANY.store(true, Ordering::Relaxed);
}

/// Keeps a reservation if something is left in it.
pub(super) fn keeps(at: CUdeviceptr, size: usize) -> bool {
    if !ANY.load(Ordering::Relaxed) {
        return false;
    }
    let range = Extent { at, size };
    let mut left = LEFT.lock();
    let is_used = left.is_in(&range);
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
    let unmap = |extent: &Extent| {
        // SAFETY: mapped memory of a context that has ended, and that its arena
        // gave up.
        Context::beside(|| unsafe { real::cuMemUnmap(extent.at, extent.size) }).is_ok()
    };
    let unreserve = |range: &Extent| {
        reserved::remove(range.at);
        // SAFETY: addresses that nothing is mapped to.
        let free = || unsafe { real::cuMemAddressFree(range.at, range.size) };
        let _ = Context::beside(free);
    };
    capture::outside(|| tend_by(unmap, unreserve));
}

/// The same by these calls. What is being unmapped is still found by `keeps`: another
/// thread may be giving back the addresses.
fn tend_by(unmap: impl Fn(&Extent) -> bool, unreserve: impl Fn(&Extent)) {
    let mapped = {
        let mut left = LEFT.lock();
        if std::mem::replace(&mut left.is_tended, true) {
            return;
        }
        left.mapped.clone()
    };
    let mut stuck = Vec::new();
    for (extent, device) in &mapped {
        if !unmap(extent) {
            stuck.push(*extent);
        } else if let Some(device) = device {
            device.quota.put_back(Bytes::new(extent.size as u64));
        }
    }
    let free: Vec<Extent> = {
        let mut left = LEFT.lock();
        left.is_tended = false;
        left.mapped
            .retain(|(extent, _)| !mapped.iter().any(|(gone, _)| gone == extent));
        left.stuck.extend(stuck);
        // What is stuck is looked for as long as other addresses may hold it.
        let is_any = !(left.mapped.is_empty() && left.stuck.is_empty());
        ANY.store(is_any, Ordering::Relaxed);
        let (used, free) = std::mem::take(&mut left.reserved)
            .into_iter()
            .partition(|range| left.is_in(range));
        left.reserved = used;
        free
    };
    free.iter().for_each(unreserve);
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn addresses_are_kept_while_another_thread_unmaps_what_is_left_there() {
        let range = Extent {
            at: 1 << 40,
            size: 64,
        };
        let apart = Extent {
            at: 1 << 41,
            size: 64,
        };
        let unmapped = RefCell::new(Vec::new());
        let unreserved = RefCell::new(Vec::new());
        for at in [range.at + 16, apart.at] {
            leave(at, 16, None);
        }
        let unmap = |extent: &Extent| {
            unmapped.borrow_mut().push(extent.at);
            assert!(extent.at == apart.at || keeps(range.at, range.size));
            extent.at != apart.at
        };
        tend_by(unmap, |range| unreserved.borrow_mut().push(*range));
        assert_eq!(*unmapped.borrow(), [range.at + 16, apart.at]);
        assert_eq!(*unreserved.borrow(), [range]);
        assert!(!keeps(range.at, range.size));
        // What cannot be unmapped keeps its addresses, and is not asked for again.
        assert!(keeps(apart.at, apart.size));
        tend_by(|_| unreachable!(), |_| unreachable!());
    }
}
