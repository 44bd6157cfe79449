//! What threads keep of the blocks that they freed.

use std::sync::mpsc;
use std::thread;

use vramalloc::FreeError;
use vramalloc::address::{Address, Bytes};
use vramalloc::arena::Watch;
use vramalloc::config::{
    Config, Decay, Fill, FreeSync, GarbageThreshold, Rounding, Splitting, StrategyKind,
};
use vramalloc::sim::Call;
use vramalloc::stats::ArenaStats;

use crate::rig::{self, MS, Rig};

const DEVICE: Bytes = Bytes::gib(1);
const SMALL: Bytes = Bytes::new(4096);

/// Threads keep blocks, and all else is as by default.
fn plain(strategy: StrategyKind) -> Config {
    Config {
        thread_cache: Bytes::mib(4),
        ..rig::plain(strategy)
    }
}

/// Takes and frees blocks of one size until they are worth keeping.
fn heat(rig: &Rig, size: Bytes) {
    for _ in 0..4 {
        let blocks: Vec<_> = (0..8).map(|_| rig.get(size)).collect();
        blocks
            .into_iter()
            .for_each(|block| rig.arena.free(block).unwrap());
    }
}

fn kept(rig: &Rig) -> Bytes {
    rig.arena.stats().thread_cached
}

fn assert_sums_up(stats: &ArenaStats) {
    let parts = [
        stats.live.current,
        stats.limbo.current,
        stats.cached.current,
        stats.thread_cached,
    ];
    let sum = parts.iter().map(|bytes| bytes.get()).sum();
    assert_eq!(stats.reserved.current, Bytes::new(sum), "{stats:?}");
}

#[test]
fn a_thread_keeps_what_comes_back_and_the_statistics_tell() {
    for strategy in [StrategyKind::NaiveBestFit, StrategyKind::AutoGrowth] {
        let rig = Rig::new(&plain(strategy), DEVICE);
        heat(&rig, SMALL);
        assert!(!kept(&rig).is_zero(), "{strategy:?}");
        let held = rig.get(SMALL);
        let stats = rig.arena.stats();
        assert_eq!(stats.live.current, SMALL);
        assert_eq!(stats.live.peak, Bytes::new(8 * 4096));
        assert_sums_up(&stats);
        rig.arena.validate().unwrap();
        rig.arena.free(held).unwrap();
        // A question for free memory calls everything back.
        rig.arena.mem_info().unwrap();
        assert_eq!(kept(&rig), Bytes::ZERO);
        rig.ends_clean();
    }
}

#[test]
fn nothing_is_kept_where_the_option_says_so() {
    let rig = Rig::new(&rig::plain(StrategyKind::AutoGrowth), DEVICE);
    heat(&rig, SMALL);
    assert_eq!(kept(&rig), Bytes::ZERO);
    // And no more than it says.
    let config = Config {
        thread_cache: Bytes::kib(64),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, DEVICE);
    for _ in 0..4 {
        let blocks: Vec<_> = (0..100).map(|_| rig.get(SMALL)).collect();
        for block in blocks {
            rig.arena.free(block).unwrap();
            assert!(kept(&rig) <= Bytes::kib(64));
        }
    }
    assert!(!kept(&rig).is_zero());
    rig.ends_clean();
}

