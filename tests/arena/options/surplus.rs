//! What gives memory back before it is short: `garbage_collection_threshold`,
//! `free_idle_chunk`, `free_when_no_cache_hit`, `decay_ms`.

use std::thread::sleep;
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, Decay, DeviceShare, FreeSync, StrategyKind};
use vramalloc_model::Call;

use crate::rig::{MS, Rig, plain};

const DEVICE: Bytes = Bytes::mib(1000);
const HUNDRED: Bytes = Bytes::mib(100);

fn growing() -> Config {
    plain(StrategyKind::AutoGrowth)
}

fn used(rig: &Rig) -> u64 {
    rig.gpu.used(0).get() >> 20
}

fn free(rig: &Rig, block: Address) {
    rig.arena.free(block).unwrap();
    rig.arena.flush();
}

fn collecting(threshold: f64) -> Config {
    Config {
        garbage_collection_threshold: Some(threshold),
        ..growing()
    }
}

/// Six chunks of 100 MiB, freed in the order 3, 1, 4, 0, 5, 2.
fn six_chunks(config: &Config) -> (Rig, [Address; 6]) {
    let rig = Rig::new(config, DEVICE);
    let chunks = [0; 6].map(|_| rig.get(HUNDRED));
    for n in [3, 1, 4, 0, 5, 2] {
        free(&rig, chunks[n]);
    }
    (rig, chunks)
}

#[test]
fn the_oldest_idle_memory_goes_until_the_threshold_is_reached() {
    // 600 of 1000 MiB are reserved; 102 MiB find no block.
    for (threshold, gone) in [
        (0.9, &[][..]),
        (0.6, &[]),
        (0.5, &[3]),
        // Above 495 by 105: one chunk is not enough.
        (0.495, &[3, 1]),
        (0.25, &[3, 1, 4, 0]),
        (0.01, &[3, 1, 4, 0, 5, 2]),
    ] {
        let (rig, chunks) = six_chunks(&collecting(threshold));
        let block = rig.get(Bytes::mib(102));
        let left = 6 - gone.len() as u64;
        assert_eq!(used(&rig), left * 100 + 102, "{threshold}");
        for (n, &chunk) in chunks.iter().enumerate() {
            // The new chunk may lie where old ones did.
            let covered = chunk >= block && chunk.offset_from(block) < Bytes::mib(102);
            if !covered {
                assert_eq!(rig.is_ours(chunk), !gone.contains(&n), "{threshold}: {n}");
            }
        }
        rig.arena.free(block).unwrap();
        rig.ends_clean();
    }
}

#[test]
fn the_threshold_is_of_the_limit_where_there_is_one() {
    let limited = Config {
        limit: Some(DeviceShare::Bytes(Bytes::mib(800))),
        ..collecting(0.7)
    };
    // 700 of the device are more than there are; 560 of the limit are not.
    for (config, left) in [(collecting(0.7), 6), (limited, 5)] {
        let (rig, _) = six_chunks(&config);
        let block = rig.get(Bytes::mib(102));
        assert_eq!(used(&rig), left * 100 + 102);
        rig.arena.free(block).unwrap();
        rig.ends_clean();
    }
}

#[test]
fn a_chunk_is_young_again_when_it_was_used() {
    let (rig, chunks) = six_chunks(&collecting(0.5));
    // 3 was the oldest.
    assert!((0..6).map(|_| rig.get(HUNDRED)).any(|b| b == chunks[3]));
    for n in [1, 4, 0, 5, 2, 3] {
        free(&rig, chunks[n]);
    }
    let block = rig.get(Bytes::mib(102));
    assert!(rig.is_ours(chunks[3]));
    assert_eq!(used(&rig), 602);
    rig.arena.free(block).unwrap();
    rig.ends_clean();
}

