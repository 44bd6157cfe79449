//! What threads keep of the small blocks that they free.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, Decay, FreeSync, StrategyKind, ThreadCacheSize};
use vramalloc_core::error::FreeError;
use vramalloc_core::library::{LibraryId, MOST_LIBRARIES};
use vramalloc_core::stats::{ArenaStats, ClassCount, Metric};
use vramalloc_model::Call;

use crate::rig::{MS, Rig, plain, without_caches};

const DEVICE: Bytes = Bytes::gib(1);

/// Sizes that threads keep, and some that they do not.
const SIZES: [u64; 10] = [
    1, 512, 513, 4096, 4000, 5000, 20_000, 65_536, 65_537, 300_000,
];

fn rig() -> Rig {
    Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE)
}

/// Pairs until the thread keeps blocks of this size that the device is done with.
fn warm(rig: &Rig, size: Bytes) {
    for _ in 0..1000 {
        let block = rig.get(size);
        rig.arena.free(block).unwrap();
    }
}

fn library(number: usize) -> LibraryId {
    LibraryId::new(u8::try_from(number).unwrap())
}

/// Memory for a library of the program.
fn get_for(rig: &Rig, size: Bytes, library: LibraryId) -> Address {
    rig.arena.allocate_for(size, library).unwrap()
}

/// A seeded generator (splitmix64).
struct Random(u64);

fn free_all(rig: &Rig, blocks: impl IntoIterator<Item = Address>) {
    let mut blocks = blocks.into_iter();
    blocks.try_for_each(|block| rig.arena.free(block)).unwrap();
}

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }
}

#[test]
fn a_thread_hands_out_what_it_has_freed_without_the_driver() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::NaiveBestFit] {
        let rig = Rig::new(&plain(strategy), DEVICE);
        warm(&rig, Bytes::kib(4));
        let stats = rig.arena.stats();
        assert!(stats.thread_hits > 600, "{}", stats.thread_hits);
        assert_eq!(stats.hits, 999);
        assert_eq!(stats.live.peak, Bytes::kib(4));
        // One for a batch of 256, not for 64.
        assert!(rig.gpu.calls(Call::Fence) < 10);
        rig.ends_clean();
    }
}

#[test]
fn nothing_is_handed_out_before_its_fence() {
    let rig = rig();
    warm(&rig, Bytes::kib(4));
    let blocks: Vec<_> = (0..512).map(|_| rig.get(Bytes::kib(4))).collect();
    for &block in &blocks {
        rig.launch(block, Bytes::kib(4), MS);
        rig.arena.free(block).unwrap();
    }
    // The device still works on all of them; the model notices who is handed one.
    let others: Vec<_> = (0..512).map(|_| rig.get(Bytes::kib(4))).collect();
    assert!(others.iter().all(|other| !blocks.contains(other)));
    for block in others {
        rig.arena.free(block).unwrap();
    }
    rig.ends_clean();
}

#[test]
fn wrong_frees_are_refused_whoever_keeps_the_block() {
    let rig = rig();
    warm(&rig, Bytes::kib(4));
    let block = rig.get(Bytes::kib(4));
    let inside = block.checked_add(Bytes::new(512)).unwrap();
    assert_eq!(rig.arena.free(inside), Err(FreeError::NotLive));
    let odd = block.checked_add(Bytes::new(1)).unwrap();
    assert_eq!(rig.arena.free(odd), Err(FreeError::NotLive));
    rig.arena.free(block).unwrap();
    assert_eq!(rig.arena.free(block), Err(FreeError::NotLive));
    thread::scope(|scope| {
        let again = scope.spawn(|| rig.arena.free(block));
        assert_eq!(again.join().unwrap(), Err(FreeError::NotLive));
    });
    assert!(rig.arena.locate(block).is_none(), "it is not live");
    assert_eq!(rig.arena.stats().bad_frees, 4);
    rig.ends_clean();
}

