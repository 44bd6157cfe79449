//! Memory on its way between the driver and the books is nobody's: whoever
//! looks for it meanwhile takes it neither for there nor for gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, PinnedConfig, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{MemInfo, Whose};
use vramalloc_core::error::AllocError;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Code, Driver, PinnedPlan};
use vramalloc_model::{Nanos, SimDriver};

use crate::rig::{Rig, plain};

const KERNEL: Nanos = 1_000_000;

const FULL: AllocError = AllocError::Driver(Code::OUT_OF_MEMORY);

/// The call that is held up, the next of its kind.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Held {
    /// Before the driver has answered.
    Asking,
    /// After it has given.
    Given,
    Freeing,
    /// Asking how much there is.
    Looking,
}

/// A driver of which one call takes until another thread was refused memory,
/// or the test is done with it.
struct Slow {
    inner: SimDriver,
    held: Mutex<Option<Held>>,
    is_held: AtomicBool,
    goes_on: AtomicBool,
    calls_back: AtomicBool,
}

impl Slow {
    fn new(config: &Config, device: Bytes) -> Slow {
        Slow {
            inner: Rig::new(config, device).gpu.driver(0).unwrap(),
            held: Mutex::new(None),
            is_held: AtomicBool::new(false),
            goes_on: AtomicBool::new(false),
            calls_back: AtomicBool::new(false),
        }
    }

    /// On a device of 64 MiB.
    fn arena(config: &Config, limit: Bytes) -> Arena<Slow> {
        Slow::arena_on(Bytes::mib(64), config, limit)
    }

    fn arena_on(device: Bytes, config: &Config, limit: Bytes) -> Arena<Slow> {
        let (map, quota) = (Arc::new(PageMap::new()), Arc::new(Quota::new(limit)));
        Arena::new(ArenaId(1), Slow::new(config, device), config, map, quota)
    }

    /// An arena that is waited for too long ends with a test that fails.
    fn hold_up(&self, call: Held) {
        if self
            .held
            .lock()
            .unwrap()
            .take_if(|held| *held == call)
            .is_none()
        {
            return;
        }
        self.is_held.store(true, Ordering::Release);
        let start = Instant::now();
        while !self.goes_on.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(15) {
            thread::yield_now();
        }
    }
}

impl Mapping for Slow {}

impl Driver for Slow {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.hold_up(Held::Asking);
        let given = self.inner.alloc(size);
        match given {
            Ok(_) => self.hold_up(Held::Given),
            Err(_) => self.goes_on.store(true, Ordering::Release),
        }
        given
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.hold_up(Held::Freeing);
        self.inner.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.hold_up(Held::Looking);
        self.inner.mem_info()
    }

    fn may_fence(&self) -> bool {
        !self.calls_back.load(Ordering::Relaxed)
    }

    fn may_give_back(&self) -> bool {
        !self.calls_back.load(Ordering::Relaxed)
    }

    fn wait_by_free(&self, whose: Whose) -> Result<bool, Code> {
        self.inner.wait_by_free(whose)
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

/// Runs `second` while a call that `first` makes is held up; what both came to,
/// and how long the second took.
fn meanwhile<A: Send, B>(
    arena: &Arena<Slow>,
    held: Held,
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B,
) -> (A, B, Duration) {
    *arena.driver().held.lock().unwrap() = Some(held);
    thread::scope(|scope| {
        let first = scope.spawn(first);
        while !arena.driver().is_held.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let start = Instant::now();
        let second = second();
        let took = start.elapsed();
        arena.driver().goes_on.store(true, Ordering::Release);
        (first.join().unwrap(), second, took)
    })
}

/// The limit refuses a request before the driver is asked: the call that is
/// held up goes on as soon as the thread that asks was seen to wait, or is done.
fn below_the_limit<R: Send>(arena: &Arena<Slow>, ask: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let asking = scope.spawn(move || {
            tell.send(fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            ask()
        });
        let status = PathBuf::from("/proc").join(told.recv().unwrap());
        let before = times_slept(&status.join("status"));
        while !asking.is_finished() && times_slept(&status.join("status")) < before + 3 {
            thread::yield_now();
        }
        arena.driver().goes_on.store(true, Ordering::Release);
        asking.join().unwrap()
    })
}

/// How often a thread gave its processor up by itself; of a thread that has
/// ended, never.
fn times_slept(status: &Path) -> u64 {
    let status = fs::read_to_string(status).unwrap_or_default();
    let field = (status.lines()).find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    field.map_or(0, |count| count.trim().parse().unwrap())
}

const SOON: Duration = Duration::from_secs(5);

