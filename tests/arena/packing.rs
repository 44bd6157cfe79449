//! What `auto_growth` does about chunks when the cache has nothing that fits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{MemInfo, Whose};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Code, Driver};
use vramalloc_model::{Call, Gpu, SimDriver, SimFence};

use crate::rig::{MS, Rig, plain};

const LARGE: Bytes = Bytes::mib(200);
const OTHER: Bytes = Bytes::mib(100);

/// A program of 300 MiB on a device of so many times as much, whose larger
/// chunk is idle.
fn with_an_idle_chunk(memory: Bytes) -> (Rig, Address) {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), memory);
    let (large, other) = (rig.get(LARGE), rig.get(OTHER));
    rig.arena.free(large).unwrap();
    rig.arena.flush();
    (rig, other)
}

fn free(rig: &Rig, blocks: &[Address]) {
    for &block in blocks {
        rig.arena.free(block).unwrap();
    }
}

fn reserved(rig: &Rig) -> Bytes {
    rig.arena.stats().reserved.current
}

#[test]
fn an_idle_chunk_stays_whole_for_a_request_of_its_size() {
    let (rig, other) = with_an_idle_chunk(Bytes::gib(4));
    // 300 MiB and 8 percent: there is room for this one beside it.
    let small = rig.get(Bytes::mib(20));
    assert_eq!(reserved(&rig), Bytes::mib(320));
    let large = rig.get(LARGE);
    assert_eq!(reserved(&rig), Bytes::mib(320));
    free(&rig, &[small, large, other]);
    rig.ends_clean();
}

#[test]
fn an_idle_chunk_is_cut_before_more_than_the_bound_is_taken() {
    let (rig, other) = with_an_idle_chunk(Bytes::gib(4));
    let small = rig.get(Bytes::mib(30));
    assert_eq!(reserved(&rig), Bytes::mib(300));
    assert_eq!(rig.gpu.calls(Call::Free), 0);
    free(&rig, &[small, other]);
    rig.ends_clean();
}

#[test]
fn where_the_device_fills_up_idle_chunks_go_back_first() {
    let (rig, other) = with_an_idle_chunk(Bytes::mib(512));
    let small = rig.get(Bytes::mib(30));
    // Sharing starts with 256 MiB held.
    assert_eq!(reserved(&rig), Bytes::mib(130));
    free(&rig, &[small, other]);
    rig.ends_clean();
}

/// As many blocks of this size as there are.
fn fill(rig: &Rig, size: Bytes) -> Vec<Address> {
    std::iter::from_fn(|| rig.arena.allocate(size).ok()).collect()
}

/// So do weights, and caches of single layers.
#[test]
fn blocks_of_one_size_fill_a_device_as_without_us() {
    for mib in 2..17 {
        let (size, memory) = (Bytes::mib(mib), Bytes::gib(8));
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), memory);
        let bare = memory.get() / size.round_up(Bytes::mib(2)).unwrap().get();
        let blocks = fill(&rig, size);
        assert!(
            blocks.len() as u64 >= bare - bare / 64,
            "{mib} MiB: {} of {bare}",
            blocks.len()
        );
        free(&rig, &blocks);
        rig.ends_clean();
    }
}

#[test]
fn blocks_of_one_size_fill_a_device_after_others_of_another_size() {
    for (before, mib) in [(20, 11), (20, 12), (24, 13), (30, 6), (18, 10)] {
        let (size, memory) = (Bytes::mib(mib), Bytes::gib(4));
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), memory);
        let stays = rig.get(Bytes::mib(8));
        let others: Vec<Address> = (0..2048 / before)
            .map(|_| rig.get(Bytes::mib(before)))
            .collect();
        free(&rig, &others);
        let bare = (memory.get() - (8 << 20)) / size.round_up(Bytes::mib(2)).unwrap().get();
        let blocks = fill(&rig, size);
        assert!(
            blocks.len() as u64 >= bare - bare / 16,
            "{mib} MiB after {before}: {} of {bare}",
            blocks.len()
        );
        free(&rig, &[blocks, vec![stays]].concat());
        rig.ends_clean();
    }
}

