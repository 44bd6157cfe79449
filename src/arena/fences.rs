//! Fences: closing epochs behind them, asking for them and waiting for them.
//!
//! Closing, polling and waiting each leave the lock before they call the driver.
//! Two threads may do any of it at the same time: an epoch is in limbo while its
//! fence is being made, so nobody takes limbo for empty, and one that has ended
//! meanwhile is not missed. A fence that was just made is asked for at once where
//! nothing older waits: where the device is done, a batch then takes two passages
//! through the lock.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::hit::Want;
use crate::arena::state::ArenaState;
use crate::config::GarbageThreshold;
use crate::driver::metered::{Metered, for_budget};
use crate::driver::{Driver, IfEnding, Whose};
use crate::error::Code;
use crate::heap::Span;
use crate::heap::fit::Search;
use crate::limbo::{Limbo, Oldest};
use crate::patience::Patience;

/// Why a call of the program waits for the device.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Wait {
    /// More is in limbo than its budget allows.
    Budget,
    /// Memory is short, or the free waits as CUDA's does, or the cache is to
    /// be emptied.
    All,
}

/// Limbo may hold this much before an allocation waits rather than grows,
/// where no budget is configured: a sixteenth of what is reserved, and enough
/// for a small program not to wait at every step.
const BUDGET_PART: u64 = 16;
const BUDGET_LEAST: Bytes = Bytes::mib(64);

/// How much of the open batch an epoch takes.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Extent {
    /// The share that the options give.
    Share,
    /// All of it: memory is needed.
    All,
}

/// A closed epoch whose fence is to be made.
#[derive(Copy, Clone)]
struct Closed {
    number: u64,
    /// Nothing older waits.
    is_oldest: bool,
}

impl Closed {
    fn new<F: Clone>(number: u64, limbo: &Limbo<F>) -> Closed {
        Closed {
            number,
            is_oldest: limbo.is_oldest(number),
        }
    }
}

/// What came of making a fence.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Fenced {
    /// There is none.
    Not,
    /// The epoch waits behind it.
    Waits,
    /// The same, nothing older waits, and the device is not done.
    Busy,
    /// It was reached at once.
    Ended,
}

/// Ends the epochs up to this one, and what else belongs into the same moment: what
/// is the driver's of them.
type Ends<'a, D> = &'a mut dyn FnMut(&mut ArenaState<<D as Driver>::Fence>, u64) -> Vec<Span>;

/// Reopens an epoch whose fence did not come about, also where the driver's
/// side unwinds: others would wait for that fence.
struct Closing<'a, D: Driver> {
    arena: &'a Arena<D>,
    number: Option<u64>,
}

impl<D: Driver> Drop for Closing<'_, D> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.arena.state.lock().reopen_epoch(number);
        }
    }
}

impl<D: Driver> Arena<D> {
    /// Whether a free has filled the batch.
    pub(super) fn batch_is_full(&self, limbo: &Limbo<D::Fence>) -> bool {
        match self.garbage_threshold {
            GarbageThreshold::NextOpportunity => limbo.batch_is_full(),
            GarbageThreshold::Bytes(bytes) => limbo.fresh_bytes() >= bytes,
            GarbageThreshold::Pressure => false,
        }
    }

    /// Closes the open batch behind a fence. Does nothing while fences may not
    /// be made.
    pub(super) fn close(&self, extent: Extent) {
        self.close_by(extent, Driver::fence);
    }

    /// The same behind a fence of this kind.
    fn close_by(&self, extent: Extent, fence: impl FnOnce(&Metered<D>) -> Result<D::Fence, Code>) {
        if let Some(closed) = self.close_batch(extent) {
            self.fence_epoch(closed, fence, None);
        }
    }

    /// Closes the open batch, and makes available what the device is done with.
    pub(super) fn close_and_poll(&self, extent: Extent) {
        self.close_and_poll_by(extent, &mut ArenaState::end_epochs);
    }

    /// The same, and serves a request from that.
    pub(super) fn close_and_take(&self, extent: Extent, want: Want) -> Option<Address> {
        let mut taken = None;
        let has_ended = self.close_and_poll_by(extent, &mut |state, number| {
            let spans = state.end_epochs(number);
            taken = state.take(want, Search::Thorough);
            spans
        });
        if has_ended { taken } else { self.take(want) }
    }

