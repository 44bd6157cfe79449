//! Epochs, and what goes back to the driver.
//!
//! Closing, polling and waiting each leave the lock before they call the
//! driver. Two threads may do any of it at the same time: an epoch is in the
//! books while its fence is being made, so nobody takes limbo for empty, and
//! one that has ended meanwhile is not missed.

use std::time::Duration;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::books::{Books, Region, Wait};
use crate::arena::limbo::Oldest;
use crate::arena::meter::{Metered, call, for_budget};
use crate::config::GarbageThreshold;
use crate::driver::{Driver, IfEnding, Whose};
use crate::error::Code;
use crate::patience::Patience;

/// How much of the open batch an epoch takes.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Extent {
    /// The share that the options give.
    Share,
    /// All of it: memory is needed.
    All,
}

/// Reopens an epoch whose fence did not come about, also where the driver's
/// side unwinds: others would wait for that fence.
struct Closing<'a, D: Driver> {
    arena: &'a Arena<D>,
    number: Option<u64>,
}

impl<D: Driver> Drop for Closing<'_, D> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.arena.books.lock().reopen_epoch(number);
        }
    }
}

impl<D: Driver> Arena<D> {
    /// Whether a free has filled the batch.
    pub(super) fn batch_is_full(&self, books: &Books<D::Fence>) -> bool {
        match self.garbage_threshold {
            GarbageThreshold::NextOpportunity => books.limbo().batch_is_full(),
            GarbageThreshold::Bytes(bytes) => books.limbo().fresh_bytes() >= bytes,
            GarbageThreshold::Pressure => false,
        }
    }

    /// Closes the open batch behind a fence. Does nothing while fences may not
    /// be made.
    pub(super) fn close(&self, extent: Extent) {
        self.close_by(extent, Driver::fence);
    }

    /// The same behind a fence of this kind.
    fn close_by(&self, extent: Extent, fence: impl FnOnce(&Metered<D>) -> Result<D::Fence, Code>) {
        if !self.driver.may_fence() {
            return;
        }
        let fraction = match extent {
            Extent::Share => self.garbage_fraction,
            Extent::All => 1.0,
        };
        if fraction <= 0.0 {
            return;
        }
        let Some(number) = self.books.lock().close_epoch(fraction) else {
            return;
        };
        let mut closing = Closing {
            arena: self,
            number: Some(number),
        };
        if let Ok(fence) = fence(&self.driver) {
            closing.number = None;
            self.books.lock().set_fence(number, fence);
        }
    }

    /// Makes available what the device is done with.
    pub(super) fn poll(&self) {
        self.books.lock().put_back_over();
        while let Some(number) = self.reached() {
            self.end_epochs(number);
        }
    }

    /// The same for a program that needs nothing now: so that no free takes
    /// long, small blocks are left for the next ones to put back. Not where
    /// something is to be done about idle memory after each.
    pub(super) fn poll_for_later(&self) {
        if self.follows_frees {
            return self.poll();
        }
        while let Some(number) = self.reached() {
            self.end_epochs_by(number, Books::pass_epochs);
        }
    }