/// The figures that must be what they are without caches.
fn figures(stats: &ArenaStats) -> Vec<(u64, u64, u64, u64)> {
    let metrics = [Metric::Allocation, Metric::AllocatedBytes];
    let pools = [
        &stats.memory.all,
        &stats.memory.small_pool,
        &stats.memory.large_pool,
    ];
    let all = pools
        .iter()
        .flat_map(|pool| metrics.map(|metric| pool[metric]));
    all.map(|stat| (stat.current, stat.peak, stat.allocated, stat.freed))
        .collect()
}

/// Random programs, with looks at the figures in between: what is counted, the
/// peaks and the classes at the peak are what they are without caches.
#[test]
fn the_figures_are_those_without_caches() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let rigs = [without_caches, plain]
            .map(|config| Rig::new(&config(StrategyKind::AutoGrowth), DEVICE));
        let mut live: Vec<[Address; 2]> = Vec::new();
        let most = 1 + random.below(200);
        for step in 0..4000 {
            let free = !live.is_empty() && (live.len() >= most || random.below(2) == 0);
            if free {
                let [one, other] = live.swap_remove(random.below(live.len()));
                rigs[0].arena.free(one).unwrap();
                rigs[1].arena.free(other).unwrap();
            } else {
                let size = Bytes::new(SIZES[random.below(SIZES.len())]);
                let library = library(random.below(MOST_LIBRARIES));
                live.push([0, 1].map(|at: usize| get_for(&rigs[at], size, library)));
            }
            if random.below(500) == 0 || step == 3999 {
                let [plain, kept] = [0, 1].map(|at: usize| rigs[at].arena.stats());
                assert_eq!(figures(&kept), figures(&plain), "seed {seed}, step {step}");
                assert_eq!(kept.classes, plain.classes, "seed {seed}");
                assert_eq!(kept.classes_live, plain.classes_live, "seed {seed}");
                assert_eq!(kept.classes_at_peak, plain.classes_at_peak, "seed {seed}");
                assert_eq!(kept.libraries_live, plain.libraries_live, "seed {seed}");
                assert_eq!(
                    kept.libraries_at_peak, plain.libraries_at_peak,
                    "seed {seed}"
                );
                assert_eq!(kept.hits + kept.misses, plain.hits + plain.misses);
                rigs[1].arena.validate().unwrap();
            }
        }
        for [one, other] in live {
            rigs[0].arena.free(one).unwrap();
            rigs[1].arena.free(other).unwrap();
        }
        rigs.iter().for_each(Rig::ends_clean);
    }
}

/// The same for three threads that take turns and free each other's blocks: whose
/// cache has room near a peak, and who has which block, makes no difference.
#[test]
fn the_figures_are_those_without_caches_whoever_takes_and_frees() {
    type Turn<'a> = Box<dyn FnOnce() + Send + 'a>;
    for seed in 0..20 {
        let mut random = Random(seed);
        let rigs = [without_caches, plain]
            .map(|config| Rig::new(&config(StrategyKind::AutoGrowth), DEVICE));
        let live: std::sync::Mutex<Vec<[Address; 2]>> = std::sync::Mutex::default();
        let most = 1 + random.below(100);
        thread::scope(|scope| {
            let (rigs, live) = (&rigs, &live);
            let threads = [0; 3].map(|_| {
                let (turn, turns) = sync_channel::<Turn>(0);
                let (done, is_done) = sync_channel(0);
                scope.spawn(move || {
                    for turn in turns {
                        turn();
                        done.send(()).unwrap();
                    }
                });
                (turn, is_done)
            });
            for step in 0..3000 {
                let count = live.lock().unwrap().len();
                let free = count > 0 && (count >= most || random.below(2) == 0);
                let (size, which) = (SIZES[random.below(SIZES.len())], random.below(count.max(1)));
                let library = library(random.below(MOST_LIBRARIES));
                let (turn, is_done) = &threads[random.below(3)];
                let step_of = move || {
                    if free {
                        let blocks = live.lock().unwrap().swap_remove(which);
                        let freed = rigs.iter().zip(blocks).map(|(rig, at)| rig.arena.free(at));
                        assert!(freed.into_iter().all(|freed| freed.is_ok()));
                    } else {
                        let blocks =
                            [0, 1].map(|at: usize| get_for(&rigs[at], Bytes::new(size), library));
                        live.lock().unwrap().push(blocks);
                    }
                };
                turn.send(Box::new(step_of)).unwrap();
                is_done.recv().unwrap();
                if random.below(400) == 0 || step == 2999 {
                    let [plain, kept] = [0, 1].map(|at: usize| rigs[at].arena.stats());
                    assert_eq!(figures(&kept), figures(&plain), "seed {seed}, step {step}");
                    assert_eq!(kept.classes_live, plain.classes_live, "seed {seed}");
                    assert_eq!(kept.classes_at_peak, plain.classes_at_peak, "seed {seed}");
                    assert_eq!(kept.libraries_live, plain.libraries_live, "seed {seed}");
                    assert_eq!(
                        kept.libraries_at_peak, plain.libraries_at_peak,
                        "seed {seed}"
                    );
                    rigs[1].arena.validate().unwrap();
                }
            }
        });
        for blocks in live.into_inner().unwrap() {
            for (rig, block) in rigs.iter().zip(blocks) {
                rig.arena.free(block).unwrap();
            }
        }
        rigs.iter().for_each(Rig::ends_clean);
    }
}

