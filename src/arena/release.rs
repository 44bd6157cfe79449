//! What goes back to the driver.
//!
//! Invariant: memory leaves the heap and the page map before the driver hears of
//! it, since the driver may hand the same addresses out at once. What others
//! than the program ask for never waits for the device, or makes the program
//! wait where bare CUDA would not: memory goes back at once where the device is
//! quiet, and else in the next free of the program that does more than the hit
//! path: the driver's own free would wait there too. Cost: the driver's frees,
//! which wait for the device.

use std::time::Duration;

use crate::address::{Address, Bytes};
use crate::arena::Arena;
use crate::arena::fences::Extent;
use crate::arena::state::ArenaState;
use crate::driver::{Driver, IfEnding, Whose};
use crate::error::Code;
use crate::heap::{Heap, Span};
use crate::sync::atomic::Ordering;

impl<D: Driver> Arena<D> {
    /// Waits for limbo, then gives every idle chunk back to the driver, unless
    /// the context may be ending; returns how many bytes that were.
    pub fn trim(&self) -> Bytes {
        self.counted(|| self.trim_now())
    }

    fn trim_now(&self) -> Bytes {
        let _guard = self.enter_ladder();
        self.state.lock().counters.waited_for_all();
        self.wait_for_all(Whose::Own);
        let released = self.release_idle_if(IfEnding::Leave);
        if !self.state.lock().is_used_elsewhere() {
            return released;
        }
        self.wait_for_all(Whose::All);
        released.saturating_add(self.release_idle_if(IfEnding::Leave))
    }

    /// Gives every idle chunk back to the driver, with what of it is in limbo,
    /// and waits for nobody itself: the driver's own free waits for whoever
    /// uses the memory. Returns how many bytes that were.
    pub fn give_back_idle(&self) -> Bytes {
        self.counted(|| {
            let _guard = self.enter_ladder();
            self.release_idle_if(IfEnding::Leave)
        })
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
        let _guard = self.try_enter_ladder()?;
        Some(self.release_idle_if(IfEnding::Leave))
    }

    /// In a free of the program: gives back what is owed.
    pub(super) fn pay(&self) {
        let owes = self.owes.load(Ordering::Relaxed);
        if owes && self.driver.may_fence() && self.owes.swap(false, Ordering::Relaxed) {
            self.release_all_idle();
        }
    }

    /// Gives memory that has left the heap back to the driver. Where that
    /// refuses, it is lost: nobody has it, and it counts until its context ends.
    pub(super) fn give_back(&self, span: Span) -> Result<(), Code> {
        self.give_back_by(span, |address| self.driver.free(address))
    }

    fn give_back_by(
        &self,
        span: Span,
        free: impl FnOnce(Address) -> Result<(), Code>,
    ) -> Result<(), Code> {
        let given = self.state.lock().heap.pages.leave(span);
        let result = free(span.address);
        if result.is_ok() || !self.state.lock().loses(given) {
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
        let released = self.release_if(ending, ArenaState::take_idle);
        released.unwrap_or(Bytes::ZERO)
    }

    /// Gives everything that no live block holds back to the driver, for a call
    /// of the program's to CUDA that found no memory, and returns how many bytes
    /// that were. That call need not wait for the device, so this waits for
    /// `most` at the longest. If the device is not done then, nothing goes back,
    /// since the driver's own free would wait on. While no fence may be made,
    /// only empty chunks go.
    pub fn give_room(&self, most: Duration) -> Bytes {
        let has_some = {
            let state = self.state.lock();
            !state.obtainable().is_zero()
        };
        if !has_some || self.holds() || !self.driver.may_give_back() {
            return Bytes::ZERO;
        }
        self.counted(|| {
            if !self.driver.may_fence() {
                let empty =
                    self.release_if(IfEnding::Leave, |state| state.let_go(Heap::take_empty));
                return empty.unwrap_or(Bytes::ZERO);
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
        let released = self.release(|state| state.let_go(|heap| heap.take_oversize(need)));
        !released.is_zero()
    }

    /// Gives what `choose` takes out back to the driver and
    /// returns how many bytes that were.
    pub(super) fn release(
        &self,
        choose: impl FnOnce(&mut ArenaState<D::Fence>) -> Vec<Span>,
    ) -> Bytes {
        let released = self.release_if(IfEnding::Wait, choose);
        released.unwrap_or(Bytes::ZERO)
    }

    /// The same; none, and nothing leaves the heap, where the context may be
    /// ending: what were given back then would be in no heap, for as long
    /// as the end takes, and lost where there is none.
    pub(super) fn release_if(
        &self,
        ending: IfEnding,
        choose: impl FnOnce(&mut ArenaState<D::Fence>) -> Vec<Span>,
    ) -> Option<Bytes> {
        self.driver.giving_back(ending, |free| {
            let mut released = Bytes::ZERO;
            let (spans, flight) = {
                let mut state = self.state.lock();
                let spans = choose(&mut state);
                if spans.is_empty() {
                    return released;
                }
                (spans, self.quota.fly())
            };
            for span in spans {
                if self.give_back_by(span, free).is_ok() {
                    released = released.saturating_add(span.size);
                    flight.lands();
                }
            }
            released
        })
    }
}