/// What has to follow each free, or to be told of each, is not passed by.
#[test]
fn options_that_follow_each_free_keep_threads_from_keeping() {
    let base = || plain(StrategyKind::AutoGrowth);
    let fill = Fill {
        byte: 0xaa,
        whole_block: true,
    };
    let rounding = Rounding {
        divisions: [4; 16],
        ..Rounding::default()
    };
    let splitting = Splitting {
        max_split: Some(Bytes::kib(512)),
        ..Splitting::default()
    };
    #[rustfmt::skip]
    let configs = [
        ("passthrough", plain(StrategyKind::Passthrough)),
        ("free_sync:strict", Config { free_sync: FreeSync::Strict, ..base() }),
        ("decay", Config { decay: Decay::After(std::time::Duration::from_secs(60)), ..base() }),
        ("garbage collection", Config { garbage_collection_threshold: Some(0.9), ..base() }),
        ("garbage by bytes", Config { garbage_threshold: GarbageThreshold::Bytes(Bytes::mib(1)), ..base() }),
        ("garbage by pressure", Config { garbage_threshold: GarbageThreshold::Pressure, ..base() }),
        ("garbage fraction", Config { garbage_fraction: 0.5, ..base() }),
        ("fail at the limit", Config { fail_at_limit: true, ..base() }),
        ("dedicated_min", Config { dedicated_min: Some(Bytes::kib(512)), ..base() }),
        ("free_idle_chunk", Config { free_idle_chunk: true, ..base() }),
        ("retry time", Config { retry_time: std::time::Duration::from_millis(1), ..base() }),
        ("fill", Config { fill: Some(fill), ..base() }),
        ("sync after alloc", Config { sync_after_alloc: true, ..base() }),
        ("rounding", Config { rounding, ..base() }),
        ("splitting", Config { splitting, ..base() }),
    ];
    for (name, config) in configs {
        let rig = Rig::new(&config, DEVICE);
        heat(&rig, SMALL);
        assert_eq!(kept(&rig), Bytes::ZERO, "{name}");
    }
    let watch = Watch {
        events: 100,
        ..Watch::default()
    };
    let rig = Rig::watched(&base(), DEVICE, watch);
    heat(&rig, SMALL);
    assert_eq!(kept(&rig), Bytes::ZERO, "history");
}

/// The reuse rule: not before a fence that is later than the free was reached.
#[test]
fn a_kept_block_waits_for_the_device() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    heat(&rig, SMALL);
    let block = rig.get(SMALL);
    rig.launch(block, SMALL, 10 * MS);
    rig.arena.free(block).unwrap();
    let kept_before = kept(&rig);
    assert!(!kept_before.is_zero());
    // More than a batch: epochs are closed, and none of them is over.
    for _ in 0..1000 {
        let other = rig.get(SMALL);
        assert_ne!(other, block);
        rig.arena.free(other).unwrap();
    }
    rig.gpu.synchronize(rig.stream);
    rig.ends_clean();
}

#[test]
fn a_kept_block_cannot_be_freed_again() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    heat(&rig, SMALL);
    let block = rig.get(SMALL);
    rig.arena.free(block).unwrap();
    assert!(!kept(&rig).is_zero());
    assert_eq!(rig.arena.free(block), Err(FreeError::NotLive));
    thread::scope(|scope| {
        let again = scope.spawn(|| rig.arena.free(block));
        assert_eq!(again.join().unwrap(), Err(FreeError::NotLive));
    });
    // Nor found; but its address is ours.
    assert_eq!(rig.arena.locate(block), None);
    assert!(rig.is_ours(block));
    assert_eq!(rig.arena.stats().bad_frees, 2);
    rig.ends_clean();
}

/// Of two that free a block at the same time exactly one does.
#[test]
fn of_two_frees_at_a_time_one_counts() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    for _ in 0..500 {
        let block = rig.get(SMALL);
        let freed = thread::scope(|scope| {
            let other = scope.spawn(|| rig.arena.free(block).is_ok());
            let mine = rig.arena.free(block).is_ok();
            [mine, other.join().unwrap()]
        });
        assert_ne!(freed[0], freed[1]);
    }
    assert_eq!(rig.arena.stats().bad_frees, 500);
    rig.ends_clean();
}

/// Memory that a thread keeps does not fail another one's request.
#[test]
fn memory_that_threads_keep_is_there_before_anything_fails() {
    for strategy in [StrategyKind::NaiveBestFit, StrategyKind::AutoGrowth] {
        let rig = Rig::new(&plain(strategy), Bytes::mib(16));
        let (done, keeps) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let rig = &rig;
            scope.spawn(move || {
                heat(rig, Bytes::kib(256));
                done.send(()).unwrap();
                // It lives on, and keeps what it has.
                wait.recv().unwrap();
            });
            keeps.recv().unwrap();
            assert!(!kept(rig).is_zero(), "{strategy:?}");
            let block = rig.get(Bytes::mib(14));
            assert_eq!(kept(rig), Bytes::ZERO);
            rig.arena.free(block).unwrap();
            go_on.send(()).unwrap();
        });
        rig.ends_clean();
    }
}

