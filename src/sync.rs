//! Atomics and locks, from `std` or, under `--cfg loom`, from the model
//! checker. All of `src/` takes them from here.
//!
//! Locks are spin locks that yield now and then: their sections are short, and
//! none spans a driver call, an environment read, a log or I/O. A `Mutex` is
//! only for a thread that has to sleep.

#[cfg(not(loom))]
mod real {
    use std::cell::Cell;

    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic};
    pub(crate) use std::thread::yield_now;

    /// A short section that one thread at a time is in.
    pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, Patience>;

    /// What a thread does that finds a lock taken. A section takes some 100 ns,
    /// so it is worth looking again; one whose thread was put aside takes as
    /// long as it likes, so the processor is offered each so many looks.
    pub(crate) struct Patience;

    /// Looks between two offers. With a pause of some 40 ns each, a few sections.
    const LOOKS: u32 = 16;

    impl spin::RelaxStrategy for Patience {
        #[inline(always)]
        fn relax() {
            thread_local! {
                static LOOKED: Cell<u32> = const { Cell::new(0) };
            }
            let looked = LOOKED.get().wrapping_add(1);
            LOOKED.set(looked);
            if looked.is_multiple_of(LOOKS) {
                yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
    pub(crate) use loom::thread::yield_now;

    /// The same interface over the checker's mutex.
    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        #[allow(clippy::unwrap_used, reason = "a poisoned lock ends the model")]
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// The part of `std::sync::OnceLock` that is used here. The checker has
    /// none, so initialisation itself is not modelled: `std` answers for it.
    pub(crate) type OnceLock<T> = std::sync::OnceLock<T>;
}

#[cfg(loom)]
pub(crate) use modelled::{Condvar, Lock, Mutex, MutexGuard, OnceLock, atomic, yield_now};
#[cfg(not(loom))]
pub(crate) use real::{Condvar, Lock, Mutex, MutexGuard, OnceLock, atomic, yield_now};
