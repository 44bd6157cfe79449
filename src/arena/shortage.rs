//! Requests that fail for want of memory: what may still come for them, and how
//! they are described.
//!
//! What another thread is asking the driver for, or giving back to it, is
//! neither in the heap nor with the driver: a request that finds nothing else
//! looks again when it has landed. It waits for that off the ladder, and by one
//! clock for all it tries. With the option `gpu_allocator_retry_time` it waits
//! for others' frees, too.
//!
//! Owns the list of failed requests, and of those that are asked for past the arena now,
//! behind locks of their own that are never held together with that of the state. Cost: a
//! few loads for a request that is short, and a look at every block for one that fails.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::direct::Kind;
use crate::arena::state::ArenaState;
use crate::counters::calls::Shortage;
use crate::driver::{Driver, MemInfo};
use crate::error::{AllocError, Code};
use crate::heap::block::Block;
use crate::library::LibraryId;
use crate::quota::Landings;
use crate::recording::Mark;
use crate::stats::{Holdings, OomEvent, OomLog, Origin, StackId, largest_groups};

/// A driver answers in milliseconds. Where it does not, it may be waiting for
/// what this thread is going to do next.
const ANSWER: Duration = Duration::from_secs(10);

/// Other threads that always come first are not to be told from memory in
/// pieces that are too small.
const LOOKS: u32 = 16;

/// The same for what neighbours are asked to give back.
const RELIEFS: u32 = 64;

/// Whether smaller requests may still be served.
pub(super) fn is_shortage(error: AllocError) -> bool {
    matches!(
        error,
        AllocError::Limit | AllocError::Driver(Code::OUT_OF_MEMORY)
    )
}

/// Since when a request waits for what is on its way.
pub(super) type Clock = Cell<Option<Instant>>;

/// A request that no cached block has served at once.
#[derive(Clone)]
pub(super) struct Need {
    pub(super) request: Bytes,
    /// The least that it can do with.
    pub(super) size: Bytes,
    pub(super) origin: Origin,
    /// The arena when memory was short, before anything was done about it.
    before: Cell<Option<Holdings>>,
    /// Whether the driver was asked again, after all that could go back had.
    retried: Cell<bool>,
    /// What the driver had when the arena did not serve it, if that was asked.
    info: Cell<Option<MemInfo>>,
    /// What all arenas had reserved of the device then.
    reserved: Cell<Bytes>,
}

impl Need {
    pub(super) fn new(request: Bytes, size: Bytes, origin: Origin) -> Need {
        Need {
            request,
            size,
            origin,
            before: Cell::new(None),
            retried: Cell::new(false),
            info: Cell::new(None),
            reserved: Cell::new(Bytes::ZERO),
        }
    }
}

impl<D: Driver> Arena<D> {
    /// Tries to serve a request; where memory is short, again whenever another
    /// thread has freed some, as long as the options say, and once more when
    /// that time is over.
    pub(super) fn patiently(
        &self,
        need: &Need,
        attempt: impl Fn() -> Result<Address, AllocError>,
    ) -> Result<Address, AllocError> {
        let clock = Clock::new(None);
        let attempt = || self.look_again(need.request, &clock, &attempt);
        let fails =
            |result: &Result<Address, AllocError>| result.is_err_and(|error| self.is_fought(error));
        // What one look made its neighbours give, another thread may have before
        // the next: as long as memory moves, there is another.
        let everywhere = || {
            let mut result = attempt();
            for _ in 0..RELIEFS {
                let before = self.quota.moves();
                let helps = fails(&result) && self.could_be_had(need.request) && self.relieve();
                if !helps {
                    break;
                }
                result = attempt();
                if before == self.quota.moves() {
                    break;
                }
            }
            result
        };
        let mut result = everywhere();
        if !self.retry_time.is_zero() && fails(&result) && self.exists(need.request) {
            let mut waiter = self.quota.waiters().begin(self.retry_time);
            let mut freed = true;
            loop {
                result = everywhere();
                if !freed || !fails(&result) {
                    break;
                }
                freed = waiter.wait();
            }
        }
        result.inspect_err(|&error| {
            self.refuse(need, error);
            if self.asks_past && matches!(error, AllocError::Driver(_)) {
                self.refused.lock().push(need.clone());
            } else {
                self.note_oom(need, error);
            }
        })
    }

    /// The arena does not serve this request, whatever comes of it past the arena.
    fn refuse(&self, need: &Need, error: AllocError) {
        if !self.is_short(error) {
            return;
        }
        // The driver does not know how much memory of the host is free.
        let wanted = self.kind == Kind::Device && (self.watch.ooms || self.events_kept() > 0);
        need.info
            .set(wanted.then(|| self.ask_memory().ok()).flatten());
        need.reserved.set(self.quota.reserved());
        self.tell(&Mark::Wanted(need.request));
        let mut state = self.state.lock();
        let live = state.live_at_most();
        let packing = state.packing.iter_mut();
        packing.for_each(|packing| packing.failed(live, need.size));
    }

