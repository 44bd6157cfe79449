//! What threads keep where much of the device is taken.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, DeviceShare, StrategyKind};

use crate::caches::{Random, free_all, shuffle};
use crate::rig::{Rig, plain, without_caches};

const SMALL: Bytes = Bytes::kib(4);

/// How many pieces can be had; they are freed again.
fn pieces(rig: &Rig, size: Bytes) -> usize {
    let taken: Vec<Address> = std::iter::from_fn(|| rig.arena.allocate(size).ok()).collect();
    let count = taken.len();
    free_all(rig, taken);
    count
}

/// Of small blocks a program holds some, frees as many in any order, and takes `again`
/// before it fills the device with large pieces: how many it gets. Before that it takes and
/// frees all of it so many times. Others hold `elsewhere` of the device.
fn pieces_after_a_fall(
    config: &Config,
    (device, elsewhere): (Bytes, Bytes),
    blocks: usize,
    again: usize,
    passes: usize,
) -> usize {
    let rig = Rig::new(config, device);
    rig.gpu.occupy(0, elsewhere);
    for _ in 0..passes {
        let mut all: Vec<Address> = (0..2 * blocks).map(|_| rig.get(SMALL)).collect();
        all.extend([24, 8].map(|mib| rig.get(Bytes::mib(mib))));
        shuffle(&mut all, 7);
        free_all(&rig, all);
    }
    let mut held: Vec<Address> = (0..blocks).map(|_| rig.get(SMALL)).collect();
    let mut more: Vec<Address> = (0..blocks).map(|_| rig.get(SMALL)).collect();
    shuffle(&mut more, 3);
    free_all(&rig, more);
    held.extend((0..again).map(|_| rig.get(SMALL)));
    let count = pieces(&rig, Bytes::mib(4));
    free_all(&rig, held);
    rig.ends_clean();
    count
}

/// What threads have kept of many blocks is handed out again from everywhere, and would
/// keep the chunks in use that these lay in.
#[test]
fn what_is_taken_again_after_a_fall_leaves_chunks_whole() {
    let cases = [
        (512, 0, 60_000, 1000, 0),
        (512, 0, 30_000, 600, 0),
        (128, 0, 15_000, 256, 0),
        (512, 0, 50_000, 1000, 5),
        (4096, 3584, 60_000, 1000, 0),
        (4096, 3968, 15_000, 256, 0),
    ];
    let strategies = [StrategyKind::AutoGrowth, StrategyKind::Mapped].into_iter();
    for (strategy, case) in strategies.flat_map(|strategy| cases.map(|case| (strategy, case))) {
        let (mib, elsewhere, blocks, again, passes) = case;
        let device = (Bytes::mib(mib), Bytes::mib(elsewhere));
        let after = |config: &Config| pieces_after_a_fall(config, device, blocks, again, passes);
        let (kept, bare) = (after(&plain(strategy)), after(&without_caches(strategy)));
        let of =
            format!("{strategy:?}, {mib} MiB less {elsewhere}, {blocks} blocks, {passes} passes");
        assert!(
            (kept + 1) * 20 >= bare * 19,
            "{of}: {kept} pieces of {bare}"
        );
    }
}

/// Others may go: threads keep as much then as if there had been none.
#[test]
fn what_others_held_for_a_while_counts_no_more() {
    let fences = |elsewhere: Bytes, at_once: usize| {
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(4));
        rig.gpu.occupy(0, elsewhere);
        let held: Vec<Address> = (0..64).map(|_| rig.get(Bytes::mib(4))).collect();
        let mut small: Vec<Address> = (0..4352).map(|_| rig.get(Bytes::kib(16))).collect();
        free_all(&rig, small.drain(4096..));
        // Each chunk that is taken on a device that fills up costs a question.
        let questions = || rig.arena.driver_calls().mem_info.calls;
        let asked = questions();
        let mut churn = |pairs: usize| {
            let before = rig.arena.driver_calls().fence.calls;
            for number in 0..pairs / at_once {
                let blocks = &mut small[number * at_once % 4096..][..at_once];
                free_all(&rig, blocks.iter().copied());
                blocks.fill_with(|| rig.get(Bytes::kib(16)));
            }
            rig.arena.driver_calls().fence.calls - before
        };
        let with_others = churn(20_000);
        rig.gpu.occupy(0, Bytes::ZERO);
        churn(20_000);
        let (after, info) = (churn(20_000), questions() - asked);
        assert!(info < 50, "{info}");
        free_all(&rig, small);
        free_all(&rig, held);
        rig.ends_clean();
        (with_others, after)
    };
    for at_once in [1, 64] {
        let (alone, others) = (
            fences(Bytes::ZERO, at_once),
            fences(Bytes::mib(3700), at_once),
        );
        let of = format!("{at_once} at once: {others:?} {alone:?}");
        // Small caches hit, with a fence for fewer blocks; or they are closed.
        match at_once {
            1 => assert!(others.0 > 2 * alone.0, "{of}"),
            _ => assert!(others.0 <= alone.0 * 5 / 4, "{of}"),
        }
        assert!(others.1 <= alone.1 + 10, "{of}");
    }
}

