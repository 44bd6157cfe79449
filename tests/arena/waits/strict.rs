//! A free that waits as CUDA's does, beside other threads that close batches.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use vramalloc_core::Code;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, FreeSync, StrategyKind};
use vramalloc_model::{Call, Settings};

use super::asking::{Asked, Asking, arena_asking};
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

/// What another thread does.
type Other<T> = fn(&Arena<Asking<T>>, Address);

/// Frees a small block that the device uses, on a thread of its own. The others run beside
/// it, and get a large block each, which fills a batch. Whether the free returned early.
fn is_early<T: Asked, const N: usize>(
    test: T,
    others: [(&str, Other<T>); N],
    then: impl FnOnce(&T),
) -> bool {
    let (gpu, stream, arena) = arena_asking(test, &strict(), Settings::default());
    // The chunk stays in use: no free of it waits for the device.
    let [small, stays] = [(); 2].map(|()| arena.allocate(Bytes::kib(64)).unwrap());
    let work = [(small, Bytes::kib(64))];
    let end = gpu.launch(stream, 1000 * MS, &work).unwrap();
    let is_early = thread::scope(|scope| {
        for (name, runs) in others {
            let large = arena.allocate(Bytes::mib(64)).unwrap();
            let arena = &arena;
            let thread = thread::Builder::new().name(name.to_owned());
            let thread = thread.spawn_scoped(scope, move || runs(arena, large));
            thread.unwrap();
        }
        let frees = thread::Builder::new().name(FREES.to_owned());
        let frees = frees.spawn_scoped(scope, || {
            arena.free(small).unwrap();
            gpu.now() < end
        });
        let is_early = frees.unwrap().join().unwrap();
        then(&arena.driver().test);
        is_early
    });
    arena.free(stays).unwrap();
    arena.trim();
    assert_eq!(arena.limbo(), Bytes::ZERO);
    is_early
}

/// The thread with the free, and two that fill batches.
const FREES: &str = "frees";
const SECOND: &str = "second";
const THIRD: &str = "third";

fn is_thread(name: &str) -> bool {
    thread::current().name() == Some(name)
}

/// Two threads close what there is at certain points of the free.
struct Crossed {
    /// How often it has asked if it may make a fence, which it does before each step.
    asked: AtomicU32,
    meets: [Barrier; 7],
}

impl Crossed {
    const LAST: u32 = 4;

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
            Self::LAST => self.meet([6]),
            _ => {}
        }
    }
}

impl Asked for Crossed {
    fn may_fence(&self) -> bool {
        if is_thread(FREES) {
            self.crosses(self.asked.fetch_add(1, Ordering::Relaxed));
        }
        true
    }

    fn fence(&self) -> Result<(), Code> {
        if is_thread(SECOND) {
            self.meet([1, 2]);
            return Err(Code::UNKNOWN);
        }
        if is_thread(THIRD) {
            self.meet([5, 6]);
        }
        Ok(())
    }
}

/// Whatever others close at each of its steps, and although a fence of theirs fails.
#[test]
fn a_strict_free_waits_also_where_the_fence_of_another_fails() {
    let test = Crossed {
        asked: AtomicU32::new(0),
        meets: [(); 7].map(|()| Barrier::new(2)),
    };
    let second = |arena: &Arena<Asking<Crossed>>, large| {
        arena.driver().test.meet([0]);
        arena.free(large).unwrap();
        arena.driver().test.meet([3]);
    };
    let third = |arena: &Arena<Asking<Crossed>>, large| {
        arena.driver().test.meet([4]);
        arena.free(large).unwrap();
    };
    // What it did not ask for.
    let then = |test: &Crossed| {
        let asked = test.asked.load(Ordering::Relaxed);
        (asked..=Crossed::LAST).for_each(|point| test.crosses(point));
    };
    let others = [(SECOND, second as Other<Crossed>), (THIRD, third)];
    assert!(!is_early(test, others, then));
}

/// While the free makes its fence, another thread waits without one, in vain.
struct Full {
    /// There is a capture, and no memory.
    is_full: AtomicBool,
    meets: [Barrier; 3],
}

impl Asked for Full {
    fn alloc(&self) -> Result<(), Code> {
        let has_some = !self.is_full.load(Ordering::Relaxed);
        has_some.then_some(()).ok_or(Code::OUT_OF_MEMORY)
    }

    fn may_fence(&self) -> bool {
        !is_thread(SECOND)
    }

