//! PyTorch's metrics: what counts as what, step by step, with the numbers
//! worked out by hand from the definitions.

use vramalloc_core::Code;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, DeviceShare, FreeSync, Splitting, StrategyKind};
use vramalloc_core::stats::{MemoryStats, Metric, PoolStats, Stat};
use vramalloc_model::{Call, Gpu, Settings};

use crate::rig::{MS, Rig, plain};

const MIB: u64 = 1 << 20;

fn memory(rig: &Rig) -> MemoryStats {
    rig.arena.validate().unwrap();
    rig.arena.stats().memory
}

/// Current, peak, sum of increases, sum of decreases.
fn values(pool: &PoolStats, metric: Metric) -> [u64; 4] {
    let Stat {
        current,
        peak,
        allocated,
        freed,
    } = pool[metric];
    [current, peak, allocated, freed]
}

fn large(rig: &Rig, metric: Metric) -> [u64; 4] {
    values(&memory(rig).large_pool, metric)
}

/// Frees are complete at once, so that one thing happens at a time.
fn immediate() -> Config {
    Config {
        free_sync: FreeSync::Immediate,
        auto_growth_chunk: Bytes::mib(20),
        ..plain(StrategyKind::AutoGrowth)
    }
}

fn mib(n: u64) -> Bytes {
    Bytes::mib(n)
}

/// A freed block that is just what the next request asks for is handed out as it
/// is, and counts as if it had become free and had been cut; a larger one is cut.
#[test]
fn what_fits_as_it_comes_back_counts_as_free_in_between() {
    let config = Config {
        free_sync: FreeSync::Deferred,
        ..immediate()
    };
    let rig = Rig::new(&config, mib(512));
    let split = |rig: &Rig| large(rig, Metric::InactiveSplitBytes).map(|bytes| bytes / MIB);
    let count = |rig: &Rig| large(rig, Metric::InactiveSplit);
    let live = |rig: &Rig| large(rig, Metric::AllocatedBytes)[0] / MIB;

    let [_, b, c] = [4, 6, 10].map(|n| rig.get(mib(n)));
    assert_eq!((split(&rig), count(&rig)), ([0, 16, 16, 16], [0, 1, 1, 1]));
    rig.arena.free(b).unwrap();
    assert_eq!(rig.get(mib(6)), b);
    assert_eq!((split(&rig), count(&rig)), ([0, 16, 22, 22], [0, 1, 2, 2]));
    assert_eq!((live(&rig), rig.arena.stats().hits), (20, 3));
    rig.arena.free(c).unwrap();
    rig.get(mib(4));
    assert_eq!((split(&rig), count(&rig)), ([6, 16, 32, 26], [1, 1, 3, 2]));
    assert_eq!((live(&rig), rig.arena.stats().hits), (14, 4));
}

/// Splitting what is whole adds the remainder; taking part of what is split
/// subtracts that part; on a free, the difference between what merged and what
/// came of it is what counts.
#[test]
fn only_free_blocks_beside_others_are_split() {
    let rig = Rig::new(&immediate(), mib(512));
    let split = |rig: &Rig| large(rig, Metric::InactiveSplitBytes).map(|bytes| bytes / MIB);
    let count = |rig: &Rig| large(rig, Metric::InactiveSplit);

    let a = rig.get(mib(4));
    assert_eq!((split(&rig), count(&rig)), ([16, 16, 16, 0], [1, 1, 1, 0]));
    let b = rig.get(mib(6));
    assert_eq!((split(&rig), count(&rig)), ([10, 16, 16, 6], [1, 1, 1, 0]));
    let c = rig.get(mib(10));
    assert_eq!((split(&rig), count(&rig)), ([0, 16, 16, 16], [0, 1, 1, 1]));
    rig.arena.free(a).unwrap();
    assert_eq!((split(&rig), count(&rig)), ([4, 16, 20, 16], [1, 1, 2, 1]));
    rig.arena.free(c).unwrap();
    assert_eq!((split(&rig), count(&rig)), ([14, 16, 30, 16], [2, 2, 3, 1]));
    // The last one merges with both: the chunk is whole, and nothing is split.
    rig.arena.free(b).unwrap();
    assert_eq!((split(&rig), count(&rig)), ([0, 16, 30, 30], [0, 2, 3, 3]));
    // A whole chunk is taken as it is.
    let d = rig.get(mib(20));
    assert_eq!((split(&rig), count(&rig)), ([0, 16, 30, 30], [0, 2, 3, 3]));
    rig.arena.free(d).unwrap();
    assert_eq!(large(&rig, Metric::Segment), [1, 1, 1, 0]);
    rig.arena.trim();
    assert_eq!(large(&rig, Metric::Segment), [0, 1, 1, 1]);
    assert_eq!(
        large(&rig, Metric::ReservedBytes),
        [0, 20 * MIB, 20 * MIB, 20 * MIB]
    );
    let stats = memory(&rig);
    assert_eq!((stats.num_device_alloc, stats.num_device_free), (1, 1));
    assert_eq!(stats.num_sync_all_streams, 1);
}

