//! What threads keep while they sleep, and while the figures are asked for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::StrategyKind;
use vramalloc_core::stats::{ArenaStats, BlockState, Metric, Snapshot};

use crate::rig::{Rig, plain};

const BLOCK: Bytes = Bytes::kib(64);
const SLEEPERS: usize = 300;

fn rig(memory: Bytes) -> Rig {
    Rig::new(&plain(StrategyKind::AutoGrowth), memory)
}

fn free_all(rig: &Rig, blocks: impl IntoIterator<Item = Address>) {
    let mut blocks = blocks.into_iter();
    blocks.try_for_each(|block| rig.arena.free(block)).unwrap();
}

/// Allocations and frees, by the statistics.
fn counted(stats: &ArenaStats) -> (u64, u64) {
    let all = stats.memory.all[Metric::Allocation];
    (all.allocated, all.freed)
}

/// Threads that do `work` and sleep then, each once the one before it sleeps or all
/// at once; `beside` runs while all of them do.
fn beside_sleepers(in_turn: bool, work: impl Fn() + Sync, beside: impl FnOnce()) {
    thread::scope(|scope| {
        let mut sleepers: Vec<_> = (0..SLEEPERS)
            .map(|_| {
                let work = &work;
                let (falls_asleep, is_asleep) = mpsc::channel();
                let (wakes, wake) = mpsc::channel::<()>();
                scope.spawn(move || {
                    work();
                    falls_asleep.send(()).unwrap();
                    // Until the other end is dropped.
                    assert!(wake.recv().is_err());
                });
                if in_turn {
                    is_asleep.recv().unwrap();
                }
                (is_asleep, wakes)
            })
            .collect();
        if !in_turn {
            sleepers
                .iter()
                .for_each(|(is_asleep, _)| is_asleep.recv().unwrap());
        }
        beside();
        sleepers.clear();
    });
}

/// One thread has all of a device, block by block, though others keep some of it.
fn takes_all_of(rig: &Rig, device: Bytes) -> u64 {
    let taken = (0..).map_while(|_| rig.arena.allocate(BLOCK).ok());
    let taken: Vec<_> = taken.collect();
    let count = taken.len() as u64;
    assert_eq!(count, device.get() / BLOCK.get());
    free_all(rig, taken);
    count
}

/// What each of hundreds of threads has once freed, and been served with well until
/// then, never makes the arena large: in one of less than 256 MiB, no more than
/// half of what one thread may keep (32 MiB) stays when it would grow.
#[test]
fn what_sleeping_threads_keep_is_bounded() {
    const DEVICE: Bytes = Bytes::mib(128);
    const ROUNDS: u64 = 6;
    const HELD: u64 = 64;
    let rig = rig(DEVICE);
    let work = || {
        for _ in 0..ROUNDS {
            free_all(&rig, (0..HELD).map(|_| rig.get(BLOCK)).collect::<Vec<_>>());
        }
    };
    beside_sleepers(true, work, || {
        let glance = rig.arena.glance();
        let held = Bytes::new(HELD * BLOCK.get());
        assert_eq!((glance.live, glance.live_peak), (Bytes::ZERO, held));
        assert!(glance.reserved_peak <= Bytes::mib(4 + 16 + 2), "{glance:?}");
        let taken = takes_all_of(&rig, DEVICE);
        let stats = rig.arena.stats();
        let all = SLEEPERS as u64 * ROUNDS * HELD + taken;
        assert_eq!(counted(&stats), (all, all));
        assert_eq!((stats.live.current, stats.live.peak), (Bytes::ZERO, DEVICE));
    });
    rig.ends_clean();
}