/// Two chunks that are each too small become one that is not.
#[test]
fn idle_chunks_are_exchanged_for_one() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(4));
    let both = [Bytes::mib(150), Bytes::mib(160)].map(|size| rig.get(size));
    free(&rig, &both);
    rig.arena.flush();
    let joined = rig.get(Bytes::mib(200));
    assert_eq!(reserved(&rig), Bytes::mib(310));
    assert_eq!(rig.gpu.calls(Call::Free), 2);
    let rest = rig.get(Bytes::mib(110));
    assert_eq!(reserved(&rig), Bytes::mib(310));
    free(&rig, &[joined, rest]);
    rig.ends_clean();
}

/// What the device is about to be done with is waited for rather than added
/// to, also below limbo's budget.
#[test]
fn what_was_freed_is_waited_for_before_the_bound_is_passed() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(4));
    let (kept, freed) = (rig.get(Bytes::mib(300)), rig.get(Bytes::mib(40)));
    rig.launch(freed, Bytes::mib(40), 5 * MS);
    rig.arena.free(freed).unwrap();
    let again = rig.get(Bytes::mib(40));
    assert_eq!(again, freed);
    assert!(!rig.gpu.in_use(again, Bytes::mib(40)));
    free(&rig, &[kept, again]);
    rig.ends_clean();
}

/// Nothing of it happens while a stream captures a graph.
#[test]
fn a_capture_is_left_alone() {
    for memory in [Bytes::gib(4), Bytes::mib(512)] {
        let (rig, other) = with_an_idle_chunk(memory);
        let stream = rig.gpu.stream(rig.arena.driver().context(), false).unwrap();
        rig.gpu.begin_capture(stream);
        let small = rig.get(Bytes::mib(30));
        assert_eq!(reserved(&rig), Bytes::mib(300));
        assert!(rig.gpu.end_capture(stream), "the capture was invalidated");
        free(&rig, &[small, other]);
        rig.ends_clean();
    }
}

/// Blocks of one size after blocks of another, which were all freed: what the first left can
/// be cut only with a loss, and is taken anew. Also where the program came back to its peak
/// twice before, with other sizes.
#[test]
fn a_device_is_filled_with_one_size_after_another() {
    for (memory, sizes) in [
        (4096, &[1024, 640][..]),
        (4096, &[700, 500]),
        (4096, &[300, 300, 300, 300, 200, 120]),
        // Also where a program is small, but not for its device.
        (256, &[24, 14]),
        (256, &[40, 22]),
    ] {
        let memory = Bytes::mib(memory);
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), memory);
        for size in sizes.iter().map(|&mib| Bytes::mib(mib)) {
            let most = memory.get() / size.get();
            let blocks: Vec<_> = (0..most).map(|_| rig.get(size)).collect();
            free(&rig, &blocks);
            rig.arena.flush();
        }
        rig.ends_clean();
    }
}

/// What requests of one size leave of the chunks that they share is too little for those of
/// another: bare, each has pages of its own.
#[test]
fn two_sizes_in_turn_fill_a_device() {
    for sizes in [[11, 12], [15, 12], [14, 5]] {
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::gib(4));
        let in_turn = sizes.into_iter().cycle().map(Bytes::mib);
        let taken = in_turn.map_while(|size| rig.arena.allocate(size).ok());
        let blocks: Vec<_> = taken.collect();
        let live = rig.arena.stats().live.current;
        assert!(live >= Bytes::mib(4096 * 93 / 100), "{sizes:?}: {live}");
        free(&rig, &blocks);
        rig.ends_clean();
    }
}

/// A program that repeats and is refused the same requests each time is not left with the
/// chunks that it has: bare, it would be refused none.
#[test]
fn what_was_refused_once_is_not_refused_each_time() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::mib(1387));
    let take = |kib, count| -> Vec<_> {
        let all = (0..count).map(|_| rig.arena.allocate(Bytes::kib(kib)));
        all.collect()
    };
    let mut refused = Vec::new();
    for _ in 0..300 {
        let taken = [take(9750, 78), take(21916, 17), take(9750, 9)].concat();
        refused.push(taken.iter().filter(|address| address.is_err()).count());
        let blocks: Vec<_> = taken.into_iter().flatten().collect();
        free(&rig, &blocks);
        rig.arena.flush();
    }
    assert!(refused.ends_with(&[0; 10]), "{refused:?}");
    assert!(refused.iter().sum::<usize>() < 20, "{refused:?}");
    rig.ends_clean();
}

