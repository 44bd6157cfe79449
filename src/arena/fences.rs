//! Fences: closing epochs behind them and asking for them. Waiting is in `waits`.
//!
//! Closing, polling and waiting each leave the lock before they call the driver.
//! Two threads may do any of it at the same time: an epoch is in limbo while its
//! fence is being made, so nobody takes limbo for empty, and one that has ended
//! meanwhile is not missed. A fence that was just made is asked for at once where
//! nothing older waits: where the device is done, a batch then takes two passages
//! through the lock, of which the first is that of the miss or the free that closes it.

use std::mem::ManuallyDrop;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::hit::Want;
use crate::arena::recall::AfterBatch;
use crate::arena::state::ArenaState;
use crate::config::GarbageThreshold;
use crate::driver::program_call::call_moves;
use crate::driver::{Driver, IfEnding};
use crate::error::Code;
use crate::heap::block::Blocks;
use crate::heap::fit::Search;
use crate::limbo::{Limbo, Oldest};
use crate::recording::{ArenaOrder, Mark};
use crate::strategy::packing::Packing;
use crate::thread_cache::OwnCache;

/// How much of the open batch an epoch takes.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Extent {
    /// The share that the options give.
    Share,
    /// The share that the options give, for a miss; none where they give it none.
    AtMiss,
    /// All of it: memory is needed.
    All,
}

/// An epoch that was closed and whose fence is to be made. It is open again where
/// none comes about, also where the driver's side unwinds: others would wait for it.
/// Whoever drops it does not hold the lock of the state.
pub(super) struct Closing<'a, D: Driver> {
    arena: &'a Arena<D>,
    pub(super) number: u64,
    /// Nothing older waits.
    is_oldest: bool,
}

impl<D: Driver> Closing<'_, D> {
    /// The epoch has its fence, or has ended.
    pub(super) fn stays_closed(self) {
        let _undropped = ManuallyDrop::new(self);
    }
}

impl<D: Driver> Drop for Closing<'_, D> {
    fn drop(&mut self) {
        let state = &mut *self.arena.state.lock();
        state.limbo.reopen(&state.heap.blocks, self.number);
        self.arena.hub.tell_waiting(true);
    }
}

/// What is done with the blocks of epochs that end.
#[derive(Copy, Clone)]
pub(super) enum Then<'a> {
    /// They are put back.
    PutBack,
    /// Large ones are put back; small ones become reclaimable, and later frees put
    /// them back.
    PutOff,
    /// They are put back, and a request is served.
    Take(&'a Want),
}