/// A free neighbour on one side: as many blocks as before, but larger.
#[test]
fn a_block_that_merges_with_one_neighbour_adds_its_bytes_alone() {
    let rig = Rig::new(&immediate(), mib(512));
    let a = rig.get(mib(4));
    let _b = rig.get(mib(4));
    let c = rig.get(mib(4));
    rig.arena.free(c).unwrap();
    // 12 behind `b`, which were 8 and are one block still.
    assert_eq!(large(&rig, Metric::InactiveSplit), [1, 1, 1, 0]);
    assert_eq!(
        large(&rig, Metric::InactiveSplitBytes).map(|bytes| bytes / MIB),
        [12, 16, 20, 8]
    );
    rig.arena.free(a).unwrap();
    assert_eq!(large(&rig, Metric::InactiveSplit), [2, 2, 2, 0]);
}

/// What was freed is no longer allocated, and active until its fence.
#[test]
fn limbo_is_a_free_that_was_requested_and_is_not_completed() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), mib(512));
    let (size, rounded) = (Bytes::new(3000), 3072);
    let block = rig.get(size);
    let small = |metric| values(&memory(&rig).small_pool, metric);
    rig.launch(block, size, 50 * MS);
    rig.arena.free(block).unwrap();
    rig.arena.flush();
    for (metric, expected) in [
        (Metric::Allocation, [0, 1, 1, 1]),
        (Metric::AllocatedBytes, [0, rounded, rounded, rounded]),
        (Metric::Active, [1, 1, 1, 0]),
        (Metric::ActiveBytes, [rounded, rounded, rounded, 0]),
        (Metric::RequestedBytes, [3000, 3000, 3000, 0]),
    ] {
        assert_eq!(small(metric), expected, "{}", metric.name());
    }
    rig.gpu.pass(60 * MS);
    rig.arena.flush();
    for (metric, expected) in [
        (Metric::Active, [0, 1, 1, 1]),
        (Metric::ActiveBytes, [0, rounded, rounded, rounded]),
        (Metric::RequestedBytes, [0, 3000, 3000, 3000]),
    ] {
        assert_eq!(small(metric), expected, "{}", metric.name());
    }
    let limbo = rig.arena.stats().limbo;
    assert_eq!((limbo.current.get(), limbo.peak.get()), (0, rounded));
    assert_eq!(memory(&rig).large_pool, PoolStats::default());
}

/// A direct allocation is a segment of its own; up to 1 MiB it is small, and
/// above that it takes whole pages.
#[test]
fn direct_allocations_are_segments_of_the_pool_of_their_size() {
    let rig = Rig::new(&plain(StrategyKind::Passthrough), mib(512));
    let blocks = [MIB - 100, MIB, MIB + 1].map(|size| rig.get(Bytes::new(size)));
    let stats = memory(&rig);
    let counts =
        |metric| [stats.all, stats.small_pool, stats.large_pool].map(|pool| pool[metric].current);
    assert_eq!(counts(Metric::Segment), [3, 2, 1]);
    assert_eq!(counts(Metric::Allocation), [3, 2, 1]);
    assert_eq!(counts(Metric::ReservedBytes), [4 * MIB, 2 * MIB, 2 * MIB]);
    assert_eq!(
        counts(Metric::RequestedBytes),
        [3 * MIB - 99, 2 * MIB - 100, MIB + 1]
    );
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
    let stats = memory(&rig);
    assert_eq!(values(&stats.all, Metric::Segment), [0, 3, 3, 3]);
    assert_eq!(values(&stats.all, Metric::Active), [0, 3, 3, 3]);
    assert_eq!((stats.num_device_alloc, stats.num_device_free), (3, 3));
    // The driver's own free waits: nothing was ever in limbo.
    assert_eq!(rig.arena.stats().limbo.peak, Bytes::ZERO);
}

