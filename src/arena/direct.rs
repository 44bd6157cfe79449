//! Driver allocations that are one block: what they take of a device, and how
//! they go in the order of a stream.
//!
//! A device hands out whole pages. An allocation above [`SMALL`] has its own,
//! and counts for them; smaller ones share pages, and a page counts once (see
//! `books::pages`). Owns nothing. Cost: one more look under the lock for each
//! driver allocation of the kind.

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::books::{Direct, Freed, Region};
use crate::arena::reclaim::Extent;
use crate::driver::{Driver, PAGE};
use crate::error::{AllocError, Code, FreeError};
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
            Kind::Device if least > SMALL => pages(least),
            Kind::Device | Kind::Host => least,
        }
    }

    /// Asks the driver for `request` bytes.
    pub(super) fn obtain(&self, request: Bytes) -> Result<Region, AllocError> {
        let size = self.direct_size(request);
        if self.kind == Kind::Device && size <= SMALL {
            return self.obtain_small(request, size);
        }
        self.obtain_by(size, || self.driver.alloc(request))
    }

    /// The same where it may lie in a page with others. Where the limit leaves
    /// no page, the driver is asked all the same if one that has been counted
    /// may have the room; where it has not, the answer goes back at once.
    fn obtain_small(&self, request: Bytes, size: Bytes) -> Result<Region, AllocError> {
        let counted = self.quota.take(PAGE);
        if !counted && !self.books.lock().may_share(size) {
            return Err(AllocError::Limit);
        }
        let put_back = |size| {
            if counted {
                self.quota.put_back(size);
            }
        };
        let address = self.driver.alloc(request).map_err(|code| {
            put_back(PAGE);
            AllocError::Driver(code)
        })?;
        let region = Region { address, size };
        let taken = self.books.lock().device_gave(region);
        put_back(PAGE.saturating_sub(taken));
        if counted || taken.is_zero() {
            return Ok(region);
        }
        self.books.lock().device_gets(region);
        // Nobody has used it: the error that matters is the limit.
        let _ = self.driver.free(address);
        Err(AllocError::Limit)
    }

    /// Has the driver take back, by this call, what the program has freed. It
    /// is out of the books meanwhile, since the driver may hand the address out
    /// at once; where it refuses, all is as before.
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
        result.map_err(FreeError::Driver)
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
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        Ok(())
    }
}
