//! How a thread waits for another one that will soon be done.
//!
//! It offers the processor first. But where threads have priorities of their
//! own (`SCHED_FIFO`) the offer goes to none below: a thread that only offers
//! keeps the one that it waits for from ever running, where they share a
//! processor. So after some offers it sleeps between two looks.
//!
//! Owns nothing. Invariant: no wait keeps another thread from running for ever,
//! and none is a point at which a thread can be cancelled. Cost: what is waited
//! for is seen some 100 µs late at the most.

#[cfg(not(loom))]
pub use real::Brief;
pub use waits::{Patience, wait_within};

#[cfg(not(loom))]
mod real {
    use std::cell::Cell;
    use std::thread::yield_now;

    use super::waits::nap;

    /// What a thread does that finds a spin lock taken. A section takes some
    /// 100 ns, so it is worth looking again; one whose thread was put aside
    /// takes as long as it likes, so the processor is offered each so many
    /// looks.
    pub struct Brief;

    /// Looks between two offers. With a pause of some 40 ns each, a few sections.
    const LOOKS: u32 = 16;

    /// Looks between two sleeps, which a thread that never has to wait for long
    /// comes to seldom: as many take some 0.5 ms.
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

    /// So often the processor is offered before the thread sleeps: most of what
    /// is waited for ends sooner than a thread that sleeps wakes up.
    const AT_ONCE: u32 = 64;

    /// A wait for what takes longer than a lock's section, such as another
    /// thread's call of the driver.
    #[derive(Default)]
    pub struct Patience {
        offered: u32,
    }

    impl Patience {
        /// It begins.
        #[must_use]
        pub const fn new() -> Patience {
            Patience { offered: 0 }
        }

        /// Comes between two looks.
        pub fn pause(&mut self) {
            if self.offered < AT_ONCE {
                self.offered += 1;
                yield_now();
            } else {
                nap();
            }
        }
    }

    /// Waits until `done` says yes, for no longer than `most`; its last answer.
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

    /// Sleeps for about as long as it takes to wake up. By the system's wait for
    /// a lock, at which no thread is cancelled; `std::thread::sleep` is a point of
    /// cancellation.
    #[cfg(not(loom))]
    pub(super) fn nap() {
        use std::sync::{Condvar, Mutex, PoisonError};
        use std::time::Duration;

        const NAP: Duration = Duration::from_micros(50);
        let (own, nobody) = (Mutex::new(()), Condvar::new());
        let locked = own.lock().unwrap_or_else(PoisonError::into_inner);
        let _woken = nobody.wait_timeout(locked, NAP);
    }

    /// The checker knows no time.
    #[cfg(loom)]
    fn nap() {
        yield_now();
    }
}
