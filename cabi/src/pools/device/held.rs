//! What the program holds on a device. Cost: the locks of all books there, twice.

use vramalloc_core::Bytes;
use vramalloc_core::arena::live_at;
use vramalloc_core::page_map::ArenaId;

use super::{DeviceArena, pools_on};
use crate::pools::lanes;
use crate::types::CUdevice;

/// What the program holds there besides the arena that asks and lanes, at the
/// least, at a moment of the call; none while [`lanes::has_freed`]. What was freed
/// and not entered yet is looked for at that moment: it is found, or in the
/// books by the second look.
pub(super) fn live(device: CUdevice, asking: ArenaId) -> Option<Bytes> {
    let pools = pools_on(device);
    let arenas = pools.iter().map(|pool| &*pool.arena);
    let others: Vec<&DeviceArena> = arenas.filter(|arena| arena.id() != asking).collect();
    live_at(&others, || (!lanes::has_freed(device)).then_some(()))
}
