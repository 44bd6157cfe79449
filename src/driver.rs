//! The seam between the allocator and the memory of one device context.
//!
//! Everything above the trait [`Driver`] is ordinary bookkeeping that can be
//! tested anywhere; everything below it is CUDA. It is implemented by the real
//! driver (`cabi`) and by the model GPU (`src/model`).
//!
//! A *fence* is a mark in the work of the whole context. It is reached when all
//! work that was submitted before it, on every stream, is done. Fences of one
//! context are reached in the order in which they were made.

pub mod mapping;
pub(crate) mod metered;
pub(crate) mod program_call;
pub mod told;

use std::time::Duration;

use crate::address::{Address, Bytes};
use crate::error::Code;
use crate::patience::wait_within;

pub use crate::thread_cache::OwnCaches;
use mapping::Mapping;

/// The driver hands out memory in pages of this size.
pub const PAGE: Bytes = Bytes::mib(2);

/// Free and total memory of a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MemInfo {
    /// Bytes that the driver could hand out now.
    pub free: Bytes,
    /// Bytes of the whole device.
    pub total: Bytes,
}

/// Whose work a wait covers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// Work of the context itself, which the driver's free waits for too. Other
    /// contexts' work is asked about, not waited for: it may end only by what
    /// the waiting thread does next.
    Own,
    /// Work of every context that can be using this context's memory.
    All,
}

/// What a call does when its context may be ending.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum IfEnding {
    /// It waits until that is decided, for at most the time that an ending is
    /// waited for.
    Wait,
    /// It is skipped: its caller requested nothing in this context.
    Leave,
}

/// Repeats `ask` until it answers true, for `most` at the longest.
///
/// # Errors
/// The first error of `ask`.
pub fn ask_until(most: Duration, mut ask: impl FnMut() -> Result<bool, Code>) -> Result<(), Code> {
    let mut failed = Ok(());
    wait_within(most, || {
        let answer = ask();
        failed = answer.map(|_| ());
        answer != Ok(false)
    });
    failed
}

/// Memory and fences of one device context. Every method may be called from any
/// thread, whatever context is current there, and leaves the current context
/// unchanged.
pub trait Driver: Mapping + Send + Sync {
    /// A mark in the context's work. Cloning is cheap. Dropping the last clone
    /// gives up what it holds of the driver, without a driver call.
    type Fence: Clone + Send + Sync;

    /// Calls `with` with what the calling thread knows of its caches; of each
    /// thread always with the same. A driver that finds memory of its threads
    /// faster than this one does keeps it there.
    #[inline(always)]
    fn with_own_caches<R>(with: impl FnOnce(&OwnCaches) -> R) -> R {
        OwnCaches::with_usual(with)
    }

    /// Whether a system call may be made that the program itself would not make, to have
    /// its threads pass a memory barrier.
    fn may_make_barriers() -> bool {
        true
    }

    /// Allocates `size` bytes, aligned to at least 256. Does not disturb a
    /// stream capture.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`], or whatever else the driver answers.
    fn alloc(&self, size: Bytes) -> Result<Address, Code>;

    /// Allocates `size` bytes for a chunk, aligned to 64 KiB also where the
    /// driver's own allocations sometimes are not.
    ///
    /// # Errors
    /// As `alloc`.
    fn alloc_chunk(&self, size: Bytes) -> Result<Address, Code> {
        self.alloc(size)
    }

    /// Frees what `alloc` or `alloc_chunk` returned. Waits, as the driver does,
    /// for work that may still use the memory. Does not disturb a stream
    /// capture.
    ///
    /// # Errors
    /// What the driver answers.
    fn free(&self, address: Address) -> Result<(), Code>;

    /// Calls `work` with a function that frees memory. The context does not
    /// begin to end meanwhile, so what leaves the books in `work` can be freed.
    /// Returns `None`, without calling `work`, if the context may be ending and
    /// that is not decided.
    fn giving_back<R>(
        &self,
        _ending: IfEnding,
        work: impl FnOnce(&dyn Fn(Address) -> Result<(), Code>) -> R,
    ) -> Option<R> {
        Some(work(&|address| self.free(address)))
    }

    /// Frees as the program's own free does: from the context that is current
    /// on the calling thread, whose work the driver may wait for as well.
    ///
    /// # Errors
    /// What the driver answers; [`Code::NOT_READY`] if the context may be
    /// ending, and then nothing was done.
    fn free_from_here(&self, address: Address) -> Result<(), Code> {
        self.free(address)
    }

    /// Whether another context is current on the calling thread, so that
    /// `free_from_here` may wait for more work than `free` does.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Free and total memory of the device.
    ///
    /// # Errors
    /// What the driver answers.
    fn mem_info(&self) -> Result<MemInfo, Code>;

    /// Whether fences may be made, queried and waited for now. They may not
    /// while a stream of the process captures a graph: the call would
    /// invalidate the capture.
    fn may_fence(&self) -> bool {
        true
    }