/// What a program has may halve and double in each of its rounds.
#[test]
fn who_takes_and_gives_back_for_ever_does_not_ask_for_ever() {
    let config = Config {
        dedicated_min: Some(Bytes::mib(1)),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, Bytes::gib(4));
    let mut asked = [0, 0].map(|_| {
        for _ in 0..200 {
            let large = rig.get(Bytes::mib(512));
            for _ in 0..4 {
                let small: Vec<Address> = (0..512).map(|_| rig.get(SMALL)).collect();
                free_all(&rig, small);
            }
            free_all(&rig, [large]);
            for _ in 0..4 {
                let small: Vec<Address> = (0..512).map(|_| rig.get(SMALL)).collect();
                free_all(&rig, small);
            }
        }
        rig.arena.driver_calls().mem_info.calls
    });
    asked[1] -= asked[0];
    assert!(asked[0] > 10 && asked[1] <= 50, "{asked:?}");
    rig.ends_clean();
}

/// Where the limit is what makes memory scarce, what others hold is no matter.
#[test]
fn who_is_near_its_limit_does_not_ask_for_others() {
    let config = Config {
        limit: Some(DeviceShare::Bytes(Bytes::gib(1))),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, Bytes::gib(16));
    let large: Vec<Address> = (0..20).map(|_| rig.get(Bytes::mib(16))).collect();
    for _ in 0..2000 {
        let small: Vec<Address> = (0..64).map(|_| rig.get(SMALL)).collect();
        free_all(&rig, small);
    }
    let calls = rig.arena.driver_calls();
    assert!(
        calls.fence.calls > 500 && calls.mem_info.calls < 10,
        "{calls:?}"
    );
    free_all(&rig, large);
    rig.ends_clean();
}

/// Pairs of so many sizes, of which the program holds some, where memory is scarce: the
/// fences and what threads handed out.
fn fences_and_hits(config: &Config, sizes: usize, held: usize) -> (u64, u64) {
    let rig = Rig::new(config, Bytes::gib(1));
    let large = rig.get(Bytes::mib(300));
    let slack: Vec<Address> = (0..2000).map(|_| rig.get(SMALL)).collect();
    free_all(&rig, slack);
    let mut random = Random(5);
    let mut blocks = VecDeque::new();
    for _ in 0..40_000 {
        let size = Bytes::new(512 * (1 + random.below(sizes) as u64));
        blocks.push_back(rig.get(size));
        if blocks.len() > held {
            free_all(&rig, blocks.pop_front());
        }
    }
    let counts = (
        rig.arena.driver_calls().fence.calls,
        rig.arena.stats().thread_hits,
    );
    free_all(&rig, blocks);
    free_all(&rig, [large]);
    rig.ends_clean();
    counts
}

/// A small cache whose blocks do not come to be handed out again is closed: the fences for
/// them would be in vain. Where they do, they save fences.
#[test]
fn what_does_not_hit_costs_no_fences() {
    let strategy = StrategyKind::AutoGrowth;
    for (sizes, held, hits) in [(128, 300, false), (128, 1, false), (8, 300, true)] {
        // How long a thread goes without a cache depends on what it did before.
        let counted = |config| thread::spawn(move || fences_and_hits(&config, sizes, held)).join();
        let (fences, kept) = counted(plain(strategy)).unwrap();
        let (without, _) = counted(without_caches(strategy)).unwrap();
        let of = format!("{sizes} sizes, {held} held: {fences} of {without}, {kept} hits");
        assert!(fences <= without + 240, "{of}");
        assert_eq!(kept > 30_000, hits, "{of}");
    }
}

