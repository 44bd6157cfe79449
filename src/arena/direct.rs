//! Driver allocations that are one block: what they take of a device, and how
//! they go in the order of a stream.
//!
//! A device hands out whole pages. An allocation above [`SMALL`] has its own,
//! and counts for them; smaller ones share pages, and a page counts once (see
//! `books::pages`). Until it is there it counts for a page: the limit holds at
//! every moment, and below it no small allocation is made where it leaves no
//! page. Owns nothing. Cost: one more look under the lock for each
//! driver allocation of the kind.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::again::Clock;
use crate::arena::books::{Direct, Freed, Region, Release};
use crate::arena::growth::Obtained;
use crate::arena::reclaim::Extent;
use crate::driver::Driver;
use crate::error::{AllocError, Code, FreeError};
use crate::stats::StackId;
use crate::strategy::{SMALL, pages};

/// Whose memory an arena has.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Host,
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

    /// Memory for the program from this call, where the arena had none for it:
    /// within the limit, counted, and found when it is freed. Where the page
    /// map cannot hold it, it is the program's own.
    ///
    /// # Errors
    /// [`AllocError::Limit`], and the call is not made; or what it answers.
    pub fn take_past(
        &self,
        request: Bytes,
        call: impl FnOnce() -> Result<Address, Code>,
    ) -> Result<Address, AllocError> {
        let size = self.direct_size(request);
        // The call is made once: what is waited for is the limit.
        let asked = self.look_again(request, &Clock::new(None), || self.ask_quota(size))?;
        let obtained = self.obtain_asked(size, asked, || self.driver.alloc_past(call))?;
        self.enter_finished(obtained.region, request);
        Ok(obtained.region.address)
    }

    /// Takes over memory that the real function handed to the program after
    /// `allocate` had failed, so that it is counted and found when freed.
    /// False where the page map cannot hold it: then it stays the program's
    /// own.
    pub fn adopt(&self, address: Address, request: Bytes) -> bool {
        let size = self.direct_size(request);
        let region = Region { address, size };
        let taken = self.books.lock().device_gave(region);
        self.quota.take_anyway(taken);
        self.enter_finished(region, request)
    }

    fn enter_finished(&self, region: Region, request: Bytes) -> bool {
        let entered = self.enter_or_leave(region, request, self.call_stack());
        if entered && let Some(finish) = &self.finish {
            self.finish(finish, region.address);
        }
        entered
    }

    /// Enters memory that the program has in any case.
    pub(super) fn enter_or_leave(&self, region: Region, request: Bytes, stack: StackId) -> bool {
        let entered = self.books.lock().add_direct(region, request, stack);
        if !entered {
            let given = self.books.lock().device_gets(region);
            self.quota.put_back(given);
        }
        entered
    }

    /// Has the driver take back, by this call, what the program has freed. It
    /// is out of the books meanwhile, since the driver may hand the address out
    /// at once; where it refuses, all is as before. Where the call was not made,
    /// because the context may be ending, the free is noted.
    pub(super) fn give_back_freed(
        &self,
        direct: Direct,
        call: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), FreeError> {
        let given = self.books.lock().device_gets(direct.region);
        let result = call();
        let kept = match result {
            Ok(()) => None,
            Err(_) => self.books.lock().was_refused(direct),
        };
        let kept = kept.unwrap_or(Bytes::ZERO);
        // What it counts for was never put back: nobody else got it meanwhile.
        self.quota.put_back(given.saturating_sub(kept));
        self.quota.take_anyway(kept.saturating_sub(given));
        match result {
            Err(Code::NOT_READY) => self.note_free(direct.region.address),
            result => result.map_err(FreeError::Driver),
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
        let noted = self.books.lock().free(address, release);
        noted.map(|_limbo| ())
    }

    /// As [`Arena::free`], in the order of a stream: nobody is waited for. A
    /// driver allocation of the block's own goes back by `give_back`.
    ///
    /// # Errors
    /// As [`Arena::free`].
    pub fn free_in_order(
        &self,
        address: Address,
        give_back: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), FreeError> {
        let _step = self.step();
        match self.leave_program(address)? {
            (Freed::GiveBack(direct), _) => {
                self.give_back_freed(direct, || self.driver.free_by(give_back))?;
            }
            (Freed::Limbo, true) => self.close(Extent::Share),
            (Freed::Done | Freed::Limbo, _) => {}
        }
        self.notify_waiters();
        Ok(())
    }
}
