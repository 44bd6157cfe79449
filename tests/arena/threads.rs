//! Threads that allocate, free each other's blocks, and run out of memory
//! together. The books balance at the end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{MemInfo, Whose};
use vramalloc_core::error::AllocError;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Code, Driver};
use vramalloc_model::SimDriver;

use crate::rig::{Rig, plain};

const THREADS: u64 = 4;
const ROUNDS: u64 = 3_000;

fn exchange(strategy: StrategyKind, memory: Bytes) {
    let rig = Rig::new(&plain(strategy), memory);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    let served: u64 = thread::scope(|scope| {
        let threads: Vec<_> = receivers
            .into_iter()
            .zip(0..)
            .map(|(receiver, me): (mpsc::Receiver<Address>, usize)| {
                let next = senders[(me + 1) % senders.len()].clone();
                let rig = &rig;
                scope.spawn(move || {
                    let mut served = 0;
                    for round in 0..ROUNDS {
                        let size = (round * 7_919 + me as u64 * 104_729) % (6 << 20) + 1;
                        if let Ok(block) = rig.arena.allocate(Bytes::new(size)) {
                            served += 1;
                            next.send(block).unwrap();
                        }
                        for block in receiver.try_iter() {
                            rig.arena.free(block).unwrap();
                        }
                    }
                    drop(next);
                    (receiver, served)
                })
            })
            .collect();
        let ended: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        drop(senders);
        ended
            .into_iter()
            .map(|(receiver, served)| {
                receiver
                    .try_iter()
                    .for_each(|block| rig.arena.free(block).unwrap());
                served
            })
            .sum()
    });
    let stats = rig.arena.stats();
    let allocations: u64 = stats.classes.iter().map(|class| class.allocations).sum();
    let frees: u64 = stats.classes.iter().map(|class| class.frees).sum();
    assert_eq!((allocations, frees), (served, served));
    rig.ends_clean();
}

#[test]
fn blocks_change_hands() {
    for strategy in [
        StrategyKind::NaiveBestFit,
        StrategyKind::AutoGrowth,
        StrategyKind::Passthrough,
        StrategyKind::Mapped,
    ] {
        // More than all rounds ask for: a thread may be far ahead of the one
        // that frees its blocks.
        exchange(strategy, Bytes::gib(64));
    }
}

#[test]
fn short_of_memory_together() {
    for strategy in [
        StrategyKind::NaiveBestFit,
        StrategyKind::AutoGrowth,
        StrategyKind::Passthrough,
        StrategyKind::Mapped,
    ] {
        exchange(strategy, Bytes::mib(48));
    }
}

/// Every thread has kernels that lag on a stream of its own. No block is handed
/// out while one of another thread's still uses it, though memory is short and
/// everything is looked at again and again.
#[test]
fn blocks_that_threads_pass_on_are_out_of_use() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::mib(48));
    let sizes = [512, 4096, 64 << 10, 256 << 10, 1 << 20, 3 << 20];
    thread::scope(|scope| {
        for me in 0..8 {
            let rig = &rig;
            scope.spawn(move || {
                let context = rig.arena.driver().context();
                let stream = rig.gpu.stream(context, false).unwrap();
                let mut seed: u64 = me + 1;
                let mut draw = |below: u64| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    (seed >> 11) % below
                };
                let mut held = VecDeque::new();
                for round in 0..1500 {
                    let size = Bytes::new(sizes[usize::try_from(draw(6)).unwrap()]);
                    if let Ok(block) = rig.arena.allocate(size) {
                        assert!(!rig.gpu.in_use(block, size), "{block:?} is in use");
                        rig.gpu
                            .launch(stream, draw(400_000), &[(block, size)])
                            .unwrap();
                        held.push_back(block);
                    }
                    let keep = usize::try_from(draw(5)).unwrap();
                    let freed = held.len().saturating_sub(keep);
                    held.drain(..freed)
                        .for_each(|block| rig.arena.free(block).unwrap());
                    if round % 97 == 0 {
                        rig.arena.mem_info().unwrap();
                    }
                }
                held.into_iter()
                    .for_each(|block| rig.arena.free(block).unwrap());
            });
        }
    });
    rig.ends_clean();
}