    /// Whether the batch has ended so at once.
    fn close_and_poll_by(&self, extent: Extent, ends: Ends<'_, D>) -> bool {
        let closed = self.close_batch(extent);
        let fenced = closed.map(|closed| self.fence_epoch(closed, Driver::fence, Some(ends)));
        match fenced {
            Some(Fenced::Ended) => return true,
            Some(Fenced::Busy) => self.state.lock().put_back_reclaimable(),
            Some(Fenced::Not | Fenced::Waits) | None => self.poll(),
        }
        false
    }

    /// The same for a program that needs nothing now: so that no free takes
    /// long, small blocks are left for the next ones to put back. Not where
    /// something is to be done about idle memory after each.
    pub(super) fn close_and_poll_for_later(&self, extent: Extent) {
        let closed = self.close_batch(extent);
        self.fence_and_poll_for_later(closed);
    }

    /// The same with the open batch and what a thread keeps. The epoch's number,
    /// when its fence is made.
    pub(super) fn close_and_poll_for_thread(&self) -> Option<u64> {
        let closed = {
            let mut state = self.state.lock();
            let number = state.close_epoch_for_thread();
            number.map(|number| Closed::new(number, &state.limbo))
        };
        self.fence_and_poll_for_later(closed)
    }

    fn fence_and_poll_for_later(&self, closed: Option<Closed>) -> Option<u64> {
        let ends: Ends<'_, D> = if self.follows_frees {
            &mut ArenaState::end_epochs
        } else {
            &mut ArenaState::pass_epochs
        };
        let fenced = closed.map(|closed| self.fence_epoch(closed, Driver::fence, Some(&mut *ends)));
        if !matches!(fenced, Some(Fenced::Ended | Fenced::Busy)) {
            while let Some(number) = self.reached() {
                self.end_epochs_by(number, &mut *ends);
            }
        }
        let is_made = fenced.is_some_and(|fenced| fenced != Fenced::Not);
        closed.filter(|_| is_made).map(|closed| closed.number)
    }

    fn close_batch(&self, extent: Extent) -> Option<Closed> {
        if !self.driver.may_fence() {
            return None;
        }
        let fraction = match extent {
            Extent::Share => self.garbage_fraction,
            Extent::All => 1.0,
        };
        if fraction <= 0.0 {
            return None;
        }
        let mut state = self.state.lock();
        let number = state.close_epoch(fraction)?;
        Some(Closed::new(number, &state.limbo))
    }

    /// Makes the fence of a closed epoch; where that fails, the epoch is open
    /// again. With `ends`, asks for it too where nothing older waits.
    fn fence_epoch(
        &self,
        Closed { number, is_oldest }: Closed,
        fence: impl FnOnce(&Metered<D>) -> Result<D::Fence, Code>,
        ends: Option<Ends<'_, D>>,
    ) -> Fenced {
        let mut closing = Closing {
            arena: self,
            number: Some(number),
        };
        let made = fence(&self.driver);
        let Ok(fence) = made else {
            return Fenced::Not;
        };
        let asks = ends.is_some() && is_oldest && self.driver.may_fence();
        if let Some(ends) = ends
            && asks
            && self.driver.reached(&fence) == Ok(true)
            && self.end_epochs_by(number, |state, number| {
                state.counters.epoch_closed();
                ends(state, number)
            })
        {
            closing.number = None;
            return Fenced::Ended;
        }
        closing.number = None;
        let mut state = self.state.lock();
        state.counters.epoch_closed();
        state.limbo.set_fence(number, fence);
        if asks { Fenced::Busy } else { Fenced::Waits }
    }

    /// Makes available what the device is done with.
    pub(super) fn poll(&self) {
        self.state.lock().put_back_reclaimable();
        while let Some(number) = self.reached() {
            self.end_epochs(number);
        }
    }

    /// The oldest epoch, if its fence was reached.
    fn reached(&self) -> Option<u64> {
        if !self.driver.may_fence() {
            return None;
        }
        let Oldest { number, fence } = self.state.lock().limbo.oldest()?;
        (self.driver.reached(&fence?) == Ok(true)).then_some(number)
    }

    /// Waits for the oldest epoch, as far as its work is `whose`, and makes its
    /// blocks available. False where there is none, or they are not.
    pub(super) fn wait_for_oldest(&self, reason: Wait, whose: Whose) -> bool {
        self.await_oldest(reason, |fence| self.driver.wait(fence, whose))
    }

    /// The same by this way of waiting, which says whether all of the work is
    /// done.
    pub(super) fn await_oldest(
        &self,
        reason: Wait,
        wait: impl Fn(&D::Fence) -> Result<bool, Code>,
    ) -> bool {
        let mut patience = Patience::new();
        while self.driver.may_fence() {
            let oldest = {
                let mut state = self.state.lock();
                state.put_back_reclaimable();
                state.limbo.oldest()
            };
            let Some(Oldest { number, fence }) = oldest else {
                return false;
            };
            let Some(fence) = fence else {
                // Another thread is making it.
                patience.pause();
                continue;
            };
            let waited = match reason {
                Wait::Budget => for_budget(|| wait(&fence)),
                Wait::All => wait(&fence),
            };
            let Ok(reached) = waited else {
                return false;
            };
            if reached {
                self.end_epochs(number);
            }
            return reached;
        }
        false
    }

    /// Whether more is in limbo than its budget allows.
    pub(super) fn is_over_budget(&self) -> bool {
        let (limbo, reserved) = {
            let state = self.state.lock();
            (state.counters.limbo(), state.counters.reserved())
        };
        let budget = match self.limbo_budget {
            Some(share) => share.of(self.device_total()),
            None => Bytes::new(reserved.get() / BUDGET_PART).max(BUDGET_LEAST),
        };
        limbo > budget
    }

    /// Waits until limbo is empty, as far as fences can be made.
    pub(super) fn wait_for_all(&self, whose: Whose) {
        self.state.lock().recall();
        self.close(Extent::All);
        while self.wait_for_oldest(Wait::All, whose) {}
    }

    /// The same in a free that waits as the driver's own.
    pub(super) fn wait_in_free(&self) {
        self.close_by(Extent::All, Driver::fence_after_own);
        while self.wait_for_oldest(Wait::All, Whose::Own) {}
    }

    /// Empties limbo by whatever is allowed now: memory is short.
    pub(super) fn empty_limbo(&self, whose: Whose) {
        self.state.lock().counters.waited_for_all();
        self.wait_for_all(whose);
        if !self.driver.may_fence() {
            self.wait_by_free(whose);
        }
    }

    /// Waits for the device without a fence. What was in limbo before is then
    /// no longer in use.
    fn wait_by_free(&self, whose: Whose) {
        let Some(number) = self.state.lock().close_last_epoch() else {
            return;
        };
        // Others may be waiting for the fence that this epoch will not have:
        // it ends, or is open again.
        let mut closing = Closing {
            arena: self,
            number: Some(number),
        };
        if self.driver.wait_by_free(whose) == Ok(true) && self.end_epochs(number) {
            closing.number = None;
        }
    }

    /// Whether that was done: not where the context may be ending.
    fn end_epochs(&self, number: u64) -> bool {
        self.end_epochs_by(number, ArenaState::end_epochs)
    }

    fn end_epochs_by(
        &self,
        number: u64,
        end: impl FnOnce(&mut ArenaState<D::Fence>, u64) -> Vec<Span>,
    ) -> bool {
        {
            let mut state = self.state.lock();
            if state.limbo.direct().is_zero() {
                // Nothing of it is the driver's.
                end(&mut state, number);
                return true;
            }
        }
        // The program's own free has long returned: nobody is left to hear of a
        // failure, and the meter has counted it.
        let ended = self.release_if(IfEnding::Leave, |state| end(state, number));
        ended.is_some()
    }

    /// Closes the open epoch and makes available what the device is done
    /// with. Waits for nothing, unless idle memory has decayed: the driver's
    /// free of it waits.
    pub fn flush(&self) {
        self.counted(|| self.flush_now());
    }

    fn flush_now(&self) {
        self.state.lock().recall();
        self.close_and_poll(Extent::All);
        self.decay();
    }

    /// Bytes that the program freed and that may still be in use.
    #[must_use]
    pub fn limbo(&self) -> Bytes {
        let mut state = self.state.lock();
        state.recall();
        state.put_back_reclaimable();
        state.counters.limbo()
    }
}