/// While one thread gives back what was freed, because memory is short or
/// because its time has come, the others find it neither cached nor with the
/// driver. They do not take that for the end.
#[test]
fn memory_on_its_way_back_is_waited_for() {
    for (dedicated_min, called_back) in [(None, false), (Some(16), false), (Some(4), true)] {
        let config = Config {
            dedicated_min: dedicated_min.map(Bytes::mib),
            ..plain(StrategyKind::AutoGrowth)
        };
        let arena = Slow::arena(&config, Bytes::MAX);
        let blocks: Vec<_> = (0..8)
            .map(|_| arena.allocate(Bytes::mib(8)).unwrap())
            .collect();
        arena
            .driver()
            .calls_back
            .store(called_back, Ordering::Relaxed);
        blocks
            .into_iter()
            .for_each(|block| arena.free(block).unwrap());
        arena.driver().calls_back.store(false, Ordering::Relaxed);
        let ask = || arena.allocate(Bytes::mib(16)).is_ok();
        let first = || {
            if called_back {
                arena.flush();
                return true;
            }
            ask()
        };
        let (first, second, _) = meanwhile(&arena, Held::Freeing, first, ask);
        assert!(first && second, "{dedicated_min:?}: {first} {second}");
    }
}

/// The device is done with what waited for it while the driver is asked how much there
/// is, and another thread notices: nothing more is taken.
#[test]
fn what_another_thread_puts_back_before_growth_serves() {
    let arena = Slow::arena_on(Bytes::gib(1), &Config::default(), Bytes::MAX);
    let ask = || arena.allocate(Bytes::mib(80)).unwrap();
    let block = ask();
    let (gpu, context) = (arena.driver().inner.gpu(), arena.driver().inner.context());
    gpu.launch(gpu.legacy(context).unwrap(), KERNEL, &[])
        .unwrap();
    arena.free(block).unwrap();
    let reserved = || arena.stats().reserved.current;
    let before = reserved();
    let put_back = || {
        gpu.pass(KERNEL);
        arena.mem_info().unwrap();
    };
    let (served, ..) = meanwhile(&arena, Held::Looking, ask, put_back);
    assert_eq!((served, reserved()), (block, before));
}

/// A chunk that is larger than the request it was taken for serves others as
/// well, also those that asked before it was in the books.
#[test]
fn a_chunk_on_its_way_is_waited_for() {
    for limit in [Bytes::MAX, Bytes::mib(64)] {
        let arena = Slow::arena(&plain(StrategyKind::AutoGrowth), limit);
        arena.allocate(Bytes::mib(62)).unwrap();
        let ask = || arena.allocate(Bytes::new(512));
        let (first, second, _) = if limit == Bytes::MAX {
            meanwhile(&arena, Held::Given, ask, ask)
        } else {
            let second = || below_the_limit(&arena, ask);
            meanwhile(&arena, Held::Given, ask, second)
        };
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    }
}

/// What the driver is going to refuse one thread does not stand in the way of
/// another's request below the limit.
#[test]
fn what_is_only_asked_for_is_no_limit() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::Passthrough] {
        let arena = Slow::arena(&plain(strategy), Bytes::mib(100));
        let first = || arena.allocate(Bytes::mib(90));
        let second = || below_the_limit(&arena, || arena.allocate(Bytes::mib(20)));
        let (first, second, _) = meanwhile(&arena, Held::Asking, first, second);
        assert!(second.is_ok(), "{strategy:?}: {second:?}");
        assert_eq!(first, Err(FULL));
    }
}

/// Nobody waits for it who needs less than the chunk that is planned, or whom
/// the driver serves in any case.
#[test]
fn nobody_waits_in_vain_for_what_is_asked_for() {
    let config = Config {
        auto_growth_chunk: Bytes::mib(32),
        ..plain(StrategyKind::AutoGrowth)
    };
    let arena = Slow::arena(&config, Bytes::mib(60));
    let first = || arena.allocate(Bytes::mib(50));
    let second = || arena.allocate(Bytes::mib(4));
    let (first, second, took) = meanwhile(&arena, Held::Asking, first, second);
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert!(took < SOON, "{took:?}");

    let pinned = PinnedConfig {
        fraction: 1.0,
        ..PinnedConfig::default()
    };
    let plan = Arc::new(PinnedPlan::new(&pinned, Bytes::mib(80)));
    let map = Arc::new(PageMap::new());
    let arena = Arena::pinned(
        ArenaId(1),
        Slow::new(&config, Bytes::mib(64)),
        &config,
        &plan,
        map,
    );
    let ask = || arena.allocate(Bytes::mib(60));
    let (first, second, took) = meanwhile(&arena, Held::Asking, ask, ask);
    assert_eq!((first.is_ok(), second), (true, Err(AllocError::Limit)));
    assert!(took < SOON, "{took:?}");
}
