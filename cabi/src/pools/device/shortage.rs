//! The line that is printed when memory runs out.

use vramalloc_core::Bytes;
use vramalloc_core::config::{OomReport, StrategyKind};
use vramalloc_core::stats::OomEvent;

use super::DeviceArena;
use crate::process::options;
use crate::process::say::{Once, first, warn};

/// Prints once that memory ran out, why, and how the arena stood, unless
/// `oom_report` is off.
pub(crate) fn out_of_memory(arena: &DeviceArena, request: Bytes, why: &str) {
    let wanted = options(|loaded| loaded.settings.oom_report != OomReport::Off);
    if !wanted || !first(Once::OutOfMemory) {
        return;
    }
    let ooms = arena.ooms();
    let event = ooms.events().rev().find(|event| event.request == request);
    let stood = event.map_or_else(String::new, stood);
    warn(&format!(
        "out of memory: {request} asked for and {why}{stood}; said once, the statistics tell \
         the rest"
    ));
}

/// What memory there was, which could not serve the request.
fn stood(event: &OomEvent) -> String {
    let before = &event.before;
    let (free, enough) = (event.free_in_sum(), event.is_fragmented());
    let strategy = options(|loaded| loaded.settings.config.strategy);
    let stacked = enough && strategy == StrategyKind::NaiveBestFit;
    format!(
        "; {} reserved when it was asked for, of it {} live, {} cached (largest block {}), {} \
         still in use by the GPU; {free} free in the end, {}{}",
        before.reserved,
        before.live,
        before.cached,
        before.largest_cached,
        before.limbo,
        if enough {
            "enough but not in one piece"
        } else {
            "too little"
        },
        if stacked {
            " (naive_best_fit holds most of the device in one chunk, and a second pool of that \
             kind, the program's own, does not fit into it: set strategy:auto_growth)"
        } else {
            ""
        },
    )
}
