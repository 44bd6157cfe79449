//! The seam between the allocator and the memory of one device context.
//!
//! Everything above this trait is ordinary bookkeeping that can be tested
//! anywhere; everything below it is CUDA. The real driver (`cabi`) and the
//! model GPU (`sim`) are its two sides.
//!
//! A *fence* is a mark in the work of the whole context: it is reached when
//! everything that was submitted before it, on every stream, is done. Fences
//! of one context are reached in the order in which they were made.

pub mod told;

use std::time::Duration;

use crate::address::{Address, Bytes};
use crate::error::Code;
use crate::patience::wait_within;

/// The driver hands out memory in pages of this size.
pub const PAGE: Bytes = Bytes::mib(2);

/// What a device has.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MemInfo {
    /// Bytes that the driver could hand out now.
    pub free: Bytes,
    /// Bytes of the whole device.
    pub total: Bytes,
}

/// Whose work is waited for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The context's own, as the driver's free does. Others' is only asked
    /// about: what it takes for it to end may be something that the waiting
    /// thread is going to do afterwards.
    Own,
    /// That of everybody who can be using the context's memory.
    All,
}

/// What a call does where its context may be ending.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum IfEnding {
    /// It waits for that to be decided, as long as an end is waited for.
    Wait,
    /// It is not made: who makes it asked for nothing in the context.
    Leave,
}

/// Asks until the answer is yes, for no longer than `most`.
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

/// Memory and fences of one device context. Every method may be called from
/// any thread, whatever context is current there, and leaves that unchanged.
pub trait Driver: Send + Sync {
    /// A mark in the context's work. Cloning is cheap; what it holds of the
    /// driver is given back, without a driver call, when the last clone goes.
    type Fence: Clone + Send + Sync;

    /// Takes `size` bytes, aligned to at least 256. Does not disturb a stream
    /// capture.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`], or whatever else the driver answers.
    fn alloc(&self, size: Bytes) -> Result<Address, Code>;

    /// Takes `size` bytes that are to be cut up, aligned to 64 KiB where the
    /// driver's own are not at times.
    ///
    /// # Errors
    /// As `alloc`.
    fn alloc_chunk(&self, size: Bytes) -> Result<Address, Code> {
        self.alloc(size)
    }

    /// Gives back what `alloc` or `alloc_chunk` took. Waits, as the driver does, for work that
    /// may still use it. Does not disturb a stream capture.
    ///
    /// # Errors
    /// What the driver answers.
    fn free(&self, address: Address) -> Result<(), Code>;

    /// Does `work` with a way to give memory back; none, and nothing is done,
    /// where the context may be ending and that is not decided. It does not
    /// begin to end meanwhile: what leaves the books here is given back.
    fn giving_back<R>(
        &self,
        _ending: IfEnding,
        work: impl FnOnce(&dyn Fn(Address) -> Result<(), Code>) -> R,
    ) -> Option<R> {
        Some(work(&|address| self.free(address)))
    }

    /// The same as the program's own free: from the context that is current on
    /// the calling thread, whose work the driver may wait for as well.
    ///
    /// # Errors
    /// What the driver answers; [`Code::NOT_READY`] where the context may be
    /// ending, and nothing was done.
    fn free_from_here(&self, address: Address) -> Result<(), Code> {
        self.free(address)
    }

    /// Whether another context than this one is current on the calling thread,
    /// so that a free of the program's may wait for more than `free` does.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// What the device has.
    ///
    /// # Errors
    /// What the driver answers.
    fn mem_info(&self) -> Result<MemInfo, Code>;

    /// Whether fences may be made, asked and waited for now. They may not
    /// while a stream of the process captures a graph: the call would
    /// invalidate the capture.
    fn may_fence(&self) -> bool {
        true
    }

    /// Whether `free` may be called now. It may not where the driver itself has
    /// called back, from inside one of these calls; `may_fence` is false then
    /// as well.
    fn may_give_back(&self) -> bool {
        true
    }

    /// Whether the process has no other context. What another one runs may end
    /// only by what the calling thread does next, and the driver's free may
    /// wait for it: even where it began after the last look.
    fn is_alone(&self) -> bool {
        true
    }

    /// Marks all work that the context was given so far, on all its streams.
    ///
    /// # Errors
    /// What the driver answers; [`Code::CAPTURE_UNSUPPORTED`] where
    /// `may_fence` is false.
    fn fence(&self) -> Result<Self::Fence, Code>;

    /// The same for a caller that waits for the context's own work in any case:
    /// it may be waited for here, where a mark would have an effect on it.
    ///
    /// # Errors
    /// As `fence`.
    fn fence_after_own(&self) -> Result<Self::Fence, Code> {
        self.fence()
    }

    /// Whether the work before the mark is done.
    ///
    /// # Errors
    /// What the driver answers.
    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code>;

    /// Waits until the work before the mark is done that is `whose`; whether
    /// all of it is done then.
    ///
    /// # Errors
    /// What the driver answers.
    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code>;

    /// The same for the context's own work, and for no longer than `most`: for
    /// a wait that saves memory, and that the program could do without. False
    /// also where that time was not enough, or fences may not be asked any
    /// more.
    ///
    /// # Errors
    /// What the driver answers.
    fn wait_within(&self, fence: &Self::Fence, most: Duration) -> Result<bool, Code> {
        ask_until(most, || Ok(!self.may_fence() || self.reached(fence)?))?;
        Ok(self.may_fence() && self.reached(fence)?)
    }

    /// Writes `byte` to the `size` bytes from `address` on, which nobody uses,
    /// and waits until that is done.
    ///
    /// # Errors
    /// What the driver answers; [`Code::CAPTURE_UNSUPPORTED`] where
    /// `may_fence` is false, [`Code::NOT_SUPPORTED`] where the driver cannot
    /// write.
    fn fill(&self, _address: Address, _size: Bytes, _byte: u8) -> Result<(), Code> {
        Err(Code::NOT_SUPPORTED)
    }

    /// Waits until all work that the context was given so far is done, and for
    /// nobody else's.
    ///
    /// # Errors
    /// As `fence` and `wait`.
    fn synchronize(&self) -> Result<(), Code> {
        let fence = self.fence()?;
        self.wait(&fence, Whose::Own).map(|_| ())
    }

    /// Comes before the first chunk is taken, and before it is told what is
    /// free: `wait_by_free` needs memory of the driver's own at a time when there may
    /// be none, and can keep some back. Costs nothing the second time.
    fn prepare_to_settle(&self) {}

    /// Waits until all work that is `whose` and was given so far is done, by
    /// calls that are allowed while a stream captures a graph; whether
    /// everybody's is done then. Slow: for the moment when memory is short and
    /// no fence may be made.
    ///
    /// What waits is the driver's own free, so a page is taken for it.
    ///
    /// # Errors
    /// What the driver answers; where it has no page left, out of memory.
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
