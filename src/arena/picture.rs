//! What an arena tells of itself: snapshots, and requests that failed.
//!
//! Owns the list of failed requests, behind a lock of its own that is never
//! held together with that of the books. Invariant: no memory is taken under
//! the books' lock, and none that the host does not have. Cost: a snapshot and
//! a failed request look at every block; the way up to a failure copies a few
//! numbers.

use std::cell::Cell;
use std::sync::Arc;

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::books::{Shortage, SnapshotSize};
use crate::arena::growth::is_shortage;
use crate::arena::history::{History, Watch};
use crate::driver::Driver;
use crate::error::{AllocError, Code};
use crate::stats::{
    ArenaStats, Holdings, MOST_BLOCKS, OomEvent, OomLog, Snapshot, StackId, largest_groups,
};

/// How often a list that has become too short meanwhile is made anew.
const TRIES: u32 = 8;

/// A request that no cached block has served at once.
pub(super) struct Need {
    pub(super) request: Bytes,
    /// The least that it can do with.
    pub(super) size: Bytes,
    pub(super) stack: StackId,
    /// The arena when memory was short, before anything was done about it.
    before: Cell<Option<Holdings>>,
    /// Whether the driver was asked again, after all that could go back had.
    retried: Cell<bool>,
}

impl Need {
    pub(super) fn new(request: Bytes, size: Bytes, stack: StackId) -> Need {
        Need {
            request,
            size,
            stack,
            before: Cell::new(None),
            retried: Cell::new(false),
        }
    }
}

impl<D: Driver> Arena<D> {
    /// The same arena, which holds nothing yet, with what it is to keep of its
    /// past. Takes the memory for the events.
    #[must_use]
    pub fn watched(self, watch: Watch) -> Arena<D> {
        *self.books.lock().tally().history_mut() = History::new(watch.events);
        Arena { watch, ..self }
    }

    /// How many events are kept: none where the host had no memory for them.
    pub fn events_kept(&self) -> usize {
        self.books.lock().tally().history().capacity()
    }

