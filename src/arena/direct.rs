//! Driver allocations that are one block: what they take of a device, and how
//! they go, also where the driver does not take them and in the order of a stream.
//!
//! A device hands out whole pages. An allocation above [`SMALL`] has its own,
//! and counts for them; smaller ones share pages, and a page counts once (see
//! `heap::pages`). Until it is there it counts for a page: the limit holds at
//! every moment, and below it no small allocation is made where it leaves no
//! page. Invariant: a free that the driver refuses changes nothing but the list of
//! events. Cost: one more look under the lock for each driver allocation of the
//! kind.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::fences::Extent;
use crate::arena::free::{Freed, FullBatch, Release};
use crate::arena::growth::Obtained;
use crate::arena::shortage::Clock;
use crate::arena::state::ArenaState;
use crate::counters::BlockInfo;
use crate::driver::Driver;
use crate::error::{AllocError, Code, FreeError};
use crate::heap::Span;
use crate::heap::block::BlockId;
use crate::library::LibraryId;
use crate::stats::Origin;
use crate::strategy::{SMALL, pages};

/// Whose memory an arena has.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Host,
}

/// A direct allocation that the program has freed, as it was before.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Direct {
    pub(super) span: Span,
    pub(super) requested: Bytes,
    pub(super) origin: Origin,
    /// What it counts for of the device, until the driver has it back.
    pub(super) charged: Bytes,
}

impl<D: Driver> Arena<D> {
    /// The size that a direct allocation counts as.
    pub(super) fn direct_size(&self, request: Bytes) -> Bytes {
        let least = self.strategy.least_block(request);
        match self.kind {
            Kind::Device if !self.shares_pages(least) => pages(least),
            Kind::Device | Kind::Host => least,
        }
    }

    /// Whether an allocation of this size may lie in a page with others.
    pub(super) fn shares_pages(&self, size: Bytes) -> bool {
        self.kind == Kind::Device && size <= SMALL
    }

