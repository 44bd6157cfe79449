//! `max_split_size_mb`, `max_non_split_rounding_mb`, `large_segment_size_mb`.

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, Rounding, Splitting, StrategyKind};
use vramalloc_model::Call;

use crate::rig::{Rig, plain};

const MIB: u64 = 1 << 20;
const DEVICE: Bytes = Bytes::gib(8);

fn split(max_split: u64, rounding: Option<u64>) -> Config {
    Config {
        splitting: Splitting {
            max_split: Some(Bytes::mib(max_split)),
            max_non_split_rounding: rounding.map(Bytes::mib),
            large_segment: None,
        },
        ..plain(StrategyKind::AutoGrowth)
    }
}

/// Leaves a free block for a request of so many MiB.
fn cache(rig: &Rig, mib: u64) -> Address {
    let block = rig.get(Bytes::mib(mib));
    rig.arena.free(block).unwrap();
    rig.arena.flush();
    block
}

/// The block that a request of so many MiB gets, with its size in MiB.
fn get(rig: &Rig, mib: u64) -> (Address, u64) {
    let block = rig.get(Bytes::mib(mib));
    (block, rig.arena.locate(block).unwrap().size.get() / MIB)
}

#[test]
fn a_large_block_is_kept_whole_for_large_requests() {
    // Where all may be cut, the block serves any request.
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    let block = cache(&rig, 64);
    let (piece, size) = get(&rig, 10);
    assert_eq!((rig.allocation(piece), size), (block, 10));
    assert_eq!(rig.gpu.used(0), Bytes::mib(64));

    let rig = Rig::new(&split(32, None), DEVICE);
    let block = cache(&rig, 64);
    // Below the size it is not touched, however well it would fit.
    let (small, size) = get(&rig, 31);
    assert_eq!((size, rig.gpu.used(0)), (31, Bytes::mib(96)));
    assert_ne!(small, block);
    // From it on it serves, uncut.
    assert_eq!(get(&rig, 60), (block, 64));
    assert_eq!(rig.gpu.calls(Call::Alloc), 2);
    rig.arena.free(block).unwrap();
    rig.arena.free(small).unwrap();
    rig.ends_clean();
}

#[test]
fn a_large_request_takes_no_block_that_is_much_larger() {
    for (rounding, served, missed) in [(None, 45, 44), (Some(30), 35, 34)] {
        let rig = Rig::new(&split(32, rounding), DEVICE);
        let block = cache(&rig, 64);
        // 64 MiB are not below the request and the rounding together.
        let (other, size) = get(&rig, missed);
        assert_eq!((size, rig.gpu.calls(Call::Alloc)), (missed, 2));
        assert_ne!(other, block);
        // They are, with a request one MiB larger.
        assert_eq!(get(&rig, served), (block, 64));
        assert_eq!(rig.gpu.calls(Call::Alloc), 2);
        assert_eq!(rig.arena.stats().live.current, Bytes::mib(64 + missed));
        rig.arena.free(block).unwrap();
        rig.arena.free(other).unwrap();
        rig.ends_clean();
    }
}

#[test]
fn the_best_of_many_large_blocks_is_found() {
    let rig = Rig::new(&split(32, Some(40)), DEVICE);
    let sizes = (40..80).step_by(2);
    let blocks: Vec<_> = sizes.map(|mib| (rig.get(Bytes::mib(mib)), mib)).collect();
    for &(block, _) in &blocks {
        rig.arena.free(block).unwrap();
    }
    rig.arena.flush();
    for (block, mib) in blocks {
        assert_eq!(get(&rig, mib), (block, mib));
        rig.arena.free(block).unwrap();
        rig.arena.flush();
    }
    rig.ends_clean();
}

