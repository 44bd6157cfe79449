//! A chunk more, from the driver.
//!
//! Bytes are taken from the quota before the driver is asked, so that the
//! limit holds whatever threads do at the same time. Where the driver has no chunk of the
//! size that the strategy wants, smaller ones are asked for.
//!
//! Owns nothing. Invariant: of a strategy with large chunks, one thread of an arena takes
//! a chunk at a time. Cost: a call of the driver for each size that is asked for.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::hit::Want;
use crate::arena::shortage::{Need, is_shortage};
use crate::arena::state::ArenaState;
use crate::driver::{Driver, PAGE};
use crate::error::{AllocError, Code};
use crate::heap::Span;
use crate::heap::fit::{Fit, Search};
use crate::patience::Patience;
use crate::quota::Asked;
use crate::recording::Mark;
use crate::strategy::{AtGrowth, Sharing};

/// What the driver gave, on its way to the state.
pub(super) struct Obtained<'a> {
    pub(super) span: Span,
    pub(super) asked: Asked<'a>,
}

/// Held by the thread that grows, where only one may.
pub(super) struct GrowGuard<'a, D: Driver>(&'a Arena<D>);

impl<D: Driver> Drop for GrowGuard<'_, D> {
    fn drop(&mut self) {
        self.0.state.lock().growing = false;
    }
}

/// What comes next for a request, where only one thread may grow.
enum Turn<'a, D: Driver> {
    Served(Address),
    Grows(GrowGuard<'a, D>),
    /// Another thread grows.
    Waits,
}

