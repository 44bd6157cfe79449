//! What an allocation waits for when memory is short, and what it does not.

mod asking;
mod captured;
mod pinned;
mod strict;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, DeviceShare, FreeSync, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{IfEnding, MemInfo, Whose};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{AllocError, Code, Driver};
use vramalloc_model::{Call, Gpu, Settings, SimDriver};

use crate::rig::{MS, Rig, plain};

/// During a capture on a full device there is no page to wait with, until an
/// idle chunk has been given back, which by itself is too small.
#[test]
fn what_was_given_back_is_enough_to_wait_with() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::mib(10));
    let whole = rig.get(Bytes::mib(8));
    rig.arena.free(whole).unwrap();
    rig.arena.flush();
    let (kept, freed) = (rig.get(Bytes::mib(4)), rig.get(Bytes::mib(4)));
    let idle = rig.get(Bytes::mib(2));
    rig.launch(freed, Bytes::mib(4), 200 * MS);
    let other = rig.gpu.stream(rig.arena.driver().context(), false).unwrap();
    rig.gpu.begin_capture(other);
    rig.arena.free(freed).unwrap();
    rig.arena.free(idle).unwrap();
    let again = rig.get(Bytes::mib(4));
    assert_eq!(again, freed);
    assert!(!rig.gpu.in_use(again, Bytes::mib(4)));
    assert!(rig.gpu.end_capture(other), "the capture was invalidated");
    rig.arena.free(kept).unwrap();
    rig.arena.free(again).unwrap();
    rig.ends_clean();
}

/// A driver in a process with another context, whose work goes on as long as
/// the test wants.
struct Accompanied {
    inner: SimDriver,
    other_runs: AtomicBool,
    /// How often the other's work was waited for.
    waits_for_other: AtomicU64,
}

impl Accompanied {
    /// The other's work is done after it was waited for.
    fn wait_for_other(&self, whose: Whose) -> bool {
        if whose == Whose::All {
            self.waits_for_other.fetch_add(1, Ordering::Relaxed);
            self.other_runs.store(false, Ordering::Relaxed);
        }
        !self.other_runs.load(Ordering::Relaxed)
    }
}

impl Mapping for Accompanied {}

impl Driver for Accompanied {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.inner.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.inner.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.inner.mem_info()
    }

    fn fence(&self) -> Result<Self::Fence, Code> {
        self.inner.fence()
    }

    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code> {
        Ok(!self.other_runs.load(Ordering::Relaxed) && self.inner.reached(fence)?)
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code> {
        self.inner.wait(fence, whose)?;
        Ok(self.wait_for_other(whose))
    }

    fn wait_within(&self, fence: &Self::Fence, most: Duration) -> Result<bool, Code> {
        self.inner.wait_within(fence, most)?;
        Ok(self.wait_for_other(Whose::Own))
    }
}

impl Accompanied {
    fn new(config: &Config, memory: Bytes) -> Accompanied {
        let rig = Rig::new(config, memory);
        Accompanied {
            inner: rig.gpu.driver(0).unwrap(),
            other_runs: AtomicBool::new(true),
            waits_for_other: AtomicU64::new(0),
        }
    }
}

fn accompanied(config: &Config, memory: Bytes) -> Arena<Accompanied> {
    let driver = Accompanied::new(config, memory);
    let map = Arc::new(PageMap::new());
    Arena::new(
        ArenaId(1),
        driver,
        config,
        map,
        Arc::new(Quota::new(Bytes::MAX)),
    )
}

/// Neither a full limbo nor a full device makes an allocation wait for another
/// context, as long as whole chunks can go back.
#[test]
fn the_work_of_others_is_not_waited_for() {
    for strategy in [
        StrategyKind::NaiveBestFit,
        StrategyKind::AutoGrowth,
        StrategyKind::Passthrough,
    ] {
        for free_sync in [FreeSync::Deferred, FreeSync::Strict] {
            let config = Config {
                free_sync,
                limbo_budget: Some(DeviceShare::Bytes(Bytes::mib(4))),
                ..plain(strategy)
            };
            let arena = accompanied(&config, Bytes::mib(64));
            for _ in 0..100 {
                let block = arena.allocate(Bytes::mib(8)).unwrap();
                arena.free(block).unwrap();
            }
            let driver = arena.driver();
            assert_eq!(driver.waits_for_other.load(Ordering::Relaxed), 0);
            assert!(driver.other_runs.load(Ordering::Relaxed));
        }
    }
}

