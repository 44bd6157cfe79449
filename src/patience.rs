//! How a thread waits for another thread that will soon be done.
//!
//! It yields the processor first. But with real-time priorities (`SCHED_FIFO`)
//! a yield does not let threads of a lower priority run: a thread that only
//! yields could keep the thread that it waits for from ever running, if both
//! share a processor. So after some yields it sleeps between two looks.
//!
//! Invariant: no wait keeps another thread from running for ever, and no wait
//! is a cancellation point. Cost: the end of a wait is seen up to some 100 µs
//! late.

#[cfg(not(loom))]
pub use real::Brief;
pub use waits::{Patience, wait_within};

#[cfg(not(loom))]
mod real {
    use std::cell::Cell;
    use std::thread::yield_now;

    use super::waits::nap;

    /// How a thread waits for a spin lock. A critical section takes some 100
    /// ns, so looking again is worth it; a section whose thread was preempted
    /// takes much longer, so the processor is yielded every [`LOOKS`] looks.
    pub struct Brief;

    /// Looks between two yields. With a pause of some 40 ns each, a few
    /// sections.
    const LOOKS: u32 = 16;

    /// Looks between two sleeps: some 0.5 ms of looking. They are counted over
    /// all waits of a thread, so a thread whose waits are short seldom sleeps.
    const MANY: u32 = 512 * LOOKS;

    impl spin::RelaxStrategy for Brief {
        #[inline(always)]
        fn relax() {
            thread_local! {
                static LOOKED: Cell<u32> = const { Cell::new(0) };
            }
            let looked = LOOKED.get().wrapping_add(1);
            LOOKED.set(looked);
            if looked.is_multiple_of(MANY) {
                nap();
            } else if looked.is_multiple_of(LOOKS) {
                yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

mod waits {
    use std::time::{Duration, Instant};

    #[cfg(loom)]
    use loom::thread::yield_now;
    #[cfg(not(loom))]
    use std::thread::yield_now;

    /// Yields before the thread sleeps: most waits end sooner than a sleeping
    /// thread would wake up.
    const AT_ONCE: u32 = 64;

    /// A wait for something longer than a lock's section, such as another
    /// thread's driver call.
    #[derive(Default)]
    pub struct Patience {
        offered: u32,
    }

    impl Patience {
        /// The beginning of a wait.
        #[must_use]
        pub const fn new() -> Patience {
            Patience { offered: 0 }
        }

        /// Pauses between two looks.
        pub fn pause(&mut self) {
            if self.offered < AT_ONCE {
                self.offered += 1;
                yield_now();
            } else {
                nap();
            }
        }
    }

    /// Waits until `done` returns true, for `most` at the longest. Returns its
    /// last answer.
    pub fn wait_within(most: Duration, mut done: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        let mut patience = Patience::new();
        loop {
            if done() {
                return true;
            }
            if start.elapsed() >= most {
                return false;
            }
            patience.pause();
        }
    }

    /// Sleeps for about as long as it takes to wake up. It waits on a futex,
    /// which is no cancellation point; `std::thread::sleep` is one.
    #[cfg(not(loom))]
    pub(super) fn nap() {
        use std::sync::{Condvar, Mutex, PoisonError};
        use std::time::Duration;

        const NAP: Duration = Duration::from_micros(50);
        let (own, nobody) = (Mutex::new(()), Condvar::new());
        let locked = own.lock().unwrap_or_else(PoisonError::into_inner);
        let _woken = nobody.wait_timeout(locked, NAP);
    }

    /// The model checker has no time.
    #[cfg(loom)]
    fn nap() {
        yield_now();
    }
}
