//! Threads that take from each other what they keep.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::stats::{ClassCount, Metric};

use crate::rig::{MS, Rig};

use super::{Random, SIZES, free_all, rig, warm};

/// What a thread frees and never takes goes to the thread that takes it, not by way
/// of the arena, and not before the device is done with it.
#[test]
fn blocks_go_from_who_frees_to_who_takes() {
    let rig = rig();
    let (full, to_free) = sync_channel::<Address>(64);
    thread::scope(|scope| {
        scope.spawn(|| free_all(&rig, to_free));
        for number in 0..20_000 {
            // A batch has no whole number of parcels of either.
            let size = Bytes::kib(if number % 3 == 0 { 8 } else { 4 });
            let block = rig.get(size);
            assert!(!rig.gpu.in_use(block, size), "handed out while it is used");
            rig.launch(block, size, MS / 1000);
            if number % 1024 == 0 {
                rig.gpu.pass(MS / 1000 * 1024);
            }
            full.send(block).unwrap();
        }
        drop(full);
    });
    let stats = rig.arena.stats();
    assert!(stats.thread_hits > 2000, "{}", stats.thread_hits);
    assert_eq!(stats.hits + stats.misses, 20_000);
    let count = |of: fn(&ClassCount) -> u64| stats.classes.iter().map(of).sum::<u64>();
    assert_eq!(count(|class| class.allocations), 20_000);
    assert_eq!(count(|class| class.frees), 20_000);
    assert_eq!(stats.memory.all[Metric::Allocation].allocated, 20_000);
    rig.ends_clean();
}

/// Threads that hand each other blocks, and are called back in between: no block is
/// with two of them, and the figures are right at the end.
#[test]
fn threads_share_an_arena() {
    let rig = rig();
    let (threads, rounds) = (4, 60);
    let (start, shared) = (Barrier::new(threads), std::sync::Mutex::new(Vec::new()));
    let work = |seed: usize| {
        let mut random = Random(seed as u64);
        start.wait();
        for _ in 0..rounds {
            let mut own = BTreeMap::new();
            for _ in 0..100 {
                let size = Bytes::new(SIZES[random.below(8)]);
                let block = rig.get(size);
                assert!(own.insert(block, size).is_none(), "it is with two");
            }
            for (number, block) in own.into_keys().enumerate() {
                match number % 4 {
                    0 => shared.lock().unwrap().push(block),
                    _ => rig.arena.free(block).unwrap(),
                }
            }
            let others: Vec<Address> = std::mem::take(&mut *shared.lock().unwrap());
            for block in others {
                rig.arena.free(block).unwrap();
            }
            if random.below(10) == 0 {
                let stats = rig.arena.stats();
                let held = [stats.live, stats.cached, stats.limbo];
                let sum = held
                    .iter()
                    .fold(Bytes::ZERO, |sum, of| sum.saturating_add(of.current));
                assert_eq!(sum, stats.reserved.current);
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        for seed in 0..threads {
            scope.spawn(move || work(seed));
        }
    });
    let stats = rig.arena.stats();
    let all = (threads * rounds * 100) as u64;
    let allocations = stats.memory.all[Metric::Allocation];
    assert_eq!((allocations.allocated, allocations.freed), (all, all));
    assert_eq!(stats.live.current, Bytes::ZERO);
    rig.ends_clean();
}

/// Of two threads that free the same blocks at once, one frees each.
#[test]
fn a_block_is_freed_once() {
    let rig = rig();
    for _ in 0..20 {
        let sizes = SIZES.iter().cycle().take(500);
        let blocks: Vec<_> = sizes.map(|&size| rig.get(Bytes::new(size))).collect();
        let start = Barrier::new(2);
        let free_all = || {
            start.wait();
            let freed = blocks.iter().map(|&block| rig.arena.free(block).is_ok());
            freed.collect::<Vec<bool>>()
        };
        let [one, other] = thread::scope(|scope| {
            let threads = [scope.spawn(free_all), scope.spawn(free_all)];
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
    }
    rig.ends_clean();
}

/// One thread allocates and another frees, while the figures are asked for.
#[test]
fn a_thread_that_only_frees_lets_others_have_it() {
    let rig = rig();
    let (full, to_free) = sync_channel::<Vec<Address>>(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            for blocks in to_free {
                for block in blocks {
                    rig.arena.free(block).unwrap();
                }
            }
        });
        for round in 0..400 {
            let blocks = (0..256).map(|_| rig.get(Bytes::kib(16))).collect();
            full.send(blocks).unwrap();
            if round % 100 == 0 {
                let _stats = rig.arena.stats();
            }
        }
        drop(full);
    });
    let allocations = rig.arena.stats().memory.all[Metric::Allocation];
    assert_eq!((allocations.allocated, allocations.current), (102_400, 0));
    // Five batches under way, and what the thread may keep.
    assert!(rig.arena.glance().reserved_peak <= Bytes::mib(64));
    rig.ends_clean();
}

