//! Memory of streams, on a device that reports work on the same bytes which
//! nothing orders.

mod captures;

use std::sync::Arc;

use proptest::test_runner::{RngAlgorithm, TestRng};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, FreeSync, StrategyKind};
use vramalloc_core::lanes::{Capture, LaneKey, Lanes};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Address, Bytes, FreeError};
use vramalloc_model::{Call, Gpu, Settings, SimDriver, StreamId};

use crate::rig::MS;

type Lane = Arc<Arena<SimDriver>>;

/// Lanes over one context, and streams that do not order with one another.
struct Streams {
    gpu: Gpu,
    driver: SimDriver,
    lanes: Arc<Lanes<SimDriver>>,
    map: Arc<PageMap>,
    streams: Vec<StreamId>,
    made: std::cell::Cell<u32>,
    strategy: StrategyKind,
}

impl Streams {
    fn new(count: usize, memory: Bytes) -> Streams {
        let gpu = Gpu::new(Settings {
            memory,
            races: true,
            ..Settings::default()
        });
        let driver = gpu.driver(0).unwrap();
        let stream = |_| gpu.stream(driver.context(), false).unwrap();
        Streams {
            streams: (0..count).map(stream).collect(),
            driver,
            gpu,
            lanes: Arc::default(),
            map: Arc::new(PageMap::new()),
            made: std::cell::Cell::new(0),
            strategy: StrategyKind::AutoGrowth,
        }
    }

    fn make(&self) -> Option<Lane> {
        let config = Config {
            strategy: self.strategy,
            free_sync: FreeSync::Immediate,
            ..Config::default()
        };
        let number = self.made.get();
        self.made.set(number + 1);
        let quota = Arc::new(Quota::new(Bytes::MAX));
        let lanes = Arc::downgrade(&self.lanes);
        let arena = Arena::new(
            ArenaId(number),
            self.driver.clone(),
            &config,
            Arc::clone(&self.map),
            quota,
        );
        let relieve = move || lanes.upgrade().is_some_and(|lanes| !lanes.trim().is_zero());
        Some(Arc::new(arena.relieved_by(relieve, || None)))
    }

    fn key(&self, at: usize, capture: Option<Capture>) -> LaneKey {
        LaneKey {
            stream: u64::from(self.streams[at].number()),
            capture,
        }
    }

    fn lane(&self, at: usize, capture: Option<Capture>) -> Lane {
        let key = self.key(at, capture);
        self.lanes.serve(key, || self.make(), Arc::clone).unwrap()
    }

    /// A block of the stream, written to on it for so long.
    fn get(&self, at: usize, size: Bytes, ns: u64) -> (Lane, Address) {
        let lane = self.lane(at, None);
        let address = self.allocate(&lane, size);
        self.launch(at, address, size, ns);
        (lane, address)
    }

    fn allocate(&self, lane: &Lane, size: Bytes) -> Address {
        self.lanes.poll();
        lane.allocate(size).unwrap()
    }

    fn launch(&self, at: usize, address: Address, size: Bytes, ns: u64) {
        let writes = [(address, size)];
        self.gpu.launch(self.streams[at], ns, &writes).unwrap();
    }

    fn record(&self, lane: &Lane, address: Address, at: usize) -> Result<(), FreeError> {
        let stream = self.streams[at];
        let number = u64::from(stream.number());
        self.lanes.record(lane, address, number, || stream)
    }

    fn free(&self, lane: &Lane, address: Address) {
        self.lanes.free(lane, address).unwrap();
    }

    fn is_clean(&self) {
        assert_eq!(self.gpu.violations(), []);
    }
}

fn told(number: u64) -> Capture {
    Capture { number, told: true }
}

const SIZE: Bytes = Bytes::mib(3);

#[test]
fn a_stream_gets_its_own_block_back_at_once_and_without_a_fence() {
    let streams = Streams::new(2, Bytes::gib(1));
    let (lane, first) = streams.get(0, SIZE, 100 * MS);
    streams.free(&lane, first);
    let (_, again) = streams.get(0, SIZE, MS);
    assert_eq!(first, again);
    // Nobody else does.
    let (_, other) = streams.get(1, SIZE, MS);
    assert_ne!(first, other);
    for call in [Call::Fence, Call::Wait, Call::Synchronize] {
        assert_eq!(streams.gpu.calls(call), 0, "{call:?}");
    }
    streams.is_clean();
}