/// What waits for a context that works for ever goes to the driver's own free, which does
/// not, long before the device is full.
#[test]
fn what_others_hold_up_does_not_fill_the_device() {
    for free_sync in [FreeSync::Deferred, FreeSync::Strict] {
        let config = Config {
            free_sync,
            ..plain(StrategyKind::AutoGrowth)
        };
        let arena = accompanied(&config, Bytes::gib(16));
        for size in (1..=8).cycle().take(1000) {
            let block = arena.allocate(Bytes::mib(size)).unwrap();
            arena.free(block).unwrap();
        }
        let reserved = arena.stats().reserved.peak;
        // A sixteenth, and what waits for the miss that finds that.
        assert!(reserved <= Bytes::mib(1200), "{free_sync:?}: {reserved}");
        assert!(arena.driver().other_runs.load(Ordering::Relaxed));
    }
}

/// Where something live lies in every chunk there is no other way.
#[test]
fn the_work_of_others_is_waited_for_before_memory_runs_out() {
    let arena = accompanied(&plain(StrategyKind::AutoGrowth), Bytes::mib(16));
    let take = || arena.allocate(Bytes::kib(512));
    let mut blocks = Vec::new();
    while let Ok(block) = take() {
        blocks.push(block);
    }
    assert!(blocks.len() >= 32);
    for block in blocks.iter().step_by(2) {
        arena.free(*block).unwrap();
    }
    let again = blocks.iter().step_by(2).map(|_| take());
    assert!(again.into_iter().all(|block| block.is_ok()));
    assert_eq!(arena.driver().waits_for_other.load(Ordering::Relaxed), 1);
}

/// A call that waits for many fences has waited once.
#[test]
fn calls_that_wait_are_counted_and_not_their_fences() {
    let config = Config {
        limbo_budget: Some(DeviceShare::Bytes(Bytes::mib(1))),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, Bytes::gib(1));
    let blocks: Vec<_> = (0..200).map(|_| rig.get(Bytes::kib(512))).collect();
    for block in blocks {
        rig.launch(block, Bytes::kib(512), MS);
        rig.arena.free(block).unwrap();
    }
    let before = rig.arena.driver_calls().wait.calls;
    rig.get(Bytes::mib(100));
    let stats = rig.arena.stats();
    assert!(rig.arena.driver_calls().wait.calls > before + 1);
    assert_eq!((stats.waits, stats.budget_waits), (1, 1));
}

/// What did not help was waited for too: another context still works.
#[test]
fn waits_in_vain_are_counted() {
    let config = Config {
        limbo_budget: Some(DeviceShare::Bytes(Bytes::mib(4))),
        ..plain(StrategyKind::AutoGrowth)
    };
    let arena = accompanied(&config, Bytes::mib(64));
    for size in [8, 10] {
        let block = arena.allocate(Bytes::mib(size)).unwrap();
        arena.free(block).unwrap();
    }
    let (stats, calls) = (arena.stats(), arena.driver_calls());
    assert_eq!(arena.driver().waits_for_other.load(Ordering::Relaxed), 0);
    assert_eq!((stats.waits, stats.budget_waits), (1, 1));
    assert_eq!(stats.wait_ns, calls.wait.ns);
}

/// A driver whose free waits, as CUDA's does.
struct Waiting {
    inner: SimDriver,
    frees_take: Duration,
}

impl Mapping for Waiting {}

