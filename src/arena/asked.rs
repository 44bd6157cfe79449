//! What others than the program ask of an arena: how it stands, and idle memory.
//!
//! Invariant: none of it waits for the device, or makes the program wait where
//! bare CUDA would not. Memory goes back at once where the device is quiet, and
//! else in the next free of the program that has something to do besides the
//! books: the driver's own free would wait there too. Cost: of a glance, the
//! lock and a dozen loads; for a call of the program that is no hit, one load.

use crate::address::Bytes;
use crate::arena::Arena;
use crate::arena::reclaim::Extent;
use crate::driver::{Driver, IfEnding};
use crate::sync::atomic::Ordering;

/// How an arena stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Glance {
    /// What the program holds.
    pub live: Bytes,
    /// The most that it held.
    pub live_peak: Bytes,
    /// What was taken from the driver.
    pub reserved: Bytes,
    /// The most that was.
    pub reserved_peak: Bytes,
    /// Calls to the driver.
    pub driver_calls: u64,
}

impl Glance {
    /// Both together. Their peaks may have been at different times: what was
    /// there at one is the higher of them, or what is there now.
    #[must_use]
    pub fn and(self, other: Glance) -> Glance {
        let live = self.live.saturating_add(other.live);
        let reserved = self.reserved.saturating_add(other.reserved);
        Glance {
            live,
            live_peak: self.live_peak.max(other.live_peak).max(live),
            reserved,
            reserved_peak: self.reserved_peak.max(other.reserved_peak).max(reserved),
            driver_calls: self.driver_calls.saturating_add(other.driver_calls),
        }
    }
}

impl<D: Driver> Arena<D> {
    /// The same, with `then` called at the end of each call that did more than
    /// hand a block out or take it back, when nothing is held.
    #[must_use]
    pub fn followed_by(mut self, then: fn()) -> Arena<D> {
        self.then = Some(then);
        self
    }

    /// How it stands.
    #[must_use]
    pub fn glance(&self) -> Glance {
        let driver_calls = self.driver.calls();
        let books = self.books.lock();
        let glance = books.glance();
        Glance {
            driver_calls,
            ..glance
        }
    }

    /// Gives idle memory back to the driver if the device has nothing to do,
    /// and returns how many bytes that were. Else the program's next frees do.
    pub fn give_back_when_quiet(&self) -> Bytes {
        self.counted(|| {
            if let Some(given) = self.give_back_if_quiet() {
                return given;
            }
            // Relaxed: it stands for itself.
            self.owes.store(true, Ordering::Relaxed);
            Bytes::ZERO
        })
    }

    /// The driver's free waits for the device. Among several contexts, what one
    /// is given next may end only by what this thread does after the free.
    fn give_back_if_quiet(&self) -> Option<Bytes> {
        if self.holds() {
            return Some(Bytes::ZERO);
        }
        if !self.driver.may_fence() || !self.driver.is_alone() {
            return None;
        }
        self.close(Extent::All);
        let fence = self.driver.fence().ok()?;
        if self.driver.reached(&fence) != Ok(true) {
            return None;
        }
        self.poll();
        let _turn = self.try_turn_on_ladder()?;
        Some(self.release_idle_if(IfEnding::Leave))
    }

    /// In a free of the program: gives back what is owed.
    pub(super) fn pay(&self) {
        let owes = self.owes.load(Ordering::Relaxed);
        if owes && self.driver.may_fence() && self.owes.swap(false, Ordering::Relaxed) {
            self.release_all_idle();
        }
    }
}