impl<D: Driver> Arena<D> {
    /// Waits for the turn to grow; or a block that another thread made meanwhile.
    pub(super) fn take_or_await_growth(&self, want: Want) -> Result<Address, GrowGuard<'_, D>> {
        let mut patience = Patience::new();
        loop {
            match self.take_or_enter_growth(want) {
                Turn::Served(address) => return Ok(address),
                Turn::Grows(guard) => return Err(guard),
                Turn::Waits => patience.pause(),
            }
        }
    }

    /// Waits for the turn to grow.
    pub(super) fn enter_growth(&self) -> GrowGuard<'_, D> {
        let mut patience = Patience::new();
        loop {
            if let Some(guard) = self.try_enter_growth() {
                return guard;
            }
            patience.pause();
        }
    }

    /// The turn to grow, if nobody has it.
    pub(super) fn try_enter_growth(&self) -> Option<GrowGuard<'_, D>> {
        let mut state = self.state.lock();
        let is_free = !std::mem::replace(&mut state.growing, true);
        // Made only where it is the turn: the end of one takes the lock, and the turn.
        is_free.then(|| GrowGuard(self))
    }

    /// Both under one lock: between two, another thread may have grown, and
    /// this one would take a chunk that it no longer needs.
    fn take_or_enter_growth(&self, want: Want) -> Turn<'_, D> {
        let mut state = self.state.lock();
        if let Some(address) = state.take(&want, Search::Thorough) {
            return Turn::Served(address);
        }
        if state.growing {
            return Turn::Waits;
        }
        state.growing = true;
        Turn::Grows(GrowGuard(self))
    }

    /// Takes a chunk for the request, a smaller one where the driver has no
    /// more, down to the pages of the request itself.
    pub(super) fn grow(&self, want: Want, need: &Need) -> Result<Address, AllocError> {
        self.prepare_first();
        let at = AtGrowth {
            held: self.held(),
            sharing: Sharing::All,
        };
        let chunk = (self.strategy).chunk(want.fit.size, at, &|| self.available());
        self.grow_by(want, need, chunk.map_err(AllocError::Driver)?)
    }

    /// The same where chunks are packed, and it is known what the driver has.
    pub(super) fn grow_within(
        &self,
        want: Want,
        need: &Need,
        available: Bytes,
    ) -> Result<Address, AllocError> {
        let least = self.strategy.least_chunk(want.fit.size);
        let at = AtGrowth {
            held: self.held(),
            sharing: self.state.lock().sharing(want.fit.size),
        };
        let chunk = (self.strategy).chunk(want.fit.size, at, &|| Ok(available));
        let most = available.round_down(self.strategy.chunk_unit()).max(least);
        self.grow_by(want, need, chunk.map_err(AllocError::Driver)?.min(most))
    }

    /// What a chunk's size depends on.
    fn held(&self) -> Bytes {
        let state = self.state.lock();
        if self.strategy.grows_by_chunks() {
            state.heap.in_chunks()
        } else {
            state.held()
        }
    }

    /// Whether the next chunk is the first. Where a chunk takes a share of what the driver has,
    /// what is kept back for waits is no longer available then.
    fn prepare_first(&self) -> bool {
        let is_first = self.held().is_zero();
        if is_first && self.strategy.takes_shares() {
            self.driver.prepare_to_settle(true);
        }
        is_first
    }

    /// Serves a request by `grow`, and keeps memory back for waits if that took a chunk: the
    /// program's request comes first.
    pub(super) fn keep_back_after<T>(
        &self,
        grow: impl FnOnce() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let before = self.held();
        let grown = grow();
        if grown.is_ok() && self.held() > before {
            self.driver.prepare_to_settle(before.is_zero());
        }
        grown
    }

    /// The same for a chunk of `size` bytes.
    pub(super) fn grow_by(
        &self,
        want: Want,
        need: &Need,
        mut size: Bytes,
    ) -> Result<Address, AllocError> {
        let least = self.strategy.least_chunk(want.fit.size);
        let unit = self.strategy.chunk_unit();
        let kept = self.prepare_first() && self.strategy.keeps_first();
        loop {
            match self.obtain_chunk(size) {
                Ok(obtained) => return self.enter_chunk(obtained, want, kept),
                Err(error) if !is_shortage(error) => return Err(error),
                Err(error) if size <= least => {
                    self.state.lock().recall();
                    // Nobody is made to wait for what an idle chunk has.
                    let opened = self.open(want);
                    return opened.map_or_else(|| self.last_resort(want, need, error), Ok);
                }
                Err(_) => size = Bytes::new(size.get() / 2).round_down(unit).max(least),
            }
        }
    }

    /// Asks the driver for a chunk.
    pub(super) fn obtain_chunk(&self, size: Bytes) -> Result<Obtained<'_>, AllocError> {
        self.obtain_by(size, || self.driver.alloc_chunk(size))
    }

    pub(super) fn obtain_by(
        &self,
        size: Bytes,
        alloc: impl FnOnce() -> Result<Address, Code>,
    ) -> Result<Obtained<'_>, AllocError> {
        let asked = self.ask_quota(size)?;
        self.obtain_asked(size, asked, alloc)
    }

    /// Takes bytes from the quota, to ask the driver for them.
    pub(super) fn ask_quota(&self, size: Bytes) -> Result<Asked<'_>, AllocError> {
        let shares = self.shares_pages(size);
        let asked = self.quota.ask(if shares { PAGE } else { size });
        asked.ok_or(AllocError::Limit)
    }

    pub(super) fn obtain_asked<'a>(
        &self,
        size: Bytes,
        mut asked: Asked<'a>,
        alloc: impl FnOnce() -> Result<Address, Code>,
    ) -> Result<Obtained<'a>, AllocError> {
        let address = alloc().map_err(|code| {
            self.tell(&Mark::Refused {
                size,
                code: code.get(),
            });
            AllocError::Driver(code)
        })?;
        let span = Span { address, size };
        // In which page it lies, only its address tells.
        let taken = if self.shares_pages(size) {
            self.state.lock().heap.pages.enter(span)
        } else {
            size
        };
        asked.got(taken);
        Ok(Obtained { span, asked })
    }

    /// Enters a chunk; one that is `kept` never goes back.
    pub(super) fn enter_chunk(
        &self,
        obtained: Obtained<'_>,
        want: Want,
        kept: bool,
    ) -> Result<Address, AllocError> {
        let Obtained { span, asked } = obtained;
        let entered = self.state.lock().add_chunk(span, want, kept);
        asked.lands();
        entered.map_or_else(|| self.instead_of_chunk(span, want), Ok)
    }

    /// Serves the request by a driver allocation of its own, where the heap
    /// cannot keep the chunk that was taken for it.
    #[cold]
    fn instead_of_chunk(&self, chunk: Span, want: Want) -> Result<Address, AllocError> {
        // The error that matters is that of the next call.
        let _ = self.give_back(chunk);
        let obtained = self.obtain(want.fit.request)?;
        self.enter_direct(obtained, want.fit.request, want.origin)
    }
}

impl<F: Clone> ArenaState<F> {
    /// Enters a new chunk and serves the request that it was taken for; one
    /// that is `kept` never goes back. Nothing where the page map cannot hold
    /// it.
    fn add_chunk(&mut self, span: Span, want: Want, kept: bool) -> Option<Address> {
        if self.retired {
            return None;
        }
        let Fit { size, pool, .. } = want.fit;
        let id = self.heap.insert_chunk(span, pool, kept)?;
        self.counters.chunk_taken(span, pool, want.origin.stack);
        let cut = self.heap.cut(id, want.fit);
        let address = self.hand_out(&cut, &want);
        self.counters.missed(pool, size, span.size);
        Some(address)
    }
}
