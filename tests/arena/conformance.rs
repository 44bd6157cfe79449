//! What holds under every strategy.

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{
    Config, DeviceShare, Fill, FreeSync, GarbageThreshold, Splitting, StrategyKind,
};
use vramalloc_core::error::{AllocError, Code, FreeError};
use vramalloc_core::library::LibraryId;
use vramalloc_core::stats::{ArenaStats, DriverCalls};
use vramalloc_model::Call;

use crate::rig::{MS, Rig, plain, without_caches};

const MIB: Bytes = Bytes::mib(1);
const DEVICE: Bytes = Bytes::gib(1);

fn blocks_are_aligned_and_apart(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let mut blocks: Vec<(u64, u64)> = Vec::new();
    for n in 0..200u64 {
        let size = (n * n * 977) % (3 << 20) + 1;
        blocks.push((rig.get(Bytes::new(size)).get(), size));
    }
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
    for &(address, _) in &blocks {
        assert_eq!(address % 512, 0);
        assert!(rig.is_ours(Address::new(address)));
        rig.arena.free(Address::new(address)).unwrap();
    }
    rig.ends_clean();
}

fn a_freed_block_waits_for_the_device(base: &Config) {
    for free_sync in [FreeSync::Deferred, FreeSync::Strict] {
        let rig = Rig::new(
            &Config {
                free_sync,
                ..base.clone()
            },
            DEVICE,
        );
        for size in [Bytes::new(4096), Bytes::mib(8)] {
            let block = rig.get(size);
            rig.launch(block, size, 200 * MS);
            let end = rig.gpu.tail(rig.arena.driver().context());
            rig.arena.free(block).unwrap();
            if free_sync == FreeSync::Strict {
                assert!(
                    rig.gpu.now() >= end,
                    "the free returned before the work was done"
                );
            }
            let again: Vec<_> = (0..20).map(|_| rig.get(size)).collect();
            for &other in &again {
                assert!(!rig.gpu.in_use(other, size), "{other:?} is still in use");
            }
            again
                .into_iter()
                .for_each(|block| rig.arena.free(block).unwrap());
        }
        rig.ends_clean();
    }
}

/// The same program as above sees the overlap when nothing waits, so that the
/// test above can fail. What goes straight to the driver waits there.
fn immediate_reuse_is_seen(base: &Config) {
    let config = Config {
        free_sync: FreeSync::Immediate,
        ..base.clone()
    };
    let rig = Rig::new(&config, DEVICE);
    let block = rig.get(MIB);
    rig.launch(block, MIB, 200 * MS);
    rig.arena.free(block).unwrap();
    let again = rig.get(MIB);
    assert_eq!(
        rig.gpu.in_use(again, MIB),
        base.strategy != StrategyKind::Passthrough
    );
}

fn bad_pointers_change_nothing(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let (first, second) = (rig.get(MIB), rig.get(MIB));
    let before = rig.arena.stats();
    for offset in [1, 512, 4096] {
        let interior = Address::new(first.get() + offset);
        assert_eq!(rig.arena.free(interior), Err(FreeError::NotLive));
    }
    assert!(!rig.is_ours(Address::new(1 << 20)));
    assert_eq!(rig.arena.stats().live, before.live);
    rig.arena.free(second).unwrap();
    assert_eq!(
        rig.arena.free(second),
        Err(FreeError::NotLive),
        "a double free"
    );
    assert_eq!(rig.arena.stats().bad_frees, 4);
    rig.arena.free(first).unwrap();
    rig.ends_clean();
}

fn a_block_is_located_from_any_address_in_it(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let sizes = [Bytes::new(700), Bytes::kib(64), MIB, Bytes::mib(3)];
    let blocks: Vec<_> = (sizes.iter()).map(|&size| (rig.get(size), size)).collect();
    for &(block, size) in &blocks {
        let found = rig.arena.locate(block).unwrap();
        assert_eq!(found.block, block);
        assert_eq!(Some(found.size), size.round_up(Bytes::new(512)));
        let end = found.block.offset_from(found.allocation).get() + found.size.get();
        assert!(found.allocation <= block && end <= found.allocation_size.get());
        // Direct allocations are found by where they start alone.
        if !found.is_whole() {
            for offset in [1, size.get() / 2, size.get() - 1] {
                let inside = Address::new(block.get() + offset);
                assert_eq!(rig.arena.locate(inside), Some(found), "{inside:?}");
            }
        }
    }
    for (block, _) in blocks {
        rig.arena.free(block).unwrap();
        assert_eq!(rig.arena.locate(block), None, "{block:?} is not live");
    }
    rig.ends_clean();
}