/// Where a program repeats, only the oldest idle chunk goes back for what it
/// needs now; all of them where much is free in pieces of a chunk in use.
#[test]
fn a_program_that_repeats_keeps_idle_chunks_where_few_pieces_are_free() {
    for (held, frees) in [(290, 1), (250, 3)] {
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::mib(1000));
        // It has asked for all that it asks for later.
        for size in [held, 131] {
            let block = rig.get(Bytes::mib(size));
            free(&rig, &[block]);
        }
        rig.arena.trim();
        let frees_before = rig.gpu.calls(Call::Free);
        let sizes = [400, 300, 220].map(Bytes::mib);
        for _ in 0..3 {
            let blocks = sizes.map(|size| rig.get(size));
            free(&rig, &blocks);
            rig.arena.flush();
        }
        assert_eq!(rig.gpu.calls(Call::Free), frees_before);
        let held = rig.get(Bytes::mib(held));
        // The device lags behind from here on.
        let small = rig.get(Bytes::kib(512));
        rig.launch(small, Bytes::kib(512), 5 * MS);
        rig.arena.free(small).unwrap();
        let other = rig.get(Bytes::mib(131));
        assert_eq!(rig.gpu.calls(Call::Free), frees_before + frees);
        free(&rig, &[held, other]);
        rig.ends_clean();
    }
}

/// An arena whose addresses a graph may use gives nothing back.
#[test]
fn an_arena_that_holds_its_chunks_exchanges_none() {
    for memory in [Bytes::gib(4), Bytes::mib(512)] {
        let (rig, other) = with_an_idle_chunk(memory);
        rig.arena.hold(true);
        let large = rig.get(Bytes::mib(210));
        assert_eq!(reserved(&rig), Bytes::mib(510));
        rig.arena.hold(false);
        free(&rig, &[large, other]);
        rig.ends_clean();
    }
}

/// A device whose work ends only when the program is told to let it end, in a
/// process that may have another context.
struct Held {
    inner: SimDriver,
    alone: bool,
    runs: AtomicBool,
    short_waits: AtomicU64,
    frees: AtomicU64,
}

impl Held {
    fn new(gpu: &Gpu, alone: bool) -> Held {
        Held {
            inner: gpu.driver(0).unwrap(),
            alone,
            runs: AtomicBool::new(false),
            short_waits: AtomicU64::new(0),
            frees: AtomicU64::new(0),
        }
    }

    fn arena(self) -> Arena<Held> {
        let map = Arc::new(PageMap::new());
        let quota = Arc::new(Quota::new(Bytes::MAX));
        Arena::new(ArenaId(1), self, &Config::default(), map, quota)
    }
}

impl Mapping for Held {}

impl Driver for Held {
    type Fence = SimFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.inner.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        assert!(!self.runs.load(Ordering::Relaxed), "waits for ever");
        self.frees.fetch_add(1, Ordering::Relaxed);
        self.inner.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.inner.mem_info()
    }

    fn is_alone(&self) -> bool {
        self.alone
    }

    fn fence(&self) -> Result<SimFence, Code> {
        self.inner.fence()
    }

    fn reached(&self, fence: &SimFence) -> Result<bool, Code> {
        Ok(!self.runs.load(Ordering::Relaxed) && self.inner.reached(fence)?)
    }

    fn wait(&self, fence: &SimFence, whose: Whose) -> Result<bool, Code> {
        assert!(!self.runs.load(Ordering::Relaxed), "waits for ever");
        self.inner.wait(fence, whose)
    }

    fn wait_within(&self, fence: &SimFence, most: Duration) -> Result<bool, Code> {
        assert!(most <= Duration::from_millis(100));
        self.short_waits.fetch_add(1, Ordering::Relaxed);
        Ok(!self.runs.load(Ordering::Relaxed) && self.inner.wait_within(fence, most)?)
    }
}