impl Driver for Waiting {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.inner.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        std::thread::sleep(self.frees_take);
        self.inner.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.inner.mem_info()
    }

    fn fence(&self) -> Result<Self::Fence, Code> {
        self.inner.fence()
    }

    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code> {
        self.inner.reached(fence)
    }

    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code> {
        self.inner.wait(fence, whose)
    }
}

/// Without a pool the program waits in the driver's own free.
#[test]
fn frees_that_wait_in_the_driver_are_counted() {
    let config = plain(StrategyKind::Passthrough);
    let rig = Rig::new(&config, Bytes::mib(64));
    let driver = Waiting {
        inner: rig.gpu.driver(0).unwrap(),
        frees_take: Duration::from_millis(2),
    };
    let quota = Arc::new(Quota::new(Bytes::MAX));
    let arena = Arena::new(ArenaId(1), driver, &config, Arc::new(PageMap::new()), quota);
    for _ in 0..5 {
        let block = arena.allocate(Bytes::mib(1)).unwrap();
        arena.free(block).unwrap();
    }
    let stats = arena.stats();
    assert_eq!((stats.waits, stats.budget_waits), (5, 0));
    assert!(stats.wait_ns >= 10 * MS && stats.longest_wait_ns >= 2 * MS);
}

/// What a request would need besides what the program holds, of 64 MiB: more
/// than the device, or less than that.
const TOO_MUCH: [u64; 2] = [65, 41];

/// Nor is anything waited for, or given back, that an option would have freed
/// before more is taken: bare, what there is no room for is refused at once.
#[test]
fn no_option_waits_for_what_cannot_be_had() {
    let plain = plain(StrategyKind::AutoGrowth);
    let budget = Config {
        limbo_budget: Some(DeviceShare::Bytes(Bytes::mib(1))),
        ..plain.clone()
    };
    let spare = Config {
        free_when_no_cache_hit: true,
        ..plain.clone()
    };
    let threshold = Config {
        garbage_collection_threshold: Some(0.1),
        ..plain
    };
    for config in [budget, spare, threshold] {
        let rig = Rig::new(&config, Bytes::mib(64));
        let [kept, freed] = [40, 8].map(|mib| rig.get(Bytes::mib(mib)));
        rig.arena.free(freed).unwrap();
        if config.limbo_budget.is_none() {
            rig.arena.flush();
        }
        rig.launch(kept, Bytes::mib(40), 200 * MS);
        let refused = rig.arena.allocate(Bytes::mib(40));
        assert_eq!(refused, Err(AllocError::Driver(Code::OUT_OF_MEMORY)));
        assert!(rig.gpu.in_use(kept, Bytes::mib(40)));
        assert_eq!(rig.gpu.calls(Call::Free), 0);
        // Where it could be, it is.
        rig.get(Bytes::mib(12));
        assert!(!rig.gpu.in_use(kept, Bytes::mib(40)) || rig.gpu.calls(Call::Free) > 0);
        rig.arena.free(kept).unwrap();
    }
}

/// Bare CUDA refuses at once what there is no room for. Nothing helps, and
/// what the program has freed may be in use until it goes on.
#[test]
fn what_cannot_be_had_is_waited_for_by_nobody() {
    for strategy in [
        StrategyKind::NaiveBestFit,
        StrategyKind::AutoGrowth,
        StrategyKind::Passthrough,
    ] {
        for (limit, mib) in [None, Some(DeviceShare::Bytes(Bytes::mib(64)))]
            .into_iter()
            .flat_map(|limit| TOO_MUCH.map(|mib| (limit, mib)))
        {
            let never = u64::from(mib > 64);
            let config = Config {
                limit,
                limbo_budget: Some(DeviceShare::Bytes(Bytes::mib(24 - never))),
                retry_time: Duration::from_secs(600 * never),
                ..plain(strategy)
            };
            let memory = if limit.is_some() { 128 } else { 64 };
            let rig = Rig::new(&config, Bytes::mib(memory));
            let [kept, freed] = [(); 2].map(|()| rig.get(Bytes::mib(24)));
            rig.launch(freed, Bytes::mib(24), 200 * MS);
            if strategy != StrategyKind::Passthrough {
                // Its own free waits, as bare.
                rig.arena.free(freed).unwrap();
            }
            let wanted = Bytes::mib(mib);
            let refused = match limit {
                Some(_) => AllocError::Limit,
                None => AllocError::Driver(Code::OUT_OF_MEMORY),
            };
            assert_eq!(rig.arena.allocate(wanted), Err(refused), "{strategy:?}");
            assert!(
                rig.gpu.in_use(freed, Bytes::mib(24)),
                "{strategy:?}, {wanted}"
            );
            let stats = rig.arena.stats();
            assert_eq!(
                (stats.ooms, stats.limit_ooms),
                (1, u64::from(limit.is_some()))
            );
            rig.arena.free(kept).unwrap();
            if strategy == StrategyKind::Passthrough {
                rig.arena.free(freed).unwrap();
            }
            rig.ends_clean();
        }
    }
}