    /// Whether that is a shortage of memory, and not the driver's to serve.
    fn is_short(&self, error: AllocError) -> bool {
        is_shortage(error) && !self.is_served_beyond(error)
    }

    /// This arena, past which memory is asked for where the driver had none for it: such a
    /// request has failed, and is noted, when [`Arena::settle_refused`] says so.
    #[must_use]
    pub fn asked_past(mut self) -> Arena<D> {
        self.asks_past = true;
        self
    }

    /// What came of it where memory was asked for past the arena, which had none for this
    /// request: an error, or none.
    pub fn settle_refused(&self, request: Bytes, error: Option<AllocError>) {
        let need = {
            let mut refused = self.refused.lock();
            // Of two requests for as much it does not matter which one is told of.
            let at = refused.iter().rposition(|need| need.request == request);
            at.map(|at| refused.swap_remove(at))
        };
        if let Some((need, error)) = need.zip(error) {
            self.note_oom(&need, error);
        }
    }

    /// Tries; where memory is short, again when some has landed that was on its
    /// way meanwhile.
    pub(super) fn look_again<T>(
        &self,
        size: Bytes,
        clock: &Clock,
        attempt: impl Fn() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        for _ in 0..LOOKS {
            let before = self.quota.landings();
            match attempt() {
                Err(error) if self.lands_for(size, error, before, clock) => {}
                ended => return ended,
            }
        }
        attempt()
    }

    /// Waits for what is on its way to where a request that failed by `error`
    /// may have it. False where nothing comes. Where the driver serves the
    /// request in any case, nobody is waited for.
    fn lands_for(&self, size: Bytes, error: AllocError, before: Landings, clock: &Clock) -> bool {
        if !is_shortage(error) || self.is_served_beyond(error) {
            return false;
        }
        let at_limit = error == AllocError::Limit;
        let has_landed = || self.quota.landings().may_serve(before, at_limit);
        let taken_off = self.quota.taken_off();
        let (flies, landed) = (self.quota.others_fly(taken_off), has_landed());
        if !(flies || landed) || !self.could_be_had(size) {
            return false;
        }
        let since = clock.get().unwrap_or_else(Instant::now);
        clock.set(Some(since));
        let left = ANSWER.saturating_sub(since.elapsed());
        self.quota.lands(Some(before), at_limit, left)
    }

    /// The requests that failed for want of memory.
    #[must_use]
    pub fn ooms(&self) -> OomLog {
        self.ooms.lock().clone()
    }

    /// Memory is short for this request, and all will be done about it.
    pub(super) fn note_need(&self, need: &Need) {
        if self.watch.ooms && need.before.get().is_none() {
            let mut state = self.state.lock();
            state.recall();
            need.before.set(Some(state.holdings()));
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
        let origin = Origin {
            library: LibraryId::UNKNOWN,
            stack: self.call_stack(),
        };
        let need = Need::new(request, least, origin);
        self.refuse(&need, AllocError::Driver(Code::OUT_OF_MEMORY));
        self.note_oom(&need, AllocError::Driver(Code::OUT_OF_MEMORY));
    }

    /// Counts and describes a request that failed for want of memory.
    #[cold]
    pub(super) fn note_oom(&self, need: &Need, error: AllocError) {
        if !self.is_short(error) {
            return;
        }
        let stack = match need.origin.stack {
            StackId::LEFT_OUT => self.call_stack(),
            stack => stack,
        };
        let ledger = self.watch.stacks.map(|stacks| stacks.ledger);
        if let Some(ledger) = ledger {
            ledger.failed(stack, need.request);
        }
        let info = need.info.get();
        let at_limit = error == AllocError::Limit;
        let (after, time_us) = {
            let mut state = self.state.lock();
            state.recall();
            // Read beside: other arenas may change it meanwhile.
            let elsewhere = need
                .reserved
                .get()
                .saturating_sub(state.counters.reserved());
            let shortage = Shortage {
                at_limit,
                tried_to_free: !self.fails_at_once(error),
                device_free: info.map_or(Bytes::ZERO, |info| info.free),
                device_total: info.map_or(Bytes::MAX, |info| info.total),
                elsewhere,
                stack,
            };
            state.counters.out_of_memory(need.size, shortage);
            (state.holdings(), state.counters.history.now_us())
        };
        if !self.watch.ooms {
            return;
        }
        let of = |state: &ArenaState<D::Fence>, id, block: &Block| {
            (block.size, state.counters.history.stack_of(id))
        };
        let live = self.of_live(of).unwrap_or_default();
        let limit = self.quota.limit();
        let stacks = ledger.map(|ledger| ledger.groups_of(&live));
        let event = OomEvent {
            time_us,
            request: need.request,
            rounded: need.size,
            at_limit,
            driver_free: info.map(|info| info.free),
            driver_total: info.map(|info| info.total),
            limit,
            device_reserved: need.reserved.get(),
            before: need.before.get().unwrap_or(after),
            after,
            sizes: largest_groups(live.iter().map(|&(size, _)| (size, size)).collect()),
            stacks: stacks.unwrap_or_default(),
            stack,
        };
        self.ooms.lock().push(event);
    }
}
