//! The options of an arena. Cost: a copy of them for each arena.

use vramalloc_core::arena::Watch;
use vramalloc_core::config::{Config, FreeSync, OomReport, Settings, StrategyKind};

use super::Asking;
use crate::real::reach;
use crate::stacks;

/// The options of an arena. If the library was only loaded for the C API, by
/// `dlopen`, we do not hear when a capture begins, and a fence could break one:
/// then every call goes to the driver.
pub(super) fn config(config: &Config, asking: Asking) -> Config {
    let mut config = config.clone();
    if asking == Asking::Api && !reach::is_in_front() {
        config.strategy = StrategyKind::Passthrough;
        config.free_sync = FreeSync::Deferred;
    }
    config
}

/// What the options ask to keep of an arena's past.
pub(super) fn watch(settings: &Settings) -> Watch {
    Watch {
        events: settings.trace_events,
        ooms: settings.oom_report != OomReport::Off,
        blocks: true,
        stacks: stacks::watch(settings),
        // Begun where nothing is held.
        recording: None,
    }
}