/// There is enough in sum, but the blocks that the program holds lie in between.
#[test]
fn the_work_of_others_is_not_waited_for_where_that_is_not_enough() {
    let config = Config {
        initial_chunk: Some(Bytes::mib(16)),
        ..plain(StrategyKind::NaiveBestFit)
    };
    let arena = accompanied(&config, Bytes::mib(16));
    let mut blocks = Vec::new();
    while let Ok(block) = arena.allocate(Bytes::kib(512)) {
        blocks.push(block);
    }
    for block in blocks.iter().step_by(2) {
        arena.free(*block).unwrap();
    }
    let driver = arena.driver();
    let waits = || driver.waits_for_other.load(Ordering::Relaxed);
    assert!(arena.allocate(Bytes::mib(4)).is_err());
    assert_eq!(
        (waits(), driver.other_runs.load(Ordering::Relaxed)),
        (0, true)
    );
    // Of neighbours enough is made.
    arena.free(blocks[1]).unwrap();
    assert!(arena.allocate(Bytes::kib(1536)).is_ok());
    assert!(waits() > 0);
}

/// A driver whose context may be ending, as long as the test runs.
struct Undecided(SimDriver);

impl Mapping for Undecided {}

impl Driver for Undecided {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.0.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.0.free(address)
    }

    fn free_from_here(&self, _address: Address) -> Result<(), Code> {
        Err(Code::NOT_READY)
    }

    fn giving_back<R>(
        &self,
        _ending: IfEnding,
        _work: impl FnOnce(&dyn Fn(Address) -> Result<(), Code>) -> R,
    ) -> Option<R> {
        None
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.0.mem_info()
    }

    fn fence(&self) -> Result<Self::Fence, Code> {
        self.0.fence()
    }

    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code> {
        self.0.reached(fence)
    }

    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code> {
        self.0.wait(fence, whose)
    }
}

/// What is the driver's stays in limbo meanwhile, and nobody goes on trying.
#[test]
fn a_context_that_may_be_ending_holds_no_call_up() {
    let gpu = Gpu::new(Settings::default());
    let driver = gpu.driver(0).unwrap();
    let stream = gpu.stream(driver.context(), false).unwrap();
    let config = plain(StrategyKind::Passthrough);
    let map = Arc::new(PageMap::new());
    let quota = Arc::new(Quota::new(Bytes::MAX));
    let arena = Arena::new(ArenaId(0), Undecided(driver), &config, map, quota);
    let block = arena.allocate(Bytes::mib(4)).unwrap();
    gpu.launch(stream, MS, &[(block, Bytes::mib(4))]).unwrap();
    arena.free(block).unwrap();
    let (told, done) = mpsc::channel();
    thread::spawn(move || {
        // The first one makes the fence, the second finds it reached.
        arena.flush();
        gpu.pass(MS);
        arena.flush();
        arena.trim();
        told.send(arena.limbo()).unwrap();
    });
    let in_limbo = done.recv_timeout(Duration::from_secs(60));
    assert_eq!(in_limbo, Ok(Bytes::mib(4)));
}
