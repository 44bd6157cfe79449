//! A free that waits as CUDA's does, beside other threads that close batches.

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
use vramalloc_model::{Call, Gpu, Settings, SimDriver};

use crate::rig::{MS, Rig, plain};

fn strict() -> Config {
    Config {
        free_sync: FreeSync::Strict,
        ..plain(StrategyKind::AutoGrowth)
    }
}

/// Of 30 000 frees beside a thread that fills batches, none is early.
#[test]
fn a_strict_free_waits_also_where_another_closes_batches() {
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

/// A driver that has two threads, `SECOND` and `THIRD`, fill a batch at certain points of
/// another thread's free.
struct Crossed {
    driver: SimDriver,
    /// How often that free has asked if it may make a fence, which it does before each step.
    asked: AtomicU32,
    meets: [Barrier; 7],
}

const SECOND: &str = "second";
const THIRD: &str = "third";
const LAST: u32 = 4;

impl Crossed {
    fn meet(&self, meets: impl IntoIterator<Item = usize>) {
        for number in meets {
            self.meets[number].wait();
        }
    }

    /// What the others do at this point.
    fn crosses(&self, point: u32) {
        match point {
            // The second closes what there is, and makes the fence.
            1 => self.meet([0, 1]),
            // It fails to: what was closed is open again, and the second is done.
            2 => self.meet([2, 3]),
            // The third closes what there is, and makes the fence.
            3 => self.meet([4, 5]),
            LAST => self.meet([6]),
            _ => {}
        }
    }
}

fn is_thread(name: &str) -> bool {
    thread::current().name() == Some(name)
}

impl Mapping for Crossed {}

impl Driver for Crossed {
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
        if !is_thread(SECOND) && !is_thread(THIRD) {
            self.crosses(self.asked.fetch_add(1, Ordering::Relaxed));
        }
        true
    }

    fn fence(&self) -> Result<Self::Fence, Code> {
        if is_thread(SECOND) {
            self.meet([1, 2]);
            return Err(Code::UNKNOWN);
        }
        if is_thread(THIRD) {
            self.meet([5, 6]);
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

/// Whatever others close at each of its steps, and although a fence of theirs fails.
#[test]
fn a_strict_free_waits_also_where_the_fence_of_another_fails() {
    let gpu = Gpu::new(Settings::default());
    let driver = gpu.driver(0).unwrap();
    let stream = gpu.stream(driver.context(), false).unwrap();
    let driver = Crossed {
        driver,
        asked: AtomicU32::new(LAST + 1),
        meets: [(); 7].map(|()| Barrier::new(2)),
    };
    let (map, quota) = (Arc::new(PageMap::new()), Arc::new(Quota::new(Bytes::MAX)));
    let arena = Arena::new(ArenaId(0), driver, &strict(), map, quota);
    let get = |size| arena.allocate(size).unwrap();
    let [small, second, third] = [Bytes::kib(64), Bytes::mib(64), Bytes::mib(64)].map(get);
    let work = [(small, Bytes::kib(64))];
    let end = gpu.launch(stream, 1000 * MS, &work).unwrap();
    let driver = arena.driver();
    let is_early = thread::scope(|scope| {
        let spawn = |name: &str| thread::Builder::new().name(name.to_owned());
        let fills = || {
            driver.meet([0]);
            arena.free(second).unwrap();
            driver.meet([3]);
        };
        spawn(SECOND).spawn_scoped(scope, fills).unwrap();
        let fills = || {
            driver.meet([4]);
            arena.free(third).unwrap();
        };
        spawn(THIRD).spawn_scoped(scope, fills).unwrap();
        driver.asked.store(0, Ordering::Relaxed);
        arena.free(small).unwrap();
        let is_early = gpu.now() < end;
        // What it did not ask for.
        for point in driver.asked.swap(LAST + 1, Ordering::Relaxed)..=LAST {
            driver.crosses(point);
        }
        is_early
    });
    assert!(!is_early);
    arena.trim();
    assert_eq!(arena.limbo(), Bytes::ZERO);
}

/// Where no fence may be made, or none comes about, it waits by the driver's own free.
#[test]
fn a_strict_free_waits_also_without_a_fence() {
    let rig = Rig::new(&strict(), Bytes::mib(512));
    let other = rig.gpu.stream(rig.arena.driver().context(), false).unwrap();
    let size = Bytes::mib(4);
    for is_captured in [false, true] {
        let block = rig.get(size);
        let work = [(block, size)];
        let end = rig.gpu.launch(rig.stream, 1000 * MS, &work).unwrap();
        if is_captured {
            rig.gpu.begin_capture(other);
        } else {
            rig.gpu.fail_nth(Call::Fence, 1, Code::UNKNOWN);
        }
        rig.arena.free(block).unwrap();
        assert!(rig.gpu.now() >= end, "captured: {is_captured}");
        assert_eq!(rig.arena.limbo(), Bytes::ZERO, "captured: {is_captured}");
        if is_captured {
            assert!(rig.gpu.end_capture(other), "the capture was invalidated");
        }
    }
    rig.ends_clean();
}