/// A full cache gives a part of its blocks to limbo, where they are active again: each
/// counts once.
#[test]
fn what_leaves_a_full_cache_counts_once() {
    let most = [Bytes::ZERO, Bytes::mib(1), Bytes::mib(4), Bytes::mib(16)];
    let peaks = most.map(|most| {
        let config = Config {
            thread_cache: ThreadCacheSize::Most(most),
            ..plain(StrategyKind::AutoGrowth)
        };
        let (rig, size) = (Rig::new(&config, DEVICE), Bytes::kib(32));
        let blocks: Vec<_> = (0..400).map(|_| rig.get(size)).collect();
        rig.launch(blocks[0], size, 100_000 * MS);
        free_all(&rig, blocks);
        let all = rig.arena.stats().memory.all;
        rig.ends_clean();
        [
            Metric::Allocation,
            Metric::Active,
            Metric::ActiveBytes,
            Metric::RequestedBytes,
        ]
        .map(|metric| all[metric].peak)
    });
    let bytes = 400 * Bytes::kib(32).get();
    assert_eq!(peaks, [[400, 400, bytes, bytes]; 4]);
}

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

/// What threads keep is there for a request that finds nothing else, also that of
/// threads that have ended, and for whoever asks what is free.
#[test]
fn what_threads_keep_comes_back() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::mib(64));
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| {
                let blocks: Vec<_> = (0..200).map(|_| rig.get(Bytes::kib(64))).collect();
                for block in blocks {
                    rig.arena.free(block).unwrap();
                }
            });
        });
    }
    let all = Bytes::mib(60);
    assert!(rig.arena.mem_info().unwrap().free >= all);
    warm(&rig, Bytes::kib(64));
    let block = rig.get(all);
    rig.arena.free(block).unwrap();
    assert_eq!(rig.arena.stats().ooms, 0);
    rig.ends_clean();
}

/// Thousands of threads that each keep a few blocks leave nothing behind.
#[test]
fn threads_that_end_leave_nothing() {
    let rig = rig();
    for _ in 0..2000 {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..6 {
                        let block = rig.get(Bytes::kib(4));
                        rig.arena.free(block).unwrap();
                    }
                });
            }
        });
    }
    assert!(rig.arena.glance().reserved <= Bytes::mib(4));
    rig.ends_clean();
}

#[test]
fn a_capture_seals_nothing() {
    let rig = rig();
    warm(&rig, Bytes::kib(4));
    let fences = rig.gpu.calls(Call::Fence);
    rig.gpu.begin_capture(rig.stream);
    warm(&rig, Bytes::kib(4));
    assert_eq!(rig.gpu.calls(Call::Fence), fences);
    assert!(rig.gpu.end_capture(rig.stream));
    rig.ends_clean();
}

