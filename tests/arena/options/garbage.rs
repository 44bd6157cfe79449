//! Batches of freed memory: `eager_delete_tensor_gb`,
//! `memory_fraction_of_eager_deletion`.

use vramalloc_core::address::Bytes;
use vramalloc_core::config::{Config, GarbageThreshold, StrategyKind};
use vramalloc_model::Call;

use crate::rig::{Rig, plain};

const DEVICE: Bytes = Bytes::gib(1);

fn batches(threshold: GarbageThreshold, fraction: f64) -> Config {
    Config {
        garbage_threshold: threshold,
        garbage_fraction: fraction,
        ..plain(StrategyKind::AutoGrowth)
    }
}

/// Frees blocks of so many MiB one after the other; fences made, and MiB in
/// limbo, after each.
fn freed<const N: usize>(config: &Config, sizes: [u64; N]) -> [(u64, u64); N] {
    let rig = Rig::new(config, DEVICE);
    let blocks = sizes.map(|mib| rig.get(Bytes::mib(mib)));
    let made = rig.gpu.calls(Call::Fence);
    let after = blocks.map(|block| {
        rig.arena.free(block).unwrap();
        let limbo = rig.arena.stats().limbo.current.get() >> 20;
        (rig.gpu.calls(Call::Fence) - made, limbo)
    });
    rig.ends_clean();
    after
}

#[test]
fn a_batch_closes_when_the_sum_reaches_the_threshold() {
    let hundred = GarbageThreshold::Bytes(Bytes::mib(100));
    assert_eq!(
        freed(&batches(hundred, 1.0), [60, 39, 2, 99, 1]),
        [(0, 60), (0, 99), (1, 0), (1, 99), (2, 0)]
    );
    // In Paddle zero is every free; here a fence is shared by some.
    assert_eq!(
        freed(&batches(GarbageThreshold::NextOpportunity, 1.0), [60, 3, 1]),
        [(0, 60), (0, 63), (1, 0)]
    );
    assert_eq!(
        freed(&batches(GarbageThreshold::Pressure, 1.0), [60, 60, 60]),
        [(0, 60), (0, 120), (0, 180)]
    );
}

#[test]
fn of_a_batch_the_largest_go_up_to_the_fraction() {
    let hundred = GarbageThreshold::Bytes(Bytes::mib(100));
    assert_eq!(
        freed(&batches(hundred, 0.5), [10, 40, 20, 30, 70, 30]),
        // Half of 100 are 40 and 30, of which the last passes it. The sum
        // begins anew: 70 are too little, and with 30 more there are 130
        // together, of which 70 are more than half.
        [(0, 10), (0, 50), (0, 70), (1, 30), (1, 100), (2, 60)]
    );
    assert_eq!(
        freed(&batches(hundred, 0.0), [60, 60, 60]),
        [(0, 60), (0, 120), (0, 180)]
    );
}

/// What waits for a batch is there when memory is short.
#[test]
fn memory_that_is_needed_waits_for_no_batch() {
    for config in [
        batches(GarbageThreshold::Pressure, 1.0),
        batches(GarbageThreshold::Bytes(Bytes::gib(4)), 1.0),
        batches(GarbageThreshold::NextOpportunity, 0.0),
    ] {
        let rig = Rig::new(&config, DEVICE);
        let blocks = [0; 10].map(|_| rig.get(Bytes::mib(100)));
        for block in blocks {
            rig.arena.free(block).unwrap();
        }
        let block = rig.get(Bytes::mib(1000));
        rig.arena.free(block).unwrap();
        assert_eq!(rig.arena.stats().ooms, 0);
        rig.ends_clean();
    }
}