    /// Why chunks are not packed, by the strategy and the options or by what
    /// happened since; none where they are. In a word or an option's name.
    pub fn not_packed(&self) -> Option<&'static str> {
        let gave_up = || {
            let books = self.books.lock();
            let packing = books.packing.as_ref()?;
            (!packing.is_patient()).then_some("waits in vain")
        };
        self.strategy.not_packed().or_else(gave_up)
    }

    /// Every block, of one moment, and the newest events up to it. None where
    /// the host has no memory for it.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        if let Some(held) = self.at_the_end() {
            return held;
        }
        let mut snapshot = Snapshot::default();
        for _ in 0..TRIES {
            let room = self.books.lock().snapshot_room();
            room.and_more().reserve(&mut snapshot).ok()?;
            if self.books.lock().snapshot(&mut snapshot) {
                snapshot.segments.sort_unstable_by_key(|s| s.address);
                return Some(snapshot);
            }
        }
        None
    }

    /// The newest events alone, with nothing of the blocks. None where the
    /// host has no memory for them.
    #[must_use]
    pub fn events(&self) -> Option<Snapshot> {
        if let Some(held) = self.at_the_end() {
            return held;
        }
        let mut snapshot = Snapshot::default();
        for _ in 0..TRIES {
            let SnapshotSize { events, .. } = self.books.lock().snapshot_room();
            let room = SnapshotSize { blocks: 0, events };
            room.and_more().reserve(&mut snapshot).ok()?;
            if self.books.lock().events(&mut snapshot) {
                return Some(snapshot);
            }
        }
        None
    }

    /// Blocks that a snapshot has now, at the most; none when the context has
    /// ended.
    pub fn block_count(&self) -> u64 {
        self.books.lock().snapshot_room().blocks as u64
    }

    /// Forgets everything without a driver call, and keeps how it stood, with
    /// its blocks where there are no more than [`MOST_BLOCKS`].
    pub(super) fn end_books(&self) -> Bytes {
        let stats = Box::<ArenaStats>::default();
        let mut held = Arc::new(Snapshot::default());
        for _ in 0..TRIES {
            let mut room = self.books.lock().snapshot_room();
            let is_whole = self.watch.blocks && room.blocks as u64 <= MOST_BLOCKS;
            if !is_whole {
                room.blocks = 0;
            }
            let Some(last) = Arc::get_mut(&mut held) else {
                break;
            };
            if room.and_more().reserve(last).is_err() {
                break;
            }
            let mut books = self.books.lock();
            if books.last_snapshot(last, is_whole) {
                return books.retire(stats, held);
            }
        }
        self.books.lock().retire(stats, Arc::default())
    }

    /// What the arena held when its context ended, if it has.
    fn at_the_end(&self) -> Option<Option<Snapshot>> {
        let held = self.books.lock().held.clone()?;
        let mut copy = held.copy();
        if let Some(copy) = &mut copy {
            copy.segments.sort_unstable_by_key(|s| s.address);
        }
        Some(copy)
    }

    /// How many blocks are kept of a context that has ended.
    pub fn blocks_at_the_end(&self) -> u64 {
        let held = self.books.lock().held.clone();
        held.map_or(0, |held| held.blocks.len() as u64)
    }

    /// Forgets the blocks and the events of a context that has ended.
    pub fn forget_the_end(&self) {
        let Some(held) = self.books.lock().held.clone() else {
            return;
        };
        let less = Some(Arc::new(Snapshot {
            made_us: held.made_us,
            ended_us: held.ended_us,
            events_lost: held.events_lost.saturating_add(held.events.len() as u64),
            forgotten: true,
            ..Snapshot::default()
        }));
        // What it was is freed when the lock is left.
        let _before = std::mem::replace(&mut self.books.lock().held, less);
    }

    /// The requests that failed for want of memory.
    #[must_use]
    pub fn ooms(&self) -> OomLog {
        self.ooms.lock().clone()
    }

    /// The call stack of this thread, where call stacks are taken.
    pub(super) fn call_stack(&self) -> StackId {
        self.watch.call_stack.map_or(StackId::NONE, |take| take())
    }

    /// Memory is short for this request, and all will be done about it.
    pub(super) fn note_need(&self, need: &Need) {
        if self.watch.ooms && need.before.get().is_none() {
            need.before.set(Some(self.books.lock().holdings()));
        }
    }

    /// The driver is asked again for this request, after what could go back to
    /// it has. Requests are counted, and not how often each was tried.
    pub(super) fn note_retry(&self, need: &Need) {
        if !need.retried.replace(true) {
            self.books.lock().tally().retried();
        }
    }

    /// Counts and describes a request for pinned memory beyond the limit that
    /// the driver did not serve either.
    pub fn note_refusal(&self, request: Bytes) {
        let least = self.strategy.least_block(request);
        let need = Need::new(request, least, self.call_stack());
        self.note_oom(&need, AllocError::Driver(Code::OUT_OF_MEMORY));
    }

    /// Counts and describes a request that failed for want of memory.
    #[cold]
    pub(super) fn note_oom(&self, need: &Need, error: AllocError) {
        if !is_shortage(error) || self.is_served_beyond(error) {
            return;
        }
        let wanted = self.watch.ooms || self.events_kept() > 0;
        let info = wanted.then(|| self.driver.mem_info().ok()).flatten();
        let at_limit = error == AllocError::Limit;
        let (after, time_us) = {
            let mut books = self.books.lock();
            // Read beside: other arenas may change it meanwhile.
            let elsewhere = self.quota.reserved().saturating_sub(books.reserved());
            let shortage = Shortage {
                at_limit,
                tried_to_free: !self.fails_at_once(error),
                device_free: info.map_or(Bytes::ZERO, |info| info.free),
                device_total: info.map_or(Bytes::MAX, |info| info.total),
                elsewhere,
                stack: need.stack,
            };
            books.tally().out_of_memory(need.size, shortage);
            (books.holdings(), books.tally().history().now_us())
        };
        if !self.watch.ooms {
            return;
        }
        let live = self.live_blocks();
        let limit = self.quota.limit();
        let mut stacks = Vec::new();
        if self.watch.call_stack.is_some() {
            let known = live.iter().filter(|(_, stack)| *stack != StackId::NONE);
            stacks = largest_groups(known.map(|&(size, stack)| (stack, size)).collect());
        }
        let event = OomEvent {
            time_us,
            request: need.request,
            rounded: need.size,
            at_limit,
            driver_free: info.map(|info| info.free),
            driver_total: info.map(|info| info.total),
            limit,
            device_reserved: self.quota.reserved(),
            before: need.before.get().unwrap_or(after),
            after,
            sizes: largest_groups(live.iter().map(|&(size, _)| (size, size)).collect()),
            stacks,
            stack: need.stack,
        };
        self.ooms.lock().push(event);
    }

    /// The sizes and call stacks of the live blocks; none where the host has
    /// no memory for them.
    fn live_blocks(&self) -> Vec<(Bytes, StackId)> {
        let mut live = Vec::new();
        for _ in 0..TRIES {
            let room = self.books.lock().snapshot_room().and_more();
            live.clear();
            if live.try_reserve_exact(room.blocks).is_err() {
                break;
            }
            if self.books.lock().live_blocks(&mut live) {
                return live;
            }
        }
        Vec::new()
    }
}
