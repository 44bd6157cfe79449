//! A gate that many threads may pass at a time, and that can be closed.
//!
//! `close` waits for the threads that are passing; after it no thread passes
//! until the gate is opened again. A thread that finds the gate closed does not
//! wait but turns back. A gate stands between making fences and the stream
//! captures that a fence would invalidate.
//!
//! Invariant: between a return from `close` and its `open` no thread is inside
//! `pass`. Cost: two atomic operations and a fence to pass.

use std::time::Duration;

use crate::patience::{Patience, wait_within};
use crate::sync::atomic::{AtomicUsize, Ordering, fence};

/// See the [module](self).
pub struct Gate {
    /// How many times the gate was closed and not opened again.
    closed: AtomicUsize,
    passing: AtomicUsize,
}

impl Gate {
    /// An open gate.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Gate {
        Gate {
            closed: AtomicUsize::new(0),
            passing: AtomicUsize::new(0),
        }
    }

    /// An open gate. Not `const`: the model checker's atomics are not.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Gate {
        Gate {
            closed: AtomicUsize::new(0),
            passing: AtomicUsize::new(0),
        }
    }

    /// Whether the gate is closed. For the thread that closed it true is
    /// certain.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `open`.
        self.closed.load(Ordering::Acquire) != 0
    }

    /// Closes the gate once more and waits until no thread passes.
    pub fn close(&self) {
        self.shut();
        let mut patience = Patience::new();
        while self.is_passed() {
            patience.pause();
        }
    }

    /// Closes the gate once more and waits for `most` at the longest. Returns
    /// whether no thread passes.
    pub fn close_within(&self, most: Duration) -> bool {
        self.shut();
        wait_within(most, || !self.is_passed())
    }

    fn shut(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `pass`: of a closing and a passing thread
        // that come together, at least one sees the other's counter.
        fence(Ordering::SeqCst);
    }

    fn is_passed(&self) -> bool {
        // Acquire: pairs with the Release in `pass`.
        self.passing.load(Ordering::Acquire) != 0
    }

    /// Undoes `times` closings. The gate is open when all are undone.
    pub fn open(&self, times: usize) {
        // Release: pairs with the Acquire in `is_closed`.
        self.closed.fetch_sub(times, Ordering::Release);
    }

    /// Leaves it closed so many times, and forgets who passed: in the copy of a
    /// process, which has none of these threads.
    pub fn reset(&self, closed: usize) {
        self.closed.store(closed, Ordering::Relaxed);
        self.passing.store(0, Ordering::Relaxed);
    }

    /// Does `work` while no thread can close the gate. Returns `None`, and does
    /// nothing, if the gate is closed.
    pub fn pass<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        struct Passing<'a>(&'a AtomicUsize);
        impl Drop for Passing<'_> {
            fn drop(&mut self) {
                // Release: pairs with the Acquire in `close`; the work is done.
                self.0.fetch_sub(1, Ordering::Release);
            }
        }
        self.passing.fetch_add(1, Ordering::Relaxed);
        let _passing = Passing(&self.passing);
        // Pairs with the fence in `close`.
        fence(Ordering::SeqCst);
        (!self.is_closed()).then(work)
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// No thread passes while the gate is closed: the flag is never found
    /// taken.
    #[test]
    fn loom_a_closed_gate_keeps_everybody_out() {
        loom::model(|| {
            let shared = Arc::new((Gate::new(), AtomicBool::new(false)));
            let alone = |busy: &AtomicBool| {
                assert!(!busy.swap(true, Ordering::Relaxed));
                busy.store(false, Ordering::Relaxed);
            };
            let passer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.0.pass(|| alone(&shared.1)))
            };
            shared.0.close();
            alone(&shared.1);
            shared.0.open(1);
            passer.join().unwrap();
            assert!(shared.0.pass(|| ()).is_some());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_open_when_every_closing_was_taken_back() {
        let gate = Gate::new();
        assert_eq!(gate.pass(|| 7), Some(7));
        gate.close();
        gate.close();
        assert_eq!(gate.pass(|| 7), None);
        gate.open(1);
        assert!(gate.is_closed());
        gate.open(1);
        assert_eq!(gate.pass(|| gate.pass(|| 7)), Some(Some(7)));
        gate.close();
        gate.close();
        gate.reset(1);
        assert_eq!(gate.pass(|| 7), None);
        gate.open(1);
        assert_eq!(gate.pass(|| 7), Some(7));
    }

    #[test]
    fn one_who_does_not_come_through_is_not_waited_for_for_ever() {
        let gate = Gate::new();
        let closed = gate.pass(|| gate.close_within(Duration::from_millis(1)));
        assert_eq!(closed, Some(false));
        assert!(gate.is_closed());
        gate.open(1);
        assert!(gate.close_within(Duration::ZERO));
    }
}
