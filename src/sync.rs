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

    /// A spin lock.
    pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, crate::patience::Brief>;

    pub(crate) use vramalloc_lock::prepare as prepare_barriers;

    /// A spin lock that one thread enters without an exchange.
    pub(crate) type BiasedLock<T> = vramalloc_lock::BiasedLock<T, crate::patience::Brief>;

    /// What that thread enters it with.
    pub(crate) type Key<T> = vramalloc_lock::Key<T, crate::patience::Brief>;

    /// Such a lock that it has entered.
    pub(crate) type Entered<T> = vramalloc_lock::Entered<'static, T, crate::patience::Brief>;

    /// Such a lock that is held.
    pub(crate) type BiasedGuard<T> = vramalloc_lock::BiasedGuard<'static, T>;
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

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

    /// A lock without a bias: that is checked where it is made.
    pub(crate) struct BiasedLock<T>(Lock<T>, atomic::AtomicBool);

    pub(crate) type BiasedGuard<T> = MutexGuard<'static, T>;
    pub(crate) type Entered<T> = MutexGuard<'static, T>;

    impl<T> BiasedLock<T> {
        pub(crate) fn new(value: T) -> BiasedLock<T> {
            BiasedLock(Lock::new(value), atomic::AtomicBool::new(false))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock()
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock()
        }

        pub(crate) fn lock_all<'a>(locks: impl Iterator<Item = &'a Self>) -> Vec<MutexGuard<'a, T>>
        where
            T: 'a,
        {
            locks.map(BiasedLock::lock).collect()
        }

        pub(crate) fn invite(&self, is_inviting: bool) {
            self.1.store(is_inviting, atomic::Ordering::Relaxed);
        }

        pub(crate) fn is_inviting(&self) -> bool {
            self.1.load(atomic::Ordering::Relaxed)
        }

        pub(crate) fn unbias(&self, _guard: &MutexGuard<'_, T>) {}

        pub(crate) fn is_biased_elsewhere(&self) -> bool {
            false
        }

        pub(crate) fn may_be_biased_here(&self) -> bool {
            true
        }
    }

    pub(crate) fn prepare_barriers(_may_make: fn() -> bool) {}

    pub(crate) struct Key<T: 'static> {
        lock: &'static BiasedLock<T>,
        number: u64,
    }

    impl<T> Copy for Key<T> {}

    impl<T> Clone for Key<T> {
        fn clone(&self) -> Self {
            *self
        }
    }

    impl<T> Key<T> {
        pub(crate) fn new(lock: &'static BiasedLock<T>, tag: u8) -> Key<T> {
            static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
            let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let number = next << u8::BITS | u64::from(tag);
            Key { lock, number }
        }

        pub(crate) fn number(self) -> u64 {
            self.number
        }

        pub(crate) fn tag_of(number: u64) -> u8 {
            number.to_le_bytes()[0]
        }

        pub(crate) fn lock(self) -> &'static BiasedLock<T> {
            self.lock
        }

        pub(crate) fn enter(self) -> Option<BiasedGuard<T>> {
            None
        }

        pub(crate) fn stay(self, guard: BiasedGuard<T>) -> BiasedGuard<T> {
            guard
        }
    }

    /// The part of `std::sync::OnceLock` that is used here. The checker has
    /// none, so initialisation itself is not modelled; we rely on `std` for it.
    pub(crate) type OnceLock<T> = std::sync::OnceLock<T>;
}

#[cfg(loom)]
pub(crate) use modelled::{
    BiasedGuard, BiasedLock, Condvar, Entered, Key, Lock, Mutex, MutexGuard, OnceLock, atomic,
    prepare_barriers,
};
#[cfg(not(loom))]
pub(crate) use real::{
    BiasedGuard, BiasedLock, Condvar, Entered, Key, Lock, Mutex, MutexGuard, OnceLock, atomic,
    prepare_barriers,
};
