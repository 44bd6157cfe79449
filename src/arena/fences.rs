//! Fences: closing epochs behind them, asking for them and waiting for them.
//!
//! Closing, polling and waiting each leave the lock before they call the
//! driver. Two threads may do any of it at the same time: an epoch is in limbo
//! while its fence is being made, so nobody takes limbo for empty, and one that
//! has ended meanwhile is not missed.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::state::ArenaState;
use crate::config::GarbageThreshold;
use crate::driver::metered::{Metered, for_budget};
use crate::driver::{Driver, IfEnding, Whose};
use crate::error::Code;
use crate::heap::Span;
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
        if !self.driver.may_fence() {
            return;
        }
        let fraction = match extent {
            Extent::Share => self.garbage_fraction,
            Extent::All => 1.0,
        };
        if fraction <= 0.0 {
            return;
        }
        let Some(number) = self.state.lock().close_epoch(fraction) else {
            return;
        };
        self.fence_epoch(number, fence);
    }

    /// Closes an epoch for what a thread keeps, and the open batch with it. Its
    /// number, when its fence is made.
    pub(super) fn close_for_thread(&self) -> Option<u64> {
        let number = self.state.lock().close_epoch_for_thread()?;
        self.fence_epoch(number, Driver::fence).then_some(number)
    }

    /// Makes the fence of a closed epoch; false where that fails, and the epoch
    /// is open again.
    fn fence_epoch(
        &self,
        number: u64,
        fence: impl FnOnce(&Metered<D>) -> Result<D::Fence, Code>,
    ) -> bool {
        let mut closing = Closing {
            arena: self,
            number: Some(number),
        };
        let made = fence(&self.driver);
        let Ok(fence) = made else {
            return false;
        };
        closing.number = None;
        let mut state = self.state.lock();
        state.counters.epoch_closed();
        state.limbo.set_fence(number, fence);
        true
    }

    /// Makes available what the device is done with.
    pub(super) fn poll(&self) {
        self.state.lock().put_back_reclaimable();
        while let Some(number) = self.reached() {
            self.end_epochs(number);
        }
    }

    /// The same for a program that needs nothing now: so that no free takes
    /// long, small blocks are left for the next ones to put back. Not where
    /// something is to be done about idle memory after each.
    pub(super) fn poll_for_later(&self) {
        if self.follows_frees {
            return self.poll();
        }
        while let Some(number) = self.reached() {
            self.end_epochs_by(number, ArenaState::pass_epochs);
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
        self.close(Extent::All);
        self.poll();
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
