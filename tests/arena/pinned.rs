//! The arena of pinned host memory: whole pages, chunks in proportion with what
//! is in use, and little that lies idle.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use vramalloc::PinnedPlan;
use vramalloc::address::{Address, Bytes};
use vramalloc::arena::Arena;
use vramalloc::config::{Config, FreeSync, PinnedConfig, StrategyKind};
use vramalloc::driver::{Driver, MemInfo, Whose};
use vramalloc::error::{AllocError, Code, FreeError};
use vramalloc::page_map::{ArenaId, Owner, PageMap};
use vramalloc::sim::{Call, Gpu, Settings, SimDriver, SimFence, StreamId};

use crate::rig::MS;

const HOST: Bytes = Bytes::gib(8);
const PAGE: u64 = 4096;

/// A host's memory, in which everything begins at whole pages.
struct Host {
    memory: Arc<SimDriver>,
    /// What is taken at the least: above 1 MiB nothing shares a page.
    least: Bytes,
    /// How far behind the device's everything begins.
    shift: u64,
}

impl Host {
    fn new(memory: SimDriver) -> Host {
        Host {
            memory: Arc::new(memory),
            least: Bytes::new((1 << 20) + 1),
            shift: 0,
        }
    }
}

impl Driver for Host {
    type Fence = SimFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let taken = size.max(self.least).saturating_add(Bytes::new(self.shift));
        let address = self.memory.alloc(taken)?;
        Ok(Address::new(address.get() + self.shift))
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.memory.free(Address::new(address.get() - self.shift))
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.memory.mem_info()
    }

    fn may_fence(&self) -> bool {
        self.memory.may_fence()
    }

    fn fence(&self) -> Result<SimFence, Code> {
        self.memory.fence()
    }

    fn reached(&self, fence: &SimFence) -> Result<bool, Code> {
        self.memory.reached(fence)
    }

    fn wait(&self, fence: &SimFence, whose: Whose) -> Result<bool, Code> {
        self.memory.wait(fence, whose)
    }
}

struct Rig {
    gpu: Gpu,
    arena: Arena<Host>,
    map: Arc<PageMap>,
    stream: StreamId,
}

impl Rig {
    fn new(config: &Config, pinned: PinnedConfig) -> Rig {
        let gpu = Gpu::new(Settings {
            memory: HOST,
            ..Settings::default()
        });
        let driver = gpu.driver(0).unwrap();
        let stream = gpu.stream(driver.context(), false).unwrap();
        let plan = Arc::new(PinnedPlan::new(&pinned, HOST));
        let map = Arc::new(PageMap::new());
        let arena = Arena::pinned(
            ArenaId(0),
            Host::new(driver),
            config,
            &plan,
            Arc::clone(&map),
        );
        Rig {
            gpu,
            arena,
            map,
            stream,
        }
    }

    fn plain() -> Rig {
        Rig::new(&Config::default(), PinnedConfig::default())
    }

    fn get(&self, size: u64) -> Address {
        let got = self.arena.allocate(Bytes::new(size));
        got.unwrap_or_else(|error| panic!("{size}: {error:?}"))
    }

    fn launch(&self, address: Address, size: u64, duration: u64) {
        let touched = [(address, Bytes::new(size))];
        self.gpu.launch(self.stream, duration, &touched).unwrap();
    }

    fn reserved(&self) -> u64 {
        self.arena.stats().reserved.current.get()
    }

    fn ends_clean(&self) {
        self.arena.trim();
        self.arena.validate().unwrap();
        assert_eq!(self.reserved(), 0);
        assert_eq!(self.gpu.live_count(), 0);
        assert_eq!(self.gpu.violations(), []);
    }
}

#[test]
fn a_little_memory_locks_little() {
    let rig = Rig::plain();
    let mut live = 0;
    for n in 0..4_000_u64 {
        let size = (n * 7_919) % 60_000 + 1;
        rig.get(size);
        live += size.next_multiple_of(PAGE);
        let most = 2 * live + (256 << 10);
        assert!(rig.reserved() <= most, "{} for {live}", rig.reserved());
    }
    // Half of 8 GiB by 256 is the largest chunk: 16 MiB.
    let calls = rig.gpu.calls(Call::Alloc);
    assert!((10..20).contains(&calls), "{calls} chunks");
}

#[test]
fn what_is_too_large_for_a_chunk_goes_straight_to_the_driver() {
    let rig = Rig::plain();
    for n in 1..=3 {
        let block = rig.get((16 << 20) + 1);
        assert!(rig.arena.locate(block).unwrap().is_whole());
        rig.arena.free(block).unwrap();
        assert_eq!(rig.gpu.calls(Call::Free), n);
    }
    assert_eq!(rig.arena.stats().direct, 3);
    rig.ends_clean();
}

