//! The path that programs are on all the time: a request that a cached block serves.
//! Its free is in `free`.
//!
//! Invariant: one lock, and no driver call. What is more than that is one call
//! from here: `miss`, `direct`, `finish`. Cost: that of a search in the
//! free index, and a few dozen counters.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::finish::Finish;
use crate::arena::miss::Stray;
use crate::arena::state::ArenaState;
use crate::counters::BlockInfo;
use crate::driver::{Driver, PAGE};
use crate::error::{AllocError, Answer, Code};
use crate::heap::Cut;
use crate::heap::block::BlockId;
use crate::heap::fit::{Fit, Search};
use crate::library::LibraryId;
use crate::stats::Origin;
use crate::strategy::packing::{Packing, fills};
use crate::strategy::{Pool, Route};
use crate::thread_cache::{Entered, MOST_KEPT, OwnCache};

/// A request on its way through the arena.
#[derive(Copy, Clone)]
pub(super) struct Want {
    pub(super) fit: Fit,
    /// Where in the program it was made, if that was looked at.
    pub(super) origin: Origin,
    /// The cache of the thread that makes it, if it has one.
    pub(super) own: Option<OwnCache>,
}

impl Want {
    /// The thread's cache, where it may have blocks of such a size.
    pub(super) fn own_of_size(&self) -> Option<OwnCache> {
        self.own.filter(|_| self.fit.request <= MOST_KEPT)
    }

    /// The same in the `least` block that serves it: what is rounded beyond
    /// that is for the next request, and no reason to fail this one.
    pub(super) fn at_the_least(mut self, least: Bytes) -> Want {
        self.fit.size = least;
        self
    }

    /// The same for a piece of any chunk that is not kept whole: what is kept
    /// apart is so for later requests, and no reason to fail this one.
    pub(super) fn anywhere(mut self) -> Want {
        self.fit.pool = Pool::Large;
        self
    }
}

impl<D: Driver> Arena<D> {
    /// Memory for a request of `request` bytes, aligned to 512.
    ///
    /// # Errors
    /// [`AllocError`], after the whole out-of-memory ladder;
    /// [`Code::INVALID_VALUE`] for no bytes.
    #[inline(always)]
    pub fn allocate(&self, request: Bytes) -> Result<Address, AllocError> {
        self.allocate_for(request, LibraryId::UNKNOWN)
    }

    /// The same for this library of the program.
    ///
    /// # Errors
    /// As `allocate`.
    #[inline(always)]
    pub fn allocate_for(&self, request: Bytes, library: LibraryId) -> Result<Address, AllocError> {
        self.allocate_or(request, library, Stray::GivenBack)
    }

    /// As `allocate`. But a direct allocation that the page map cannot hold,
    /// because it begins at no multiple of 512, is the program's all the same:
    /// uncounted, and the real free's business.
    ///
    /// # Errors
    /// As `allocate`.
    pub fn allocate_or_leave(&self, request: Bytes) -> Result<Address, AllocError> {
        self.allocate_or(request, LibraryId::UNKNOWN, Stray::Left)
    }

    #[inline(always)]
    fn allocate_or(
        &self,
        request: Bytes,
        library: LibraryId,
        stray: Stray,
    ) -> Result<Address, AllocError> {
        let _step = self.step();
        match self.take_exact(request, library) {
            Ok(address) => Ok(address),
            Err(entered) => self
                .allocate_near(entered, request, library, stray)
                .result(),
        }
    }

    /// The same from a block of the thread's cache that may be larger, or from what the
    /// lock guards.
    #[inline(never)]
    fn allocate_near(
        &self,
        entered: Option<Entered>,
        request: Bytes,
        library: LibraryId,
        stray: Stray,
    ) -> Answer {
        let may_keep = entered.is_some() || Self::may_be_kept(request);
        let near = may_keep.then(|| self.take_near(entered, request, library));
        if let Some(address) = near.flatten() {
            return Answer::of(Ok(address));
        }
        self.allocate_in_state(request, library, stray)
    }

    /// The same from what the lock guards.
    #[inline(always)]
    fn allocate_in_state(&self, request: Bytes, library: LibraryId, stray: Stray) -> Answer {
        match &self.finish {
            None => self.allocate_unfinished(request, library, stray),
            Some(finish) => self.allocate_finished(finish, request, library, stray),
        }
    }

    /// The same with the options' last steps.
    #[cold]
    fn allocate_finished(
        &self,
        finish: &Finish,
        request: Bytes,
        library: LibraryId,
        stray: Stray,
    ) -> Answer {
        Answer::of(self.counted(|| {
            let served = self.allocate_unfinished(request, library, stray).result();
            served.and_then(|address| self.finish(finish, address).map(|()| address))
        }))
    }

    /// The same without them.
    #[inline(never)]
    fn allocate_unfinished(&self, request: Bytes, library: LibraryId, stray: Stray) -> Answer {
        Answer::of(self.serve_request(request, library, stray))
    }

