//! Waiting for the device: for the oldest epoch, for all of them, and without a fence.
//!
//! Invariant: the lock is left before the driver waits, and an epoch whose fence another
//! thread still makes is waited for until it has one. Cost: what is left of the device's
//! work.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::fences::{Closing, Extent, Then};
use crate::driver::program_call::for_budget;
use crate::driver::{Driver, Whose};
use crate::error::Code;
use crate::limbo::{Limbo, Oldest};
use crate::patience::Patience;
use crate::recording::{FenceSeen, Mark};

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

impl<D: Driver> Arena<D> {
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
            if !reached {
                return false;
            }
            self.tell(&Mark::Seen(FenceSeen::ByWaiting));
            return self.end_epochs(number, Then::PutBack, false).is_some();
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

    /// Waits for all that is in limbo now, as far as fences can be made, and not for what
    /// other threads free meanwhile.
    pub(super) fn wait_for_all(&self, whose: Whose) {
        self.state.lock().recall();
        self.close(Extent::All);
        let newest = self.state.lock().limbo.newest();
        let waits = || newest.is_some_and(|newest| self.hub.ended() <= newest);
        while waits() && self.wait_for_oldest(Wait::All, whose) {}
    }

    /// Waits in a free as the driver's own does, which has closed all there is, where a fence
    /// may be made: for the work of the arena's own context before it, and not for what other
    /// contexts do or other threads free meanwhile. Without a fence, or where waiting for it
    /// fails, it waits by the driver's own free.
    pub(super) fn wait_in_free(&self, closing: Option<Closing<'_, D>>) {
        let has_waited = closing.is_some_and(|closing| self.wait_for_own(closing));
        if !has_waited && self.driver.may_give_back() {
            self.wait_by_free(Whose::Own);
        }
    }

    /// Makes the fence of a closed epoch, and waits for the own context's part of it; false
    /// where that fails.
    fn wait_for_own(&self, closing: Closing<'_, D>) -> bool {
        let number = closing.number;
        let Ok(fence) = self.driver.fence_after_own() else {
            return false;
        };
        self.fenced(closing, Ok(Some(fence.clone())), Then::PutBack);
        if !self.driver.may_fence() {
            return false;
        }
        let waited = self.driver.wait(&fence, Whose::Own);
        if waited == Ok(true) {
            // Where the context may be ending, nothing ends.
            self.tell(&Mark::Seen(FenceSeen::ByWaiting));
            self.end_epochs(number, Then::PutBack, false);
        }
        waited.is_ok()
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
    pub(super) fn wait_by_free(&self, whose: Whose) {
        // Others may be waiting for the fence that this epoch will not have: it ends, or is
        // open again. One that another thread has closed is that thread's to open.
        let (closing, number) = {
            let mut state = self.state.lock();
            state.put_back_reclaimable();
            let close = |limbo: &mut Limbo<_>, blocks: &mut _| limbo.close(blocks, 1.0);
            let closing = self.closing(&mut state, close);
            (closing, state.limbo.newest())
        };
        if let Some(number) = number
            && self.driver.wait_by_free(whose) == Ok(true)
            && (self.end_epochs(number, Then::PutBack, false)).is_some()
            && let Some(closing) = closing
        {
            closing.stays_closed();
        }
    }
}
