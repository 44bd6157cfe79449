//! Memory that is mapped, where calls about it fail, and where options want it back.

mod model;

use vramalloc_core::address::Bytes;
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::error::Code;
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

/// A program that names more than there is to export, which the driver would refuse.
#[test]
fn what_is_exported_ends_with_the_range() {
    let rig = Rig::new(&plain(StrategyKind::Mapped), Bytes::gib(1));
    let block = rig.get(Bytes::mib(8));
    for size in [Bytes::gib(2), Bytes::MAX] {
        rig.arena.note_exported(block, size);
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