#[test]
fn a_repeating_program_stops_calling_the_driver_for_memory() {
    let rig = Rig::plain();
    let mut calls = Vec::new();
    for _ in 0..8 {
        let blocks: Vec<_> = (1..40_u64).map(|n| rig.get(n * 100_000)).collect();
        for block in blocks {
            rig.launch(block, 4, MS);
            rig.arena.free(block).unwrap();
        }
        rig.gpu.synchronize(rig.stream);
        calls.push(rig.gpu.calls(Call::Alloc));
    }
    assert_eq!(calls[1], calls[4], "{calls:?}");
    assert_eq!(rig.gpu.calls(Call::Free), 0);
    rig.ends_clean();
}

#[test]
fn idle_memory_beyond_a_share_of_the_host_goes_back() {
    for free_sync in [FreeSync::Deferred, FreeSync::Strict, FreeSync::Immediate] {
        let config = Config {
            free_sync,
            ..Config::default()
        };
        let rig = Rig::new(&config, PinnedConfig::default());
        let blocks: Vec<_> = (0..1024).map(|_| rig.get(1 << 20)).collect();
        assert!(rig.reserved() >= 1 << 30);
        for block in blocks {
            rig.arena.free(block).unwrap();
        }
        // A 64th of 8 GiB may lie idle, and 64 MiB in limbo.
        let most = (128 + 64) << 20;
        assert!(rig.reserved() <= most, "{free_sync:?}: {}", rig.reserved());
        rig.ends_clean();
    }
}

#[test]
fn a_free_waits_where_too_much_is_in_limbo() {
    let rig = Rig::plain();
    let blocks: Vec<_> = (0..100).map(|_| rig.get(4 << 20)).collect();
    for block in blocks {
        rig.launch(block, 4 << 20, MS);
        rig.arena.free(block).unwrap();
        let stats = rig.arena.stats();
        assert!(stats.limbo.current <= Bytes::mib(64), "{:?}", stats.limbo);
    }
    assert!(rig.arena.stats().waits > 0);
    rig.ends_clean();
}

#[test]
fn the_reserve_is_taken_first_and_kept() {
    let pinned = PinnedConfig {
        reserve_segment: Some(Bytes::mib(96)),
        ..PinnedConfig::default()
    };
    let rig = Rig::new(&Config::default(), pinned);
    let first = rig.get(1);
    assert_eq!(rig.reserved(), 96 << 20);
    let blocks: Vec<_> = (0..12).map(|_| rig.get(7 << 20)).collect();
    assert_eq!(rig.gpu.calls(Call::Alloc), 1);
    // More than there is room for, and more than may lie idle: that goes
    // back, the reserve does not.
    let more: Vec<_> = (0..20).map(|_| rig.get(16 << 20)).collect();
    assert_eq!(rig.gpu.calls(Call::Alloc), 21);
    for block in blocks.into_iter().chain([first]).chain(more) {
        rig.arena.free(block).unwrap();
    }
    assert!(rig.gpu.calls(Call::Free) > 0);
    assert_eq!(rig.map.owner(first), Owner::Arena(ArenaId(0)));
    rig.arena.trim();
    rig.arena.validate().unwrap();
    assert_eq!(rig.reserved(), 96 << 20);
    assert_eq!(rig.gpu.calls(Call::Free), 20);
}

#[test]
fn the_cap_is_a_share_of_the_host() {
    let pinned = PinnedConfig {
        fraction: 0.125,
        ..PinnedConfig::default()
    };
    let rig = Rig::new(&Config::default(), pinned);
    let blocks: Vec<_> = std::iter::from_fn(|| rig.arena.allocate(Bytes::mib(3)).ok()).collect();
    // Of 1 GiB, in chunks of 4 MiB.
    assert!((256..=341).contains(&blocks.len()), "{}", blocks.len());
    assert_eq!(rig.arena.allocate(Bytes::mib(3)), Err(AllocError::Limit));
    assert!(rig.reserved() <= 1 << 30);
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
    rig.ends_clean();
}

#[test]
fn nothing_is_pooled_where_every_call_is_to_go_to_the_driver() {
    let none = PinnedConfig {
        fraction: 0.0,
        ..PinnedConfig::default()
    };
    let passthrough = Config {
        strategy: StrategyKind::Passthrough,
        ..Config::default()
    };
    for (config, pinned) in [
        (Config::default(), none),
        (passthrough, PinnedConfig::default()),
    ] {
        let rig = Rig::new(&config, pinned);
        for n in 1..10 {
            let block = rig.get(5000);
            rig.arena.free(block).unwrap();
            let calls = [Call::Alloc, Call::Free].map(|call| rig.gpu.calls(call));
            assert_eq!(calls, [n, n]);
        }
        rig.ends_clean();
    }
}

