//! The arena of pinned host memory: whole pages, chunks in proportion with what
//! is in use, and little that lies idle.

mod model;
mod rig;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, FreeSync, PinnedConfig, StrategyKind};
use vramalloc_core::error::{AllocError, Code};
use vramalloc_core::page_map::{ArenaId, Owner};
use vramalloc_model::Call;

use crate::rig::MS;
use rig::{PAGE, Rig, neighbours};

#[test]
fn a_little_memory_locks_little() {
    let rig = Rig::plain();
    let mut live = 0;
    for n in 0..4_000_u64 {
        let size = (n * 7_919) % 60_000 + 1;
        rig.get(size);
        live += size.next_multiple_of(PAGE);
        let most = 2 * live + (256 << 10);
        assert!(rig.reserved() <= most, "{} for {live}", rig.reserved());
    }
    // Half of 8 GiB by 256 is the largest chunk: 16 MiB.
    let calls = rig.gpu.calls(Call::Alloc);
    assert!((10..20).contains(&calls), "{calls} chunks");
}

#[test]
fn what_is_too_large_for_a_chunk_goes_straight_to_the_driver() {
    let rig = Rig::plain();
    for n in 1..=3 {
        let block = rig.get((16 << 20) + 1);
        assert!(rig.arena.locate(block).unwrap().is_whole());
        rig.arena.free(block).unwrap();
        assert_eq!(rig.gpu.calls(Call::Free), n);
    }
    assert_eq!(rig.arena.stats().direct, 3);
    rig.ends_clean();
}

#[test]
fn a_repeating_program_stops_calling_the_driver_for_memory() {
    let rig = Rig::plain();
    let mut calls = Vec::new();
    for _ in 0..8 {
        let blocks: Vec<_> = (1..40_u64).map(|n| rig.get(n * 100_000)).collect();
        for block in blocks {
            rig.launch(block, 4, MS);
            rig.arena.free(block).unwrap();
        }
        rig.gpu.synchronize(rig.stream);
        calls.push(rig.gpu.calls(Call::Alloc));
    }
    assert_eq!(calls[1], calls[4], "{calls:?}");
    assert_eq!(rig.gpu.calls(Call::Free), 0);
    rig.ends_clean();
}

#[test]
fn idle_memory_beyond_a_share_of_the_host_goes_back() {
    for free_sync in [FreeSync::Deferred, FreeSync::Strict, FreeSync::Immediate] {
        let config = Config {
            free_sync,
            ..Config::default()
        };
        let rig = Rig::new(&config, PinnedConfig::default());
        let blocks: Vec<_> = (0..1024).map(|_| rig.get(1 << 20)).collect();
        assert!(rig.reserved() >= 1 << 30);
        for block in blocks {
            rig.arena.free(block).unwrap();
        }
        // A 64th of 8 GiB may lie idle, and 64 MiB in limbo.
        let most = (128 + 64) << 20;
        assert!(rig.reserved() <= most, "{free_sync:?}: {}", rig.reserved());
        rig.ends_clean();
    }
}

#[test]
fn a_free_waits_where_too_much_is_in_limbo() {
    let rig = Rig::plain();
    let blocks: Vec<_> = (0..100).map(|_| rig.get(4 << 20)).collect();
    for block in blocks {
        rig.launch(block, 4 << 20, MS);
        rig.arena.free(block).unwrap();
        let stats = rig.arena.stats();
        assert!(stats.limbo.current <= Bytes::mib(64), "{:?}", stats.limbo);
    }
    assert!(rig.arena.stats().waits > 0);
    rig.ends_clean();
}

#[test]
fn the_reserve_is_taken_first_and_kept() {
    let pinned = PinnedConfig {
        reserve_segment: Some(Bytes::mib(96)),
        ..PinnedConfig::default()
    };
    let rig = Rig::new(&Config::default(), pinned);
    let first = rig.get(1);
    assert_eq!(rig.reserved(), 96 << 20);
    let blocks: Vec<_> = (0..12).map(|_| rig.get(7 << 20)).collect();
    assert_eq!(rig.gpu.calls(Call::Alloc), 1);
    // More than there is room for, and more than may lie idle: that goes
    // back, the reserve does not.
    let more: Vec<_> = (0..20).map(|_| rig.get(16 << 20)).collect();
    assert_eq!(rig.gpu.calls(Call::Alloc), 21);
    for block in blocks.into_iter().chain([first]).chain(more) {
        rig.arena.free(block).unwrap();
    }
    assert!(rig.gpu.calls(Call::Free) > 0);
    assert_eq!(rig.map.owner(first), Owner::Arena(ArenaId(0)));
    rig.arena.trim();
    rig.arena.validate().unwrap();
    assert_eq!(rig.reserved(), 96 << 20);
    assert_eq!(rig.gpu.calls(Call::Free), 20);
}