/// Hundreds of threads that held nearly all of a device at once, and keep what they
/// freed of it: another has it without taking any more, and a request for most of it
/// does not fail either.
#[test]
fn what_sleeping_threads_keep_comes_back() {
    const DEVICE: Bytes = Bytes::mib(320);
    const HELD: u64 = 16;
    for in_blocks in [true, false] {
        let rig = rig(DEVICE);
        let (hold, free) = (Barrier::new(SLEEPERS), Barrier::new(SLEEPERS));
        let work = || {
            let mut held: Vec<_> = (0..HELD).map(|_| rig.get(BLOCK)).collect();
            hold.wait();
            free_all(&rig, held.drain(..));
            free.wait();
            // Each keeps some of these.
            held.extend((0..HELD).map(|_| rig.get(BLOCK)));
            free_all(&rig, held);
        };
        beside_sleepers(false, work, || {
            let reserved = rig.arena.glance().reserved;
            assert!(reserved >= Bytes::mib(300), "{reserved}");
            let taken = if in_blocks {
                takes_all_of(&rig, DEVICE)
            } else {
                free_all(&rig, [rig.get(Bytes::mib(316))]);
                1
            };
            let stats = rig.arena.stats();
            let all = 2 * SLEEPERS as u64 * HELD + taken;
            assert_eq!(counted(&stats), (all, all));
            assert_eq!(
                (stats.live.current, stats.ooms),
                (Bytes::ZERO, u64::from(in_blocks))
            );
        });
        rig.ends_clean();
    }
}

/// What holds between the numbers of one look.
fn add_up(stats: &ArenaStats) {
    let memory = &stats.memory;
    for pool in [&memory.all, &memory.small_pool, &memory.large_pool] {
        for metric in Metric::ALL {
            let of = pool[metric];
            assert_eq!(of.current, of.allocated - of.freed, "{metric:?}: {of:?}");
            assert!(of.peak >= of.current, "{metric:?}: {of:?}");
        }
    }
    let parts = [stats.live, stats.cached, stats.limbo];
    let sum: u64 = parts.iter().map(|part| part.current.get()).sum();
    assert_eq!(sum, stats.reserved.current.get());
    let (allocated, freed) = counted(stats);
    let sum = |of: fn(&ArenaStats, usize) -> u64| {
        let classes = 0..stats.classes.len();
        classes.map(|class| of(stats, class)).sum::<u64>()
    };
    assert_eq!(sum(|stats, at| stats.classes[at].allocations), allocated);
    assert_eq!(sum(|stats, at| stats.classes[at].frees), freed);
    assert_eq!(
        sum(|stats, at| stats.classes_live[at].blocks),
        allocated - freed
    );
    assert_eq!(
        sum(|stats, at| stats.classes_live[at].bytes),
        stats.live.current.get()
    );
    assert_eq!(stats.hits + stats.misses + stats.direct, allocated);
}

/// Blocks that are live by a snapshot, whose segments hold just its blocks.
fn live_of(snapshot: &Snapshot) -> u64 {
    for segment in &snapshot.segments {
        let blocks = &snapshot.blocks[segment.first_block..][..segment.block_count];
        let sum: u64 = blocks.iter().map(|block| block.size.get()).sum();
        assert_eq!(sum, segment.size.get());
    }
    let live = snapshot
        .blocks
        .iter()
        .filter(|block| block.state == BlockState::Live);
    live.count() as u64
}