fn impossible_requests_fail_cleanly(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let invalid = Err(AllocError::Driver(Code::INVALID_VALUE));
    assert_eq!(rig.arena.allocate(Bytes::ZERO), invalid);
    let shortage = Err(AllocError::Driver(Code::OUT_OF_MEMORY));
    for request in [Bytes::gib(2), Bytes::new(1 << 60), Bytes::MAX] {
        assert_eq!(rig.arena.allocate(request), shortage, "{request}");
    }
    let block = rig.get(MIB);
    rig.arena.free(block).unwrap();
    rig.ends_clean();
}

fn the_limit_is_the_device(base: &Config) {
    let limit = Some(DeviceShare::Bytes(Bytes::mib(256)));
    let rig = Rig::new(
        &Config {
            limit,
            ..base.clone()
        },
        DEVICE,
    );
    let info = rig.arena.mem_info().unwrap();
    assert_eq!((info.free, info.total), (Bytes::mib(256), Bytes::mib(256)));
    let blocks: Vec<_> = std::iter::from_fn(|| rig.arena.allocate(Bytes::mib(10)).ok()).collect();
    assert!(
        (20..=25).contains(&blocks.len()),
        "{} blocks of 10 MiB",
        blocks.len()
    );
    assert_eq!(rig.arena.allocate(Bytes::mib(10)), Err(AllocError::Limit));
    assert!(rig.gpu.used(0) <= Bytes::mib(256));
    let stats = rig.arena.stats();
    assert_eq!((stats.ooms, stats.limit_ooms), (2, 2));
    blocks
        .into_iter()
        .for_each(|block| rig.arena.free(block).unwrap());
    // All of it can be had again, also in one piece.
    assert_eq!(rig.arena.mem_info().unwrap().free, Bytes::mib(256));
    let whole = rig.get(Bytes::mib(256));
    rig.arena.free(whole).unwrap();
    rig.ends_clean();
}

fn what_is_free_can_be_had(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let kept = rig.get(Bytes::mib(100));
    let other = rig.get(Bytes::mib(300));
    rig.arena.free(other).unwrap();
    let info = rig.arena.mem_info().unwrap();
    assert_eq!(info.total, DEVICE);
    // All but the kept block and what sharing its chunk may cost.
    assert!(
        info.free >= Bytes::mib(900) && info.free <= Bytes::mib(924),
        "{}",
        info.free
    );
    rig.arena.free(kept).unwrap();
    assert_eq!(rig.arena.mem_info().unwrap().free, DEVICE);
    rig.ends_clean();
}

fn memory_in_another_shape_is_found(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    for size in [
        Bytes::mib(4),
        Bytes::mib(50),
        Bytes::mib(8),
        Bytes::mib(900),
    ] {
        let count = 960 / (size.get() >> 20);
        let blocks: Vec<_> = (0..count).map(|_| rig.get(size)).collect();
        for &block in &blocks {
            rig.launch(block, size, MS);
        }
        blocks
            .into_iter()
            .for_each(|block| rig.arena.free(block).unwrap());
    }
    assert_eq!(rig.arena.stats().ooms, 0);
    rig.ends_clean();
}

fn a_capture_stays_valid(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let (kept, block) = (rig.get(MIB), rig.get(MIB));
    let other = rig.gpu.stream(rig.arena.driver().context(), false).unwrap();
    rig.gpu.begin_capture(rig.stream);
    rig.arena.free(block).unwrap();
    // Several times the device's memory goes through while it is open.
    for _ in 0..20 {
        // More than naive_best_fit leaves beside its chunk.
        let size = Bytes::mib(200);
        let block = rig.get(size);
        assert!(
            !rig.gpu.in_use(block, size),
            "handed out while still in use"
        );
        rig.gpu.launch(other, MS, &[(block, size)]).unwrap();
        rig.arena.free(block).unwrap();
    }
    rig.arena.flush();
    rig.arena.mem_info().unwrap();
    rig.arena.validate().unwrap();
    assert!(
        rig.gpu.end_capture(rig.stream),
        "the capture was invalidated"
    );
    rig.arena.free(kept).unwrap();
    rig.ends_clean();
}

fn failing_calls_leave_the_books_right(base: &Config) {
    for call in [
        Call::Alloc,
        Call::Free,
        Call::Fence,
        Call::Reached,
        Call::Wait,
        Call::MemInfo,
    ] {
        for n in 1..12 {
            for code in [Code::OUT_OF_MEMORY, Code::UNKNOWN] {
                let rig = Rig::new(base, DEVICE);
                rig.gpu.fail_nth(call, n, code);
                let mut blocks = Vec::new();
                for round in 0..40u64 {
                    let size = Bytes::new((round * 7919) % 60 * (1 << 19) + 1);
                    blocks.extend(rig.arena.allocate(size));
                    if round % 3 == 0 && !blocks.is_empty() {
                        let block = blocks.swap_remove(0);
                        blocks.extend(rig.arena.free(block).is_err().then_some(block));
                    }
                    let _ = rig.arena.mem_info();
                    rig.arena.validate().unwrap();
                }
                for block in blocks {
                    let freed = rig.arena.free(block);
                    // What the driver refused to take is the program's still.
                    freed.or_else(|_| rig.arena.free(block)).unwrap();
                }
                rig.arena.trim();
                rig.arena.validate().unwrap();
                assert_eq!(
                    rig.arena.stats().reserved.current,
                    Bytes::ZERO,
                    "{call:?} {n} {code:?}"
                );
            }
        }
    }
}