    fn fence(&self) -> Result<(), Code> {
        if is_thread(FREES) {
            self.meets[0].wait();
            self.meets[1].wait();
        }
        Ok(())
    }
}

#[test]
fn a_strict_free_waits_also_where_another_waits_without_a_fence() {
    let test = Full {
        is_full: AtomicBool::new(false),
        meets: [(); 3].map(|()| Barrier::new(2)),
    };
    let second = |arena: &Arena<Asking<Full>>, large| {
        let test = &arena.driver().test;
        test.meets[0].wait();
        test.is_full.store(true, Ordering::Relaxed);
        assert!(arena.allocate(Bytes::mib(64)).is_err());
        test.is_full.store(false, Ordering::Relaxed);
        test.meets[1].wait();
        test.meets[2].wait();
        arena.free(large).unwrap();
    };
    let others = [(SECOND, second as Other<Full>)];
    let then = |test: &Full| {
        test.meets[2].wait();
    };
    assert!(!is_early(test, others, then));
}

/// While a thread waits, another frees; if it waits too, until the first has returned.
struct Later {
    waits: AtomicU32,
    /// Whether the other has come to its first wait.
    is_second: AtomicBool,
    meets: [Barrier; 3],
}

impl Asked for Later {
    fn wait(&self) {
        if is_thread(SECOND) {
            if !self.is_second.swap(true, Ordering::Relaxed) {
                self.meets[1].wait();
                self.meets[2].wait();
            }
        } else if is_thread(FREES) && self.waits.fetch_add(1, Ordering::Relaxed) == 0 {
            self.meets[0].wait();
            self.meets[1].wait();
        }
    }
}

impl Later {
    fn new() -> Later {
        Later {
            waits: AtomicU32::new(0),
            is_second: AtomicBool::new(false),
            meets: [(); 3].map(|()| Barrier::new(2)),
        }
    }
}

/// Or it would go on for as long as others free.
#[test]
fn a_strict_free_waits_for_no_later_one() {
    let test = Later::new();
    let second = |arena: &Arena<Asking<Later>>, large| {
        arena.driver().test.meets[0].wait();
        arena.free(large).unwrap();
    };
    let then = |test: &Later| {
        test.meets[2].wait();
        assert_eq!(test.waits.load(Ordering::Relaxed), 1);
    };
    let others = [(SECOND, second as Other<Later>)];
    assert!(!is_early(test, others, then));
}

/// Nor does a trim.
#[test]
fn a_trim_waits_for_no_later_free() {
    let (gpu, stream, arena) = arena_asking(
        Later::new(),
        &plain(StrategyKind::AutoGrowth),
        Settings::default(),
    );
    let [small, _stays] = [(); 2].map(|()| arena.allocate(Bytes::kib(64)).unwrap());
    let large = arena.allocate(Bytes::mib(64)).unwrap();
    gpu.launch(stream, 1000 * MS, &[(small, Bytes::kib(64))])
        .unwrap();
    arena.free(small).unwrap();
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    thread::scope(|scope| {
        let trims = named(FREES).spawn_scoped(scope, || arena.trim()).unwrap();
        let test = &arena.driver().test;
        let frees = || {
            test.meets[0].wait();
            arena.free(large).unwrap();
            test.meets[1].wait();
        };
        let frees = named(THIRD).spawn_scoped(scope, frees).unwrap();
        frees.join().unwrap();
        trims.join().unwrap();
        assert_eq!(test.waits.load(Ordering::Relaxed), 1);
    });
}

/// Where no fence may be made, or none comes about, it waits by the driver's own free.
#[test]
fn a_strict_free_waits_also_without_a_fence() {
    let rig = Rig::new(&strict(), Bytes::mib(512));
    let other = rig.gpu.stream(rig.arena.driver().context(), false).unwrap();
    let size = Bytes::mib(4);
    for fails in [Some(Call::Fence), Some(Call::Wait), None] {
        let block = rig.get(size);
        let work = [(block, size)];
        let end = rig.gpu.launch(rig.stream, 1000 * MS, &work).unwrap();
        match fails {
            Some(call) => rig.gpu.fail_nth(call, 1, Code::UNKNOWN),
            None => rig.gpu.begin_capture(other),
        }
        rig.arena.free(block).unwrap();
        assert!(rig.gpu.now() >= end, "{fails:?}");
        assert_eq!(rig.arena.limbo(), Bytes::ZERO, "{fails:?}");
    }
    assert!(rig.gpu.end_capture(other), "the capture was invalidated");
    rig.ends_clean();
}
