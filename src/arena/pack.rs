//! A miss under `auto_growth`: whether to grow, to wait, to cut an idle chunk or
//! to exchange some, by the rules of `strategy::packing`.
//!
//! Owns nothing. Invariant: it waits only for what ends soon, and lets no
//! request fail: every way out ends in the growth, and at last on the
//! out-of-memory ladder, that every strategy has. Cost: a question to the
//! driver for each miss that ends here.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::fences::Extent;
use crate::arena::hit::Want;
use crate::arena::shortage::Need;
use crate::arena::state::ArenaState;
use crate::arena::waits::Wait;
use crate::driver::{Driver, PAGE};
use crate::error::{AllocError, Code};
use crate::heap::Span;
use crate::recording::Mark;
use crate::strategy::Pool;
use crate::strategy::packing::{PATIENCE, Packing, Room};

/// What a miss has to go by.
struct Outlook {
    room: Room,
    /// The chunk that it needs at least may simply be taken.
    fits: bool,
    /// So much may.
    left: Bytes,
    /// What would have to go back before.
    excess: Bytes,
    /// The same where there is little room.
    lack: Bytes,
    /// Nothing of what the program freed is still in use.
    is_settled: bool,
    /// Chunks are too large to be exchanged for this.
    adds_slab: bool,
    /// They have been exchanged too often.
    is_spent: bool,
    /// Threads may go on keeping blocks.
    lets_keep: bool,
}

impl<D: Driver> Arena<D> {
    /// Serves a request that the cache could not.
    pub(super) fn pack(&self, want: Want, need: &Need) -> Result<Address, AllocError> {
        // What waits for the device would disturb a capture, and a lane whose
        // chunks are held gives none back.
        let may = self.driver.may_fence() && !self.holds();
        let knows = |is: fn(&Packing) -> bool| self.state.lock().packing.as_ref().is_some_and(is);
        if may && knows(Packing::may_be_on) {
            // What the driver says is learned.
            let _ = self.device_total();
        }
        if !knows(Packing::is_on) {
            return self.grow(want, need);
        }
        let available = may.then(|| self.available());
        let Some(Ok(available)) = available else {
            return self.open_or_grow(want, need);
        };
        let Some(before) = self.outlook(want, available) else {
            return self.open_or_grow(want, need);
        };
        if before.room == Room::Ample && before.fits {
            return self.grow_within(want, need, before.left);
        }
        if !before.lets_keep {
            // It may leave a chunk idle.
            self.state.lock().recall();
        }
        let newest = self.settle_soon();
        let Some(outlook) = self.outlook(want, available) else {
            return self.open_or_grow(want, need);
        };
        let room = outlook.room;
        let is_settled = before.is_settled;
        while newest.is_some_and(|newest| self.wait_briefly(newest)) {
            if room == Room::Ample
                && let Some(address) = self.take(&want)
            {
                return Ok(address);
            }
        }
        if let Some(address) = self.take(&want) {
            return Ok(address);
        }
        // A device that lags behind makes a program look for memory that it
        // will have in a moment: nothing is cut for that.
        if room == Room::Ample
            && is_settled
            && let Some(address) = self.open(want)
        {
            return Ok(address);
        }
        match room {
            Room::Ample if outlook.adds_slab => return self.grow(want, need),
            Room::Ample if outlook.is_spent => return self.open_or_grow(want, need),
            Room::Scarce if outlook.lack.is_zero() => {
                return self.grow_within(want, need, available);
            }
            _ if !self.is_quiet() => return self.open_or_grow(want, need),
            Room::Ample => return self.grow_joined(want, need, &outlook, is_settled),
            Room::Scarce | Room::Tight => {}
        }
        let released = self.exchange(|state| match room {
            Room::Ample | Room::Scarce => state.let_go(|heap| heap.take_oldest(outlook.lack)),
            Room::Tight => state.take_idle(),
        });
        self.grow_within(want, need, available.saturating_add(released))
    }

    /// Takes as one chunk what several idle ones were.
    fn grow_joined(
        &self,
        want: Want,
        need: &Need,
        outlook: &Outlook,
        is_settled: bool,
    ) -> Result<Address, AllocError> {
        let most = match want.fit.pool {
            Pool::Small => outlook.excess,
            Pool::Large | Pool::Oversize => Bytes::MAX,
        };
        let released = self.exchange(|state| state.let_go(|heap| heap.take_oldest(most)));
        let least = self.strategy.least_chunk(want.fit.size);
        let size = if is_settled && want.fit.pool == Pool::Large {
            released.max(least)
        } else {
            least
        };
        self.grow_by(want, need, size)
    }

