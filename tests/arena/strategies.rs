//! What each strategy does beyond what all do.

use std::sync::Arc;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, FreeSync, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{Driver, MemInfo, Whose};
use vramalloc_core::error::Code;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_model::{Call, Gpu, Settings, SimDriver, SimFence};

use crate::rig::{MS, Rig, plain, without_caches};

const DEVICE: Bytes = Bytes::gib(1);

fn naive() -> Config {
    plain(StrategyKind::NaiveBestFit)
}

#[test]
fn naive_takes_its_chunk_at_the_first_request() {
    let rig = Rig::new(&naive(), DEVICE);
    assert_eq!(rig.gpu.used(0), Bytes::ZERO);
    let block = rig.get(Bytes::new(512));
    // 0.95 × 0.92 of 1 GiB, in whole pages.
    assert_eq!(rig.gpu.used(0), Bytes::mib(894));
    for _ in 0..100 {
        rig.get(Bytes::mib(1));
    }
    assert_eq!(rig.gpu.calls(Call::Alloc), 1);
    rig.arena.free(block).unwrap();
}

#[test]
fn naive_sizes_of_chunks_can_be_given() {
    let config = Config {
        initial_chunk: Some(Bytes::mib(64)),
        reallocate_chunk: Some(Bytes::mib(32)),
        ..naive()
    };
    let rig = Rig::new(&config, DEVICE);
    let mut used = Vec::new();
    let blocks: Vec<_> = (0..6)
        .map(|_| {
            let block = rig.get(Bytes::mib(20));
            used.push(rig.gpu.used(0).get() >> 20);
            block
        })
        .collect();
    // Three in the first chunk, one in each later one.
    assert_eq!(used, [64, 64, 64, 96, 128, 160]);
    // Above the larger of both sizes: straight to the driver, straight back.
    let large = rig.get(Bytes::mib(100));
    assert_eq!(rig.gpu.used(0), Bytes::mib(260));
    rig.arena.free(large).unwrap();
    assert_eq!(rig.gpu.used(0), Bytes::mib(160));
    blocks
        .into_iter()
        .for_each(|block| rig.arena.free(block).unwrap());
    rig.ends_clean();
}

/// What went straight to the driver is no chunk: the initial size is for the
/// first one, and again when all were given back.
#[test]
fn naive_takes_the_initial_size_whenever_it_has_no_chunk() {
    let config = Config {
        initial_chunk: Some(Bytes::mib(64)),
        reallocate_chunk: Some(Bytes::mib(32)),
        ..naive()
    };
    let rig = Rig::new(&config, DEVICE);
    let large = rig.get(Bytes::mib(100));
    for _ in 0..2 {
        let block = rig.get(Bytes::mib(1));
        assert_eq!(rig.gpu.used(0), Bytes::mib(164));
        rig.arena.free(block).unwrap();
        // Kept, until the program asks for it to be given back.
        assert_eq!(rig.gpu.used(0), Bytes::mib(164));
        assert_eq!(rig.arena.trim(), Bytes::mib(64));
    }
    rig.arena.free(large).unwrap();
    rig.ends_clean();
}

#[test]
fn naive_halves_a_chunk_that_cannot_be_had() {
    let config = Config {
        initial_chunk: Some(Bytes::gib(3)),
        ..naive()
    };
    let rig = Rig::new(&config, DEVICE);
    rig.get(Bytes::mib(1));
    assert_eq!(rig.gpu.used(0), Bytes::mib(768));

    let rig = Rig::new(&config, DEVICE);
    rig.gpu.occupy(0, Bytes::mib(1022));
    rig.get(Bytes::mib(2));
    assert_eq!(
        rig.arena.stats().reserved.current,
        Bytes::mib(2),
        "only the request is left"
    );
}

#[test]
fn naive_fraction_zero_goes_to_the_driver() {
    let rig = Rig::new(
        &Config {
            chunk_fraction: 0.0,
            ..naive()
        },
        DEVICE,
    );
    for n in 1..=10 {
        let block = rig.get(Bytes::mib(3));
        rig.arena.free(block).unwrap();
        assert_eq!(
            (rig.gpu.calls(Call::Alloc), rig.gpu.calls(Call::Free)),
            (n, n)
        );
    }
    assert_eq!(rig.arena.stats().direct, 10);
    rig.ends_clean();
}

#[test]
fn auto_growth_takes_what_is_needed() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    for _ in 0..4 {
        rig.get(Bytes::kib(512));
    }
    assert_eq!(
        rig.gpu.used(0),
        Bytes::mib(2),
        "small requests share a slab"
    );
    rig.get(Bytes::mib(20));
    assert_eq!(rig.gpu.used(0), Bytes::mib(22));
    let config = Config {
        auto_growth_chunk: Bytes::mib(64),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, DEVICE);
    rig.get(Bytes::mib(20));
    rig.get(Bytes::mib(20));
    assert_eq!(rig.gpu.used(0), Bytes::mib(64));
}