#[test]
fn a_block_that_others_use_waits_for_them() {
    let streams = Streams::new(3, Bytes::gib(1));
    let (lane, block) = streams.get(0, SIZE, MS);
    streams.gpu.synchronize(streams.streams[0]);
    for (at, ns) in [(1, 50 * MS), (2, 90 * MS)] {
        streams
            .gpu
            .stream_wait(streams.streams[at], streams.streams[0]);
        if at == 2 {
            streams
                .gpu
                .stream_wait(streams.streams[2], streams.streams[1]);
        }
        streams.launch(at, block, SIZE, ns);
        streams.record(&lane, block, at).unwrap();
    }
    // Its own stream needs no note.
    streams.record(&lane, block, 0).unwrap();
    streams.free(&lane, block);
    let twice = streams.lanes.free(&lane, block);
    assert_eq!(twice, Err(FreeError::NotLive));
    let (_, meanwhile) = streams.get(0, SIZE, MS);
    assert_ne!(block, meanwhile);
    streams.gpu.pass(60 * MS);
    let (_, meanwhile) = streams.get(0, SIZE, MS);
    assert_ne!(block, meanwhile);
    streams.gpu.pass(100 * MS);
    let (_, after) = streams.get(0, SIZE, MS);
    assert_eq!(block, after);
    streams.is_clean();
}

#[test]
fn only_a_live_block_can_be_noted() {
    let streams = Streams::new(2, Bytes::gib(1));
    let (lane, block) = streams.get(0, SIZE, MS);
    let inside = block.checked_add(Bytes::new(512)).unwrap();
    assert_eq!(streams.record(&lane, inside, 1), Err(FreeError::NotLive));
    streams.free(&lane, block);
    assert_eq!(streams.record(&lane, block, 1), Err(FreeError::NotLive));
}

/// The context ends while the stream of another one uses a freed block, and
/// before the graph that keeps another is gone.
#[test]
fn what_was_freed_counts_as_freed_when_its_context_ends() {
    let streams = Streams::new(2, Bytes::gib(1));
    let (lane, used) = streams.get(0, SIZE, MS);
    streams.launch(1, used, SIZE, 50 * MS);
    streams.record(&lane, used, 1).unwrap();
    streams.free(&lane, used);
    let of_capture = streams.lane(0, Some(told(7)));
    let kept = streams.allocate(&of_capture, SIZE);
    streams.record(&of_capture, kept, 1).unwrap();
    streams.free(&of_capture, kept);
    let live = streams.allocate(&lane, SIZE);
    let frees = |lane: &Lane| -> u64 {
        let classes = lane.stats().classes;
        classes.iter().map(|class| class.frees).sum()
    };
    assert_eq!((frees(&lane), frees(&of_capture)), (0, 0));
    assert!(streams.lanes.has_uses());
    streams.lanes.retire();
    assert!(!streams.lanes.has_uses());
    assert_eq!((frees(&lane), frees(&of_capture)), (1, 1));
    assert_eq!(streams.lanes.free(&lane, live), Err(FreeError::NotLive));
}

/// The look for unused lanes comes between a request's look for its lane and
/// its memory.
#[test]
fn a_lane_is_not_given_up_amid_a_request() {
    let streams = Streams::new(200, Bytes::gib(1));
    let key = streams.key(0, None);
    let request = |lane: &Lane| {
        for at in 1..200 {
            let (lane, block) = streams.get(at, SIZE, MS);
            streams.free(&lane, block);
            streams.gpu.synchronize(streams.streams[at]);
        }
        let block = streams.allocate(lane, SIZE);
        streams.launch(0, block, SIZE, 50 * MS);
        streams.free(lane, block);
    };
    let served = streams.lanes.serve(key, || streams.make(), request);
    assert!(served.is_some());
    // The newest first: they have their lanes still.
    for at in (1..200).rev() {
        let (lane, block) = streams.get(at, SIZE, MS);
        streams.free(&lane, block);
    }
    streams.is_clean();
}

#[test]
fn a_lane_changes_hands_when_its_streams_work_is_done() {
    let streams = Streams::new(3, Bytes::gib(1));
    let (first, block) = streams.get(0, SIZE, 50 * MS);
    streams.free(&first, block);
    let ended = streams.streams[0];
    let fence = vramalloc_core::lanes::Streams::mark(&streams.driver, ended).unwrap();
    let number = u64::from(ended.number());
    streams.lanes.end_stream(number, ended, Some(&fence));
    streams.gpu.destroy_stream(ended);
    let (second, other) = streams.get(1, SIZE, MS);
    assert_ne!((first.id(), block), (second.id(), other));
    streams.gpu.pass(60 * MS);
    let (third, again) = streams.get(2, SIZE, MS);
    assert_eq!((first.id(), block), (third.id(), again));
    streams.is_clean();
}