/// A kernel that the host ends later costs a few short waits, once, and no
/// request is held up by it for good: neither where there is room, nor where
/// only cutting an idle chunk helps.
#[test]
fn work_that_the_host_ends_is_not_waited_for() {
    for memory in [Bytes::gib(4), Bytes::mib(512)] {
        let rig = Rig::new(&Config::default(), memory);
        let arena = Held::new(&rig.gpu, true).arena();
        let mut blocks = [300, 130].map(|mib| arena.allocate(Bytes::mib(mib)).unwrap());
        arena.free(blocks[0]).unwrap();
        arena.flush();
        arena.driver().runs.store(true, Ordering::Relaxed);
        let mut small = Vec::new();
        for _ in 0..30 {
            blocks[0] = arena.allocate(Bytes::mib(8)).unwrap();
            arena.free(blocks[0]).unwrap();
            small.push(arena.allocate(Bytes::mib(2)).unwrap());
        }
        let waits = arena.driver().short_waits.load(Ordering::Relaxed);
        assert!((1..=8).contains(&waits), "{memory}: {waits} waits");
        assert_eq!(arena.driver().frees.load(Ordering::Relaxed), 0);
        arena.driver().runs.store(false, Ordering::Relaxed);
        small.push(blocks[1]);
        small
            .into_iter()
            .for_each(|block| arena.free(block).unwrap());
        arena.trim();
        arena.validate().unwrap();
        assert_eq!(arena.stats().reserved.current, Bytes::ZERO);
    }
}

/// Beside another context, which may be given work that ends only by what this
/// thread does next, nothing goes back while there is another way.
#[test]
fn beside_another_context_nothing_is_exchanged() {
    for (alone, frees) in [(true, 2), (false, 0)] {
        let rig = Rig::new(&Config::default(), Bytes::gib(4));
        let arena = Held::new(&rig.gpu, alone).arena();
        let both = [150, 160].map(|mib| arena.allocate(Bytes::mib(mib)).unwrap());
        for block in both {
            arena.free(block).unwrap();
        }
        arena.flush();
        let joined = arena.allocate(LARGE).unwrap();
        assert_eq!(arena.driver().frees.load(Ordering::Relaxed), frees);
        arena.free(joined).unwrap();
        arena.trim();
        arena.validate().unwrap();
    }
}

/// A device on which, while one thread waits, another frees ever more.
struct Fed {
    inner: SimDriver,
    arena: OnceLock<Weak<Arena<Fed>>>,
    left: Mutex<Vec<Address>>,
}

impl Mapping for Fed {}

impl Driver for Fed {
    type Fence = SimFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.inner.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.inner.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.inner.mem_info()
    }

    fn fence(&self) -> Result<SimFence, Code> {
        self.inner.fence()
    }

    fn reached(&self, fence: &SimFence) -> Result<bool, Code> {
        self.inner.reached(fence)
    }

    fn wait(&self, fence: &SimFence, whose: Whose) -> Result<bool, Code> {
        self.inner.wait(fence, whose)
    }

    fn wait_within(&self, fence: &SimFence, most: Duration) -> Result<bool, Code> {
        let ended = self.inner.wait_within(fence, most);
        let freed = self.left.lock().unwrap().pop();
        let arena = self.arena.get().and_then(Weak::upgrade);
        if let (Some(freed), Some(arena)) = (freed, arena) {
            let gpu = self.inner.gpu();
            let stream = gpu.stream(self.inner.context(), false).unwrap();
            gpu.launch(stream, 5 * MS, &[]).unwrap();
            arena.free(freed).unwrap();
            arena.flush();
        }
        ended
    }
}

/// A miss waits for what was freed before it, not for what others free while
/// it waits.
#[test]
fn a_wait_ends_where_others_go_on_freeing() {
    let rig = Rig::new(&Config::default(), Bytes::mib(700));
    let driver = Fed {
        inner: rig.gpu.driver(0).unwrap(),
        arena: OnceLock::new(),
        left: Mutex::new(Vec::new()),
    };
    let map = Arc::new(PageMap::new());
    let quota = Arc::new(Quota::new(Bytes::MAX));
    let arena = Arena::new(ArenaId(1), driver, &Config::default(), map, quota);
    let arena = Arc::new(arena);
    let get = |mib| arena.allocate(Bytes::mib(mib)).unwrap();
    let kept = get(300);
    let small: Vec<Address> = (0..40).map(|_| get(4)).collect();
    rig.gpu.launch(rig.stream, 5 * MS, &[]).unwrap();
    arena.free(get(8)).unwrap();
    *arena.driver().left.lock().unwrap() = small;
    arena.driver().arena.set(Arc::downgrade(&arena)).unwrap();
    let more = get(150);
    let left = std::mem::take(&mut *arena.driver().left.lock().unwrap());
    assert!(left.len() > 30, "{} are left", left.len());
    for block in left.into_iter().chain([kept, more]) {
        arena.free(block).unwrap();
    }
    arena.trim();
    arena.validate().unwrap();
}
