//! Requests that fail for want of memory, as they are described.
//!
//! Owns the list of failed requests, behind a lock of its own that is never
//! held together with that of the state. Cost: a failed request looks at every
//! block; the way up to a failure copies a few numbers.

use std::cell::Cell;

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::inspect::TRIES;
use crate::arena::miss::is_shortage;
use crate::counters::calls::Shortage;
use crate::driver::Driver;
use crate::error::{AllocError, Code};
use crate::stats::{Holdings, OomEvent, OomLog, StackId, largest_groups};

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
    /// The requests that failed for want of memory.
    #[must_use]
    pub fn ooms(&self) -> OomLog {
        self.ooms.lock().clone()
    }

    /// Memory is short for this request, and all will be done about it.
    pub(super) fn note_need(&self, need: &Need) {
        if self.watch.ooms && need.before.get().is_none() {
            need.before.set(Some(self.state.lock().holdings()));
        }
    }

    /// The driver is asked again for this request, after what could go back to
    /// it has. Requests are counted, and not how often each was tried.
    pub(super) fn note_retry(&self, need: &Need) {
        if !need.retried.replace(true) {
            self.state.lock().counters.retried();
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
            let mut state = self.state.lock();
            // Read beside: other arenas may change it meanwhile.
            let elsewhere = self
                .quota
                .reserved()
                .saturating_sub(state.counters.reserved());
            let shortage = Shortage {
                at_limit,
                tried_to_free: !self.fails_at_once(error),
                device_free: info.map_or(Bytes::ZERO, |info| info.free),
                device_total: info.map_or(Bytes::MAX, |info| info.total),
                elsewhere,
                stack: need.stack,
            };
            state.counters.out_of_memory(need.size, shortage);
            (state.holdings(), state.counters.history.now_us())
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
            let room = self.state.lock().snapshot_room().and_more();
            live.clear();
            if live.try_reserve_exact(room.blocks).is_err() {
                break;
            }
            if self.state.lock().live_blocks(&mut live) {
                return live;
            }
        }
        Vec::new()
    }
}