    /// Asks the driver for `request` bytes.
    pub(super) fn obtain(&self, request: Bytes) -> Result<Obtained<'_>, AllocError> {
        self.obtain_by(self.direct_size(request), || self.driver.alloc(request))
    }

    /// Enters what the driver gave for one request.
    pub(super) fn enter_direct(
        &self,
        Obtained {
            span,
            asked: _asked,
        }: Obtained<'_>,
        request: Bytes,
        origin: Origin,
    ) -> Result<Address, AllocError> {
        if self.state.lock().add_direct(span, request, origin) {
            return Ok(span.address);
        }
        // The program gets the real function's answer; the error that matters
        // is the one returned.
        let _ = self.give_back(span);
        Err(AllocError::Driver(Code::UNKNOWN))
    }

    /// Memory for this library of the program from this call, where the arena had none for it:
    /// within the limit, counted, and found when it is freed. Where the page
    /// map cannot hold it, it is the program's own.
    ///
    /// # Errors
    /// [`AllocError::Limit`], and the call is not made; or what it answers.
    pub fn take_past(
        &self,
        request: Bytes,
        library: LibraryId,
        call: impl FnOnce() -> Result<Address, Code>,
    ) -> Result<Address, AllocError> {
        let size = self.direct_size(request);
        let failed = |error| self.settle_refused(request, Some(error));
        // The call is made once: what is waited for is the limit.
        let asked = self.look_again(request, &Clock::new(None), || self.ask_quota(size));
        let asked = asked.inspect_err(|&error| failed(error))?;
        let obtained = self.obtain_asked(size, asked, || {
            // A recording tells of the request before it tells of what the driver said.
            let answer = self.driver.alloc_past(call);
            answer.inspect_err(|&code| failed(AllocError::Driver(code)))
        })?;
        self.settle_refused(request, None);
        self.enter_finished(obtained.span, request, library);
        Ok(obtained.span.address)
    }

    /// Takes over memory that the real function handed to the program after
    /// `allocate` had failed, so that it is counted and found when freed.
    /// False where the page map cannot hold it: then it stays the program's
    /// own.
    pub fn adopt(&self, address: Address, request: Bytes) -> bool {
        let size = self.direct_size(request);
        let span = Span { address, size };
        let taken = self.state.lock().heap.pages.enter(span);
        self.quota.take_anyway(taken);
        self.enter_finished(span, request, LibraryId::UNKNOWN)
    }

    fn enter_finished(&self, span: Span, request: Bytes, library: LibraryId) -> bool {
        let origin = self.origin(library, request);
        let entered = self.enter_or_leave(span, request, origin);
        if entered && let Some(finish) = &self.finish {
            // It lies in no range, which a pause could take.
            let _ = self.finish(finish, span.address);
        }
        entered
    }

    /// Enters memory that the program has in any case.
    pub(super) fn enter_or_leave(&self, span: Span, request: Bytes, origin: Origin) -> bool {
        let entered = self.state.lock().add_direct(span, request, origin);
        if !entered {
            let given = self.state.lock().heap.pages.leave(span);
            self.quota.put_back(given);
        }
        entered
    }

    /// Has the driver take back, by this call, what the program has freed. It
    /// is out of the heap meanwhile, since the driver may hand the address out
    /// at once; where it refuses, all is as before. Where the call was not made,
    /// because the context may be ending, the free is noted.
    pub(super) fn give_back_freed(
        &self,
        direct: Direct,
        call: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), FreeError> {
        let counted = self.take_back(direct, call)?;
        self.quota.put_back(counted);
        Ok(())
    }

    /// The same; returns what counts still of the device.
    fn take_back(
        &self,
        direct: Direct,
        call: impl FnOnce() -> Result<(), Code>,
    ) -> Result<Bytes, FreeError> {
        let given = direct.charged;
        let Err(code) = call() else {
            return Ok(given);
        };
        let kept = self.state.lock().was_refused(direct);
        let kept = kept.unwrap_or(Bytes::ZERO);
        // What it counts for was never put back: nobody else got it meanwhile.
        self.quota.put_back(given.saturating_sub(kept));
        self.quota.take_anyway(kept.saturating_sub(given));
        match code {
            Code::NOT_READY => self.note_free(direct.span.address).map(|()| Bytes::ZERO),
            code => Err(FreeError::Driver(code)),
        }
    }

    /// Notes a free and makes no call of the driver: the context may be ending.
    ///
    /// # Errors
    /// [`FreeError::NotLive`] where no live block starts there.
    pub(crate) fn note_free(&self, address: Address) -> Result<(), FreeError> {
        let release = Release::AfterFence {
            quiet: true,
            elsewhere: self.driver.is_elsewhere(),
        };
        let noted = self.state.lock().free(address, release);
        noted.map(|_limbo| ())
    }

    /// As [`Arena::free`], in the order of a stream: nobody is waited for. A
    /// driver allocation of the block's own goes back by `give_back`. Returns what then
    /// counts still of the device, which it has only when the stream gets there: the caller
    /// puts that back into the quota.
    ///
    /// # Errors
    /// As [`Arena::free`].
    pub fn free_in_order(
        &self,
        address: Address,
        give_back: impl FnOnce() -> Result<(), Code>,
    ) -> Result<Bytes, FreeError> {
        let _step = self.step();
        let mut counted = Bytes::ZERO;
        match self.leave_program(address, Extent::Share)? {
            (Freed::GiveBack(direct), _) => {
                counted = self.take_back(*direct, || self.driver.free_by(give_back))?;
            }
            (
                _,
                Some(FullBatch {
                    closing: Some(closing),
                }),
            ) => {
                self.fence(closing);
            }
            (Freed::Done | Freed::Limbo, _) => {}
        }
        self.notify_waiters();
        Ok(counted)
    }
}

impl<F: Clone> ArenaState<F> {
    /// Enters a driver allocation that is one block. False where the page map
    /// cannot hold it.
    pub(super) fn add_direct(&mut self, span: Span, request: Bytes, origin: Origin) -> bool {
        let Some((id, info)) = self.enter_direct(span, request, origin) else {
            return false;
        };
        self.counters.segment_taken(span, info.pool, origin.stack);
        self.gave(id, info, None);
        self.counters.went_direct();
        true
    }

    /// The driver refused to take back what the program has freed: the program
    /// has it still, as if it had never been freed. What it counts for; none
    /// where it is gone with its context, or the driver took it all the same.
    fn was_refused(&mut self, direct: Direct) -> Option<Bytes> {
        let (id, info) = self.enter_direct(direct.span, direct.requested, direct.origin)?;
        self.count_given(&info, None, |counters| {
            counters.free_refused(id, info, direct.span);
        });
        Some(self.heap.pages.enter(direct.span))
    }

    /// A live block that is a driver allocation of its own, still uncounted.
    fn enter_direct(
        &mut self,
        span: Span,
        requested: Bytes,
        origin: Origin,
    ) -> Option<(BlockId, BlockInfo)> {
        if self.retired {
            return None;
        }
        let id = self.heap.insert_direct(span, requested, origin.library)?;
        let info = self.info(self.heap.blocks.get(id));
        let stack = origin.stack;
        Some((id, BlockInfo { stack, ..info }))
    }
}