    /// The oldest epoch, if its fence was reached.
    fn reached(&self) -> Option<u64> {
        if !self.driver.may_fence() {
            return None;
        }
        let Oldest { number, fence } = self.books.lock().oldest_epoch()?;
        (self.driver.reached(&fence?) == Ok(true)).then_some(number)
    }

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
                let mut books = self.books.lock();
                books.put_back_over();
                books.oldest_epoch()
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
            if reached {
                self.end_epochs(number);
            }
            return reached;
        }
        false
    }

    /// Runs what a call of the program does besides the books, counts the call
    /// where it waits for the device, and lets others know of its end.
    pub(super) fn counted<R>(&self, work: impl FnOnce() -> R) -> R {
        let (result, ended) = call(work);
        let Some(waited) = ended else {
            return result;
        };
        if let Some(waited) = waited {
            self.books.lock().tally().waited(waited);
        }
        if let Some(then) = self.then {
            then();
        }
        result
    }

    /// Waits until limbo is empty, as far as fences can be made.
    pub(super) fn wait_for_all(&self, whose: Whose) {
        self.close(Extent::All);
        while self.wait_for_oldest(Wait::All, whose) {}
    }

    /// The same in a free that waits as the driver's own.
    pub(super) fn wait_in_free(&self) {
        self.close_by(Extent::All, Driver::fence_after_own);
        while self.wait_for_oldest(Wait::All, Whose::Own) {}
    }

    /// Empties limbo by whatever is allowed now: memory is short.
    pub(super) fn empty_limbo(&self, whose: Whose) {
        self.books.lock().tally().waited_for_all();
        self.wait_for_all(whose);
        if !self.driver.may_fence() {
            self.wait_by_free(whose);
        }
    }

    /// Waits for the device without a fence. What was in limbo before is then
    /// no longer in use.
    fn wait_by_free(&self, whose: Whose) {
        let Some(number) = self.books.lock().close_last_epoch() else {
            return;
        };
        // Others may be waiting for the fence that this epoch will not have:
        // it ends, or is open again.
        let mut closing = Closing {
            arena: self,
            number: Some(number),
        };
        if self.driver.wait_by_free(whose) == Ok(true) && self.end_epochs(number) {
            closing.number = None;
        }
    }

    /// Whether that was done: not where the context may be ending.
    fn end_epochs(&self, number: u64) -> bool {
        self.end_epochs_by(number, Books::end_epochs)
    }

    fn end_epochs_by(
        &self,
        number: u64,
        end: impl FnOnce(&mut Books<D::Fence>, u64, &mut Vec<Region>),
    ) -> bool {
        // The program's own free has long returned: nobody is left to hear of a
        // failure, and the meter has counted it.
        let ended = self.release_if(IfEnding::Leave, |books| {
            let mut regions = Vec::new();
            end(books, number, &mut regions);
            regions
        });
        ended.is_some()
    }

    /// Gives memory that has left the books back to the driver. Where that
    /// refuses, it is lost: nobody has it, and it counts until its context ends.
    pub(super) fn give_back(&self, region: Region) -> Result<(), Code> {
        self.give_back_by(region, |address| self.driver.free(address))
    }

    fn give_back_by(
        &self,
        region: Region,
        free: impl FnOnce(Address) -> Result<(), Code>,
    ) -> Result<(), Code> {
        let given = self.books.lock().device_gets(region);
        let result = free(region.address);
        if result.is_ok() || !self.books.lock().loses(given) {
            self.quota.put_back(given);
        }
        result
    }

    /// Gives everything that no live block holds back to the driver and
    /// returns how many bytes that were.
    pub(super) fn release_idle(&self) -> Bytes {
        self.release_idle_if(IfEnding::Wait)
    }

    /// The same, also for a thread that asked for nothing here.
    pub(super) fn release_idle_if(&self, ending: IfEnding) -> Bytes {
        if self.holds() {
            return Bytes::ZERO;
        }
        let released = self.release_if(ending, Books::take_idle);
        released.unwrap_or(Bytes::ZERO)
    }

    /// Gives everything that no live block holds back to the driver, for a call
    /// of the program's to CUDA that found no memory, and returns how many bytes
    /// that were. That call need not wait for the device, so this waits for
    /// `most` at the longest. If the device is not done then, nothing goes back,
    /// since the driver's own free would wait on. While no fence may be made,
    /// only spare chunks go.
    pub fn give_room(&self, most: Duration) -> Bytes {
        let has_some = {
            let books = self.books.lock();
            !books.obtainable().is_zero()
        };
        if !has_some || self.holds() || !self.driver.may_give_back() {
            return Bytes::ZERO;
        }
        self.counted(|| {
            if !self.driver.may_fence() {
                let spare = self.release_if(IfEnding::Leave, Books::take_spare);
                return spare.unwrap_or(Bytes::ZERO);
            }
            let done = self
                .driver
                .fence()
                .and_then(|fence| self.driver.wait_within(&fence, most));
            if done != Ok(true) {
                return Bytes::ZERO;
            }
            self.release_idle_if(IfEnding::Leave)
        })
    }

    /// Gives free oversize chunks back to the driver, for `need` bytes; false
    /// where there are none.
    pub(super) fn release_oversize(&self, need: Bytes) -> bool {
        if self.holds() {
            return false;
        }
        let released = self.release(|books| books.take_oversize(need));
        !released.is_zero()
    }

    /// Gives what `choose` takes out of the books back to the driver and
    /// returns how many bytes that were.
    pub(super) fn release(
        &self,
        choose: impl FnOnce(&mut Books<D::Fence>) -> Vec<Region>,
    ) -> Bytes {
        let released = self.release_if(IfEnding::Wait, choose);
        released.unwrap_or(Bytes::ZERO)
    }

    /// The same; none, and nothing leaves the books, where the context may be
    /// ending: what were given back then would be in nobody's books, for as long
    /// as the end takes, and lost where there is none.
    fn release_if(
        &self,
        ending: IfEnding,
        choose: impl FnOnce(&mut Books<D::Fence>) -> Vec<Region>,
    ) -> Option<Bytes> {
        self.driver.giving_back(ending, |free| {
            let mut released = Bytes::ZERO;
            let (regions, flight) = {
                let mut books = self.books.lock();
                let regions = choose(&mut books);
                if regions.is_empty() {
                    return released;
                }
                (regions, self.quota.fly())
            };
            for region in regions {
                if self.give_back_by(region, free).is_ok() {
                    released = released.saturating_add(region.size);
                    flight.lands();
                }
            }
            released
        })
    }
}
