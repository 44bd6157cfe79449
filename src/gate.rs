//! A gate that many may pass at a time, and that can be closed.
//!
//! Whoever closes it waits for those who are passing and then knows that
//! nobody passes until it is opened again; whoever finds it closed does not
//! wait but turns back. The doors keep one between the fences that they make
//! and the stream captures that a fence would invalidate.
//!
//! Owns two counters. Invariant: between a return from `close` and its `open`
//! nobody is inside `pass`. Cost: two atomic operations and a fence to pass.

use std::time::Duration;

use crate::patience::{Patience, wait_within};
use crate::sync::atomic::{AtomicUsize, Ordering, fence};

/// See the [module](self).
pub struct Gate {
    /// How many times it was closed and not opened again.
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

    /// An open gate; the model checker's atomics are not made by constants.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Gate {
        Gate {
            closed: AtomicUsize::new(0),
            passing: AtomicUsize::new(0),
        }
    }

    /// Whether it is closed. True is certain for the thread that closed it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `open`.
        self.closed.load(Ordering::Acquire) != 0
    }

    /// Closes it once more and waits until nobody passes.
    pub fn close(&self) {
        self.shut();
        let mut patience = Patience::new();
        while self.is_passed() {
            patience.pause();
        }
    }

    /// The same, but waits for no longer than `most`. Whether nobody passes.
    pub fn close_within(&self, most: Duration) -> bool {
        self.shut();
        wait_within(most, || !self.is_passed())
    }

    fn shut(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `pass`: of two that come together at least
        // one sees the other's counter.
        fence(Ordering::SeqCst);
    }

    fn is_passed(&self) -> bool {
        // Acquire: pairs with the Release in `pass`.
        self.passing.load(Ordering::Acquire) != 0
    }

    /// Takes back `times` closings; it is open when all are.
    pub fn open(&self, times: usize) {
        // Release: pairs with the Acquire in `is_closed`.
        self.closed.fetch_sub(times, Ordering::Release);
    }

    /// Does `work` while nobody can close the gate; does nothing where it is
    /// closed.
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

    /// Nobody passes while the gate is closed: the flag is never found taken.
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