/// Requests, and what is taken from the driver for them, in MiB: without and
/// with 8 divisions.
#[test]
fn segments_have_the_worked_sizes() {
    for (request, plain_size, rounded) in [
        (1200, 2, 2),
        (4097, 2, 2),
        (MIB, 2, 2),
        (MIB + 1, 20, 20),
        (5 * MIB + 3, 20, 20),
        (10 * MIB - 1, 10, 10),
        (100 * MIB + 1, 102, 104),
        (257 * MIB, 258, 288),
        (3 << 30, 3072, 3072),
        ((3 << 30) + 1, 3074, 3328),
    ] {
        for (divisions, segment) in [(0, plain_size), (8, rounded)] {
            let config = Config {
                splitting: Splitting {
                    large_segment: Some(Bytes::mib(20)),
                    ..Splitting::default()
                },
                rounding: Rounding {
                    divisions: [divisions; 16],
                    bypass: None,
                },
                ..plain(StrategyKind::AutoGrowth)
            };
            let rig = Rig::new(&config, DEVICE);
            let block = rig.get(Bytes::new(request));
            assert_eq!(rig.gpu.used(0), Bytes::mib(segment), "{request}");
            rig.arena.free(block).unwrap();
            rig.ends_clean();
        }
    }
}

#[test]
fn middling_requests_share_a_segment() {
    // Five in 20 MiB, four in 16 MiB.
    for (segment, used) in [(None, 24), (Some(20), 40), (Some(16), 32)] {
        let config = Config {
            splitting: Splitting {
                large_segment: segment.map(Bytes::mib),
                ..Splitting::default()
            },
            ..plain(StrategyKind::AutoGrowth)
        };
        let rig = Rig::new(&config, DEVICE);
        let blocks: Vec<_> = (0..6).map(|_| rig.get(Bytes::mib(4))).collect();
        assert_eq!(rig.gpu.used(0), Bytes::mib(used));
        blocks
            .into_iter()
            .for_each(|block| rig.arena.free(block).unwrap());
        rig.ends_clean();
    }
}

/// A device of 200 MiB with free blocks of 40, 60 and 80 MiB and an idle chunk
/// of 10 MiB.
fn full_of_cached() -> Rig {
    let rig = Rig::new(&split(32, None), Bytes::mib(200));
    let blocks = [40, 60, 80, 10].map(|mib| rig.get(Bytes::mib(mib)));
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
    rig.arena.flush();
    rig
}

#[test]
fn when_memory_is_short_the_large_blocks_go_first() {
    // None is enough: the largest, until they are.
    let rig = full_of_cached();
    let block = rig.get(Bytes::mib(101));
    assert_eq!(
        rig.arena.stats().reserved.current,
        Bytes::mib(40 + 10 + 102)
    );
    assert_eq!(rig.gpu.live_count(), 3);
    rig.arena.free(block).unwrap();
    rig.ends_clean();

    // One is: the smallest of these, and only this.
    let rig = full_of_cached();
    let block = rig.get(Bytes::mib(30));
    assert_eq!(
        rig.arena.stats().reserved.current,
        Bytes::mib(60 + 80 + 10 + 30)
    );
    rig.arena.free(block).unwrap();
    rig.ends_clean();

    // Where that is not enough, everything goes.
    let rig = full_of_cached();
    let block = rig.get(Bytes::mib(195));
    assert_eq!(rig.gpu.used(0), Bytes::mib(196));
    rig.arena.free(block).unwrap();
    rig.ends_clean();
}

/// What is kept apart for later requests is no reason to fail one.
#[test]
fn before_a_request_fails_any_free_piece_will_do() {
    let config = Config {
        auto_growth_chunk: Bytes::mib(64),
        ..split(32, None)
    };
    let rig = Rig::new(&config, Bytes::mib(64));
    let block = rig.get(Bytes::mib(2));
    // The device is full, and the rest of the only chunk is free.
    let large = rig.get(Bytes::mib(40));
    let small = rig.get(Bytes::new(512));
    assert_eq!((rig.gpu.live_count(), rig.arena.stats().ooms), (1, 0));
    for block in [block, large, small] {
        rig.arena.free(block).unwrap();
    }
    rig.ends_clean();
}
