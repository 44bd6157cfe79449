//! Every arena of the process, block by block. Cost: each arena's lock for a
//! few ns a block. Host memory for it is bounded, except by the number of
//! events that was asked for.

use vramalloc_core::stats::{MOST_BLOCKS, Snapshot, Snapshots};

use crate::pools::device;
use crate::pools::device::DeviceArena;

/// The snapshots of all arenas there have been. If there are too many blocks, or the host has no
/// memory for them, only the events of the arenas; ended contexts have a bound
/// of their own.
pub(crate) fn take() -> Snapshots {
    let all = |take: fn(&DeviceArena) -> Option<Snapshot>| {
        device::arenas().map(move |(device, arena)| Some((device, take(arena)?)))
    };
    let count =
        |of: fn(&DeviceArena) -> u64| device::arenas().map(|(_, arena)| of(arena)).sum::<u64>();
    let blocks = count(DeviceArena::block_count);
    let whole: Option<Vec<(u32, Snapshot)>> = (blocks <= MOST_BLOCKS)
        .then(|| all(DeviceArena::snapshot).collect())
        .flatten();
    let left_out = whole.is_none();
    let mut arenas = whole.unwrap_or_else(|| all(DeviceArena::events).flatten().collect());
    arenas.retain(|(_, snapshot)| !snapshot.forgotten || !snapshot.events.is_empty());
    Snapshots {
        blocks: blocks.saturating_add(count(DeviceArena::blocks_at_the_end)),
        left_out,
        arenas,
    }
}
