//! The other path that programs are on all the time: a free that puts a block in limbo.
//!
//! Invariant: one lock, and no driver call. What is more than that is one call from
//! here: `fences`, `direct`, `release`. Cost: a look into the page map, and a few dozen
//! counters.

use crate::address::Address;
use crate::arena::Arena;
use crate::arena::direct::Direct;
use crate::arena::fences::{Closing, Extent};
use crate::arena::state::ArenaState;
use crate::config::FreeSync;
use crate::counters::BlockInfo;
use crate::driver::{Driver, Whose};
use crate::error::FreeError;
use crate::heap::block::ChunkId;
use crate::stats::Origin;
use crate::sync::atomic::Ordering;
use crate::thread_cache::{Entered, TryKeep};

/// What happens to a block that the program frees.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Release {
    /// It goes to limbo. A direct allocation goes back to the driver, whose
    /// own free waits, unless that has to be quiet now.
    AfterFence {
        /// Whether no driver free may be made: the driver itself has called, or the
        /// context may be ending.
        quiet: bool,
        /// Whether another context than the arena's is current.
        elsewhere: bool,
    },
    /// It can be handed out again at once.
    AtOnce,
}

/// A batch that a free ends: it has filled it, or waits for it.
pub(super) struct FullBatch<'a, D: Driver> {
    /// Its epoch, if a fence may be made now.
    pub(super) closing: Option<Closing<'a, D>>,
}

/// What is left to be done after a free. In one word: nearly all is in limbo.
#[derive(Debug)]
pub(super) enum Freed {
    /// Nothing.
    Done,
    /// The block is in limbo.
    Limbo,
    /// The driver is to take this back, and may refuse.
    GiveBack(Box<Direct>),
}

impl<D: Driver> Arena<D> {
    /// Frees the live block at `address`.
    ///
    /// # Errors
    /// [`FreeError::NotLive`], or what the driver answered when it was to take
    /// its own allocation back. Nothing is changed then.
    pub fn free(&self, address: Address) -> Result<(), FreeError> {
        let _step = self.step();
        if self.driver.is_elsewhere() {
            return self.free_in_state(address);
        }
        match self.keep(address) {
            Ok(()) => Ok(()),
            Err(entered) => self.free_looked(address, entered),
        }
    }

    /// The same to a cache that looks for its place, or to what the lock guards.
    #[inline(never)]
    fn free_looked(&self, address: Address, entered: Option<Entered>) -> Result<(), FreeError> {
        if entered.is_none() && self.last_cache().is_none() {
            return self.free_in_state(address);
        }
        match self.keep_looked(address, entered) {
            TryKeep::Kept => Ok(()),
            TryKeep::Unprepared => self.free_in_state(address),
            TryKeep::Unkeepable => self.free_unkept(address),
        }
    }

    /// The same to what the lock guards.
    #[inline(never)]
    pub(super) fn free_in_state(&self, address: Address) -> Result<(), FreeError> {
        if self.keeps
            && !self.driver.is_elsewhere()
            && let Some(slot) = self.hub.may_keep(address)
            && self.keep_prepared(slot, address)
        {
            return Ok(());
        }
        self.free_unkept(address)
    }

    /// The same of a block that no thread keeps.
    #[inline(never)]
    fn free_unkept(&self, address: Address) -> Result<(), FreeError> {
        // The free waits for all that it closes, or gives back.
        let is_strict = self.free_sync == FreeSync::Strict;
        let extent = match is_strict || self.is_held_up.load(Ordering::Relaxed) {
            true => Extent::All,
            false => Extent::Share,
        };
        let (freed, full) = self.leave_program(address, extent)?;
        let is_done = match freed {
            Freed::Done => true,
            Freed::Limbo => full.is_none(),
            Freed::GiveBack(_) => false,
        };
        if is_done && !self.follows_frees {
            return Ok(());
        }
        self.counted(|| self.end_free(freed, full))
    }

    /// What a free has left to be done.
    fn end_free(&self, freed: Freed, full: Option<FullBatch<'_, D>>) -> Result<(), FreeError> {
        let result = match freed {
            Freed::Done => Ok(()),
            Freed::GiveBack(direct) => {
                let address = direct.span.address;
                let freed = self.give_back_freed(*direct, || self.driver.free_from_here(address));
                self.pay();
                freed
            }
            Freed::Limbo => {
                if let Some(full) = full {
                    if self.free_sync == FreeSync::Strict {
                        self.wait_in_free(full.closing);
                    } else if full.closing.is_none() && self.is_to_wait_in_capture() {
                        self.wait_by_free(Whose::Own);
                    } else {
                        self.poll_for_later(full.closing);
                    }
                    self.decay();
                    self.pay();
                    self.bring_together();
                }
                Ok(())
            }
        };
        if self.follows_frees {
            self.after_free();
        }
        result
    }