/// Where memory is scarce, a program that runs so: the fences.
fn fences_of(config: Config, program: impl FnOnce(&Rig) + Send + 'static) -> u64 {
    let run = move || {
        let rig = Rig::new(&config, Bytes::gib(1));
        let large = rig.get(Bytes::mib(300));
        program(&rig);
        let fences = rig.arena.driver_calls().fence.calls;
        free_all(&rig, [large]);
        rig.ends_clean();
        fences
    };
    thread::spawn(run).join().unwrap()
}

/// Threads that end before they could learn that a small cache is of no use to them learn
/// it from those before them.
#[test]
fn threads_that_end_soon_do_not_each_try() {
    fn one_after_another(rig: &Rig) {
        let mut random = Random(5);
        let mut blocks: VecDeque<Address> = VecDeque::new();
        for _ in 0..300 {
            let of_thread = || {
                for _ in 0..140 {
                    let units = 64 + random.below(64) as u64;
                    blocks.push_back(rig.get(Bytes::new(512 * units)));
                    if blocks.len() > 500 {
                        free_all(rig, blocks.pop_front());
                    }
                }
            };
            thread::scope(|scope| scope.spawn(of_thread).join().unwrap());
        }
        free_all(rig, blocks);
    }
    let strategy = StrategyKind::AutoGrowth;
    let fences = fences_of(plain(strategy), one_after_another);
    let without = fences_of(without_caches(strategy), one_after_another);
    assert!(fences <= without + 100, "{fences} of {without}");
}

/// Blocks that lie in a cache were not handed out: the small ones here say nothing for it,
/// and the large ones are of no use.
#[test]
fn what_lies_in_a_cache_says_nothing_for_it() {
    fn rounds(rig: &Rig) {
        for _ in 0..60 {
            for (times, size) in [(15, Bytes::kib(64)), (25, Bytes::new(512))] {
                for _ in 0..times {
                    let blocks: Vec<Address> = (0..20).map(|_| rig.get(size)).collect();
                    free_all(rig, blocks.into_iter().rev());
                }
            }
        }
    }
    let strategy = StrategyKind::AutoGrowth;
    let fences = fences_of(plain(strategy), rounds);
    let without = fences_of(without_caches(strategy), rounds);
    assert!(fences <= without * 5 / 4, "{fences} of {without}");
}

/// Rounds in which so many blocks are taken and then freed, where memory is scarce: the
/// fences and what threads handed out.
fn of_rounds(config: &Config, count: usize, size: Bytes) -> (u64, u64) {
    let rig = Rig::new(config, Bytes::gib(1));
    let large = rig.get(Bytes::mib(300));
    for _ in 0..40_000 / count {
        let blocks: Vec<Address> = (0..count).map(|_| rig.get(size)).collect();
        free_all(&rig, blocks);
    }
    let fences = rig.arena.driver_calls().fence.calls;
    let hits = rig.arena.stats().thread_hits;
    free_all(&rig, [large]);
    rig.ends_clean();
    (fences, hits)
}

/// A program that gives back all that it took, again and again, has its caches emptied
/// each time. They stay as long as they save fences or hit.
#[test]
fn rounds_keep_the_caches_that_serve_them() {
    let strategy = StrategyKind::AutoGrowth;
    for (count, bytes, hits, part) in [
        (400, 512, 35_000, 6),
        (520, 512, 30_000, 6),
        (1500, 512, 0, 6),
        (80, 4096, 20_000, 1),
    ] {
        let size = Bytes::new(bytes);
        let counted = |config| thread::spawn(move || of_rounds(&config, count, size)).join();
        let (fences, kept) = counted(plain(strategy)).unwrap();
        let (without, _) = counted(without_caches(strategy)).unwrap();
        let of = format!("{count} of {size}: {fences} of {without}, {kept} hits");
        assert!(fences <= without / part + 10 && kept >= hits, "{of}");
    }
    // Not one fence for four blocks.
    let counted = |config| thread::spawn(move || of_rounds(&config, 40, Bytes::kib(64))).join();
    let (fences, without) = (counted(plain(strategy)), counted(without_caches(strategy)));
    let (fences, without) = (fences.unwrap().0, without.unwrap().0);
    assert!(fences <= without * 3 / 2, "{fences} of {without}");
}

