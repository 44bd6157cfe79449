//! An arena among the others on its device, and what the program holds there. Cost:
//! each arena's lock there, twice.

use std::sync::Arc;

use vramalloc_core::Bytes;
use vramalloc_core::arena::{Watch, live_at};
use vramalloc_core::page_map::ArenaId;

use super::shortage::held_elsewhere;
use super::{DeviceArena, asked, pools_on};
use crate::driver::devices::Device;
use crate::pools::lanes;
use crate::types::CUdevice;

/// An arena of the context with this handle, which knows of the others on its device.
pub(super) fn beside_others(
    arena: DeviceArena,
    watch: Watch,
    device: &'static Device,
    handle: usize,
) -> Arc<DeviceArena> {
    let (device, id) = (device.handle, arena.id());
    let is_shared = move || pools_on(device).iter().any(|pool| pool.handle != handle);
    let arena = arena
        .watched(watch)
        .asked_past()
        .relieved_by(move || lanes::relieve(device, id), move || live(device, id))
        .shared_when(is_shared)
        .followed_by(asked::ended);
    Arc::new(arena)
}

/// What the program holds there at least, at a moment of the call, without
/// lanes and the arena that asks; `None` while [`lanes::has_freed`]. Frees that
/// are not recorded yet are looked for at that moment: they are found, or
/// recorded by the second look.
fn live(device: CUdevice, asking: ArenaId) -> Option<Bytes> {
    let pools = pools_on(device);
    let arenas = pools.iter().map(|pool| &*pool.arena);
    let others: Vec<&DeviceArena> = arenas.filter(|arena| arena.id() != asking).collect();
    let live = live_at(&others, || (!lanes::has_freed(device)).then_some(()))?;
    Some(live.saturating_add(held_elsewhere(device)))
}