#[test]
fn a_repeating_program_stops_calling_the_driver_for_memory() {
    for strategy in [StrategyKind::NaiveBestFit, StrategyKind::AutoGrowth] {
        let rig = Rig::new(&plain(strategy), DEVICE);
        let mut calls = Vec::new();
        for _ in 0..5 {
            let blocks: Vec<_> = (1..200u64)
                .map(|n| rig.get(Bytes::new(n * n * 50)))
                .collect();
            blocks
                .into_iter()
                .for_each(|block| rig.arena.free(block).unwrap());
            calls.push(rig.gpu.calls(Call::Alloc));
        }
        assert_eq!(calls[0], calls[4], "{strategy:?}: {calls:?}");
        assert_eq!(rig.gpu.calls(Call::Free), 0);
        rig.ends_clean();
    }
}

#[test]
fn fences_are_shared_by_many_frees() {
    let rig = Rig::new(&without_caches(StrategyKind::AutoGrowth), DEVICE);
    let blocks: Vec<_> = (0..6400).map(|_| rig.get(Bytes::new(4096))).collect();
    blocks
        .into_iter()
        .for_each(|block| rig.arena.free(block).unwrap());
    assert_eq!(rig.gpu.calls(Call::Fence), 100);
}

#[test]
fn a_host_that_runs_ahead_waits_at_the_limbo_budget() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(16));
    for _ in 0..400 {
        let block = rig.get(Bytes::mib(10));
        rig.launch(block, Bytes::mib(10), 10 * MS);
        rig.arena.free(block).unwrap();
    }
    let stats = rig.arena.stats();
    // The budget is 64 MiB; one block more may lie there, and one is live.
    assert!(
        stats.reserved.peak <= Bytes::mib(84),
        "{:?}",
        stats.reserved
    );
    assert!(stats.waits > 0);
    rig.ends_clean();
}

#[test]
fn memory_that_others_took_meanwhile_is_an_ordinary_shortage() {
    let gpu = Gpu::new(Settings {
        memory: DEVICE,
        ..Settings::default()
    });
    let rig = Rig::on(gpu, &plain(StrategyKind::AutoGrowth));
    let cached = rig.get(Bytes::mib(200));
    rig.launch(cached, Bytes::mib(200), 50 * MS);
    rig.arena.free(cached).unwrap();
    rig.gpu.occupy(0, Bytes::mib(800));
    // Fits only when the cached chunk went back, which waits for the work.
    let large = rig.get(Bytes::mib(210));
    assert!(!rig.gpu.in_use(large, Bytes::mib(210)));
    rig.arena.free(large).unwrap();
    assert_eq!(rig.arena.allocate(Bytes::mib(230)).map_err(|_| ()), Err(()));
    rig.ends_clean();
}

#[test]
fn a_full_device_still_serves_what_the_driver_can() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    // Half a page of the driver's is in use by somebody else.
    let driver = rig.arena.driver().clone();
    let theirs = Driver::alloc(&driver, Bytes::kib(512)).unwrap();
    rig.gpu.occupy(0, Bytes::mib(1022));
    let block = rig.get(Bytes::kib(4));
    assert!(rig.is_whole(block));
    rig.arena.free(block).unwrap();
    Driver::free(&driver, theirs).unwrap();
    rig.gpu.occupy(0, Bytes::ZERO);
    rig.ends_clean();
}

#[test]
fn errors_that_are_no_shortage_are_passed_on_at_once() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    rig.gpu.fail_nth(Call::Alloc, 1, Code::INVALID_CONTEXT);
    let error = rig.arena.allocate(Bytes::mib(1)).unwrap_err();
    assert_eq!(
        error,
        vramalloc_core::AllocError::Driver(Code::INVALID_CONTEXT)
    );
    assert_eq!(rig.gpu.calls(Call::Alloc), 1);
    assert_eq!(rig.arena.stats().ooms, 0);
}

#[test]
fn strict_frees_leave_no_limbo() {
    let config = Config {
        free_sync: FreeSync::Strict,
        ..plain(StrategyKind::AutoGrowth)
    };
    // The second fills a batch alone.
    for mib in [4, 64] {
        let rig = Rig::new(&config, DEVICE);
        for free in 1..=10 {
            let block = rig.get(Bytes::mib(mib));
            rig.launch(block, Bytes::mib(mib), MS);
            rig.arena.free(block).unwrap();
            let stats = rig.arena.stats();
            assert_eq!((stats.limbo.current, stats.epochs), (Bytes::ZERO, free));
        }
        assert_eq!(rig.arena.stats().reserved.current, Bytes::mib(mib));
        rig.ends_clean();
    }
}

