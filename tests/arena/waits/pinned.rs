//! What requests for pinned memory do not wait for: the driver serves beyond the pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vramalloc_core::address::Bytes;
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{PinnedConfig, StrategyKind};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::{AllocError, PinnedPlan};

use super::Accompanied;
use crate::rig::plain;

/// The work of others is not waited for where the cap of pinned memory is reached and
/// something live lies in every chunk: the driver serves beyond it, and nothing has failed.
#[test]
fn beyond_the_cap_of_pinned_memory_nobody_else_is_waited_for() {
    let config = plain(StrategyKind::AutoGrowth);
    let driver = Accompanied::new(&config, Bytes::gib(1));
    let pinned = PinnedConfig {
        fraction: 0.25,
        ..PinnedConfig::default()
    };
    let plan = Arc::new(PinnedPlan::new(&pinned, Bytes::gib(1)));
    let map = Arc::new(PageMap::new());
    let arena = Arena::pinned(ArenaId(1), driver, &config, &plan, map);
    for size in [Bytes::kib(500), Bytes::mib(3)] {
        let blocks: Vec<_> = std::iter::from_fn(|| arena.allocate(size).ok()).collect();
        for block in blocks.iter().step_by(2) {
            arena.free(*block).unwrap();
        }
        assert_eq!(arena.allocate(Bytes::mib(3)), Err(AllocError::Limit));
    }
    let driver = arena.driver();
    assert_eq!(driver.waits_for_other.load(Ordering::Relaxed), 0);
    assert_eq!(arena.stats().ooms, 0);
    arena.note_refusal(Bytes::mib(3));
    assert_eq!(arena.stats().ooms, 1);
}

/// While another context works, freed pinned memory waits for it up to what may lie idle,
/// a 64th of the host's; then the driver serves, whose free would not have waited.
#[test]
fn freed_pinned_memory_that_waits_for_others_is_bounded() {
    let config = plain(StrategyKind::AutoGrowth);
    let driver = Accompanied::new(&config, Bytes::gib(8));
    let pinned = PinnedConfig::default();
    let plan = Arc::new(PinnedPlan::new(&pinned, Bytes::gib(8)));
    let arena = Arena::pinned(ArenaId(1), driver, &config, &plan, Arc::new(PageMap::new()));
    let mut rounds = 0;
    while let Ok(block) = arena.allocate(Bytes::mib(1)) {
        arena.free(block).unwrap();
        rounds += 1;
        assert!(rounds < 1000, "{:?} reserved", arena.stats().reserved);
    }
    assert!(rounds > 128, "{rounds}");
    assert_eq!(arena.allocate(Bytes::mib(1)), Err(AllocError::Limit));
    assert_eq!(arena.stats().ooms, 0);
    let driver = arena.driver();
    assert_eq!(driver.waits_for_other.load(Ordering::Relaxed), 0);
}