#[test]
fn a_block_waits_for_a_stream_that_has_gone() {
    let streams = Streams::new(3, Bytes::gib(1));
    for marked in [true, false] {
        let (lane, block) = streams.get(0, SIZE, MS);
        streams.gpu.synchronize(streams.streams[0]);
        let gone = streams.gpu.stream(streams.driver.context(), false).unwrap();
        streams.gpu.launch(gone, 50 * MS, &[(block, SIZE)]).unwrap();
        let number = u64::from(gone.number());
        streams.lanes.record(&lane, block, number, || gone).unwrap();
        let fence = vramalloc_core::lanes::Streams::mark(&streams.driver, gone).ok();
        let fence = fence.filter(|_| marked);
        streams.lanes.end_stream(number, gone, fence.as_ref());
        streams.gpu.destroy_stream(gone);
        streams.free(&lane, block);
        let (lane, meanwhile) = streams.get(0, SIZE, MS);
        assert_ne!(block, meanwhile);
        streams.gpu.pass(60 * MS);
        let (_, after) = streams.get(0, SIZE, MS);
        assert_eq!(block, after);
        streams.free(&lane, after);
        streams.free(&lane, meanwhile);
        streams.is_clean();
    }
}

#[test]
fn short_memory_is_fetched_from_the_other_lanes() {
    let streams = Streams::new(2, Bytes::mib(64));
    let big = Bytes::mib(60);
    let (lane, first) = streams.get(0, big, 50 * MS);
    streams.record(&lane, first, 1).unwrap();
    streams.free(&lane, first);
    // The driver's own free waits for the work.
    let (other, _) = streams.get(1, big, MS);
    assert_eq!(other.stats().ooms, 0);
    assert!(lane.is_empty());
    streams.is_clean();
}

#[test]
fn lanes_of_streams_that_are_gone_unnoticed_do_not_pile_up() {
    let streams = Streams::new(200, Bytes::gib(1));
    for at in 0..200 {
        let (lane, block) = streams.get(at, SIZE, MS);
        streams.free(&lane, block);
        streams.gpu.synchronize(streams.streams[at]);
    }
    assert!(streams.made.get() <= 65, "{}", streams.made.get());
    assert!(streams.gpu.used(0) <= Bytes::mib(65 * 4));
    streams.is_clean();
}

/// Streams that a program goes on using keep their memory, however many there
/// are: nothing is asked of the driver any more.
#[test]
fn hundreds_of_streams_cost_what_a_few_do() {
    let streams = Streams::new(300, Bytes::gib(4));
    let pass = || {
        for at in 0..300 {
            let (lane, block) = streams.get(at, SIZE, MS);
            streams.free(&lane, block);
        }
    };
    let calls = || [Call::Alloc, Call::Free].map(|call| streams.gpu.calls(call));
    // That they come back is seen in the passes after the first.
    (0..4).for_each(|_| pass());
    let first = calls();
    (0..10).for_each(|_| pass());
    assert_eq!(calls(), first);
    assert_eq!(streams.made.get(), 300);
    assert_eq!(streams.gpu.used(0), Bytes::mib(300 * 4));
    streams.is_clean();
}

/// A random program whose streams wait for one another only as the rules ask.
#[test]
fn no_block_is_shared_between_streams_that_nothing_orders() {
    let seed: [u8; 16] = std::array::from_fn(|at| u8::try_from(at).unwrap() ^ 0x5a);
    println!("seed {seed:?}");
    let mut random = TestRng::from_seed(RngAlgorithm::XorShift, &seed);
    let mut below = |bound: usize| {
        use proptest::prelude::Rng;
        usize::try_from(random.next_u32()).unwrap() % bound
    };
    let count = 4;
    let streams = Streams::new(count, Bytes::mib(256));
    // With the stream that owns it, until another one used it.
    let mut live: Vec<(Lane, Address, Bytes, Option<usize>)> = Vec::new();
    for _ in 0..20_000 {
        let at = below(count);
        match below(10) {
            0..5 if live.len() < 60 => {
                let size = Bytes::new(1 + below(4 << 20) as u64);
                let (lane, block) = streams.get(at, size, below(200_000) as u64);
                live.push((lane, block, size, Some(at)));
            }
            0..8 if !live.is_empty() => {
                let (lane, block, ..) = live.swap_remove(below(live.len()));
                streams.free(&lane, block);
            }
            8 if !live.is_empty() => {
                // Another stream uses it after the owner, which does not wait
                // for that, and is noted.
                let chosen = below(live.len());
                let (lane, block, size, owner) = &mut live[chosen];
                if let Some(owner) = owner.take() {
                    let owner = streams.streams[owner];
                    streams.gpu.stream_wait(streams.streams[at], owner);
                    streams.launch(at, *block, *size, below(300_000) as u64);
                    streams.record(lane, *block, at).unwrap();
                }
            }
            _ => streams.gpu.pass(below(100_000) as u64),
        }
    }
    let noted = streams.gpu.calls(Call::Fence);
    assert!(noted > 500, "{noted} blocks waited for others");
    streams.is_clean();
}