fn a_refused_free_changes_nothing(base: &Config) {
    let config = Config {
        dedicated_min: Some(MIB),
        limit: Some(DeviceShare::Bytes(Bytes::mib(8))),
        splitting: Splitting {
            max_split: Some(Bytes::mib(4)),
            ..Splitting::default()
        },
        fill: Some(Fill {
            byte: 0xAB,
            whole_block: true,
        }),
        ..base.clone()
    };
    let rig = Rig::new(&config, DEVICE);
    let sizes = [Bytes::mib(6), MIB];
    let blocks = sizes.map(|size| rig.get(size));
    let (before, fills) = (rig.arena.stats(), rig.gpu.fills());
    let refused = Err(FreeError::Driver(Code::UNKNOWN));
    for block in blocks {
        rig.gpu.fail_nth(Call::Free, 1, Code::UNKNOWN);
        assert_eq!(rig.arena.free(block), refused);
        let in_order = rig.arena.free_in_order(block, || Err(Code::UNKNOWN));
        assert_eq!(in_order.map(drop), refused);
    }
    // On a busy machine a call of the driver may take long, and counts as a wait.
    let after = ArenaStats {
        waits: before.waits,
        wait_ns: before.wait_ns,
        longest_wait_ns: before.longest_wait_ns,
        ..rig.arena.stats()
    };
    assert_eq!(after, before);
    assert_eq!(rig.gpu.fills(), fills, "what the program wrote is there");
    let limit = Err(AllocError::Limit);
    assert_eq!(rig.arena.allocate(Bytes::mib(2)), limit);
    rig.arena.validate().unwrap();
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
    rig.ends_clean();
}

fn a_retired_arena_knows_nothing(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let (live, freed) = (rig.get(MIB), rig.get(MIB));
    rig.arena.free(freed).unwrap();
    let calls = rig.arena.driver_calls();
    rig.arena.retire();
    // What was mapped does not go with the context.
    let after = DriverCalls {
        mapping: calls.mapping,
        ..rig.arena.driver_calls()
    };
    assert_eq!(after, calls, "the context is gone");
    assert_eq!(rig.gpu.units_and_reservations(), (0, 0));
    assert_eq!(rig.gpu.violations(), []);
    assert!(!rig.is_ours(live) && !rig.is_ours(freed));
    assert_eq!(rig.arena.trim(), Bytes::ZERO);
    assert!(rig.arena.limbo().is_zero());
    assert!(rig.arena.allocate(MIB).is_err());
    rig.arena.validate().unwrap();
}

fn an_adopted_pointer_is_freed_like_any_other(base: &Config) {
    use vramalloc_core::Driver as _;
    let rig = Rig::new(base, DEVICE);
    let address = rig.arena.driver().alloc(Bytes::mib(3)).unwrap();
    assert!(rig.arena.adopt(address, Bytes::mib(3)));
    assert!(rig.is_ours(address) && rig.is_whole(address));
    rig.arena.free(address).unwrap();
    rig.ends_clean();
}

/// What the real function serves in the end is within the limit as well.
fn the_real_function_does_not_pass_the_limit(base: &Config) {
    use vramalloc_core::Driver as _;
    let config = Config {
        limit: Some(DeviceShare::Bytes(Bytes::mib(8))),
        ..base.clone()
    };
    let rig = Rig::new(&config, DEVICE);
    let driver = rig.arena.driver();
    let take = |size| {
        rig.arena
            .take_past(size, LibraryId::UNKNOWN, || driver.alloc(size))
    };
    let block = take(Bytes::mib(5)).unwrap();
    assert!(rig.is_ours(block) && rig.is_whole(block));
    assert_eq!(take(Bytes::mib(3)), Err(AllocError::Limit));
    let refused = rig
        .arena
        .take_past(Bytes::mib(2), LibraryId::UNKNOWN, || Err(Code::UNKNOWN));
    assert_eq!(refused, Err(AllocError::Driver(Code::UNKNOWN)));
    let rest = take(Bytes::mib(2)).unwrap();
    rig.arena.free(block).unwrap();
    rig.arena.free(rest).unwrap();
    assert!(rig.gpu.peak(0) <= Bytes::mib(8));
    rig.ends_clean();
}