#[test]
fn garbage_is_neither_what_is_in_use_nor_small() {
    let config = Config {
        limbo_budget: Some(DeviceShare::Bytes(DEVICE)),
        ..collecting(0.01)
    };
    let rig = Rig::new(&config, DEVICE);
    let [held, cut, limbo, small] =
        [HUNDRED, HUNDRED, HUNDRED, Bytes::new(512)].map(|size| rig.get(size));
    free(&rig, cut);
    let piece = rig.get(Bytes::mib(1 + 1));
    assert_eq!(rig.allocation(piece), cut);
    free(&rig, small);
    rig.launch(limbo, HUNDRED, 1000 * MS);
    rig.arena.free(limbo).unwrap();
    let now = rig.gpu.now();
    let block = rig.get(Bytes::mib(102));
    assert_eq!(used(&rig), 300 + 2 + 102);
    assert!(rig.gpu.now() < now + 500 * MS, "it waited for the device");
    for block in [held, piece, block] {
        rig.arena.free(block).unwrap();
    }
    rig.ends_clean();
}

fn decaying(after: Duration) -> Config {
    Config {
        decay: Decay::After(after),
        ..growing()
    }
}

const HOUR: Duration = Duration::from_secs(3600);
const MOMENT: Duration = Duration::from_millis(20);

#[test]
fn idle_memory_goes_back_at_the_next_opportunity() {
    let opportunities: [fn(&Rig); 4] = [
        |rig| rig.arena.flush(),
        |rig| {
            let _info = rig.arena.mem_info();
        },
        // A miss.
        |rig| {
            rig.get(Bytes::mib(102));
        },
        // A free that fills a batch.
        |rig| {
            let blocks: Vec<_> = (0..64).map(|_| rig.get(Bytes::new(512))).collect();
            for block in blocks {
                rig.arena.free(block).unwrap();
            }
        },
    ];
    for opportunity in opportunities {
        for (after, gone) in [(HOUR, 0), (MOMENT, 1)] {
            let rig = Rig::new(&decaying(after), DEVICE);
            let (block, slab) = (rig.get(HUNDRED), rig.get(Bytes::new(512)));
            free(&rig, block);
            sleep(2 * MOMENT);
            assert_eq!(used(&rig), 102, "no opportunity");
            opportunity(&rig);
            assert_eq!(rig.arena.stats().chunks_released, gone);
            assert!(rig.is_ours(slab), "in use");
        }
    }
}

#[test]
fn every_chunk_has_its_own_time() {
    let rig = Rig::new(&decaying(Duration::from_secs(3)), DEVICE);
    let old = rig.get(HUNDRED);
    let young = rig.get(HUNDRED);
    free(&rig, old);
    sleep(Duration::from_secs(2));
    free(&rig, young);
    assert!(rig.is_ours(young) && rig.is_ours(old));
    sleep(Duration::from_secs(2));
    rig.arena.flush();
    assert!(rig.is_ours(young) && !rig.is_ours(old));
    sleep(Duration::from_millis(1500));
    rig.arena.flush();
    assert!(!rig.is_ours(young));
    rig.ends_clean();
}

#[test]
fn nothing_goes_back_during_a_capture() {
    let at_once = Config {
        free_idle_chunk: true,
        ..growing()
    };
    let on_miss = Config {
        free_when_no_cache_hit: true,
        ..growing()
    };
    for config in [decaying(MOMENT), at_once, on_miss, collecting(0.01)] {
        let config = Config {
            // No free waits for what is in limbo.
            limbo_budget: Some(DeviceShare::Bytes(DEVICE)),
            ..config
        };
        let rig = Rig::new(&config, DEVICE);
        let (cached, block) = (rig.get(HUNDRED), rig.get(HUNDRED));
        if !config.free_idle_chunk {
            rig.arena.free(cached).unwrap();
        }
        rig.gpu.begin_capture(rig.stream);
        rig.arena.free(block).unwrap();
        sleep(2 * MOMENT);
        rig.arena.flush();
        let other = rig.get(Bytes::mib(102));
        assert_eq!(used(&rig), 302);
        assert_eq!(rig.gpu.calls(Call::Free), 0);
        assert!(rig.gpu.end_capture(rig.stream));
        free(&rig, other);
        sleep(2 * MOMENT);
        rig.arena.flush();
        rig.get(Bytes::mib(110));
        let held = if config.free_idle_chunk { 100 } else { 0 };
        assert_eq!(used(&rig), 110 + held, "{config:?}");
    }
}

