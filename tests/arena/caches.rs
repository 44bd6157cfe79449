//! What threads keep of the small blocks that they free.

mod banks;
mod figures;
mod scarce;
mod shared;

use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, Decay, DeviceShare, FreeSync, StrategyKind, ThreadCacheSize};
use vramalloc_core::error::FreeError;
use vramalloc_core::library::LibraryId;
use vramalloc_core::stats::Metric;
use vramalloc_model::Call;

use crate::rig::{MS, Rig, plain};

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
    // There is a slab: where the first four find none, each may take one.
    warm(&rig, Bytes::kib(4));
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

/// A cache is small where little is in chunks for small requests: it does not take a fence
/// for each two of the largest blocks, nor does one of the option's size.
#[test]
fn a_fence_is_for_several_blocks() {
    for most in [
        ThreadCacheSize::Auto,
        ThreadCacheSize::Most(Bytes::kib(64)),
        ThreadCacheSize::Most(Bytes::kib(200)),
    ] {
        let config = Config {
            thread_cache: most,
            ..plain(StrategyKind::AutoGrowth)
        };
        let rig = Rig::new(&config, Bytes::gib(4));
        let _large = rig.get(Bytes::mib(300));
        for size in [4, 8, 20, 64] {
            let before = rig.arena.driver_calls().fence.calls;
            for _ in 0..100 {
                let blocks: Vec<_> = (0..40).map(|_| rig.get(Bytes::kib(size))).collect();
                blocks.iter().for_each(|&b| rig.arena.free(b).unwrap());
            }
            let fences = rig.arena.driver_calls().fence.calls - before;
            assert!(fences <= 4000 / 4, "{most:?} {size} KiB: {fences}");
        }
    }
}

/// A thread that replaces its blocks puts them behind fences without the arena's lock:
/// each counts, and no block is handed out before the device is done with it.
#[test]
fn batches_without_the_arena_count_and_wait() {
    for busy in [0, 3, 40] {
        let rig = rig();
        let mut blocks: Vec<_> = (0..64).map(|_| rig.get(Bytes::kib(4))).collect();
        let mut random = Random(busy);
        for number in 0..40_000_u64 {
            let block = &mut blocks[random.below(64)];
            if busy > 0 && number % (1 << 10) < busy {
                rig.launch(*block, Bytes::kib(4), MS * busy);
            }
            rig.arena.free(*block).unwrap();
            *block = rig.get(Bytes::kib(4));
            assert!(!rig.gpu.in_use(*block, Bytes::kib(4)), "{busy}: {number}");
            rig.gpu.pass(MS / 100);
        }
        let (stats, calls) = (rig.arena.stats(), rig.arena.driver_calls());
        assert!(stats.epochs >= 40_000 / 512, "{busy}: {}", stats.epochs);
        // Where the device is busy, some are made in vain.
        let vain = calls.fence.calls - stats.epochs;
        assert!(
            vain * 8 <= stats.epochs,
            "{busy}: {vain} of {}",
            stats.epochs
        );
        free_all(&rig, blocks);
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

/// A program that frees nearly all of many small blocks, in any order, and takes a few
/// again leaves the rest of its memory whole.
#[test]
fn a_few_small_blocks_do_not_lie_in_all_chunks() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::Mapped] {
        for beside in [0, 16] {
            let rig = Rig::new(&plain(strategy), Bytes::mib(530 + 32 * beside));
            let large: Vec<Address> = (0..beside).map(|_| rig.get(Bytes::mib(32))).collect();
            few_blocks_leave_the_rest(&rig, large);
            rig.ends_clean();
        }
    }
}