#[test]
fn the_cap_is_a_share_of_the_host() {
    let pinned = PinnedConfig {
        fraction: 0.125,
        ..PinnedConfig::default()
    };
    let rig = Rig::new(&Config::default(), pinned);
    let blocks: Vec<_> = std::iter::from_fn(|| rig.arena.allocate(Bytes::mib(3)).ok()).collect();
    // Of 1 GiB, in chunks of 4 MiB.
    assert!((256..=341).contains(&blocks.len()), "{}", blocks.len());
    assert_eq!(rig.arena.allocate(Bytes::mib(3)), Err(AllocError::Limit));
    assert!(rig.reserved() <= 1 << 30);
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
    rig.ends_clean();
}

#[test]
fn nothing_is_pooled_where_every_call_is_to_go_to_the_driver() {
    let none = PinnedConfig {
        fraction: 0.0,
        ..PinnedConfig::default()
    };
    let passthrough = Config {
        strategy: StrategyKind::Passthrough,
        ..Config::default()
    };
    for (config, pinned) in [
        (Config::default(), none),
        (passthrough, PinnedConfig::default()),
    ] {
        let rig = Rig::new(&config, pinned);
        for n in 1..10 {
            let block = rig.get(5000);
            rig.arena.free(block).unwrap();
            let calls = [Call::Alloc, Call::Free].map(|call| rig.gpu.calls(call));
            assert_eq!(calls, [n, n]);
        }
        rig.ends_clean();
    }
}

#[test]
fn small_allocations_of_two_arenas_are_told_apart() {
    let (gpu, map, arenas) = neighbours(0);
    let mut live = Vec::new();
    for _ in 0..20 {
        for (number, arena) in (0..).zip(&arenas) {
            let address = arena.allocate(Bytes::new(PAGE)).unwrap();
            assert_eq!(map.owner(address), Owner::Arena(ArenaId(number)));
            live.push((arena, address));
        }
    }
    let near = |pair: &[(_, Address)]| pair[1].1.get().abs_diff(pair[0].1.get()) < 64 << 10;
    assert!(live.windows(2).any(near), "some share a subpage");
    for (arena, address) in live {
        let [mine, other] = if std::ptr::eq(arena, &raw const arenas[0]) {
            [&arenas[0], &arenas[1]]
        } else {
            [&arenas[1], &arenas[0]]
        };
        assert!(other.free(address).is_err(), "it is not the other's");
        mine.free(address).unwrap();
        assert_eq!(map.owner(address), Owner::Foreign);
        arenas.iter().for_each(|arena| arena.validate().unwrap());
    }
    assert_eq!((gpu.calls(Call::Alloc), gpu.calls(Call::Free)), (40, 40));
}

/// The driver may place host memory more narrowly than the page map's slots.
#[test]
fn what_the_page_map_cannot_hold_can_be_left_to_the_program() {
    let (gpu, map, [arena, _]) = neighbours(256);
    assert!(arena.allocate(Bytes::new(PAGE)).is_err());
    assert_eq!((gpu.calls(Call::Alloc), gpu.calls(Call::Free)), (1, 1));
    let address = arena.allocate_or_leave(Bytes::new(PAGE)).unwrap();
    assert_eq!((gpu.calls(Call::Alloc), gpu.calls(Call::Free)), (2, 1));
    assert_eq!(map.owner(address), Owner::Foreign);
    assert_eq!(arena.stats().reserved.current, Bytes::ZERO);
}

#[test]
fn failing_calls_leave_the_books_right() {
    for call in [
        Call::Alloc,
        Call::Free,
        Call::Fence,
        Call::Reached,
        Call::Wait,
    ] {
        for n in 1..10 {
            for code in [Code::OUT_OF_MEMORY, Code::UNKNOWN] {
                let rig = Rig::plain();
                rig.gpu.fail_nth(call, n, code);
                let mut blocks = Vec::new();
                for round in 0..60_u64 {
                    let size = Bytes::new((round * 7_919) % 60 * (1 << 18) + 1);
                    blocks.extend(rig.arena.allocate(size));
                    if round % 3 == 0 && !blocks.is_empty() {
                        let _ = rig.arena.free(blocks.swap_remove(0));
                    }
                    rig.arena.validate().unwrap();
                }
                for block in blocks {
                    let _ = rig.arena.free(block);
                }
                rig.arena.trim();
                rig.arena.validate().unwrap();
                assert_eq!(rig.reserved(), 0, "{call:?} {n} {code:?}");
            }
        }
    }
}