/// The peak of both pools is that of their sum, not the sum of their peaks.
#[test]
fn the_peak_of_all_is_of_one_moment() {
    let rig = Rig::new(&immediate(), mib(512));
    let one = rig.get(mib(1));
    rig.arena.free(one).unwrap();
    let three = rig.get(mib(3));
    let stats = memory(&rig);
    let peaks = [stats.all, stats.small_pool, stats.large_pool]
        .map(|pool| pool[Metric::AllocatedBytes].peak / MIB);
    assert_eq!(peaks, [3, 1, 3]);
    rig.arena.free(three).unwrap();
}

/// What is oversize: blocks handed out, and chunks, of `max_split` and more.
#[test]
fn oversize_is_counted_from_max_split_on() {
    let config = Config {
        splitting: Splitting {
            max_split: Some(mib(32)),
            ..Splitting::default()
        },
        ..plain(StrategyKind::Passthrough)
    };
    let rig = Rig::new(&config, mib(512));
    let blocks = [30, 32, 40].map(|size| rig.get(mib(size)));
    let four = |stat: Stat| [stat.current, stat.peak, stat.allocated, stat.freed];
    let stats = memory(&rig);
    assert_eq!(four(stats.oversize_allocations), [2, 2, 2, 0]);
    assert_eq!(four(stats.oversize_segments), [2, 2, 2, 0]);
    assert_eq!(stats.max_split_size, Some(mib(32)));
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
    let stats = memory(&rig);
    assert_eq!(four(stats.oversize_allocations), [0, 2, 2, 2]);
    assert_eq!(four(stats.oversize_segments), [0, 2, 2, 2]);

    let without = Rig::new(&plain(StrategyKind::Passthrough), mib(512));
    without.get(mib(300));
    assert_eq!(memory(&without).oversize_allocations, Stat::default());
    assert_eq!(memory(&without).max_split_size, None);
}

/// The ladder: all of limbo is waited for, the driver is asked once more, and
/// only then the request has failed.
#[test]
fn a_request_that_fails_was_retried() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::Passthrough] {
        // Where chunks are packed, idle ones go back before the driver is asked.
        let config = Config {
            limit: Some(DeviceShare::Bytes(mib(64))),
            auto_growth_chunk: mib(4),
            ..plain(strategy)
        };
        let rig = Rig::new(&config, mib(512));
        let block = rig.get(mib(40));
        let counts = |rig: &Rig| {
            let stats = memory(rig);
            [
                stats.num_alloc_retries,
                stats.num_sync_all_streams,
                stats.num_ooms,
                stats.num_oom_rejections,
            ]
        };
        assert_eq!(counts(&rig), [0; 4]);
        // What the program holds leaves no room for it.
        assert!(rig.arena.allocate(mib(30)).is_err());
        assert_eq!(counts(&rig), [0, 0, 1, 0], "{strategy:?}");
        rig.gpu
            .fail_randomly(Call::Alloc, 1000, Code::OUT_OF_MEMORY);
        assert!(rig.arena.allocate(mib(20)).is_err());
        rig.gpu.fail_randomly(Call::Alloc, 0, Code::OUT_OF_MEMORY);
        assert_eq!(counts(&rig), [1, 1, 2, 0], "{strategy:?}");
        assert_eq!(rig.arena.stats().largest_oom, mib(30));
        // A retry that helps is one too.
        rig.arena.free(block).unwrap();
        rig.get(mib(50));
        let [retries, _, ooms, _] = counts(&rig);
        let helped = u64::from(strategy == StrategyKind::AutoGrowth);
        assert_eq!([retries, ooms], [1 + helped, 2], "{strategy:?}");
    }
}

/// A request that no device holds hides none that a higher limit serves.
#[test]
fn requests_that_a_higher_limit_serves_are_known() {
    let config = Config {
        limit: Some(DeviceShare::Bytes(mib(64))),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, mib(512));
    rig.get(mib(40));
    for size in [mib(30), Bytes::gib(1 << 20), mib(50), mib(480)] {
        assert!(rig.arena.allocate(size).is_err());
    }
    let stats = rig.arena.stats();
    assert_eq!(
        (stats.ooms, stats.limit_ooms, stats.raisable_ooms),
        (4, 4, 2)
    );
    assert_eq!(stats.limit_needed, mib(90));
}

/// Each request counts once, however often it is tried.
#[test]
fn a_request_that_is_tried_for_a_while_is_one_retry() {
    let config = Config {
        limit: Some(DeviceShare::Bytes(mib(64))),
        retry_time: std::time::Duration::from_millis(20),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, mib(512));
    rig.get(mib(40));
    rig.gpu
        .fail_randomly(Call::Alloc, 1000, Code::OUT_OF_MEMORY);
    assert!(rig.arena.allocate(mib(20)).is_err());
    assert_eq!(memory(&rig).num_alloc_retries, 1);
}