/// A thread whose cache was called back only looks whether it has one, while another
/// is given room: nothing of that is lost.
#[test]
fn room_is_not_lost() {
    let rig = rig();
    let (begin, has_ended) = (Barrier::new(2), AtomicBool::new(false));
    let first_frees = || warm(&rig, Bytes::new(512));
    thread::scope(|scope| {
        let stale = || {
            first_frees();
            let _stats = rig.arena.stats();
            begin.wait();
            let mut grown = Vec::new();
            while !has_ended.load(Ordering::Relaxed) && grown.len() < 50_000 {
                grown.push(rig.get(Bytes::new(512)));
            }
            grown
        };
        let stale = scope.spawn(stale);
        begin.wait();
        first_frees();
        for _ in 0..100 {
            let held: Vec<_> = (0..300).map(|_| rig.get(Bytes::new(512))).collect();
            for block in held {
                rig.arena.free(block).unwrap();
            }
        }
        has_ended.store(true, Ordering::Relaxed);
        for block in stale.join().unwrap() {
            rig.arena.free(block).unwrap();
        }
    });
    rig.ends_clean();
}

/// What nobody will ask for again comes back before a small program grows for it:
/// what threads that ended have kept, and what one thread frees for another.
#[test]
fn a_small_program_does_not_grow_for_what_threads_keep() {
    let block = Bytes::kib(64);
    let ended = |rig: &Rig| {
        for _ in 0..200 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let held: Vec<_> = (0..10).map(|_| rig.get(block)).collect();
                    free_all(rig, held);
                });
            });
        }
    };
    let passed_on = |rig: &Rig| {
        let (give, take) = sync_channel(16);
        thread::scope(|scope| {
            scope.spawn(move || take.into_iter().for_each(|one| free_all(rig, [one])));
            (0..5000).for_each(|_| give.send(rig.get(block)).unwrap());
            drop(give);
        });
    };
    // Each thread is served well by what it keeps, until it ends.
    let paired = |rig: &Rig| {
        for _ in 0..100 {
            thread::scope(|scope| {
                scope.spawn(|| warm(rig, block));
            });
        }
    };
    let in_rounds = |rig: &Rig| {
        for _ in 0..20 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..6 {
                        let held: Vec<_> = (0..4096).map(|_| rig.get(Bytes::kib(4))).collect();
                        free_all(rig, held);
                    }
                });
            });
        }
    };
    type Program<'a> = (&'a dyn Fn(&Rig), u64);
    let programs: [Program; 4] = [
        (&ended, 8),
        (&passed_on, 8),
        (&paired, 24),
        (&in_rounds, 36),
    ];
    for (number, (program, most)) in programs.into_iter().enumerate() {
        let rig = rig();
        program(&rig);
        let reserved = rig.arena.stats().reserved.peak;
        assert!(reserved <= Bytes::mib(most), "{number}: {reserved}");
        rig.ends_clean();
    }
}
