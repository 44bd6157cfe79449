//! What is counted while threads keep blocks.

use std::sync::Barrier;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, StrategyKind, ThreadCacheSize};
use vramalloc_core::library::MOST_LIBRARIES;
use vramalloc_core::stats::{ArenaStats, Metric};

use crate::rig::{MS, Rig, plain, without_caches};

use super::{DEVICE, Random, SIZES, free_all, get_for, library, rig, warm};

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

/// A look at how the arena stands does not take what another thread keeps away from it at
/// once, but tells of it soon.
#[test]
fn what_another_thread_keeps_is_seen_soon() {
    const BLOCKS: u64 = 100;
    const SIZE: Bytes = Bytes::kib(4);
    // A tenth of a second, on a machine that is busy.
    const SOON: Duration = Duration::from_secs(2);
    let (rig, next) = (rig(), Barrier::new(2));
    let look = || rig.arena.glance().live;
    let (first, seen) = thread::scope(|scope| {
        scope.spawn(|| {
            warm(&rig, SIZE);
            let blocks: Vec<_> = (0..BLOCKS).map(|_| rig.get(SIZE)).collect();
            next.wait();
            next.wait();
            // The first look ended the bias of its cache's lock.
            warm(&rig, SIZE);
            free_all(&rig, blocks);
            next.wait();
            next.wait();
        });
        next.wait();
        let first = look();
        next.wait();
        next.wait();
        let (began, mut seen) = (Instant::now(), vec![look()]);
        while seen.last() != Some(&Bytes::ZERO) && began.elapsed() < SOON {
            thread::sleep(Duration::from_millis(1));
            seen.push(look());
        }
        next.wait();
        (first, seen)
    });
    let held = Bytes::new(BLOCKS * SIZE.get());
    assert_eq!(first, held);
    // Never more than there was at a time.
    let most = held.saturating_add(SIZE);
    assert!(seen.iter().all(|&live| live <= most), "{seen:?}");
    assert_eq!(seen.last(), Some(&Bytes::ZERO), "{seen:?}");
    rig.ends_clean();
}