#[test]
fn a_context_that_ends_takes_what_threads_keep_with_it() {
    let rig = rig();
    warm(&rig, Bytes::kib(4));
    let block = rig.get(Bytes::kib(4));
    rig.arena.retire();
    assert!(rig.arena.free(block).is_err());
    assert!(rig.arena.allocate(Bytes::kib(4)).is_err());
    assert!(!rig.is_ours(block));
    let stats = rig.arena.stats();
    assert_eq!(stats.memory.all[Metric::Allocation].allocated, 1001);
    assert!(stats.ended_us.is_some());
}

#[test]
fn options_that_follow_each_request_leave_threads_nothing() {
    let none = [
        Config {
            free_sync: FreeSync::Strict,
            ..plain(StrategyKind::AutoGrowth)
        },
        Config {
            thread_cache: ThreadCacheSize::Most(Bytes::ZERO),
            ..plain(StrategyKind::AutoGrowth)
        },
        Config {
            free_idle_chunk: true,
            ..plain(StrategyKind::AutoGrowth)
        },
        Config {
            decay: Decay::After(Duration::from_secs(3600)),
            ..plain(StrategyKind::AutoGrowth)
        },
        plain(StrategyKind::Passthrough),
    ];
    for config in none {
        let rig = Rig::new(&config, DEVICE);
        warm(&rig, Bytes::kib(4));
        assert!(rig.arena.not_kept().is_some());
        assert_eq!(rig.arena.stats().thread_hits, 0);
        rig.ends_clean();
    }
    assert_eq!(rig().arena.not_kept(), None);
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

/// What is owed to others goes back in a free of the program: bare CUDA's waits
/// there too, and not in an allocation.
#[test]
fn a_request_that_seals_does_not_wait_for_the_driver() {
    let rig = rig();
    let large = Bytes::mib(60);
    let [busy, freed] = [0; 2].map(|_| rig.get(large));
    let blocks: Vec<_> = (0..300).map(|_| rig.get(Bytes::kib(4))).collect();
    rig.launch(busy, large, 500 * MS);
    rig.arena.free(freed).unwrap();
    assert_eq!(rig.arena.give_back_when_quiet(), Bytes::ZERO);
    free_all(&rig, blocks);
    let before = rig.gpu.now();
    let block = rig.get(Bytes::kib(16));
    assert!(rig.gpu.now() - before < MS);
    free_all(&rig, [block, busy]);
    rig.ends_clean();
}

#[test]
fn the_time_of_fences_never_falls() {
    let rig = rig();
    let mut last = 0;
    for _ in 0..100 {
        warm(&rig, Bytes::kib(4));
        let ns = rig.arena.driver_calls().fence.ns;
        assert!(ns >= last, "{ns} after {last}");
        last = ns;
    }
    rig.ends_clean();
}

#[test]
fn a_thread_keeps_blocks_of_eight_arenas() {
    let rigs: Vec<Rig> = (0..8).map(|_| rig()).collect();
    for _ in 0..1000 {
        for rig in &rigs {
            let block = rig.get(Bytes::kib(4));
            rig.arena.free(block).unwrap();
        }
    }
    for rig in rigs {
        assert!(rig.arena.stats().thread_hits > 600);
        rig.ends_clean();
    }
}

#[test]
fn what_threads_keep_waits_in_limbo_once_it_is_called_back() {
    let config = Config {
        thread_cache: ThreadCacheSize::Most(Bytes::mib(1)),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, DEVICE);
    let blocks: Vec<_> = (0..1024).map(|_| rig.get(Bytes::kib(16))).collect();
    // The device is busy.
    rig.launch(blocks[0], Bytes::kib(16), 1000 * MS);
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
    assert_eq!(rig.arena.glance().live, Bytes::ZERO);
    assert_eq!(rig.arena.stats().limbo.current, Bytes::mib(16));
    rig.ends_clean();
}
