//! Atomics and locks, from `std` or, under `--cfg loom`, from the model
//! checker. All of this crate takes them from here.
//!
//! A [`Lock`] is a spin lock that yields the processor now and then
//! ([`crate::patience`]): critical sections are short, and none spans a driver
//! call, an environment read, a log or I/O. A `Mutex` is only for a thread that
//! has to sleep.

#[cfg(not(loom))]
mod real {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic};

    /// A lock that is held.
    pub(crate) type LockGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T, crate::patience::Brief>;

    /// A spin lock.
    pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, crate::patience::Brief>;
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

    /// A lock that is held.
    pub(crate) type LockGuard<'a, T> = MutexGuard<'a, T>;

    /// A [`Lock`] over the checker's mutex.
    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        #[allow(clippy::unwrap_used, reason = "a poisoned lock ends the model")]
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub(crate) fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// The part of `std::sync::OnceLock` that is used here. The checker has
    /// none, so initialisation itself is not modelled; we rely on `std` for it.
    pub(crate) type OnceLock<T> = std::sync::OnceLock<T>;
}

#[cfg(loom)]
pub(crate) use modelled::{Condvar, Lock, LockGuard, Mutex, MutexGuard, OnceLock, atomic};
#[cfg(not(loom))]
pub(crate) use real::{Condvar, Lock, LockGuard, Mutex, MutexGuard, OnceLock, atomic};
