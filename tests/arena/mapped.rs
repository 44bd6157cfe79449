//! Memory that is mapped, where calls about it fail, and where options want it back.

mod model;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use vramalloc_core::Arena;
use vramalloc_core::address::Bytes;
use vramalloc_core::config::{Config, DeviceShare, StrategyKind};
use vramalloc_core::error::Code;
use vramalloc_core::page_map::ArenaId;
use vramalloc_core::quota::Quota;
use vramalloc_core::stats::Metric;
use vramalloc_model::Call;

use crate::rig::{MS, Rig, plain};

/// What was mapped before a call fails stays: nothing is unmapped while a stream captures.
#[test]
fn a_capture_in_which_mapping_fails_stays_valid() {
    for call in [Call::Map, Call::Admit] {
        let rig = Rig::new(&plain(StrategyKind::Mapped), Bytes::gib(1));
        let held = rig.get(Bytes::mib(1));
        rig.gpu.begin_capture(rig.stream);
        rig.gpu
            .fail_nth(call, if call == Call::Map { 3 } else { 1 }, Code::UNKNOWN);
        let block = rig.get(Bytes::mib(8));
        assert!(rig.gpu.end_capture(rig.stream), "{call:?}");
        assert_eq!(rig.gpu.violations(), []);
        rig.arena.validate().unwrap();
        assert_eq!(rig.arena.strategy_in_force(), StrategyKind::Mapped);
        rig.arena.free(held).unwrap();
        rig.arena.free(block).unwrap();
    }
}

/// Units are small blocks' and large ones' in turn: the driver hears of neither.
#[test]
fn a_unit_that_changes_sides_is_not_taken_from_the_driver() {
    let rig = Rig::new(&plain(StrategyKind::Mapped), Bytes::mib(64));
    for _ in 0..20 {
        let blocks: Vec<_> = (0..20_000).map(|_| rig.get(Bytes::new(1536))).collect();
        blocks
            .into_iter()
            .for_each(|block| rig.arena.free(block).unwrap());
        let large = rig.get(Bytes::mib(50));
        rig.arena.free(large).unwrap();
    }
    let memory = rig.arena.stats().memory;
    let segments = memory.all[Metric::Segment];
    assert_eq!(memory.num_device_alloc, rig.gpu.calls(Call::Create));
    assert_eq!(segments.allocated - segments.freed, segments.current);
    rig.ends_clean();
}

/// A program that names more than there is to export, which the driver would refuse.
#[test]
fn what_is_exported_ends_with_the_range() {
    let rig = Rig::new(&plain(StrategyKind::Mapped), Bytes::gib(1));
    let block = rig.get(Bytes::mib(8));
    for size in [Bytes::gib(2), Bytes::MAX] {
        rig.export(block, size);
    }
    rig.arena.free(block).unwrap();
    rig.ends_clean();
}

/// Memory that was created for a window and cannot be mapped is in nobody's way.
#[test]
fn where_nothing_more_can_be_mapped_plain_memory_serves() {
    for code in [Code::OUT_OF_MEMORY, Code::UNKNOWN] {
        for call in [Call::Reserve, Call::Create, Call::Map, Call::Admit] {
            let rig = Rig::new(&plain(StrategyKind::Mapped), Bytes::mib(512));
            let small = rig.get(Bytes::mib(8));
            if call == Call::Reserve {
                rig.arena.free(small).unwrap();
                rig.arena.trim();
            }
            rig.gpu.fail_randomly(call, 1000, code);
            let large = rig.arena.allocate(Bytes::mib(400));
            assert!(large.is_ok(), "{call:?} {code:?}: {large:?}");
            rig.gpu.end_faults();
            if call != Call::Reserve {
                rig.arena.free(small).unwrap();
            }
            rig.arena.free(large.unwrap()).unwrap();
            rig.ends_clean();
        }
    }
}

/// Whole units that are free go where idle chunks would.
#[test]
fn idle_units_go_before_more_is_taken() {
    let mapped = plain(StrategyKind::Mapped);
    let spare = Config {
        free_when_no_cache_hit: true,
        ..mapped.clone()
    };
    let threshold = Config {
        garbage_collection_threshold: Some(0.1),
        ..mapped.clone()
    };
    for (config, used) in [(mapped, 380), (spare, 350), (threshold, 350)] {
        let rig = Rig::new(&config, Bytes::gib(1));
        let [low, between, high] = [100; 3].map(|mib| rig.get(Bytes::mib(mib)));
        rig.arena.free(between).unwrap();
        rig.arena.flush();
        let more = rig.get(Bytes::mib(150));
        assert_eq!(rig.gpu.used(0), Bytes::mib(used), "{config:?}");
        for block in [low, high, more] {
            rig.arena.free(block).unwrap();
        }
        rig.ends_clean();
    }
}