/// Nothing is taken from the driver that is there already.
#[test]
fn what_threads_keep_serves_larger_requests_before_more_is_taken() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    heat(&rig, Bytes::kib(256));
    let stats = rig.arena.stats();
    assert!(!stats.thread_cached.is_zero());
    let slabs = rig.gpu.calls(Call::Alloc);
    for _ in 0..stats.reserved.current.get() >> 20 {
        rig.get(Bytes::mib(1));
    }
    assert_eq!(rig.gpu.calls(Call::Alloc), slabs);
    assert_eq!(kept(&rig), Bytes::ZERO);
}

#[test]
fn a_thread_that_ends_leaves_what_it_kept() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    thread::scope(|scope| {
        // Joined by itself: the scope alone does not wait for the thread's end.
        scope.spawn(|| heat(&rig, Bytes::kib(64))).join().unwrap();
    });
    assert!(kept(&rig) >= Bytes::kib(64));
    // Taken over when the next thread begins to keep blocks, of which all
    // together are smaller.
    heat(&rig, Bytes::new(512));
    assert!(kept(&rig) < Bytes::kib(64));
    rig.ends_clean();
}

/// The most that was live is exact, though nobody is told of a step in a cache:
/// with two threads that take turns, in every order of their steps.
#[test]
fn peaks_are_exact_over_threads() {
    let mut seed = 1_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for round in 0..20 {
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
        let (mut live, mut most): ([Vec<(Address, u64)>; 2], [u64; 2]) = Default::default();
        thread::scope(|scope| {
            let rig = &rig;
            let [one, two] = [(); 2].map(|()| {
                let (steps, todo) = mpsc::channel::<Result<u64, Address>>();
                let (answers, answer) = mpsc::channel();
                scope.spawn(move || {
                    for step in todo {
                        let answered = match step {
                            Ok(size) => Some(rig.get(Bytes::new(size))),
                            Err(block) => {
                                rig.arena.free(block).unwrap();
                                None
                            }
                        };
                        answers.send(answered).unwrap();
                    }
                });
                (steps, answer)
            });
            for _ in 0..1500 {
                let who = random(2) as usize;
                let (steps, answer) = [&one, &two][who];
                let sizes = [512, 500, 4096, 4000, 65536, 3 << 20];
                let count = live[0].len() + live[1].len();
                if count < 40 && random(100) < 55 {
                    let size = sizes[random(6) as usize];
                    steps.send(Ok(size)).unwrap();
                    let block = answer.recv().unwrap().unwrap();
                    live[random(2) as usize].push((block, size));
                } else if !live[who].is_empty() {
                    let at = random(live[who].len() as u64) as usize;
                    let (block, _) = live[who].swap_remove(at);
                    steps.send(Err(block)).unwrap();
                    assert_eq!(answer.recv().unwrap(), None);
                }
                let all = live.iter().flatten();
                let (blocks, bytes) = all.fold((0, 0), |(blocks, bytes), &(_, size)| {
                    (blocks + 1, bytes + size.next_multiple_of(512))
                });
                most = [most[0].max(blocks), most[1].max(bytes)];
                if random(200) == 0 {
                    let stats = rig.arena.stats();
                    assert_eq!(stats.live.current, Bytes::new(bytes));
                    assert_sums_up(&stats);
                }
            }
            drop((one, two));
        });
        let stats = rig.arena.stats();
        assert_eq!(stats.live.peak, Bytes::new(most[1]), "round {round}");
        let all = &stats.memory.all;
        let blocks = all[vramalloc::stats::Metric::Allocation].peak;
        assert_eq!(blocks, most[0], "round {round}");
        let left = live.iter().flatten();
        left.for_each(|&(block, _)| rig.arena.free(block).unwrap());
        rig.ends_clean();
    }
}
