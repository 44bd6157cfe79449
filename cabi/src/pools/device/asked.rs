//! What the program by name, and others from outside, ask of the pools. Cost:
//! each arena's lock; giving memory back, the driver's frees.

use std::sync::OnceLock;
use std::time::Duration;

use vramalloc_core::arena::{CallEnd, Located};
use vramalloc_core::page_map::Owner;
use vramalloc_core::stats::{Glance, StackId};
use vramalloc_core::{Address, Bytes};

use super::{DevicePool, in_map, pool_with, pools_on};
use crate::driver::devices;
use crate::types::{CUdevice, CUdeviceptr};

impl DevicePool {
    /// Gives back memory in which no block lies; returns how many bytes.
    pub(crate) fn trim(&self) -> Bytes {
        self.lanes().trim().saturating_add(self.arena.trim())
    }

    /// The same without a wait: now if the device is quiet, else with the
    /// program's next frees.
    pub(crate) fn trim_when_quiet(&self) -> Bytes {
        let lanes = self.lanes().idle_arenas();
        let given = lanes.iter().map(|lane| lane.give_back_when_quiet());
        given.fold(self.arena.give_back_when_quiet(), Bytes::saturating_add)
    }

    /// Gives back memory in which no block lies to make room for a call of
    /// CUDA's; returns how many bytes. `left` says how long that may still take.
    pub(crate) fn give_room(&self, left: impl Fn() -> Duration) -> Bytes {
        let lanes = self.lanes().give_room(&left);
        lanes.saturating_add(self.arena.give_room(left()))
    }

    /// Bytes in which no block lies.
    pub(crate) fn idle(&self) -> Bytes {
        self.lanes().idle().saturating_add(self.arena.idle())
    }

    /// How its arena and its lanes stand.
    pub(crate) fn glance(&self) -> Glance {
        self.arena.glance().and(self.lanes().glance())
    }
}

/// The live block around an address of a device: the device, the block, and the
/// call stack of its request.
pub(crate) fn whose(address: CUdeviceptr) -> Option<(CUdevice, Located, StackId)> {
    let Owner::Arena(id) = in_map(address) else {
        return None;
    };
    let pool = pool_with(id)?;
    let (located, stack) = pool.arena.whose(Address::new(address))?;
    Some((pool.device.handle, located, stack))
}

/// Puts a changed limit in force; `trim` gives back idle memory beyond it.
pub(crate) fn obey_limit(trim: fn(&DevicePool) -> Bytes) {
    for device in devices::obey_limit() {
        for pool in pools_on(device.handle) {
            if device.quota.is_beyond_limit() {
                trim(pool);
            }
        }
    }
}

/// Called when a call to an arena that was no hit is over.
static WHEN_SETTLED: OnceLock<fn(CallEnd)> = OnceLock::new();

/// Registers the one listener that is called at the end of each call to an
/// arena that did more than take a block or put one back, and of each call that
/// changed what there is past the pools; when nothing is held.
pub(crate) fn when_settled(then: fn(CallEnd)) {
    let _again = WHEN_SETTLED.set(then);
}

/// A call is over that changed what the program holds.
pub(crate) fn settled() {
    ended(CallEnd::Moved);
}

/// A call to an arena is over that did this.
pub(super) fn ended(end: CallEnd) {
    if let Some(then) = WHEN_SETTLED.get() {
        then(end);
    }
}
