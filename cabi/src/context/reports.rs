//! What is told of all arenas that there have been, lanes too.
//!
//! Owns nothing. Cost: a copy of every arena's counters.

use core_arena::stats::ArenaReport;

use super::{Arena, HOMES, Home};
use crate::host_memory;

/// A report of every arena there has been.
pub(crate) fn reports() -> Vec<ArenaReport> {
    HOMES
        .all()
        .map(|home| ArenaReport {
            device: ordinal(home),
            device_name: home.device.name.clone(),
            device_total: home.device.total,
            pinned: None,
            pageable: false,
            lane: home.is_lane(),
            stats: home.arena.stats(),
            calls: home.arena.driver_calls(),
            ooms: home.arena.ooms(),
        })
        .chain(host_memory::reports())
        .collect()
}

/// Every arena there has been, with its device's ordinal.
pub(crate) fn arenas() -> impl Iterator<Item = (u32, &'static Arena)> {
    HOMES.all().map(|home| (ordinal(home), &*home.arena))
}

fn ordinal(home: &Home) -> u32 {
    u32::try_from(home.device.handle).unwrap_or(0)
}
