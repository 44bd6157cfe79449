//! What an arena tells of itself.
//!
//! Invariant: what is told is of one moment; no memory is taken under the lock,
//! and none that the host does not have. What a program is told as free of its
//! device could be had, in some pieces; total is never more than the limit.
//! Cost: the lock and a dozen loads, and what the driver takes to answer; a
//! snapshot looks at every block.

mod since;
mod snapshot;

use crate::address::{Address, Bytes};
use crate::arena::state::ArenaState;
use crate::arena::{Arena, Located};
use crate::counters::history::History;
use crate::driver::{Driver, MemInfo, PAGE};
use crate::error::Code;
use crate::ledger::Ledger;
use crate::library::LibraryId;
use crate::recording::{ArenaOrder, Mark, Recording};
use crate::stats::{ArenaStats, DriverCalls, Glance, Origin, Snapshot, StackId};
use crate::thread_cache::NO_HUB;

pub use since::Peak;

/// What an arena keeps of its past.
#[derive(Copy, Clone, Debug)]
pub struct Watch {
    /// How many events are kept, the newest; 0: none.
    pub events: usize,
    /// Whether requests that fail for want of memory are described.
    pub ooms: bool,
    /// Whether it is kept which blocks there were when the context ended.
    pub blocks: bool,
    /// What is done about call stacks; none: they are not taken.
    pub stacks: Option<StackWatch>,
    /// Where every event goes, and the arena's number there; none: there is no
    /// recording.
    pub recording: Option<(&'static Recording, u32)>,
}

/// How call stacks are taken, and where what they hold is counted.
#[derive(Copy, Clone, Debug)]
pub struct StackWatch {
    /// Takes the call stack of the calling thread, outside of all locks.
    pub take: fn() -> StackId,
    /// Whether a request for so much memory, which is asked about once, is in the
    /// sample; none: each is.
    pub samples: Option<fn(Bytes) -> bool>,
    /// What each of them holds.
    pub ledger: &'static Ledger,
    /// The option that asks for it.
    pub asked_by: &'static str,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            events: 0,
            ooms: true,
            blocks: false,
            stacks: None,
            recording: None,
        }
    }
}

/// How often a list that has become too short meanwhile is made anew.
pub(super) const TRIES: u32 = 8;

impl<D: Driver> Arena<D> {
    /// The same arena, which holds nothing yet, with what it is to keep of its
    /// past. Takes the memory for the events.
    #[must_use]
    pub fn watched(self, watch: Watch) -> Arena<D> {
        {
            let counters = &mut self.state.lock().counters;
            counters.history = History::new(watch.events, watch.recording);
            counters.ledger = watch.stacks.map(|stacks| stacks.ledger);
        }
        let mut arena = Arena { watch, ..self };
        arena.keeps = arena.not_kept().is_none();
        if arena.watch.stacks.is_some() {
            arena.hub_at_once = NO_HUB;
        }
        arena
    }

    /// How many events are kept: none where the host had no memory for them.
    pub fn events_kept(&self) -> usize {
        self.state.lock().counters.history.capacity()
    }

