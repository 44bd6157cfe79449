//! Risk: what others ask of an arena makes the program wait, or takes memory
//! that it holds.

use std::sync::atomic::{AtomicU64, Ordering};

use vramalloc_core::address::Bytes;
use vramalloc_core::arena::{Arena, CallEnd};
use vramalloc_core::config::StrategyKind;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_model::{Gpu, Settings};

use crate::rig::{MS, Rig, plain, without_caches};

const DEVICE: Bytes = Bytes::mib(1000);
/// One of these in limbo is within its budget, two close a batch.
const BLOCK: Bytes = Bytes::mib(60);

fn rig() -> Rig {
    Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE)
}

/// Under this strategy, and where memory is mapped.
fn both() -> [Rig; 2] {
    [StrategyKind::AutoGrowth, StrategyKind::Mapped].map(|kind| Rig::new(&plain(kind), DEVICE))
}

#[test]
fn a_quiet_device_gets_idle_memory_back_at_once() {
    let rig = rig();
    let (kept, freed) = (rig.get(BLOCK), rig.get(BLOCK));
    rig.arena.free(freed).unwrap();
    assert_eq!(rig.arena.give_back_when_quiet(), BLOCK);
    assert_eq!(rig.gpu.used(0), BLOCK);
    assert_eq!(rig.arena.give_back_when_quiet(), Bytes::ZERO);
    rig.arena.free(kept).unwrap();
    rig.ends_clean();
}

/// Also where nothing lay idle when the limit was lowered.
#[test]
fn what_is_freed_beyond_a_lowered_limit_goes_back() {
    for rig in both() {
        let [kept, other, first, second] = [0; 4].map(|_| rig.get(BLOCK));
        let limit = BLOCK.saturating_add(BLOCK);
        rig.quota.set_limit(limit);
        assert_eq!(rig.arena.give_back_when_quiet(), Bytes::ZERO);
        // Two close a batch.
        for block in [first, second] {
            rig.arena.free(block).unwrap();
        }
        assert_eq!(rig.gpu.used(0), limit);
        // At the limit nothing goes back.
        for block in [kept, other] {
            rig.arena.free(block).unwrap();
        }
        assert_eq!(rig.gpu.used(0), limit);
        rig.ends_clean();
    }
}

/// It is not waited for, however long it will be busy. What the program frees
/// next gives memory back: CUDA's own free would wait there.
#[test]
fn a_busy_device_gets_it_back_when_the_program_frees() {
    both().iter().for_each(gets_it_back);
}

fn gets_it_back(rig: &Rig) {
    let [busy, other, freed] = [0; 3].map(|_| rig.get(BLOCK));
    rig.launch(busy, BLOCK, 500 * MS);
    rig.arena.free(freed).unwrap();
    let before = rig.gpu.now();
    assert_eq!(rig.arena.give_back_when_quiet(), Bytes::ZERO);
    // What is handed out and taken back without a driver call is none of it.
    let small = rig.get(Bytes::kib(4));
    rig.arena.free(small).unwrap();
    rig.arena.free(busy).unwrap();
    let waited = rig.gpu.now() - before;
    assert!(waited < MS, "{waited}");
    assert!(rig.is_ours(freed));
    // This one closes a batch.
    rig.arena.free(other).unwrap();
    assert!(rig.gpu.now() - before >= 400 * MS);
    assert!(
        ![busy, other, freed]
            .into_iter()
            .any(|block| rig.is_ours(block))
    );
    // Once.
    let again = rig.get(Bytes::mib(100));
    rig.arena.free(again).unwrap();
    assert!(rig.is_ours(again));
    rig.ends_clean();
}

#[test]
fn a_capture_is_not_disturbed_and_held_memory_stays() {
    let rig = rig();
    let freed = rig.get(BLOCK);
    rig.arena.free(freed).unwrap();
    rig.gpu.begin_capture(rig.stream);
    assert_eq!(rig.arena.give_back_when_quiet(), Bytes::ZERO);
    assert!(rig.gpu.end_capture(rig.stream), "the capture is invalid");
    rig.arena.hold(true);
    assert_eq!(rig.arena.give_back_when_quiet(), Bytes::ZERO);
    assert_eq!(rig.gpu.used(0), BLOCK);
    rig.arena.hold(false);
    rig.ends_clean();
}

#[test]
fn a_glance_is_what_the_statistics_say() {
    let rig = rig();
    let (one, other) = (rig.get(BLOCK), rig.get(Bytes::kib(4)));
    rig.arena.free(one).unwrap();
    rig.arena.flush();
    let (glance, stats) = (rig.arena.glance(), rig.arena.stats());
    assert_eq!(glance.live, stats.live.current);
    assert_eq!(glance.live_peak, stats.live.peak);
    assert_eq!(glance.reserved, stats.reserved.current);
    assert_eq!(glance.reserved_peak, stats.reserved.peak);
    let calls = rig.arena.driver_calls();
    let calls = [
        calls.alloc,
        calls.free,
        calls.mem_info,
        calls.fence,
        calls.reached,
        calls.wait,
    ];
    assert_eq!(
        glance.driver_calls,
        calls.iter().map(|call| call.calls).sum::<u64>()
    );
    rig.arena.free(other).unwrap();
    rig.ends_clean();
}

#[test]
fn calls_that_are_no_hits_are_followed_by_one_look() {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    static MOVES: AtomicU64 = AtomicU64::new(0);
    // How many there were, and how many of them after calls that took memory or gave
    // some back, or asked for it.
    fn looks() -> (u64, u64) {
        let swapped = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (swapped(&LOOKS), swapped(&MOVES))
    }
    let gpu = Gpu::new(Settings::default());
    let driver = gpu.driver(0).unwrap();
    let config = without_caches(StrategyKind::AutoGrowth);
    let quota = Quota::new(Bytes::MAX).into();
    let arena =
        Arena::new(ArenaId(0), driver, &config, PageMap::new().into(), quota).followed_by(|end| {
            LOOKS.fetch_add(1, Ordering::Relaxed);
            MOVES.fetch_add(u64::from(end == CallEnd::Moved), Ordering::Relaxed);
        });
    let get = || arena.allocate(Bytes::kib(4)).unwrap();
    let first = get();
    assert_eq!(looks(), (1, 1));
    let mut blocks: Vec<_> = (0..63).map(|_| get()).collect();
    assert_eq!(looks(), (0, 0));
    blocks
        .drain(..)
        .for_each(|block| arena.free(block).unwrap());
    assert_eq!(looks(), (0, 0));
    // The free that closes the batch.
    arena.free(first).unwrap();
    assert_eq!(looks(), (1, 0));
    arena.mem_info().unwrap();
    assert_eq!(looks(), (1, 1));
    arena.trim();
    assert_eq!(looks(), (1, 1));
}