/// Two arenas on one memory, in which small allocations share a page of the
/// page map, and where nothing is pooled.
fn neighbours(shift: u64) -> (Gpu, Arc<PageMap>, [Arena<Host>; 2]) {
    let gpu = Gpu::new(Settings::default());
    let config = Config {
        strategy: StrategyKind::Passthrough,
        ..Config::default()
    };
    let plan = Arc::new(PinnedPlan::new(&PinnedConfig::default(), HOST));
    let map = Arc::new(PageMap::new());
    let memory = Arc::new(gpu.driver(0).unwrap());
    let arenas = [0, 1].map(|number| {
        let driver = Host {
            memory: Arc::clone(&memory),
            least: Bytes::new(PAGE),
            shift,
        };
        Arena::pinned(ArenaId(number), driver, &config, &plan, Arc::clone(&map))
    });
    (gpu, map, arenas)
}

#[test]
fn small_allocations_of_two_arenas_are_told_apart() {
    let (gpu, map, arenas) = neighbours(0);
    let mut live = Vec::new();
    for _ in 0..20 {
        for (number, arena) in (0..).zip(&arenas) {
            let address = arena.allocate(Bytes::new(PAGE)).unwrap();
            assert_eq!(map.owner(address), Owner::Arena(ArenaId(number)));
            live.push((arena, address));
        }
    }
    let near = |pair: &[(_, Address)]| pair[1].1.get().abs_diff(pair[0].1.get()) < 64 << 10;
    assert!(live.windows(2).any(near), "some share a frame");
    for (arena, address) in live {
        let [mine, other] = if std::ptr::eq(arena, &raw const arenas[0]) {
            [&arenas[0], &arenas[1]]
        } else {
            [&arenas[1], &arenas[0]]
        };
        assert!(other.free(address).is_err(), "it is not the other's");
        mine.free(address).unwrap();
        assert_eq!(map.owner(address), Owner::Foreign);
        arenas.iter().for_each(|arena| arena.validate().unwrap());
    }
    assert_eq!((gpu.calls(Call::Alloc), gpu.calls(Call::Free)), (40, 40));
}

/// The driver may place host memory more narrowly than the page map's slots.
#[test]
fn what_the_page_map_cannot_hold_can_be_left_to_the_program() {
    let (gpu, map, [arena, _]) = neighbours(256);
    assert!(arena.allocate(Bytes::new(PAGE)).is_err());
    assert_eq!((gpu.calls(Call::Alloc), gpu.calls(Call::Free)), (1, 1));
    let address = arena.allocate_or_leave(Bytes::new(PAGE)).unwrap();
    assert_eq!((gpu.calls(Call::Alloc), gpu.calls(Call::Free)), (2, 1));
    assert_eq!(map.owner(address), Owner::Foreign);
    assert_eq!(arena.stats().reserved.current, Bytes::ZERO);
}

#[test]
fn failing_calls_leave_the_books_right() {
    for call in [
        Call::Alloc,
        Call::Free,
        Call::Fence,
        Call::Reached,
        Call::Wait,
    ] {
        for n in 1..10 {
            for code in [Code::OUT_OF_MEMORY, Code::UNKNOWN] {
                let rig = Rig::plain();
                rig.gpu.fail_nth(call, n, code);
                let mut blocks = Vec::new();
                for round in 0..60_u64 {
                    let size = Bytes::new((round * 7_919) % 60 * (1 << 18) + 1);
                    blocks.extend(rig.arena.allocate(size));
                    if round % 3 == 0 && !blocks.is_empty() {
                        let _ = rig.arena.free(blocks.swap_remove(0));
                    }
                    rig.arena.validate().unwrap();
                }
                for block in blocks {
                    let _ = rig.arena.free(block);
                }
                rig.arena.trim();
                rig.arena.validate().unwrap();
                assert_eq!(rig.reserved(), 0, "{call:?} {n} {code:?}");
            }
        }
    }
}

/// One step of a program.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
    FreeInside(prop::sample::Index, u64),
    Launch(prop::sample::Index, u64),
    Pass(u64),
    BeginCapture,
    EndCapture,
    /// Somebody else takes so many MiB.
    Occupy(u64),
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    let size = prop_oneof![1_u64..5000, 1_u64..(1 << 20), 1_u64..(40 << 20)];
    prop_oneof![
        10 => size.prop_map(Step::Allocate),
        9 => any::<Index>().prop_map(Step::Free),
        1 => (any::<Index>(), 1_u64..9000).prop_map(|(which, at)| Step::FreeInside(which, at)),
        6 => (any::<Index>(), 0_u64..20_000_000).prop_map(|(which, ns)| Step::Launch(which, ns)),
        2 => (0_u64..30_000_000).prop_map(Step::Pass),
        1 => Just(Step::BeginCapture),
        2 => Just(Step::EndCapture),
        1 => (7_900_u64..8_192).prop_map(Step::Occupy),
    ]
}