/// The same where threads free them, one after another.
#[test]
fn a_few_small_blocks_of_threads_do_not_lie_in_all_chunks() {
    const THREADS: usize = 32;
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::Mapped] {
        let rig = Rig::new(&plain(strategy), Bytes::mib(1040));
        let large: Vec<Address> = (0..16).map(|_| rig.get(Bytes::mib(32))).collect();
        let mut small: Vec<_> = (0..131_072).map(|_| rig.get(Bytes::kib(4))).collect();
        shuffle(&mut small, 1);
        let (in_step, turns) = (Barrier::new(THREADS + 1), Mutex::new(()));
        thread::scope(|scope| {
            for part in small.chunks(small.len() / THREADS) {
                let (rig, in_step, turns) = (&rig, &in_step, &turns);
                scope.spawn(move || {
                    let mut blocks = Vec::new();
                    let turn = turns.lock().unwrap();
                    for &block in part {
                        rig.arena.free(block).unwrap();
                    }
                    drop(turn);
                    in_step.wait();
                    blocks.extend((0..8).map(|_| rig.get(Bytes::kib(4))));
                    in_step.wait();
                    in_step.wait();
                    for block in blocks {
                        rig.arena.free(block).unwrap();
                    }
                });
            }
            in_step.wait();
            in_step.wait();
            let pieces: Vec<_> = (0..15)
                .map(|_| rig.arena.allocate(Bytes::mib(32)))
                .collect();
            in_step.wait();
            for block in pieces {
                let block = block.unwrap_or_else(|error| panic!("{strategy:?}: {error:?}"));
                rig.arena.free(block).unwrap();
            }
        });
        for block in large {
            rig.arena.free(block).unwrap();
        }
        rig.ends_clean();
    }
}

/// In any order, the same each time.
fn shuffle(blocks: &mut [Address], mut number: u64) {
    for end in (1..blocks.len()).rev() {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let other = usize::try_from((number >> 33) % (end as u64 + 1)).unwrap();
        blocks.swap(end, other);
    }
}

/// The same after these large ones were freed, and taken again at last.
fn few_blocks_leave_the_rest(rig: &Rig, large: Vec<Address>) {
    let pieces = 15 + large.len();
    let mut blocks: Vec<Address> = (0..131_072).map(|_| rig.get(Bytes::kib(4))).collect();
    shuffle(&mut blocks, 1);
    for block in large.into_iter().chain(blocks.drain(..)) {
        rig.arena.free(block).unwrap();
    }
    blocks.extend((0..256).map(|_| rig.get(Bytes::kib(4))));
    for piece in 0..pieces {
        let block = rig.arena.allocate(Bytes::mib(32));
        assert!(block.is_ok(), "{piece} of {pieces}: {block:?}");
        blocks.extend(block);
    }
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
}

/// Requests for small blocks that no thread's cache serves, of 500 waves that take so much
/// in blocks of 64 KiB and give them back, where `before` came first and `beside` comes
/// after each.
fn unkept(bytes: Bytes, before: fn(&Rig), beside: fn(&Rig)) -> u64 {
    let unkept = |waves: u64| {
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(4));
        before(&rig);
        for _ in 0..waves {
            wave(&rig, Bytes::kib(64), bytes);
            beside(&rig);
        }
        // This calls back what threads keep, so it is asked for at the end alone.
        let stats = rig.arena.stats();
        stats.hits + stats.misses - stats.thread_hits
    };
    unkept(500) - unkept(0)
}

fn wave(rig: &Rig, size: Bytes, bytes: Bytes) {
    let count = bytes.get() / size.get();
    let blocks: Vec<_> = (0..count).map(|_| rig.get(size)).collect();
    free_all(rig, blocks);
}

/// The sizes of the smaller classes.
fn small_classes() -> impl Iterator<Item = Bytes> {
    (0..7).map(|doubling| Bytes::new(512 << doubling))
}

/// A cache that is full of blocks of sizes that the program asks for no more gives them
/// back to the arena: those of the size that it asks for then stay.
#[test]
fn what_was_in_use_does_not_keep_a_cache_full() {
    let each_size = |rig: &Rig| {
        for size in small_classes().chain(small_classes()) {
            (0..5).for_each(|_| wave(rig, size, Bytes::mib(6)));
        }
    };
    let later = unkept(Bytes::mib(6), each_size, |_| {});
    assert!(later < 960, "{later}");
}

/// The same where it asks for one such block at a time, again and again.
#[test]
fn what_is_hardly_in_use_does_not_keep_a_cache_full() {
    let once = |rig: &Rig| {
        wave(rig, Bytes::kib(64), Bytes::mib(12));
        small_classes().for_each(|size| wave(rig, size, Bytes::kib(730)));
    };
    let one_by_one = |rig: &Rig| {
        for size in small_classes() {
            (0..Bytes::kib(730).get() / size.get()).for_each(|_| wave(rig, size, size));
        }
    };
    let later = unkept(Bytes::mib(10), once, one_by_one);
    assert!(later < 12_000, "{later}");
}
