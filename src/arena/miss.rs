//! What happens when the cache has nothing that fits.
//!
//! In this order: poll limbo; wait for it, where it is over its budget; take a
//! chunk, a smaller one where the driver has no more; and where even the
//! request cannot be had, the out-of-memory ladder: give back oversize chunks
//! that are enough, where there are such; wait for all of limbo, give every
//! idle chunk back, ask once more; look at pieces that are kept for others. Where
//! other contexts may be using what is in limbo, the ladder is first climbed
//! without waiting for them, and they are waited for only where that did not
//! help. How a chunk is taken is in `growth`.

use std::cell::Cell;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::fences::{Closing, Extent};
use crate::arena::hit::Want;
use crate::arena::ladder::Step;
use crate::arena::shortage::{Need, is_shortage};
use crate::arena::waits::Wait;
use crate::busy::Turn;
use crate::driver::{Driver, Whose};
use crate::error::AllocError;
use crate::heap::fit::Search;
use crate::stats::Origin;

/// What becomes of a direct allocation that cannot be entered.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Stray {
    /// The driver gets it back, and the request fails.
    GivenBack,
    /// The program gets it, and we know nothing of it.
    Left,
}

impl<D: Driver> Arena<D> {
    /// Serves a request that the cache could not; the open batch may have been
    /// closed for it.
    #[inline(never)]
    pub(super) fn allocate_after_miss(
        &self,
        want: &Want,
        closing: Option<Closing<'_, D>>,
    ) -> Result<Address, AllocError> {
        self.counted(|| match self.take_from_limbo(want, closing) {
            Some(address) => Ok(address),
            None => self.allocate_beyond_limbo(*want),
        })
    }

    /// The same where nothing in limbo that the device is done with served it.
    #[cold]
    fn allocate_beyond_limbo(&self, want: Want) -> Result<Address, AllocError> {
        self.refuse_if_paused()?;
        let least = self.strategy.least_block(want.fit.request);
        let need = Need::new(want.fit.request, least, want.origin);
        let is_first = Cell::new(true);
        self.patiently(&need, || {
            let taken = (!is_first.replace(false)).then(|| self.take_from_limbo(&want, None));
            let serve = || self.keep_back_after(|| self.serve(want, &need));
            taken.flatten().map_or_else(serve, Ok)
        })
    }

    /// Serves a request by what the device is done with.
    #[inline]
    fn take_from_limbo(&self, want: &Want, closing: Option<Closing<'_, D>>) -> Option<Address> {
        let closing = closing.or_else(|| self.close_batch(Extent::AtMiss));
        self.fence_and_take(closing, want)
    }

    /// Serves a request by a driver allocation of exactly its size.
    pub(super) fn allocate_direct(
        &self,
        request: Bytes,
        origin: Origin,
        stray: Stray,
    ) -> Result<Address, AllocError> {
        self.refuse_if_paused()?;
        let need = Need::new(request, self.direct_size(request), origin);
        self.counted(|| self.patiently(&need, || self.serve_direct(&need, stray)))
    }

    fn serve(&self, want: Want, need: &Need) -> Result<Address, AllocError> {
        // The driver is asked once, and only where that decides about a wait.
        let mut could = None;
        let mut waits = || *could.get_or_insert_with(|| self.could_be_had(want.fit.request));
        while self.is_over_budget() && !self.could_open(want) && waits() {
            self.close(Extent::All);
            let waited = self.wait_for_oldest(Wait::Budget, Whose::Own);
            // Also where nothing was left to wait for: another thread has put it back.
            if let Some(address) = self.take(&want) {
                return Ok(address);
            }
            if !waited {
                self.note_held_up();
                break;
            }
        }
        if let Some(address) = self.take_recalled(want) {
            return Ok(address);
        }
        if self.holds_too_much_back() {
            return Err(AllocError::Limit);
        }
        self.release_before_growth(want.fit.request);
        if self.serves_by_windows() {
            return self.serve_by_window(want, need);
        }
        if !self.strategy.grows_alone() {
            return self.pack(want, need);
        }
        match self.take_or_await_growth(want) {
            Ok(address) => Ok(address),
            Err(_guard) => self.grow(want, need),
        }
    }

    /// Whether more waits for other contexts than may lie idle. The driver serves beyond that,
    /// and its free does not wait for them: they may be busy for ever.
    fn holds_too_much_back(&self) -> bool {
        let limbo = || self.state.lock().counters.limbo();
        let beyond_idle = |most| self.is_over_budget() && limbo() > most;
        self.strategy.has_soft_limit() && self.strategy.most_idle().is_some_and(beyond_idle)
    }

    /// Before more memory is taken: what threads keep may do as well.
    fn take_recalled(&self, want: Want) -> Option<Address> {
        if self.state.lock().caches.are_closed() {
            return None;
        }
        let is_sparing = self.is_sparing();
        let mut state = self.state.lock();
        if !state.recall_for_growth(want.own_of_size(), want.fit.size, is_sparing) {
            return None;
        }
        drop(state);
        self.close_and_poll(Extent::All);
        self.take(&want)
    }

    pub(super) fn take(&self, want: &Want) -> Option<Address> {
        self.state.lock().take(want, Search::Thorough)
    }