#[test]
fn a_free_in_the_order_of_a_stream_fences_a_full_batch_and_waits_for_none() {
    for free_sync in [FreeSync::Deferred, FreeSync::Strict] {
        let config = Config {
            free_sync,
            ..plain(StrategyKind::AutoGrowth)
        };
        let rig = Rig::new(&config, DEVICE);
        let blocks = [16, 64].map(|mib| rig.get(Bytes::mib(mib)));
        rig.launch(blocks[0], Bytes::mib(16), MS);
        for (block, fences) in blocks.into_iter().zip([0, 1]) {
            rig.arena.free_in_order(block, || Ok(())).unwrap();
            assert_eq!(rig.gpu.calls(Call::Fence), fences, "{free_sync:?}");
        }
        assert_eq!(rig.gpu.calls(Call::Wait), 0);
        assert_eq!(rig.arena.limbo(), Bytes::mib(80));
        rig.ends_clean();
    }
}

/// A driver whose memory starts 512 bytes into its pages.
struct Askew(SimDriver);

impl Mapping for Askew {}

impl Driver for Askew {
    type Fence = SimFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let whole = self.0.alloc(size.saturating_add(Bytes::new(512)))?;
        Ok(Address::new(whole.get() + 512))
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.0.free(Address::new(address.get() - 512))
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.0.mem_info()
    }

    fn fence(&self) -> Result<SimFence, Code> {
        self.0.fence()
    }

    fn reached(&self, fence: &SimFence) -> Result<bool, Code> {
        self.0.reached(fence)
    }

    fn wait(&self, fence: &SimFence, whose: Whose) -> Result<bool, Code> {
        self.0.wait(fence, whose)
    }
}

/// Chunks that do not fill their part of the page map are not pooled: others'
/// addresses would be taken for ours.
#[test]
fn a_driver_with_odd_addresses_serves_each_request_itself() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::NaiveBestFit] {
        let gpu = Gpu::new(Settings {
            memory: DEVICE,
            ..Settings::default()
        });
        let map = Arc::new(PageMap::new());
        let quota = Arc::new(Quota::new(Bytes::MAX));
        let driver = Askew(gpu.driver(0).unwrap());
        let arena = Arena::new(ArenaId(0), driver, &plain(strategy), map, quota);
        let blocks = [4096, 1 << 20, 5 << 20].map(|size| arena.allocate(Bytes::new(size)).unwrap());
        for block in blocks {
            assert!(arena.locate(block).unwrap().is_whole());
            arena.free(block).unwrap();
        }
        arena.validate().unwrap();
        assert_eq!(
            (arena.stats().reserved.current, gpu.used(0)),
            (Bytes::ZERO, Bytes::ZERO)
        );
    }
}

/// The driver knows a chunk by its start: a block there is all of the chunk, or
/// the last that found room. No chunk is larger or taken because of that.
#[test]
fn the_start_of_a_chunk_in_use_is_handed_out_last() {
    let naive = Config {
        initial_chunk: Some(Bytes::mib(8)),
        ..plain(StrategyKind::NaiveBestFit)
    };
    for (config, chunk) in [(plain(StrategyKind::AutoGrowth), 2), (naive, 8)] {
        let rig = Rig::new(&config, Bytes::gib(1));
        let is_first = |block| rig.allocation(block) == block;
        for size in [512, 4096, 64 << 10, 1 << 20] {
            let fit = (chunk << 20) / size;
            let blocks: Vec<_> = (0..fit).map(|_| rig.get(Bytes::new(size))).collect();
            let (last, others) = blocks.split_last().unwrap();
            assert!(!others.iter().any(|&block| is_first(block)), "{size}");
            assert!(is_first(*last), "{size}");
            assert_eq!(rig.gpu.live_count(), 1, "{size}");
            blocks
                .into_iter()
                .for_each(|block| rig.arena.free(block).unwrap());
            rig.arena.trim();
        }
        // All of it, also after it was cut.
        let whole = Bytes::mib(chunk);
        for _ in 0..2 {
            let block = rig.get(whole);
            assert!(is_first(block));
            assert_eq!(rig.gpu.used(0), whole);
            rig.arena.free(block).unwrap();
            rig.arena.flush();
            let small = rig.get(Bytes::new((1 << 20) + 512));
            assert!(!is_first(small));
            assert_eq!(rig.gpu.used(0), whole);
            rig.arena.free(small).unwrap();
            rig.arena.flush();
        }
        rig.ends_clean();
    }
}