/// What came of making a fence.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Fenced {
    /// There is none.
    Not,
    /// The epoch waits behind it.
    Waits,
    /// The same, nothing older waits, and the device is not done.
    Busy,
    /// It was reached at once, and the request served by this.
    Ended(Option<Address>),
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
        if let Some(closing) = self.close_batch(extent) {
            self.fence(closing);
        }
    }

    /// Makes the fence of a closed epoch.
    pub(super) fn fence(&self, closing: Closing<'_, D>) {
        self.fenced(closing, self.driver.fence().map(Some), Then::PutBack);
    }

    /// Closes the open batch, and makes available what the device is done with.
    pub(super) fn close_and_poll(&self, extent: Extent) {
        self.poll(self.close_batch(extent));
    }

    /// The same with the open batch and what the calling thread keeps in this cache; what
    /// is to be done then.
    pub(super) fn close_and_poll_with(&self, own: OwnCache) -> AfterBatch {
        let is_sparing = self.is_sparing();
        let (closing, after) = {
            let mut state = self.state.lock();
            let ArenaState { limbo, heap, .. } = &mut *state;
            let number = limbo.close_for_others(&mut heap.blocks);
            let closing = self.closing_of(&state, number);
            (closing, state.after_batch(own, number, is_sparing))
        };
        self.poll_for_later(Some(closing));
        after
    }

    /// Makes available what the device is done with, and the fence of a closed epoch before
    /// that, for a program that needs nothing now: so that no free takes long, small
    /// blocks are left for the next ones to put back. Not where something is to be done about
    /// idle memory after each.
    pub(super) fn poll_for_later(&self, closing: Option<Closing<'_, D>>) {
        let then = if self.follows_frees {
            Then::PutBack
        } else {
            Then::PutOff
        };
        self.fence_and_poll(closing, then);
    }

    /// Makes the fence of a closed epoch, and available what the device is done
    /// with; a request is served where it is done with this epoch.
    fn fence_and_poll(&self, closing: Option<Closing<'_, D>>, then: Then<'_>) -> Fenced {
        let fenced = closing.map_or(Fenced::Not, |closing| {
            // Where something older waits, this one is not done before it.
            let fence = if closing.is_oldest {
                self.driver.fence_unless_done()
            } else {
                self.driver.fence().map(Some)
            };
            self.fenced(closing, fence, then)
        });
        if matches!(fenced, Fenced::Not | Fenced::Waits) {
            let then = match then {
                Then::Take(_) => Then::PutBack,
                then => then,
            };
            // Where nothing ends, the context may be ending.
            while let Some(number) = self.reached() {
                if self.end_epochs(number, then, false).is_none() {
                    break;
                }
            }
        }
        fenced
    }

    /// Makes the fence of a closed epoch, and serves a request from what the device is
    /// done with.
    pub(super) fn fence_and_take(
        &self,
        closing: Option<Closing<'_, D>>,
        want: &Want,
    ) -> Option<Address> {
        match self.fence_and_poll(closing, Then::Take(want)) {
            Fenced::Ended(taken) => taken,
            _ => self.take(want),
        }
    }

    /// Hands out a cached block, if one fits at once; else closes the open batch,
    /// if the request `may_close` it.
    pub(super) fn take_or_close(
        &self,
        want: &Want,
        may_close: bool,
    ) -> (Option<Address>, Option<Closing<'_, D>>) {
        let share = may_close.then(|| self.share(Extent::AtMiss)).flatten();
        let mut state = self.state.lock();
        let passed_on = (want.own_of_size())
            .and_then(|own| state.take_passed_on(own, want.fit.request, want.origin.library));
        let hit = passed_on.or_else(|| state.take(want, Search::Quick));
        let closing = (hit.is_none()).then(|| self.close_share(&mut state, share));
        // Not while a closed batch has no fence yet: the driver may take long.
        let lacking = hit.and_then(|_| state.slabs.lacking());
        drop(state);
        if let Some(bank) = lacking {
            self.counted(|| self.add_slab(bank));
        }
        (hit, closing.flatten())
    }

    /// Closes the open batch, if there is one and a fence may be made.
    pub(super) fn close_batch(&self, extent: Extent) -> Option<Closing<'_, D>> {
        let share = self.share(extent)?;
        self.close_share(&mut self.state.lock(), Some(share))
    }

    /// The same of this share of it, where a fence may be made.
    #[inline(always)]
    pub(super) fn close_share(
        &self,
        state: &mut ArenaState<D::Fence>,
        share: Option<f64>,
    ) -> Option<Closing<'_, D>> {
        let share = share?;
        self.closing(state, |limbo, blocks| limbo.close(blocks, share))
    }

    /// The share of the open batch that an epoch may take, if one may be closed.
    fn share(&self, extent: Extent) -> Option<f64> {
        (self.share_of(extent)).filter(|_| self.driver.may_fence())
    }

    /// The same where a fence may be made.
    pub(super) fn share_of(&self, extent: Extent) -> Option<f64> {
        let share = match (extent, self.garbage_threshold) {
            (Extent::All, _) => 1.0,
            (Extent::Share, _) | (_, GarbageThreshold::NextOpportunity) => self.garbage_fraction,
            (Extent::AtMiss, _) => return None,
        };
        (share > 0.0).then_some(share)
    }

    /// The epoch that `close` closes. What the calling thread keeps without a fence
    /// belongs to it as well, where threads may go on keeping it.
    #[inline(always)]
    pub(super) fn closing(
        &self,
        state: &mut ArenaState<D::Fence>,
        close: impl FnOnce(&mut Limbo<D::Fence>, &mut Blocks) -> Option<u64>,
    ) -> Option<Closing<'_, D>> {
        let number = close(&mut state.limbo, &mut state.heap.blocks)?;
        if !state.caches.are_closed()
            && state.packing.as_ref().is_none_or(Packing::lets_keep)
            && let Some(own) = self.own_cache()
        {
            own.seal(number);
        }
        Some(self.closing_of(state, number))
    }

    #[inline(always)]
    fn closing_of(&self, state: &ArenaState<D::Fence>, number: u64) -> Closing<'_, D> {
        self.hub.tell_waiting(false);
        Closing {
            arena: self,
            number,
            is_oldest: state.limbo.is_oldest(number),
        }
    }

    /// What a call of the driver means for a closed epoch: it made the fence, or found
    /// that the device is done; where it failed, the epoch is open again.
    #[inline(always)]
    pub(super) fn fenced(
        &self,
        closing: Closing<'_, D>,
        fence: Result<Option<D::Fence>, Code>,
        then: Then<'_>,
    ) -> Fenced {
        let Closing {
            number, is_oldest, ..
        } = closing;
        match fence {
            Err(_) => return Fenced::Not,
            Ok(Some(fence)) => {
                closing.stays_closed();
                let mut state = self.state.lock();
                state.counters.epoch_closed();
                state.counters.history.mark(|| Mark::Fence(number));
                state.limbo.set_fence(number, fence);
            }
            Ok(None) => {
                // Nothing ends where the context may be ending.
                let Some(taken) = self.end_epochs(number, then, true) else {
                    return Fenced::Not;
                };
                closing.stays_closed();
                return Fenced::Ended(taken);
            }
        }
        if is_oldest {
            Fenced::Busy
        } else {
            Fenced::Waits
        }
    }

    /// Makes available what the device is done with, and the fence of a closed epoch
    /// before that.
    pub(super) fn poll(&self, closing: Option<Closing<'_, D>>) {
        self.fence_and_poll(closing, Then::PutBack);
        self.state.lock().put_back_reclaimable();
    }

    /// The oldest epoch, if its fence was reached.
    fn reached(&self) -> Option<u64> {
        if !self.driver.may_fence() {
            return None;
        }
        let Oldest { number, fence } = self.state.lock().limbo.oldest()?;
        (self.driver.reached(&fence?) == Ok(true)).then_some(number)
    }

    /// Ends the epochs up to `number`, whose fence was reached, and says what a
    /// request was served by; nothing is done where the context may be ending.
    /// `is_new`: the fence was just made.
    pub(super) fn end_epochs(
        &self,
        number: u64,
        then: Then<'_>,
        is_new: bool,
    ) -> Option<Option<Address>> {
        {
            let mut state = self.state.lock();
            if state.limbo.direct().is_zero() {
                // Nothing of it is the driver's.
                let mut taken = None;
                state.end_epochs(number, then, is_new, &mut taken);
                return Some(taken);
            }
        }
        self.end_epochs_with_direct(number, then, is_new)
    }

    /// The same where something of it is the driver's.
    #[cold]
    fn end_epochs_with_direct(
        &self,
        number: u64,
        then: Then<'_>,
        is_new: bool,
    ) -> Option<Option<Address>> {
        let mut taken = None;
        let end =
            |state: &mut ArenaState<D::Fence>| state.end_epochs(number, then, is_new, &mut taken);
        // The program's own free has long returned: nobody is left to hear of a
        // failure, and the meter has counted it.
        self.release_if(IfEnding::Leave, end)?;
        Some(taken)
    }

    /// Closes the open epoch and makes available what the device is done
    /// with. Waits for nothing, unless idle memory has decayed: the driver's
    /// free of it waits.
    pub fn flush(&self) {
        self.tell(&Mark::Order(ArenaOrder::Flush));
        self.settle_what_is_done();
    }

    /// A capture is about to begin, in which no fence can be made: frees of a program that
    /// allocates in captures alone would wait for ever. Where much waits, what the device is
    /// done with is made available, and what it is not is closed for the next time.
    /// Not where idle memory decays, whose free would wait for the device.
    pub fn prepare_capture(&self) {
        if !self.policy.decays && self.is_over_budget() {
            self.flush();
        }
    }

    /// As `flush`, for a call that tells of itself.
    pub(super) fn settle_what_is_done(&self) {
        self.counted(|| {
            // Who asks for it wants to see what there is.
            call_moves();
            self.state.lock().recall();
            self.close_and_poll(Extent::All);
            self.decay();
        });
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