fn a_block_is_located_in_its_allocation(base: &Config) {
    let rig = Rig::new(base, DEVICE);
    let (first, second) = (rig.get(MIB), rig.get(MIB));
    for block in [first, second] {
        let found = rig.arena.locate(block).unwrap();
        assert_eq!((found.block, found.size), (block, MIB));
        let end = found.allocation.checked_add(found.allocation_size).unwrap();
        assert!(found.allocation <= block && block.checked_add(MIB).unwrap() <= end);
        let inside = Address::new(block.get() + 700);
        let around = rig.arena.locate(inside);
        // Of a direct allocation only the start is known.
        assert_eq!(
            around,
            (base.strategy != StrategyKind::Passthrough).then_some(found)
        );
    }
    rig.arena.free(second).unwrap();
    assert_eq!(rig.arena.locate(second), None);
    assert_eq!(rig.arena.locate(Address::new(1 << 20)), None);
    rig.arena.free(first).unwrap();
    rig.ends_clean();
}

fn large_requests_can_have_their_own_allocation(base: &Config) {
    let config = Config {
        dedicated_min: Some(Bytes::mib(32)),
        ..base.clone()
    };
    let rig = Rig::new(&config, DEVICE);
    let (large, small) = (rig.get(Bytes::mib(32)), rig.get(Bytes::mib(1)));
    assert!(rig.is_whole(large));
    assert_eq!(
        rig.is_whole(small),
        base.strategy == StrategyKind::Passthrough
    );
    rig.arena.free(large).unwrap();
    rig.arena.free(small).unwrap();
    rig.ends_clean();
}

fn garbage_collects_as_the_options_say(base: &Config) {
    let garbage = |threshold, fraction| {
        let config = Config {
            garbage_threshold: threshold,
            garbage_fraction: fraction,
            ..base.clone()
        };
        let rig = Rig::new(&config, DEVICE);
        let sizes = [10, 40, 20, 30].map(Bytes::mib);
        let blocks = sizes.map(|size| rig.get(size));
        let held = rig.arena.driver_calls().fence.calls;
        blocks
            .into_iter()
            .for_each(|block| rig.arena.free(block).unwrap());
        let fences = rig.arena.driver_calls().fence.calls - held;
        let limbo = rig.arena.stats().limbo.current;
        rig.ends_clean();
        (fences, limbo)
    };
    if base.strategy == StrategyKind::Passthrough {
        return;
    }
    let hundred = GarbageThreshold::Bytes(Bytes::mib(100));
    assert_eq!(
        garbage(hundred, 1.0),
        (1, Bytes::ZERO),
        "the fourth free fills the batch"
    );
    assert_eq!(
        garbage(GarbageThreshold::Pressure, 1.0),
        (0, Bytes::mib(100))
    );
    // Half of 100 is reached by 40 and 30; 20 and 10 wait.
    assert_eq!(garbage(hundred, 0.5), (1, Bytes::mib(30)));
    assert_eq!(garbage(hundred, 0.0), (0, Bytes::mib(100)));
}

macro_rules! conformance {
    ($($strategy:ident: $kind:expr;)*) => {$(
        mod $strategy {
            use super::*;
            conformance!(@tests $kind,
                blocks_are_aligned_and_apart,
                a_freed_block_waits_for_the_device,
                immediate_reuse_is_seen,
                bad_pointers_change_nothing,
                a_block_is_located_from_any_address_in_it,
                impossible_requests_fail_cleanly,
                the_limit_is_the_device,
                what_is_free_can_be_had,
                memory_in_another_shape_is_found,
                a_capture_stays_valid,
                failing_calls_leave_the_books_right,
                a_refused_free_changes_nothing,
                a_retired_arena_knows_nothing,
                an_adopted_pointer_is_freed_like_any_other,
                the_real_function_does_not_pass_the_limit,
                a_block_is_located_in_its_allocation,
                large_requests_can_have_their_own_allocation,
                garbage_collects_as_the_options_say,
            );
        }
    )*};
    (@tests $kind:expr, $($test:ident,)*) => {$(
        #[test]
        fn $test() {
            super::$test(&$kind);
        }
    )*};
}

conformance! {
    naive_best_fit: plain(StrategyKind::NaiveBestFit);
    auto_growth: plain(StrategyKind::AutoGrowth);
    passthrough: plain(StrategyKind::Passthrough);
    mapped: plain(StrategyKind::Mapped);
    mapped_without_caches: without_caches(StrategyKind::Mapped);
    naive_best_fit_without_caches: without_caches(StrategyKind::NaiveBestFit);
    auto_growth_without_caches: without_caches(StrategyKind::AutoGrowth);
}