    /// The way there, in one place.
    #[inline(always)]
    fn serve_request(
        &self,
        request: Bytes,
        library: LibraryId,
        stray: Stray,
    ) -> Result<Address, AllocError> {
        if request.is_zero() {
            return Err(AllocError::Driver(Code::INVALID_VALUE));
        }
        let origin = self.origin(library, request);
        let may_keep = request <= MOST_KEPT && self.keeps && !self.counts(origin.stack);
        if may_keep && let Some(address) = self.take_counted(request, library) {
            return Ok(address);
        }
        let size = match &self.rounder {
            None => self.strategy.block(request),
            Some(rounder) => rounder.size(request),
        };
        let size = size.ok_or(AllocError::Driver(Code::OUT_OF_MEMORY))?;
        let route = if self.dedicated_min.is_some_and(|least| request >= least) {
            Route::Direct
        } else {
            self.strategy
                .route(size, &|| self.available())
                .map_err(AllocError::Driver)?
        };
        let Route::Pool(mut pool) = route else {
            return self.allocate_direct(request, origin, stray);
        };
        // In ranges nothing has to be kept whole.
        if pool == Pool::Oversize && self.mapping().is_some() {
            pool = Pool::Large;
        }
        let fit = Fit {
            request,
            size,
            pool,
            bank: None,
        };
        let mut want = Want {
            fit,
            origin,
            own: None,
        };
        if may_keep {
            self.for_this_thread(&mut want);
        } else if self.keeps && request > MOST_KEPT {
            // Of such a size it keeps nothing, but its room may be needed.
            want.own = self.last_cache();
        }
        let (mut hit, closing) = self.take_or_close(&want, !may_keep);
        if hit.is_none() && may_keep {
            hit = self.take_counted(request, library);
        }
        hit.map_or_else(|| self.allocate_after_miss(&want, closing), Ok)
    }
}

impl<F: Clone> ArenaState<F> {
    /// Hands out a cached block, if one fits.
    #[inline(always)]
    pub(super) fn take(&mut self, want: &Want, search: Search) -> Option<Address> {
        if search != Search::Quick {
            self.put_back_reclaimable();
        }
        let mut id = self.find(want.fit, search);
        if id.is_none() && self.limbo.has_reclaimable() {
            self.put_back_reclaimable();
            id = self.find(want.fit, search);
        }
        let mut id = id?;
        if search == Search::Quick && self.opens_too_early(id, want.fit) {
            // Of another bank a piece may serve.
            let fit = Fit {
                bank: None,
                ..want.fit
            };
            id = (want.fit.bank).and_then(|_| self.find(fit, search))?;
            if self.opens_too_early(id, fit) {
                return None;
            }
        }
        if let Some(bank) = want.fit.bank {
            self.note_bank(id, bank);
        }
        let cut = self.heap.cut(id, want.fit);
        self.counters.hit();
        Some(self.hand_out(&cut, want))
    }

    /// The block that serves a request best.
    #[inline]
    pub(super) fn find(&self, fit: Fit, search: Search) -> Option<BlockId> {
        if self.heap.is_paused() {
            return None;
        }
        let keeps_whole = self.packing.as_ref().is_some_and(Packing::is_on);
        let wastes = |rest| self.wastes_pieces(fit.size, rest);
        let cuts = |chunk| !keeps_whole || fills(fit.size, chunk, wastes);
        self.heap.find(fit, search, cuts)
    }

    /// Whether this would cut up an idle chunk while limbo may hold what fits:
    /// a chunk that stays whole can still serve the request that it was taken
    /// for. So an idle chunk is opened as if it had to be taken from the
    /// driver, after a look into limbo; a program that repeats then finds its
    /// chunks as it left them and need not grow again.
    ///
    /// It is worth the look where limbo holds enough for the request, and for
    /// a page; a chunk that fits but for a remainder of less than a page is
    /// the one that was taken for such a request. Where requests were refused for which
    /// there was enough in pieces, no piece is cut either before that look: it may be of a
    /// chunk that is idle then.
    fn opens_too_early(&self, id: BlockId, fit: Fit) -> bool {
        let is_careful = || self.packing.as_ref().is_some_and(Packing::is_careful);
        let cuts_chunk = || !self.heap.fits_closely(id, fit) && self.heap.is_of_idle(id);
        self.counters.limbo() >= fit.size.max(PAGE)
            && (cuts_chunk() || (fit.pool == Pool::Large && is_careful()))
    }

    /// Gives a block that was cut for a request to the program.
    pub(super) fn hand_out(&mut self, cut: &Cut, want: &Want) -> Address {
        let Fit { request, pool, .. } = want.fit;
        let Origin { library, stack } = want.origin;
        if pool != Pool::Small
            && let Some(packing) = &mut self.packing
        {
            packing.serves(want.fit.size);
        }
        self.counters.cut(pool, cut);
        let (address, was_idle) = match self.counters.ledger {
            None => self.heap.hand_out(cut.id, request, library),
            Some(_) => self.heap.hand_out_from(cut.id, request, library, stack),
        };
        if let Some(chunk) = was_idle {
            self.counters.left_idle(pool, chunk);
        }
        let info = BlockInfo {
            address,
            size: cut.size,
            requested: request,
            pool,
            library,
            stack,
        };
        self.gave(cut.id, info, want.own);
        address
    }

    /// The program got a block, on a thread with this cache.
    #[inline]
    pub(super) fn gave(&mut self, id: BlockId, info: BlockInfo, own: Option<OwnCache>) {
        self.count_given(&info, own, |counters| counters.handed_out(id, info));
    }
}