    /// Whether `free` may be called now. It may not while the driver calls back
    /// from inside one of these calls; `may_fence` is false then as well.
    fn may_give_back(&self) -> bool {
        true
    }

    /// Whether the process has no other context than this one. The driver's
    /// free may wait for another context's work, also for work that began after
    /// the last look, and that work may end only by what the calling thread
    /// does next.
    fn is_alone(&self) -> bool {
        true
    }

    /// Whether a free may wait by [`wait_by_free`](Driver::wait_by_free): no fence may be
    /// made now, and the driver's own free, in the same place, would wait for nothing less.
    fn may_wait_in_free(&self) -> bool {
        !self.may_fence() && self.may_give_back() && self.is_alone()
    }

    /// Makes a fence after all work that the context was given so far, on all
    /// its streams.
    ///
    /// # Errors
    /// What the driver answers; [`Code::CAPTURE_UNSUPPORTED`] if `may_fence` is
    /// false.
    fn fence(&self) -> Result<Self::Fence, Code>;

    /// Makes a fence for a caller that waits for the context's own work in any
    /// case. An implementation may wait for that work here, where marking it
    /// would have an effect on it.
    ///
    /// # Errors
    /// As `fence`.
    fn fence_after_own(&self) -> Result<Self::Fence, Code> {
        self.fence()
    }

    /// Makes a fence and asks for it at once: `None` where all work before it is
    /// done. An implementation may do both in one passage, and need not keep a
    /// fence that nobody waits for.
    ///
    /// # Errors
    /// As `fence`. A question that fails counts as a fence that is not reached.
    fn fence_unless_done(&self) -> Result<Option<Self::Fence>, Code> {
        let fence = self.fence()?;
        let is_done = self.may_fence() && self.reached(&fence) == Ok(true);
        Ok((!is_done).then_some(fence))
    }

    /// Whether the work before the fence is done.
    ///
    /// # Errors
    /// What the driver answers.
    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code>;

    /// Waits until the work before the fence that is `whose` is done. Returns
    /// whether all of the work before the fence is done then.
    ///
    /// # Errors
    /// What the driver answers.
    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code>;

    /// Waits for the context's own work before the fence, for `most` at the
    /// longest: for a wait that saves memory and that the program could do
    /// without. Returns false also if the time was not enough, or if fences may
    /// not be queried any more.
    ///
    /// # Errors
    /// What the driver answers.
    fn wait_within(&self, fence: &Self::Fence, most: Duration) -> Result<bool, Code> {
        ask_until(most, || Ok(!self.may_fence() || self.reached(fence)?))?;
        Ok(self.may_fence() && self.reached(fence)?)
    }

    /// Writes `byte` to the `size` bytes from `address` on, which no work uses,
    /// and waits until that is done.
    ///
    /// # Errors
    /// What the driver answers; [`Code::CAPTURE_UNSUPPORTED`] if `may_fence` is
    /// false, [`Code::NOT_SUPPORTED`] if the driver cannot write.
    fn fill(&self, _address: Address, _size: Bytes, _byte: u8) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Waits until all work that the context was given so far is done, and for
    /// no other context's work.
    ///
    /// # Errors
    /// As `fence` and `wait`.
    fn synchronize(&self) -> Result<(), Code> {
        let fence = self.fence()?;
        self.wait(&fence, Whose::Own).map(|_| ())
    }

    /// Called when a chunk was taken (`is_first`: the first), and before free memory is
    /// reported while there is none. `wait_by_free` needs a page of the driver at a time when
    /// there may be none left, so an implementation can set one aside here, later only where
    /// memory is ample. Costs nothing once it has.
    fn prepare_to_settle(&self, _is_first: bool) {}

    /// Waits until all work given so far that is `whose` is done, by calls that
    /// are allowed while a stream captures a graph. Returns whether the work of
    /// all contexts is done then. Slow: it is for the moment when memory is
    /// short and no fence may be made. The driver's own free does the waiting,
    /// so a page is taken for it.
    ///
    /// # Errors
    /// What the driver answers; out of memory if the driver has no page left.
    fn wait_by_free(&self, _whose: Whose) -> Result<bool, Code> {
        let page = self.alloc(PAGE)?;
        self.free(page).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn asking_ends_with_a_yes_an_error_or_the_time() {
        let mut asked = 0;
        let mut third = || {
            asked += 1;
            Ok(asked == 3)
        };
        assert_eq!(ask_until(Duration::from_secs(9), &mut third), Ok(()));
        assert_eq!(asked, 3);
        let failed = ask_until(Duration::from_secs(9), || Err(Code::INVALID_CONTEXT));
        assert_eq!(failed, Err(Code::INVALID_CONTEXT));
        let (start, most) = (Instant::now(), Duration::from_millis(20));
        assert_eq!(ask_until(most, || Ok(false)), Ok(()));
        assert!(start.elapsed() >= most);
    }
}