/// Rounds of blocks of 4 KiB, for which a small cache is of use, and some of others, for
/// which it is of none: what threads handed out.
#[test]
fn a_useless_part_costs_the_rest_little() {
    let hits = thread::spawn(|| {
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(1));
        let large = rig.get(Bytes::mib(300));
        let rounds = |count: usize, of: usize, size: Bytes| {
            for _ in 0..count / of {
                let blocks: Vec<Address> = (0..of).map(|_| rig.get(size)).collect();
                free_all(&rig, blocks);
            }
        };
        for _ in 0..8 {
            rounds(6000, 40, Bytes::kib(16));
            rounds(60_000, 20, SMALL);
        }
        let hits = rig.arena.stats().thread_hits;
        free_all(&rig, [large]);
        rig.ends_clean();
        hits
    });
    let hits = hits.join().unwrap();
    assert!(hits > 8 * 50_000, "{hits}");
}

/// A thread whose cache was of no use is to wait for another; not where others free what it
/// takes.
#[test]
fn who_waits_for_a_cache_takes_what_others_free() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(1));
    let large = rig.get(Bytes::mib(300));
    let (given, taken) = mpsc::sync_channel::<Vec<Address>>(0);
    let (done, freed) = mpsc::sync_channel(0);
    thread::scope(|scope| {
        let rig = &rig;
        scope.spawn(move || {
            for blocks in taken {
                free_all(rig, blocks);
                done.send(()).unwrap();
            }
        });
        scope.spawn(move || {
            for _ in 0..900 {
                let blocks: Vec<Address> = (0..40).map(|_| rig.get(Bytes::kib(64))).collect();
                free_all(rig, blocks);
            }
            for _ in 0..1000 {
                let blocks = (0..40).map(|_| rig.get(Bytes::new(512))).collect();
                given.send(blocks).unwrap();
                freed.recv().unwrap();
            }
        });
    });
    let hits = rig.arena.stats().thread_hits;
    assert!(hits > 20_000, "{hits}");
    free_all(&rig, [large]);
    rig.ends_clean();
}

/// A block is not handed out for less than it is: that is had back by nobody.
#[test]
fn smaller_blocks_take_no_more_than_they_are() {
    let room_left = |config: &Config| {
        let rig = Rig::new(config, Bytes::mib(128));
        let (large, small) = (Bytes::new(126 << 9), Bytes::new(112 << 9));
        let mut blocks: Vec<Address> = (0..1900).map(|_| rig.get(large)).collect();
        for batch in blocks.chunks_mut(128) {
            free_all(&rig, batch.iter().copied());
            batch.fill_with(|| rig.get(small));
        }
        let count = pieces(&rig, SMALL);
        free_all(&rig, blocks);
        rig.ends_clean();
        count
    };
    let strategy = StrategyKind::AutoGrowth;
    let (kept, bare) = (
        room_left(&plain(strategy)),
        room_left(&without_caches(strategy)),
    );
    assert!(kept * 20 >= bare * 19, "{strategy:?}: {kept} of {bare}");
}

/// What a call of the program's to CUDA finds no memory beside goes back, also where the
/// free units were in small blocks.
#[test]
fn all_that_is_free_makes_room() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::Mapped] {
        for config in [plain(strategy), without_caches(strategy)] {
            let rig = Rig::new(&config, Bytes::mib(64));
            let mut blocks: Vec<Address> = (0..12_000).map(|_| rig.get(SMALL)).collect();
            let first = blocks.swap_remove(0);
            shuffle(&mut blocks, 5);
            free_all(&rig, blocks);
            let given = rig.arena.give_room(Duration::from_secs(1));
            assert!(given >= Bytes::mib(44), "{strategy:?}: {given}");
            free_all(&rig, [first]);
            rig.ends_clean();
        }
    }
}