    /// The same, even where that cuts a chunk which could go back.
    pub(super) fn open(&self, want: Want) -> Option<Address> {
        self.state.lock().take(&want, Search::Opening)
    }

    /// Whether the cache has something, and keeps it whole for now.
    fn could_open(&self, want: Want) -> bool {
        (self.state.lock().find(want.fit, Search::Opening)).is_some()
    }

    /// What is done for a pooled request that failed for want of memory.
    #[cold]
    pub(super) fn last_resort(
        &self,
        want: Want,
        need: &Need,
        error: AllocError,
    ) -> Result<Address, AllocError> {
        self.note_need(need);
        let fought = (self.could_be_had(want.fit.request)).then(|| self.fight(want, need, error));
        if let Some((_, served)) = fought
            && !served.is_err_and(is_shortage)
        {
            return served;
        }
        if self.fails_at_once(error) {
            return Err(error);
        }
        self.release_what_is_not_mapped(want.fit.request);
        // A driver that has no page left may have room for a small request in
        // one that is in use.
        let direct = self
            .obtain(want.fit.request)
            .and_then(|obtained| self.enter_direct(obtained, want.fit.request, want.origin));
        // The limit may have let the driver be asked before, and refuse now because of
        // what others took meanwhile: what stood first in the way is told.
        direct.map_err(|last| match last {
            AllocError::Limit => error,
            last => last,
        })
    }

    /// The out-of-memory ladder for a pooled request. With `fail_at_limit` it
    /// ends, at the limit, with what the program has freed: its own frees would
    /// have waited for that.
    fn fight(
        &self,
        want: Want,
        need: &Need,
        error: AllocError,
    ) -> (Turn<'_>, Result<Address, AllocError>) {
        let guard = self.enter_ladder();
        let want = want.at_the_least(self.strategy.least_block(want.fit.request));
        let chunk = self.strategy.least_chunk(want.fit.size);
        let at_once = self.fails_at_once(error);
        if !at_once && self.release_oversize(chunk) {
            match self.grow_once(want, chunk) {
                Err(error) if is_shortage(error) => {}
                ended => return (guard, ended),
            }
        }
        let mut latest = error;
        self.climb(guard, want.fit.request, error, |step| {
            let asks = match step {
                Step::Relieved => true,
                Step::Emptied { waited } => {
                    if let Some(address) = self.open(want) {
                        return Ok(address);
                    }
                    if at_once {
                        return Err(error);
                    }
                    // Without a cache the driver has been asked already.
                    let released = self.release_idle_chunks();
                    waited || !released.is_zero() || !self.policy.is_released_before_growth()
                }
            };
            if asks {
                if step != Step::Relieved {
                    self.note_retry(need);
                }
                match self.grow_once(want, chunk) {
                    Err(error) if is_shortage(error) => latest = error,
                    ended => return ended,
                }
            }
            // Others may have freed meanwhile.
            let freed = self.open(want).or_else(|| self.open(want.anywhere()));
            freed.ok_or(latest)
        })
    }

    /// Serves a request by a chunk of this size, or by a window.
    fn grow_once(&self, want: Want, chunk: Bytes) -> Result<Address, AllocError> {
        if self.mapping().is_some() {
            let by_slabs = self.state.lock().take_by_slabs(want);
            if let Some(address) = by_slabs {
                return Ok(address);
            }
        }
        if self.serves_by_windows() {
            return self.make_window(want, self.any_supply());
        }
        let obtained = self.obtain_chunk(chunk)?;
        self.enter_chunk(obtained, want, false)
    }

    fn serve_direct(&self, need: &Need, stray: Stray) -> Result<Address, AllocError> {
        let request = need.request;
        self.release_before_growth(request);
        let mut obtained = self.obtain(request);
        if let Err(error) = obtained
            && is_shortage(error)
        {
            self.note_need(need);
            if !self.could_be_had(request) {
                return Err(error);
            }
            let guard = self.enter_ladder();
            (_, obtained) = self.climb(guard, request, error, |step| {
                if !self.fails_at_once(error) && step != Step::Relieved {
                    self.release_idle();
                    self.note_retry(need);
                }
                self.obtain(request).or_else(|latest| {
                    if !self.fails_at_once(error) || !self.is_fought(latest) {
                        return Err(latest);
                    }
                    self.release_idle();
                    self.note_retry(need);
                    self.obtain(request)
                })
            });
        }
        let obtained = obtained?;
        if stray == Stray::GivenBack {
            return self.enter_direct(obtained, request, need.origin);
        }
        self.enter_or_leave(obtained.span, request, need.origin);
        Ok(obtained.span.address)
    }

    /// Whether a request that failed so does without the ladder.
    pub(super) fn fails_at_once(&self, error: AllocError) -> bool {
        self.fail_at_limit && error == AllocError::Limit
    }

    /// Whether the driver serves what failed so. Then the request does not
    /// fail, and work that bare CUDA does not wait for is not waited for.
    pub(super) fn is_served_beyond(&self, error: AllocError) -> bool {
        self.strategy.has_soft_limit() && error == AllocError::Limit
    }

    /// Whether a shortage is worth all that can be done about it.
    pub(super) fn is_fought(&self, error: AllocError) -> bool {
        is_shortage(error) && !self.fails_at_once(error)
    }
}
