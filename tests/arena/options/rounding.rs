//! `roundup_power2_divisions` and `roundup_bypass_threshold_mb`.

use vramalloc_core::address::Bytes;
use vramalloc_core::config::{Config, Rounding, StrategyKind};
use vramalloc_core::stats::size_class;
use vramalloc_model::Call;

use crate::rig::{Rig, plain};

const MIB: u64 = 1 << 20;

fn divided(divisions: u32) -> Config {
    Config {
        rounding: Rounding {
            divisions: [divisions; 16],
            bypass: None,
        },
        ..plain(StrategyKind::AutoGrowth)
    }
}

/// The size of the block that a request gets.
fn block(rig: &Rig, request: u64) -> u64 {
    let address = rig.get(Bytes::new(request));
    let size = rig.arena.locate(address).unwrap().size;
    rig.arena.free(address).unwrap();
    size.get()
}

#[test]
fn blocks_have_the_worked_sizes() {
    for (divisions, sizes) in [
        (0, [1536, 1_049_088, 5_243_392, 104_858_112]),
        (2, [1536, 1_572_864, 6_291_456, 134_217_728]),
        (4, [1536, 1_310_720, 6_291_456, 117_440_512]),
        (8, [1536, 1_179_648, 5_767_168, 109_051_904]),
        (16, [1536, 1_114_112, 5_505_024, 109_051_904]),
    ] {
        let rig = Rig::new(&divided(divisions), Bytes::gib(1));
        let requests = [1200, MIB + 1, 5 * MIB + 3, 100 * MIB + 1];
        assert_eq!(requests.map(|n| block(&rig, n)), sizes, "{divisions}");
        rig.ends_clean();
    }
}

#[test]
fn the_statistics_have_the_block_and_the_request() {
    let rig = Rig::new(&divided(8), Bytes::gib(1));
    let request = Bytes::new(MIB + 1);
    let address = rig.get(request);
    let stats = rig.arena.stats();
    assert_eq!(stats.live.current, Bytes::new(1_179_648));
    assert_eq!(stats.classes[size_class(request)].requested, MIB + 1);
    rig.arena.free(address).unwrap();
    rig.ends_clean();
}

/// What it is for: sizes that differ a little take turns in one block. Without
/// it a block that is in the way of the next size stays cut.
#[test]
fn sizes_that_differ_a_little_reuse_one_block() {
    let run = |config: &Config| {
        let rig = Rig::new(config, Bytes::gib(8));
        let mut kept = Vec::new();
        for step in 0..50 {
            let request = Bytes::new((64 * MIB + 1) + step * 137_777 % (7 * MIB));
            let address = rig.get(request);
            rig.arena.free(address).unwrap();
            // Something that lives longer comes in between.
            kept.push(rig.get(Bytes::mib(2)));
        }
        let peak = rig.arena.stats().reserved.peak;
        kept.into_iter()
            .for_each(|address| rig.arena.free(address).unwrap());
        rig.ends_clean();
        (peak, rig.gpu.calls(Call::Alloc))
    };
    let (plain, rounded) = (run(&divided(0)), run(&divided(8)));
    assert!(rounded < plain, "{rounded:?} against {plain:?}");
}

#[test]
fn above_the_bypass_nothing_is_rounded() {
    let mut config = divided(8);
    config.rounding.bypass = Some(Bytes::mib(50));
    let rig = Rig::new(&config, Bytes::gib(1));
    assert_eq!(block(&rig, 49 * MIB), 52 * MIB);
    assert_eq!(block(&rig, 50 * MIB), 52 * MIB);
    assert_eq!(block(&rig, 50 * MIB + 1), 50 * MIB + 512);
    rig.ends_clean();
}

/// Rounding is for the sake of the next request. What the driver gives for one
/// request alone is not rounded.
#[test]
fn an_allocation_of_its_own_is_not_rounded() {
    let dedicated = Config {
        dedicated_min: Some(Bytes::mib(64)),
        ..divided(2)
    };
    let passthrough = Config {
        strategy: StrategyKind::Passthrough,
        ..divided(2)
    };
    for config in [dedicated, passthrough] {
        let rig = Rig::new(&config, Bytes::gib(1));
        assert_eq!(block(&rig, 65 * MIB), 65 * MIB);
        assert_eq!(rig.gpu.peak(0), Bytes::mib(66));
        rig.ends_clean();
    }
}

#[test]
fn a_request_does_not_fail_because_it_was_rounded() {
    let rig = Rig::new(&divided(2), Bytes::mib(80));
    // 96 MiB, of which there are only 80.
    let address = rig.get(Bytes::mib(65));
    assert_eq!(rig.gpu.used(0), Bytes::mib(66));
    rig.arena.free(address).unwrap();
    // Nor where what was freed is all there is.
    assert_eq!(block(&rig, 65 * MIB), 65 * MIB);
    assert_eq!(rig.arena.stats().ooms, 0);
    rig.ends_clean();
}