    /// Makes available what was freed before the device came to its end, but for what
    /// threads keep. Returns the newest epoch there is then.
    pub(super) fn settle_soon(&self) -> Option<u64> {
        self.close_and_poll(Extent::All);
        let mut state = self.state.lock();
        let lags = !state.counters.limbo().is_zero();
        if let Some(packing) = &mut state.packing {
            packing.lags |= lags;
        }
        state.limbo.newest()
    }

    fn outlook(&self, want: Want, available: Bytes) -> Option<Outlook> {
        let mut state = self.state.lock();
        let (pieces, is_settled) = (state.in_pieces(), state.counters.limbo().is_zero());
        let live = state.live_at_most();
        let state = &mut *state;
        let packing = (state.packing.as_mut()).filter(|packing| packing.is_patient())?;
        let reserved = state.counters.reserved();
        let capacity = reserved.saturating_add(available);
        let least = self.strategy.least_chunk(want.fit.size);
        if live.saturating_add(least) > capacity {
            // There is not so much, whatever is done here.
            return None;
        }
        let after = reserved.saturating_add(least);
        let size = (want.fit.pool != Pool::Small).then_some(want.fit.size);
        let bound = packing.bound(live, want.fit.size).min(capacity);
        Some(Outlook {
            room: packing.room(size, after, capacity, pieces),
            fits: after <= bound,
            left: if packing.rises(live, want.fit.size) {
                Bytes::MAX
            } else {
                bound.saturating_sub(reserved)
            },
            excess: after.saturating_sub(bound).max(PAGE),
            lack: after.saturating_sub(packing.filled(capacity)),
            is_settled,
            adds_slab: want.fit.pool == Pool::Small
                && packing.adds_slab(live, want.fit.size, after),
            is_spent: packing.is_spent(),
            lets_keep: packing.lets_keep(),
        })
    }

    /// As if chunks were not packed.
    fn open_or_grow(&self, want: Want, need: &Need) -> Result<Address, AllocError> {
        self.open(want)
            .map_or_else(|| self.grow_within(want, need, Bytes::MAX), Ok)
    }

    /// Waits for the oldest epoch, if it ends soon. None that was closed after
    /// `newest`: other threads may go on freeing for ever.
    pub(super) fn wait_briefly(&self, newest: u64) -> bool {
        let oldest = self.state.lock().limbo.oldest();
        oldest.is_some_and(|oldest| oldest.number <= newest)
            && self.await_oldest(Wait::Budget, |fence| self.ends_soon(fence))
    }

    /// Whether the device has nothing to do, or soon will not: the driver's
    /// free would wait for it as long as it takes. Among several contexts this
    /// is not asked: what one of them is given next may end only by what this
    /// thread does after the free.
    fn is_quiet(&self) -> bool {
        if !self.driver.is_alone() {
            return false;
        }
        let is_quiet = match self.driver.fence() {
            Ok(fence) => self.ends_soon(&fence) == Ok(true),
            Err(_) => false,
        };
        self.tell(&Mark::Quiet(is_quiet));
        is_quiet
    }

    fn ends_soon(&self, fence: &D::Fence) -> Result<bool, Code> {
        // Asking is no waiting.
        if self.driver.reached(fence)? {
            return Ok(true);
        }
        let ended = self.driver.wait_within(fence, PATIENCE)?;
        if !ended && let Some(packing) = &mut self.state.lock().packing {
            packing.waited_in_vain();
        }
        Ok(ended)
    }

    /// Gives back what `choose` takes out, and remembers that it
    /// came to that. Nothing where another thread is on the ladder.
    fn exchange(&self, choose: impl FnOnce(&mut ArenaState<D::Fence>) -> Vec<Span>) -> Bytes {
        let Some(_guard) = self.try_enter_ladder() else {
            return Bytes::ZERO;
        };
        self.state.lock().recall();
        let released = self.release(choose);
        if !released.is_zero()
            && let Some(packing) = &mut self.state.lock().packing
        {
            packing.exchanged();
        }
        released
    }
}