/// A request that fails although what is free would do in one piece.
#[test]
fn shortages_know_why() {
    let config = Config {
        limit: Some(DeviceShare::Bytes(mib(40))),
        ..immediate()
    };
    let rig = Rig::new(&config, mib(512));
    let blocks = [(); 4].map(|()| rig.get(mib(10)));
    assert!(rig.arena.allocate(mib(15)).is_err());
    assert_eq!(rig.arena.stats().fragmented_ooms, 0);
    // A half of each chunk.
    rig.arena.free(blocks[0]).unwrap();
    rig.arena.free(blocks[2]).unwrap();
    assert!(rig.arena.allocate(mib(15)).is_err());
    assert!(rig.arena.allocate(mib(21)).is_err());
    let stats = rig.arena.stats();
    assert_eq!((stats.ooms, stats.fragmented_ooms), (3, 1));
}

/// A chunk that goes back while blocks of it wait for the device takes them
/// along: their frees are completed.
#[test]
fn what_leaves_with_its_chunk_is_completed() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), mib(64));
    let (a, b) = (rig.get(mib(4)), rig.get(mib(50)));
    rig.gpu.begin_capture(rig.stream);
    rig.arena.free(a).unwrap();
    rig.arena.free(b).unwrap();
    assert_eq!(large(&rig, Metric::Active), [2, 2, 2, 0]);
    let c = rig.get(mib(60));
    assert!(rig.gpu.end_capture(rig.stream));
    assert_eq!(large(&rig, Metric::Active), [1, 2, 3, 2]);
    assert_eq!(large(&rig, Metric::Segment), [1, 2, 3, 2]);
    assert_eq!(large(&rig, Metric::InactiveSplit)[0], 0);
    rig.arena.free(c).unwrap();
    rig.ends_clean();
}

/// Of a context that is gone is told how it stood: the program has freed
/// nothing more.
#[test]
fn a_context_that_is_gone_is_told_as_it_stood() {
    let rig = Rig::on(Gpu::new(Settings::default()), &immediate());
    rig.get(mib(4));
    rig.get(Bytes::new(700));
    let before = memory(&rig);
    rig.arena.retire();
    let stats = memory(&rig);
    assert_eq!(stats, before);
    let all = 4 * MIB + 700;
    assert_eq!(
        values(&stats.all, Metric::RequestedBytes),
        [all, all, all, 0]
    );
    assert_eq!(stats.num_device_free, 0, "no call was made");
    assert!(rig.arena.free(Address::new(0)).is_err());
}

/// What was live at the peak stays noted, whatever is freed and got later.
#[test]
fn the_peak_knows_its_size_classes() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), mib(512));
    let class = |rig: &Rig, size: Bytes| {
        let stats = rig.arena.stats();
        let class = vramalloc_core::stats::size_class(size);
        let (peak, live) = (stats.classes_at_peak[class], stats.classes_live[class]);
        [peak.blocks, peak.bytes, live.blocks, live.bytes]
    };
    let (small, big) = (Bytes::new(700), mib(8));
    let first = rig.get(small);
    let second = rig.get(big);
    rig.get(big);
    assert_eq!(class(&rig, big), [2, 16 * MIB, 2, 16 * MIB]);
    rig.arena.free(second).unwrap();
    rig.arena.free(first).unwrap();
    rig.get(mib(2));
    assert_eq!(class(&rig, big), [2, 16 * MIB, 1, 8 * MIB]);
    assert_eq!(class(&rig, small), [1, 1024, 0, 0]);
    assert_eq!(class(&rig, mib(2)), [0, 0, 1, 2 * MIB]);
    // A higher peak takes the place of the old one.
    rig.get(mib(9));
    assert_eq!(class(&rig, big), [1, 8 * MIB, 1, 8 * MIB]);
    assert_eq!(class(&rig, small), [0; 4]);
    let total: u64 = (rig.arena.stats().classes_at_peak.iter())
        .map(|class| class.bytes)
        .sum();
    assert_eq!(total, rig.arena.stats().live.peak.get());
}