#[test]
fn an_idle_chunk_goes_with_the_free_that_makes_it_idle() {
    for free_sync in [FreeSync::Deferred, FreeSync::Strict, FreeSync::Immediate] {
        let config = Config {
            free_idle_chunk: true,
            auto_growth_chunk: HUNDRED,
            free_sync,
            ..growing()
        };
        let rig = Rig::new(&config, DEVICE);
        let (first, second) = (rig.get(Bytes::mib(40)), rig.get(Bytes::mib(40)));
        rig.launch(first, Bytes::mib(40), 50 * MS);
        rig.arena.free(first).unwrap();
        assert_eq!(used(&rig), 100, "the other block is live");
        rig.arena.free(second).unwrap();
        assert_eq!(used(&rig), 0);
        let end = rig.gpu.tail(rig.arena.driver().context());
        assert!(rig.gpu.now() >= end, "the driver's free waits");
        rig.ends_clean();
    }
}

#[test]
fn idle_chunks_go_before_another_is_taken() {
    for (config, left) in [
        (growing(), 1),
        (
            Config {
                free_when_no_cache_hit: true,
                ..growing()
            },
            0,
        ),
    ] {
        let rig = Rig::new(&config, DEVICE);
        let block = rig.get(HUNDRED);
        free(&rig, block);
        // A hit gives nothing back.
        assert_eq!(rig.get(HUNDRED), block);
        free(&rig, block);
        assert_eq!(used(&rig), 100);
        let larger = rig.get(Bytes::mib(102));
        assert_eq!(used(&rig), left * 100 + 102);
        assert_eq!(rig.gpu.peak(0), Bytes::mib(left * 100 + 102));
        rig.arena.free(larger).unwrap();
        rig.ends_clean();
    }
}

/// What can be given back went before the driver was asked: asking it the same
/// again is of no use.
#[test]
fn without_a_cache_the_driver_is_asked_once() {
    let asked = |config: &Config| {
        let rig = Rig::new(config, DEVICE);
        let chunk = rig.get(Bytes::mib(990));
        rig.arena.free(chunk).unwrap();
        rig.arena.flush();
        let held = rig.get(Bytes::mib(900));
        let calls = rig.gpu.calls(Call::Alloc);
        // There would be as much, but for what is cached beside the block.
        assert!(rig.arena.allocate(HUNDRED).is_err());
        let asked = rig.gpu.calls(Call::Alloc) - calls;
        rig.arena.free(held).unwrap();
        rig.ends_clean();
        asked
    };
    // The last time for the bytes alone, without whole pages.
    assert_eq!(asked(&growing()), 3);
    let config = Config {
        free_when_no_cache_hit: true,
        ..growing()
    };
    assert_eq!(asked(&config), 2);
}

/// Paddle's chunks in advance go back only when they are asked for.
#[test]
fn chunks_in_advance_stay() {
    let config = Config {
        initial_chunk: Some(HUNDRED),
        reallocate_chunk: Some(HUNDRED),
        free_idle_chunk: true,
        free_when_no_cache_hit: true,
        ..plain(StrategyKind::NaiveBestFit)
    };
    let rig = Rig::new(&config, DEVICE);
    let (first, second) = (rig.get(Bytes::mib(60)), rig.get(Bytes::mib(60)));
    let chunk = rig.allocation(first);
    free(&rig, first);
    // Larger than any chunk, and so the driver's own.
    let large = rig.get(Bytes::mib(120));
    assert_eq!(used(&rig), 320);
    free(&rig, large);
    let third = rig.get(Bytes::mib(70));
    assert_eq!(used(&rig), 200);
    assert_eq!(rig.allocation(third), chunk, "from the idle chunk");
    free(&rig, second);
    free(&rig, third);
    assert_eq!(used(&rig), 200);
    rig.ends_clean();
}