    /// Why chunks are not packed, by the strategy and the options or by what
    /// happened since; none where they are. In a word or an option's name.
    pub fn not_packed(&self) -> Option<&'static str> {
        let gave_up = || {
            let state = self.state.lock();
            let packing = state.packing.as_ref()?;
            (!packing.is_patient()).then_some("waits in vain")
        };
        self.strategy.not_packed().or_else(gave_up)
    }

    /// Every block, of one moment, and the newest events up to it. None where
    /// the host has no memory for it.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        let mut snapshot = self.filled(usize::MAX, ArenaState::snapshot)?;
        snapshot.segments.sort_unstable_by_key(|s| s.address);
        Some(snapshot)
    }

    /// The newest events alone, with nothing of the blocks. None where the
    /// host has no memory for them.
    #[must_use]
    pub fn events(&self) -> Option<Snapshot> {
        self.filled(0, |state, snapshot| state.events(snapshot))
    }

    /// What `fill` puts into a snapshot with room for so many blocks.
    fn filled(
        &self,
        most: usize,
        fill: fn(&mut ArenaState<D::Fence>, &mut Snapshot) -> bool,
    ) -> Option<Snapshot> {
        if let Some(held) = self.at_the_end() {
            return held;
        }
        let mut snapshot = Snapshot::default();
        for _ in 0..TRIES {
            let mut room = self.state.lock().snapshot_room();
            room.blocks = room.blocks.min(most);
            room.and_more().reserve(&mut snapshot).ok()?;
            if fill(&mut self.state.lock(), &mut snapshot) {
                return Some(snapshot);
            }
        }
        None
    }

    /// Blocks that a snapshot has now, at the most; none when the context has
    /// ended.
    pub fn block_count(&self) -> u64 {
        self.state.lock().snapshot_room().blocks as u64
    }

    /// Where this thread asks for so much memory, in this library: with a call stack
    /// where those are taken, if the request is in the sample.
    #[inline]
    pub(super) fn origin(&self, library: LibraryId, request: Bytes) -> Origin {
        self.tend_recording();
        let stack = match &self.watch.stacks {
            None => StackId::NONE,
            Some(stacks) => self.sampled_stack(stacks, request),
        };
        Origin { library, stack }
    }

    #[cold]
    fn sampled_stack(&self, stacks: &StackWatch, request: Bytes) -> StackId {
        if stacks.samples.is_none_or(|samples| samples(request)) {
            return self.call_stack();
        }
        StackId::LEFT_OUT
    }

    /// Whether it is counted what such a call stack holds.
    #[inline]
    pub(super) fn counts(&self, stack: StackId) -> bool {
        self.watch.stacks.is_some() && stack != StackId::LEFT_OUT
    }

    /// The call stack of this thread, where call stacks are taken.
    pub(super) fn call_stack(&self) -> StackId {
        let stacks = self.watch.stacks.as_ref();
        let stack = stacks.map_or(StackId::NONE, |stacks| (stacks.take)());
        if let Some((recording, _)) = self.watch.recording {
            recording.know(stack);
        }
        stack
    }

    /// Has the recording looked after, if there is one. Nothing is held.
    #[inline]
    pub(super) fn tend_recording(&self) {
        if let Some((recording, _)) = self.watch.recording {
            recording.tend();
        }
    }

    /// Tells the recording of something that is no event of a block. Nothing is held.
    pub(super) fn tell(&self, mark: &Mark) {
        if let Some((recording, arena)) = self.watch.recording {
            recording.mark(Some(arena), mark);
        }
    }

    /// Tells the recording, if there is one, of what the device has before the arena
    /// takes any of it.
    pub fn tell_memory(&self) {
        if self.watch.recording.is_some() {
            // Where the driver does not say, nothing is told.
            let _unknown = self.ask_memory();
        }
    }

    /// Tells the recording, if there is one, of all blocks and segments that are there.
    /// The lock is let go from time to time: what happens meanwhile is told as always.
    pub fn tell_blocks(&self) {
        /// How many are told at a time.
        const MOST: usize = 1024;
        let Some((recording, _)) = self.watch.recording else {
            return;
        };
        let mut next = self.state.lock().tell_segments();
        while let Some(from) = next {
            recording.tend();
            let stacks = self.state.lock().stacks_from(from, MOST);
            stacks.into_iter().for_each(|stack| recording.know(stack));
            next = self.state.lock().tell_blocks(from, MOST);
        }
    }

    /// A consistent picture of the arena.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        self.state.lock().picture()
    }

    /// A figure of that picture, without a copy where the context has ended.
    pub fn stats_by<R>(&self, figure: impl FnOnce(&ArenaStats) -> R) -> R {
        let mut state = self.state.lock();
        match &state.ended {
            Some(ended) => figure(ended),
            None => figure(&state.picture()),
        }
    }

    /// Whether its context has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.lock().retired
    }

    /// Calls made to the driver so far.
    #[must_use]
    pub fn driver_calls(&self) -> DriverCalls {
        self.driver.read()
    }

    /// How it stands, of what threads keep about.
    #[must_use]
    pub fn glance(&self) -> Glance {
        let driver_calls = self.driver.calls();
        let mut state = self.state.lock();
        let glance = state.counters.glance();
        Glance {
            driver_calls,
            live: glance.live.saturating_sub(state.room_about()),
            ..glance
        }
    }

    /// Whether it holds nothing of the driver's.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.lock().counters.reserved().is_zero()
    }

    /// Bytes of the blocks that the program holds.
    #[must_use]
    pub fn live(&self) -> Bytes {
        self.state.lock().live()
    }

    /// Whether the program holds any block of it.
    #[must_use]
    pub fn has_live(&self) -> bool {
        !self.live().is_zero()
    }

    /// Bytes that could go back to the driver: in chunks without a live block,
    /// and what was allocated for itself and still waits for the device. While a stream
    /// captures, mapped memory stays.
    #[must_use]
    pub fn idle(&self) -> Bytes {
        let may_unmap = self.driver.may_fence();
        let mut state = self.state.lock();
        state.recall();
        match may_unmap {
            true => state.obtainable(),
            false => state.obtainable_but_units(),
        }
    }

    /// Asks the driver what the device has, and tells the recording, if there is one.
    pub(super) fn ask_memory(&self) -> Result<MemInfo, Code> {
        let info = self.driver.mem_info()?;
        let reserved = self.learn(info);
        let MemInfo { free, total } = info;
        self.tell(&Mark::Memory {
            free,
            total,
            reserved,
        });
        Ok(info)
    }

    /// Notes what the device has. Returns how much of it was reserved then.
    fn learn(&self, MemInfo { free, total }: MemInfo) -> Bytes {
        let (reserved, left) = (self.quota.reserved(), self.left_of(free));
        self.quota.room.learn(free, total, reserved);
        let mut state = self.state.lock();
        let capacity = state.counters.reserved().saturating_add(left);
        if let Some(packing) = &mut state.packing {
            packing.learn(capacity);
        }
        reserved
    }

    /// What the limit leaves of free memory.
    fn left_of(&self, free: Bytes) -> Bytes {
        let left = |limit: Bytes| limit.saturating_sub(self.quota.reserved());
        self.quota
            .limit()
            .map_or(free, |limit| free.min(left(limit)))
    }

    /// The device's memory; nothing where the driver does not say.
    pub(super) fn device_total(&self) -> Bytes {
        if let Some(&total) = self.device_total.get() {
            return total;
        }
        match self.ask_memory() {
            Ok(info) => *self.device_total.get_or_init(|| info.total),
            Err(_) => Bytes::ZERO,
        }
    }

    /// What a chunk could take now: what the driver has, up to the limit.
    pub(super) fn available(&self) -> Result<Bytes, Code> {
        Ok(self.left_of(self.ask_memory()?.free))
    }

    /// Free and total memory as the program should see them: what the driver
    /// has, with what the arena could hand out in whole chunks, and never more
    /// than the limit leaves in whole pages.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn mem_info(&self) -> Result<MemInfo, Code> {
        self.tell(&Mark::Order(ArenaOrder::MemInfo));
        self.settle_what_is_done();
        if self.strategy.takes_chunks() {
            // What a request will keep back for waits can be had by nobody.
            let is_first = self.state.lock().counters.reserved().is_zero();
            self.driver.prepare_to_settle(is_first);
        }
        Ok(self.mem_info_with(self.ask_memory()?))
    }

    /// As [`Arena::mem_info`], where somebody else has told what the device
    /// has. No call is made to the driver: what the device may still use counts
    /// as used.
    #[must_use]
    pub fn mem_info_with(&self, MemInfo { free, total }: MemInfo) -> MemInfo {
        let ours = {
            let mut state = self.state.lock();
            state.recall();
            let parts = if self.strategy.offers_parts_of_chunks() {
                state.heap.obtainable_parts()
            } else {
                Bytes::ZERO
            };
            state.obtainable().saturating_add(parts)
        };
        let reserved = self.learn(MemInfo { free, total });
        let free = free.saturating_add(ours).min(total);
        match self.quota.limit() {
            None => MemInfo { free, total },
            Some(limit) => MemInfo {
                free: free.min(
                    limit
                        .saturating_sub(reserved)
                        .round_down(PAGE)
                        .saturating_add(ours)
                        .saturating_sub(reserved.saturating_sub(limit)),
                ),
                total: total.min(limit),
            },
        }
    }

    /// The live block that an address lies in, or of a direct allocation
    /// starts at, with the driver's allocation around it; none where no live
    /// block is. Where a block starts that takes constant time; anywhere else
    /// a step for each 2 MiB from there down to the start of the block below,
    /// and some hundreds at most for the ends: it does not grow with blocks or
    /// chunks.
    #[must_use]
    pub fn locate(&self, address: Address) -> Option<Located> {
        let (_, located) = self.state.lock().heap.locate(address)?;
        Some(located)
    }

    /// The same with the call stack of the request that got the block.
    #[must_use]
    pub fn whose(&self, address: Address) -> Option<(Located, StackId)> {
        let state = self.state.lock();
        let (id, located) = state.heap.locate(address)?;
        Some((located, state.counters.history.stack_of(id)))
    }
}

impl<F: Clone> ArenaState<F> {
    /// A copy of the counters, with those that are only worked out on demand.
    pub(super) fn picture(&mut self) -> ArenaStats {
        if let Some(ended) = &self.ended {
            return (**ended).clone();
        }
        self.recall();
        self.put_back_reclaimable();
        self.forget_gone();
        let mut stats = self.counters.picture();
        stats.idle = self.idle();
        stats.largest_cached = self.heap.largest_free();
        stats
    }
}
