//! Reports of all arenas that there have been, lanes too.
//!
//! Owns the list of arenas whose blocks and events are kept although their
//! contexts have ended: the newest ones, so that a program that makes and ends
//! contexts for ever needs host memory for the last ones alone. Cost: a copy of
//! every arena's counters.

use std::collections::VecDeque;
use std::sync::Arc;

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::{ArenaReport, MOST_BLOCKS, sum_up};

use super::{DeviceArena, DevicePool, POOLS};
use crate::pools::host_memory;

/// How many arenas of ended contexts are reported block by block: more than the
/// contexts that end together with a process.
const MOST_ENDS: usize = 64;

/// The newest is last; with the number of blocks of each.
static ENDS: SpinMutex<VecDeque<(Arc<DeviceArena>, u64)>, Brief> = SpinMutex::new(VecDeque::new());

/// Keeps the ends of a context's arena and lanes; forgets surplus older ones.
pub(super) fn keep_the_end(own: &Arc<DeviceArena>, lanes: Vec<Arc<DeviceArena>>) {
    for arena in lanes.into_iter().chain([Arc::clone(own)]) {
        let blocks = arena.blocks_at_the_end();
        ENDS.lock().push_back((arena, blocks));
        while let Some((old, _)) = take_surplus() {
            old.forget_the_end();
        }
    }
}

/// Takes out the oldest if there are too many; never the newest.
fn take_surplus() -> Option<(Arc<DeviceArena>, u64)> {
    let mut ends = ENDS.lock();
    let blocks = ends
        .iter()
        .map(|(_, blocks)| blocks)
        .fold(0u64, |sum, n| sum.saturating_add(*n));
    let surplus = ends.len() > MOST_ENDS || (blocks > MOST_BLOCKS && ends.len() > 1);
    surplus.then(|| ends.pop_front()).flatten()
}

/// A report of every arena there has been that was asked for anything; arenas
/// of many ended contexts are summed up.
pub(crate) fn reports() -> Vec<ArenaReport> {
    let devices = POOLS.all().map(|pool| ArenaReport {
        device: ordinal(pool),
        device_name: pool.device.name.clone(),
        device_total: pool.device.total,
        lane: pool.is_lane(),
        strategy: pool.arena.strategy_in_force(),
        region: pool.tag().map(|tag| tag.to_string_lossy().into_owned()),
        not_mapped: pool.arena.not_mapped(),
        not_packed: pool.arena.not_packed(),
        not_kept: pool.arena.not_kept(),
        stats: pool.arena.stats(),
        calls: pool.arena.driver_calls(),
        ooms: pool.arena.ooms(),
        ..ArenaReport::default()
    });
    let all = devices.chain(host_memory::reports());
    sum_up(all.filter(ArenaReport::has_allocated))
}

/// Every arena there has been, with its device's ordinal.
pub(crate) fn arenas() -> impl Iterator<Item = (u32, &'static DeviceArena)> {
    POOLS.all().map(|pool| (ordinal(pool), &*pool.arena))
}

fn ordinal(pool: &DevicePool) -> u32 {
    u32::try_from(pool.device.handle).unwrap_or(0)
}