/// What was reserved at its peak is divided into live, cached and limbo.
#[test]
fn the_peak_of_what_is_reserved_knows_its_parts() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), mib(512));
    let first = rig.get(mib(10));
    let second = rig.get(mib(6));
    rig.launch(second, mib(6), 50 * MS);
    rig.arena.free(second).unwrap();
    rig.get(Bytes::new(21 * MIB + 512));
    rig.arena.free(first).unwrap();
    let parts = rig.arena.stats().at_reserved_peak;
    assert_eq!(
        [parts.live, parts.limbo, parts.cached],
        [
            Bytes::new(31 * MIB + 512),
            mib(6),
            Bytes::new(MIB - 512) // The rest of the last page.
        ]
    );
    // The chunk of `second`, in which nothing was live.
    assert_eq!(parts.idle, mib(6));
}

/// Under `mapped` a miss is one for want of a piece only where the pieces were moved.
#[test]
fn misses_of_mapped_memory_know_why() {
    let rig = Rig::new(&plain(StrategyKind::Mapped), mib(64));
    let why = |rig: &Rig| {
        let stats = rig.arena.stats();
        [stats.misses, stats.fragmented_misses]
    };
    let blocks = [(); 4].map(|()| rig.get(mib(14)));
    assert_eq!(why(&rig), [4, 0]);
    rig.get(Bytes::kib(4));
    assert_eq!(why(&rig), [5, 0]);
    rig.arena.free(blocks[0]).unwrap();
    rig.arena.free(blocks[2]).unwrap();
    // 28 are free, in two pieces, and the device has no more.
    rig.get(mib(20));
    assert_eq!(why(&rig), [6, 1]);
}

/// A miss that a better packed cache could have served is told from one for
/// which there was no memory; and one for which it lay in limbo.
#[test]
fn misses_know_why() {
    let rig = Rig::new(&immediate(), mib(512));
    let why = |rig: &Rig| {
        let stats = rig.arena.stats();
        [stats.misses, stats.fragmented_misses, stats.limbo_misses]
    };
    let blocks = [(); 4].map(|()| rig.get(mib(5)));
    assert_eq!(why(&rig), [1, 0, 0]);
    rig.arena.free(blocks[0]).unwrap();
    rig.arena.free(blocks[2]).unwrap();
    // 10 are free, in two pieces.
    rig.get(mib(11));
    assert_eq!(why(&rig), [2, 0, 0]);
    rig.get(mib(9));
    assert_eq!(why(&rig), [2, 0, 0]);
    rig.get(mib(10));
    assert_eq!(why(&rig), [3, 1, 0]);

    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), mib(512));
    let block = rig.get(mib(4));
    rig.launch(block, mib(4), 50 * MS);
    rig.arena.free(block).unwrap();
    rig.get(mib(4));
    rig.get(mib(5));
    assert_eq!(why(&rig), [3, 0, 1]);
}

/// A request that waits because limbo is full is counted apart from other
/// waits.
#[test]
fn waits_know_why() {
    let config = Config {
        limbo_budget: Some(DeviceShare::Bytes(mib(8))),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, mib(512));
    let waits = |rig: &Rig| {
        let stats = rig.arena.stats();
        assert!(stats.longest_wait_ns <= stats.wait_ns && stats.budget_wait_ns <= stats.wait_ns);
        [stats.waits, stats.budget_waits]
    };
    let block = rig.get(mib(10));
    rig.launch(block, mib(10), 50 * MS);
    rig.arena.free(block).unwrap();
    rig.get(mib(11));
    assert_eq!(waits(&rig), [1, 1]);
    let block = rig.get(mib(3));
    rig.launch(block, mib(3), 50 * MS);
    rig.arena.free(block).unwrap();
    rig.arena.trim();
    assert_eq!(waits(&rig), [2, 1]);
}

/// What was idle ever since memory was last taken was held for nothing.
#[test]
fn idle_memory_that_nobody_wanted_is_known() {
    let rig = Rig::new(
        &Config {
            free_sync: FreeSync::Immediate,
            ..plain(StrategyKind::AutoGrowth)
        },
        mib(512),
    );
    let low = |rig: &Rig| rig.arena.stats().idle_low.get() / MIB;
    let [a, b, c] = [10, 20, 30].map(|size| rig.get(mib(size)));
    for block in [a, b, c] {
        rig.arena.free(block).unwrap();
    }
    // All of it was in use once, after the last of it was taken.
    assert_eq!(low(&rig), 0);
    let d = rig.get(mib(40));
    assert_eq!((low(&rig), rig.arena.stats().idle), (60, mib(60)));
    let b = rig.get(mib(20));
    assert_eq!(low(&rig), 40);
    rig.arena.free(b).unwrap();
    assert_eq!((low(&rig), rig.arena.stats().idle), (40, mib(60)));
    rig.arena.free(d).unwrap();
    rig.arena.trim();
    assert_eq!(low(&rig), 0);
}