    /// Whether a free waits without a fence: none may be made, and more is in limbo than its
    /// budget allows. Bare CUDA's free would have waited each time. Not beside other
    /// contexts, whose work that free would not have waited for.
    pub(super) fn is_to_wait_in_capture(&self) -> bool {
        !self.driver.may_fence() && self.is_over_budget() && self.driver.may_wait_in_free()
    }

    /// Takes a block back under the lock; with it, the batch of a block in limbo, if it is
    /// full or all of it is to be closed, so much of it closed.
    #[inline(always)]
    pub(super) fn leave_program(
        &self,
        address: Address,
        extent: Extent,
    ) -> Result<(Freed, Option<FullBatch<'_, D>>), FreeError> {
        self.tend_recording();
        let (may_fence, may_give_back) = (self.driver.may_fence(), self.driver.may_give_back());
        let release = match self.free_sync {
            FreeSync::Immediate if may_give_back => Release::AtOnce,
            _ => Release::AfterFence {
                quiet: !may_give_back,
                elsewhere: self.driver.is_elsewhere(),
            },
        };
        let mut state = self.state.lock();
        let release = match state.heap.is_paused() || state.heap.has_exports() {
            true => state.release_from_ranges(address, release),
            false => release,
        };
        let freed = state.free(address, release);
        state.put_back_some();
        // A free that waits leaves its block to no other thread's epoch: that one's fence may
        // fail.
        let is_full = self.batch_is_full(&state.limbo)
            || self.ends_scattered(&mut state)
            || extent == Extent::All;
        let is_full = is_full && matches!(freed, Ok(Freed::Limbo));
        let full = match is_full {
            true => Some(self.close_full(&mut state, extent, may_fence)),
            false => None,
        };
        freed.map(|freed| (freed, full))
    }

    /// Closes the open batch, where a fence may be made now.
    #[inline]
    fn close_full(
        &self,
        state: &mut ArenaState<D::Fence>,
        extent: Extent,
        may_fence: bool,
    ) -> FullBatch<'_, D> {
        let share = self.share_of(extent).filter(|_| may_fence);
        FullBatch {
            closing: self.close_share(state, share),
        }
    }

    fn after_free(&self) {
        self.release_after_free();
        self.notify_waiters();
    }

    /// Wakes who waits for memory, wherever on the device.
    pub(super) fn notify_waiters(&self) {
        if !self.retry_time.is_zero() {
            self.quota.waiters().notify();
        }
    }
}

impl<F: Clone> ArenaState<F> {
    /// Takes a block back from the program.
    pub(super) fn free(&mut self, address: Address, release: Release) -> Result<Freed, FreeError> {
        let Some((id, block)) = self.heap.take_live(address) else {
            self.counters.bad_free();
            return Err(FreeError::NotLive);
        };
        let (pool, is_idle) = self.heap.returned(&block);
        if let Some(chunk) = is_idle {
            self.counters.fell_idle(pool, chunk);
        }
        let (waits, elsewhere) = match release {
            Release::AtOnce => (false, false),
            Release::AfterFence { quiet, elsewhere } => {
                (quiet || block.chunk != ChunkId::DIRECT, elsewhere)
            }
        };
        (self.counters).free_requested(id, BlockInfo::of(&block, pool), waits);
        let live = self.live_at_most();
        if let Some(packing) = &mut self.packing
            && packing.fell(live)
        {
            self.recall();
        }
        if waits {
            self.heap.wait(id, block.requested, elsewhere);
            self.limbo.push(id, &block);
            self.hub.tell_waiting(true);
            return Ok(Freed::Limbo);
        }
        let span = self.put_back(id, &block, pool);
        self.counters.was_cached();
        Ok(span.map_or(Freed::Done, |span| {
            Freed::GiveBack(Box::new(Direct {
                span,
                requested: block.requested,
                origin: Origin {
                    library: block.library,
                    stack: self.counters.history.stack_of(id),
                },
                charged: self.heap.pages.leave(span),
            }))
        }))
    }

    /// What happens to it while ranges are paused, where nothing on the device can be using
    /// a block that no memory is behind, or while others may have some of their units mapped:
    /// they have no more.
    #[cold]
    fn release_from_ranges(&mut self, address: Address, release: Release) -> Release {
        let Some((_, block)) = self.heap.live_block(address) else {
            return release;
        };
        self.heap.end_exports(block.span());
        let gone = self.heap.is_paused() && self.heap.has_gone(&block);
        if gone { Release::AtOnce } else { release }
    }
}