/// What stealing has scattered is in one piece when the program starts anew, however few
/// blocks it freed at last.
#[test]
fn what_was_stolen_is_brought_together_by_the_last_free() {
    let rig = Rig::new(&plain(StrategyKind::Mapped), Bytes::mib(64));
    let [low, between, high] = [20; 3].map(|mib| rig.get(Bytes::mib(mib)));
    rig.arena.free(low).unwrap();
    rig.arena.free(high).unwrap();
    let scattered = rig.get(Bytes::mib(38));
    assert!(rig.gpu.calls(Call::Unmap) > 0);
    rig.arena.free(between).unwrap();
    rig.arena.free(scattered).unwrap();
    let calls = [Call::Map, Call::Unmap].map(|call| rig.gpu.calls(call));
    let whole = rig.get(Bytes::mib(58));
    let after = [Call::Map, Call::Unmap].map(|call| rig.gpu.calls(call));
    assert_eq!(calls, after);
    rig.arena.free(whole).unwrap();
    rig.ends_clean();
}

/// What a limit leaves of a large device is no larger than a small device.
#[test]
fn units_are_as_small_as_the_limit_asks_for() {
    let limit = Some(DeviceShare::Bytes(Bytes::mib(10)));
    for limit in [None, limit] {
        let config = Config {
            limit,
            ..plain(StrategyKind::Mapped)
        };
        let rig = Rig::new(&config, Bytes::gib(200));
        let blocks = [100, 4 << 20, 4 << 20].map(|size| rig.get(Bytes::new(size)));
        for block in blocks {
            rig.arena.free(block).unwrap();
        }
        rig.ends_clean();
    }
}

/// A free waits, as the driver's own does, where nothing idle is to be kept.
#[test]
fn idle_units_go_with_the_free_that_makes_them_idle() {
    let config = Config {
        free_idle_chunk: true,
        ..plain(StrategyKind::Mapped)
    };
    let rig = Rig::new(&config, Bytes::gib(1));
    let block = rig.get(Bytes::mib(40));
    rig.launch(block, Bytes::mib(40), 50 * MS);
    let end = rig.gpu.tail(rig.arena.driver().context());
    rig.arena.free(block).unwrap();
    assert_eq!(rig.gpu.used(0), Bytes::ZERO);
    assert!(rig.gpu.now() >= end);
    rig.ends_clean();
}

/// Threads miss, free, trim and move the limit while the context ends under them: nothing
/// is left of what any of them had in its hands.
#[test]
fn what_threads_have_in_their_hands_goes_with_the_context() {
    for round in 0..24u64 {
        let rig = Rig::new(&plain(StrategyKind::Mapped), Bytes::mib(192));
        let quota = Arc::new(Quota::new(Bytes::MAX));
        let driver = rig.gpu.driver(0).unwrap();
        let arena = Arena::new(
            ArenaId(1),
            driver,
            &plain(StrategyKind::Mapped),
            Arc::clone(&rig.map),
            Arc::clone(&quota),
        );
        thread::scope(|scope| {
            for me in 0..3u64 {
                let (arena, quota) = (&arena, &quota);
                scope.spawn(move || {
                    let mut held = VecDeque::new();
                    for n in 0..300 * (round % 4 + 1) {
                        let size = (n * 7_919 + me * 104_729) * 1_009 % (40 << 20) + 1;
                        held.extend(arena.allocate(Bytes::new(size)));
                        if held.len() > 3
                            && let Some(block) = held.pop_front()
                        {
                            // Once the context has ended nobody knows it.
                            let _freed = arena.free(block);
                        }
                        match n % 16 {
                            3 => drop(arena.trim()),
                            7 => quota.set_limit(Bytes::mib(64 + n % 128)),
                            11 => quota.set_limit(Bytes::MAX),
                            _ => {}
                        }
                    }
                });
            }
            thread::sleep(Duration::from_micros(round * 700));
            arena.retire();
        });
        assert_eq!(rig.gpu.units_and_reservations().0, 0, "units");
        // Plain memory, which memory that was short led to, goes with it by itself.
        rig.gpu.destroy_context(arena.driver().context());
        assert_eq!(rig.gpu.used(0), Bytes::ZERO);
        assert_eq!(quota.reserved(), Bytes::ZERO);
        assert_eq!(rig.gpu.violations(), []);
    }
}
