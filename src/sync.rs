//! Atomics and locks, from `std` or, under `--cfg loom`, from the model
//! checker. All of `src/` takes them from here.
//!
//! Locks are spin locks that yield: their sections are short, and none spans
//! a driver call, an environment read, a log or I/O.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

#[cfg(not(loom))]
pub(crate) use spinning::Lock;

#[cfg(not(loom))]
mod spinning {
    /// A short section that one thread at a time is in.
    pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, spin::Yield>;
}