/// All threads ask for the first chunk at once: it is taken once.
#[test]
fn a_chunk_in_advance_is_taken_once() {
    let rig = Rig::new(&plain(StrategyKind::NaiveBestFit), Bytes::gib(4));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| rig.get(Bytes::mib(1)));
        }
    });
    assert_eq!(rig.arena.stats().chunks, 1);
}

/// A driver behind which others take what has just gone back to it, as long as
/// they feel like it, and free it again.
struct Crowded {
    inner: SimDriver,
    others: OnceLock<Weak<Arena<Crowded>>>,
    quota: Arc<Quota>,
    appetite: AtomicU64,
}

const BITE: Bytes = Bytes::mib(8);
const LIMIT: Bytes = Bytes::mib(24);

impl Mapping for Crowded {}

impl Driver for Crowded {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.inner.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.inner.free(address)?;
        let room = LIMIT.saturating_sub(self.quota.reserved());
        let appetite = self.appetite.load(Ordering::Relaxed);
        if let Some(arena) = self.others.get().and_then(Weak::upgrade)
            && room >= BITE
            && appetite > 0
        {
            self.appetite.store(appetite - 1, Ordering::Relaxed);
            let block = arena.allocate(BITE).unwrap();
            arena.free(block).unwrap();
        }
        Ok(())
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.inner.mem_info()
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

fn crowded(dedicated_min: Option<Bytes>, appetite: u64) -> Arc<Arena<Crowded>> {
    let config = Config {
        dedicated_min,
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, Bytes::gib(1));
    let quota = Arc::new(Quota::new(LIMIT));
    let driver = Crowded {
        inner: rig.gpu.driver(0).unwrap(),
        others: OnceLock::new(),
        quota: Arc::clone(&quota),
        appetite: AtomicU64::new(appetite),
    };
    let map = Arc::new(PageMap::new());
    let arena = Arc::new(Arena::new(ArenaId(1), driver, &config, map, quota));
    let blocks = [(); 3].map(|()| arena.allocate(BITE).unwrap());
    blocks
        .into_iter()
        .for_each(|block| arena.free(block).unwrap());
    let others = Arc::downgrade(&arena);
    assert!(arena.driver().others.set(others).is_ok());
    arena
}

/// What the ladder gave back others take before the request has it, and it is
/// in limbo again: nobody holds anything, so the request does not fail.
#[test]
fn what_others_take_from_the_ladder_comes_back() {
    for dedicated_min in [None, Some(Bytes::mib(16))] {
        let arena = crowded(dedicated_min, 20);
        let block = arena.allocate(Bytes::mib(20));
        let limbo = arena.limbo();
        assert!(block.is_ok(), "{block:?} with {limbo} in limbo");
        assert_eq!(arena.driver().appetite.load(Ordering::Relaxed), 0);
        arena.free(block.unwrap()).unwrap();
        arena.validate().unwrap();
    }
}

/// Where the others hold so much that the request could not be served by all
/// the rest, or never stop, it fails, and soon.
#[test]
fn a_request_that_cannot_be_served_fails_in_a_crowd() {
    for (held, appetite) in [(BITE, u64::MAX), (Bytes::new(512), 1 << 20)] {
        let arena = crowded(None, appetite);
        let block = arena.allocate(held).unwrap();
        assert_eq!(
            arena.allocate(Bytes::mib(20)),
            Err(AllocError::Limit),
            "{held}"
        );
        let bites = appetite - arena.driver().appetite.load(Ordering::Relaxed);
        assert!(bites <= if held == BITE { 4 } else { 128 }, "{bites}");
        arena.free(block).unwrap();
        arena.validate().unwrap();
    }
}
