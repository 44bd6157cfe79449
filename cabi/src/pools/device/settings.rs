//! What the arenas of contexts obey.
//!
//! Owns nothing. Cost: a copy of the options for each arena.

use vramalloc_core::arena::Watch;
use vramalloc_core::config::{Config, FreeSync, OomReport, Settings, StrategyKind};

use super::Asking;
use crate::linker::stacks;
use crate::real::reach;

/// What an arena obeys. Where the library was only loaded for the C API, by
/// `dlopen`, nobody tells us when a capture begins, and a fence could break
/// one: then every call is the driver's.
pub(super) fn config(config: &Config, asking: Asking) -> Config {
    let mut config = config.clone();
    if asking == Asking::Api && !reach::is_in_front() {
        config.strategy = StrategyKind::Passthrough;
        config.free_sync = FreeSync::Deferred;
    }
    config
}

/// What the options want to be kept of an arena's past.
pub(super) fn watch(settings: &Settings) -> Watch {
    Watch {
        events: settings.trace_events,
        ooms: settings.oom_report != OomReport::Off,
        blocks: true,
        call_stack: (settings.oom_report == OomReport::Full).then_some(stacks::take),
    }
}
