//! A free that waits as CUDA's does, beside another thread that closes its batch.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, FreeSync, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{MemInfo, Whose};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Code, Driver};
use vramalloc_model::{Gpu, Settings, SimDriver};

use crate::rig::{MS, Rig, plain};

fn strict() -> Config {
    Config {
        free_sync: FreeSync::Strict,
        ..plain(StrategyKind::AutoGrowth)
    }
}

/// The batch is closed by another thread's free, which fills it.
#[test]
fn a_strict_free_waits_also_where_another_closes_its_batch() {
    let rig = Rig::new(&strict(), Bytes::mib(512));
    let ends = AtomicBool::new(false);
    let early = thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let fills = rig.get(Bytes::mib(64));
                rig.arena.free(fills).unwrap();
            }
        });
        let early = (0..30_000).filter(|_| {
            let block = rig.get(Bytes::kib(64));
            let work = [(block, Bytes::kib(64))];
            let end = rig.gpu.launch(rig.stream, 1000 * MS, &work).unwrap();
            rig.arena.free(block).unwrap();
            rig.gpu.now() < end
        });
        let early = early.count();
        ends.store(true, Ordering::Relaxed);
        early
    });
    assert_eq!(early, 0);
    rig.ends_clean();
}

/// A free whose batch another thread closes, before it can itself, and whose fence fails
/// while it is waited for.
struct FailsOther {
    driver: SimDriver,
    /// The free has left its block in the batch; the other may fill it.
    left: Barrier,
    /// The other makes the fence.
    makes: Barrier,
    /// The fence is waited for.
    awaited: Barrier,
    /// How often the free has asked if it may make a fence.
    step: AtomicU32,
}

/// It asks before it leaves its block in the batch, before it would close that, and before
/// it waits.
const LEFT: u32 = 1;
const AWAITED: u32 = 2;

impl Mapping for FailsOther {}

impl Driver for FailsOther {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.driver.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.driver.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.driver.mem_info()
    }

    fn may_fence(&self) -> bool {
        if !is_other() {
            match self.step.fetch_add(1, Ordering::Relaxed) {
                LEFT => {
                    self.left.wait();
                    self.makes.wait();
                }
                AWAITED => {
                    self.awaited.wait();
                }
                _ => {}
            }
        }
        true
    }

    fn fence(&self) -> Result<Self::Fence, Code> {
        if is_other() {
            self.makes.wait();
            self.awaited.wait();
            return Err(Code::UNKNOWN);
        }
        self.driver.fence()
    }

    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code> {
        self.driver.reached(fence)
    }

    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code> {
        self.driver.wait(fence, whose)
    }
}

const OTHER: &str = "other";

fn is_other() -> bool {
    thread::current().name() == Some(OTHER)
}

#[test]
fn a_strict_free_waits_also_where_the_fence_of_another_fails() {
    let gpu = Gpu::new(Settings::default());
    let driver = gpu.driver(0).unwrap();
    let stream = gpu.stream(driver.context(), false).unwrap();
    let driver = FailsOther {
        driver,
        left: Barrier::new(2),
        makes: Barrier::new(2),
        awaited: Barrier::new(2),
        step: AtomicU32::new(AWAITED + 1),
    };
    let (map, quota) = (Arc::new(PageMap::new()), Arc::new(Quota::new(Bytes::MAX)));
    let arena = Arena::new(ArenaId(0), driver, &strict(), map, quota);
    let [small, fills] = [Bytes::kib(64), Bytes::mib(64)].map(|size| arena.allocate(size).unwrap());
    let end = gpu.launch(stream, 1000 * MS, &[(small, Bytes::kib(64))]);
    let end = end.unwrap();
    thread::scope(|scope| {
        let other = thread::Builder::new().name(OTHER.to_string());
        let other = other.spawn_scoped(scope, || {
            arena.driver().left.wait();
            arena.free(fills).unwrap();
        });
        let other = other.unwrap();
        arena.driver().step.store(0, Ordering::Relaxed);
        arena.free(small).unwrap();
        assert!(gpu.now() >= end, "the free returned early");
        other.join().unwrap();
    });
    arena.trim();
    assert_eq!(arena.limbo(), Bytes::ZERO);
}