fn pinned_config() -> impl Strategy<Value = PinnedConfig> {
    let mebibytes = |most: u64| prop::option::of((1..most).prop_map(Bytes::mib));
    let fraction = prop_oneof![2 => Just(0.5), 1 => 0.0..0.1];
    (fraction, mebibytes(60), mebibytes(8), mebibytes(8)).prop_map(
        |(fraction, reserve_segment, max_round_threshold, max_cached)| PinnedConfig {
            fraction,
            reserve_segment,
            max_round_threshold,
            max_cached,
            ..PinnedConfig::default()
        },
    )
}

/// What the program holds, kept apart from the arena.
struct Program {
    rig: Rig,
    live: BTreeMap<u64, u64>,
    capturing: bool,
}

impl Program {
    fn run(&mut self, step: &Step) {
        let rig = &self.rig;
        match step {
            Step::Allocate(size) => self.allocate(*size),
            Step::Free(which) => {
                if let Some((start, _)) = self.pick(which) {
                    rig.arena.free(Address::new(start)).unwrap();
                    self.live.remove(&start);
                }
            }
            Step::FreeInside(which, offset) => {
                if let Some((start, _)) = self.pick(which).filter(|&(_, size)| *offset < size) {
                    let inside = Address::new(start + offset);
                    assert_eq!(rig.arena.free(inside), Err(FreeError::NotLive));
                }
            }
            Step::Launch(which, ns) => {
                if let Some((start, size)) = self.pick(which).filter(|_| !self.capturing) {
                    rig.launch(Address::new(start), size, *ns);
                }
            }
            Step::Pass(ns) => rig.gpu.pass(*ns),
            Step::BeginCapture if !self.capturing => {
                rig.gpu.begin_capture(rig.stream);
                self.capturing = true;
            }
            Step::EndCapture if self.capturing => {
                assert!(rig.gpu.end_capture(rig.stream), "the capture was spoiled");
                self.capturing = false;
            }
            Step::BeginCapture | Step::EndCapture => {}
            Step::Occupy(mebibytes) => rig.gpu.occupy(0, Bytes::mib(*mebibytes)),
        }
        self.check();
    }

    fn pick(&self, which: &prop::sample::Index) -> Option<(u64, u64)> {
        let n = self.live.len();
        (n > 0).then(|| self.live.iter().nth(which.index(n)).map(|(&a, &s)| (a, s)))?
    }

    fn allocate(&mut self, size: u64) {
        let Ok(address) = self.rig.arena.allocate(Bytes::new(size)) else {
            return;
        };
        let start = address.get();
        assert_eq!(start % PAGE, 0, "alignment");
        assert_eq!(self.rig.map.owner(address), Owner::Arena(ArenaId(0)));
        // The pages of a block are its own.
        let end = start + size.next_multiple_of(PAGE);
        let below = self.live.range(..end).next_back();
        assert!(below.is_none_or(|(a, s)| a + s <= start), "an overlap");
        let in_use = self.rig.gpu.in_use(address, Bytes::new(size));
        assert!(!in_use, "handed out before its fence");
        self.live.insert(start, size);
    }

    fn check(&self) {
        self.rig.arena.validate().unwrap();
        let stats = self.rig.arena.stats();
        let parts = [stats.live, stats.cached, stats.limbo].map(|gauge| gauge.current.get());
        assert_eq!(self.rig.reserved(), parts.iter().sum::<u64>());
        assert!(self.live.values().sum::<u64>() <= stats.live.current.get());
    }

    fn end(mut self, kept: bool) {
        self.run(&Step::EndCapture);
        self.rig.gpu.occupy(0, Bytes::ZERO);
        for &start in self.live.keys() {
            self.rig.arena.free(Address::new(start)).unwrap();
        }
        if kept {
            self.rig.arena.trim();
            self.rig.arena.validate().unwrap();
            assert!(self.rig.gpu.live_count() <= 1);
        } else {
            self.rig.ends_clean();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_agree_with_what_they_hold(
        pinned in pinned_config(),
        strict in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let free_sync = if strict { FreeSync::Strict } else { FreeSync::Deferred };
        let config = Config { free_sync, ..Config::default() };
        let rig = Rig::new(&config, pinned);
        let mut program = Program { rig, live: BTreeMap::new(), capturing: false };
        for step in &steps {
            program.run(step);
        }
        program.end(pinned.reserve_segment.is_some());
    }
}
