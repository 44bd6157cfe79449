//! What the program holds on a device. Cost: each arena's lock there, twice.

use vramalloc_core::Bytes;
use vramalloc_core::arena::live_at;
use vramalloc_core::page_map::ArenaId;

use super::shortage::held_elsewhere;
use super::{DeviceArena, pools_on};
use crate::pools::lanes;
use crate::types::CUdevice;

/// What the program holds there at least, at a moment of the call, without
/// lanes and the arena that asks; `None` while [`lanes::has_freed`]. Frees that
/// are not recorded yet are looked for at that moment: they are found, or
/// recorded by the second look.
pub(super) fn live(device: CUdevice, asking: ArenaId) -> Option<Bytes> {
    let pools = pools_on(device);
    let arenas = pools.iter().map(|pool| &*pool.arena);
    let others: Vec<&DeviceArena> = arenas.filter(|arena| arena.id() != asking).collect();
    let live = live_at(&others, || (!lanes::has_freed(device)).then_some(()))?;
    Some(live.saturating_add(held_elsewhere(device)))
}