/// What a thread has begun and done, for whoever looks from outside.
#[derive(Default)]
struct Tally {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Tally {
    fn count<R>(&self, step: impl FnOnce() -> R) -> R {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = step();
        self.done.fetch_add(1, Ordering::SeqCst);
        result
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }
}

/// A thousand looks at the figures beside threads that are in the middle of frees:
/// each is of one moment, between what was done before it and what was begun until
/// its end.
#[test]
fn each_look_beside_busy_threads_is_of_one_moment() {
    const THREADS: u64 = 4;
    const LOOKS: u64 = 1000;
    let rig = rig(Bytes::gib(1));
    let (taken, freed) = (Tally::default(), Tally::default());
    let has_ended = AtomicBool::new(false);
    let work = |number: u64| {
        let mut held = Vec::new();
        while !has_ended.load(Ordering::Relaxed) {
            let most = 1 + (held.len() as u64 * 7 + number) % 90;
            for size in (1..=most).map(|nth| Bytes::new(nth * nth * (9 + number))) {
                held.push(taken.count(|| rig.get(size)));
            }
            for block in held.drain(held.len() % 3..) {
                freed.count(|| rig.arena.free(block)).unwrap();
            }
        }
        for block in held {
            freed.count(|| rig.arena.free(block)).unwrap();
        }
    };
    let look = || {
        for number in 0..LOOKS {
            // Each look calls back; at times threads get to what they keep before.
            let from = freed.done();
            while number % 20 == 0 && freed.done() < from + 4000 {
                thread::yield_now();
            }
            let done = (taken.done(), freed.done());
            if number % 4 == 0 {
                let live = live_of(&rig.arena.snapshot().unwrap());
                let begun = (taken.begun(), freed.begun());
                let (least, most) = (done.0.saturating_sub(begun.1), begun.0 - done.1);
                assert!((least..=most).contains(&live), "{live} of {least}..={most}");
                continue;
            }
            let stats = rig.arena.stats();
            let begun = (taken.begun(), freed.begun());
            add_up(&stats);
            let (allocated, released) = counted(&stats);
            assert!((done.0..=begun.0).contains(&allocated), "{allocated}");
            assert!((done.1..=begun.1).contains(&released), "{released}");
        }
    };
    thread::scope(|scope| {
        let work = &work;
        for number in 0..THREADS {
            scope.spawn(move || work(number));
        }
        let looked = scope.spawn(look).join();
        has_ended.store(true, Ordering::Relaxed);
        looked.unwrap();
    });
    let stats = rig.arena.stats();
    add_up(&stats);
    assert_eq!(counted(&stats), (taken.done(), freed.done()));
    assert!(stats.thread_hits > 1000, "{}", stats.thread_hits);
    rig.ends_clean();
}

/// What a miss takes at the least that calls back six hundred blocks, beside so many
/// live ones, and the driver calls of all of them.
fn miss_beside(blocks: usize) -> (Duration, u64) {
    const MISSES: usize = 40;
    const FREED: usize = 1200;
    let small = Bytes::new(512);
    let rig = rig(Bytes::gib(16));
    // An arena of some size calls back whenever it would grow.
    let _large = rig.get(Bytes::mib(512));
    let mut held: VecDeque<_> = (0..blocks).map(|_| rig.get(small)).collect();
    // Away from where a debug build compares everything.
    for _ in 0..blocks / 20 {
        free_all(&rig, held.pop_front());
        held.push_back(rig.get(small));
    }
    let before = rig.arena.glance().driver_calls;
    let misses = (0..MISSES).map(|_| {
        free_all(&rig, held.drain(..FREED));
        held.extend((0..FREED / 2).map(|_| rig.get(small)));
        let start = Instant::now();
        let _miss = rig.get(Bytes::mib(32));
        let took = start.elapsed();
        held.extend((0..FREED / 2).map(|_| rig.get(small)));
        took
    });
    let least = misses.min().unwrap();
    let calls = rig.arena.glance().driver_calls - before;
    let hits = rig.arena.stats().thread_hits;
    // The thread kept what it freed, and so all the rest.
    assert!(hits >= (MISSES * FREED / 2) as u64, "{hits}");
    (least, calls)
}

/// The bound leaves room for the processor's caches, which miss among so many. A step
/// for each block would take a hundred times as long.
#[test]
fn a_recall_takes_as_long_among_millions_of_blocks() {
    let (few, calls) = miss_beside(20_000);
    let (many, same_calls) = miss_beside(2_000_000);
    assert!(calls.abs_diff(same_calls) <= 10, "{calls}, {same_calls}");
    assert!(many < few * 5, "{many:?} for {few:?}");
}
