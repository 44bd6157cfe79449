//! Waiting for other threads' frees, in all arenas of a device.
//!
//! Invariant: a free that comes after a thread began to wait wakes it, or is
//! found by what the thread tries before it sleeps. Cost: one load per free
//! while no thread waits; a sleeping thread holds no lock.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The threads that wait for a free.
pub(crate) struct Waiters {
    waiting: AtomicUsize,
    freed: Mutex<u64>,
    woken: Condvar,
}

/// A thread that waits.
pub(crate) struct Waiter<'a> {
    waiters: &'a Waiters,
    freed: u64,
    /// `None`: wait without an end.
    until: Option<Instant>,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters {
            waiting: AtomicUsize::new(0),
            freed: Mutex::new(0),
            woken: Condvar::new(),
        }
    }

    /// Wakes the waiting threads: a freed block is in the books.
    pub(crate) fn notify(&self) {
        // Relaxed: both sides take the lock of the same books in between. A
        // waiter that looks at the books after the free finds the block; a free
        // after that look sees the waiter counted.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.freed() += 1;
            self.woken.notify_all();
        }
    }

    /// Begins to wait, for `patience` at the longest. The caller looks for
    /// memory in all arenas of the device before it sleeps.
    pub(crate) fn begin(&self, patience: Duration) -> Waiter<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiter {
            waiters: self,
            freed: *self.freed(),
            until: Instant::now().checked_add(patience),
        }
    }

    fn freed(&self) -> MutexGuard<'_, u64> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    /// Sleeps until a block was freed since `begin` or the last call. Returns
    /// false when the time is over, even if blocks were freed: other threads'
    /// frees may come faster than the caller looks.
    pub(crate) fn wait(&mut self) -> bool {
        let mut freed = self.waiters.freed();
        loop {
            let left = match self.until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return false;
            }
            if *freed != self.freed {
                break;
            }
            let woken = self.waiters.woken.wait_timeout(freed, left);
            freed = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.freed = *freed;
        true
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.waiters.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::Lock;
    use loom::sync::Arc;
    use loom::thread;

    /// A thread that waits gets the block that another thread frees. Time does
    /// not pass in the checker, so it would find a thread that sleeps for ever.
    #[test]
    fn loom_no_free_goes_unheard() {
        loom::model(|| {
            let shared = Arc::new((Waiters::new(), Lock::new(false)));
            let freeing = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    *shared.1.lock() = true;
                    shared.0.notify();
                })
            };
            let mut waiter = shared.0.begin(Duration::from_secs(1_000_000));
            while !*shared.1.lock() {
                assert!(waiter.wait());
            }
            freeing.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_ring_wakes_who_listens_and_patience_ends() {
        let waiters = Waiters::new();
        // No thread waits.
        waiters.notify();
        let start = Instant::now();
        assert!(!waiters.begin(Duration::from_millis(20)).wait());
        assert!(start.elapsed() >= Duration::from_millis(20));

        let mut waiter = waiters.begin(Duration::from_secs(600));
        thread::scope(|scope| {
            scope.spawn(|| waiters.notify());
            assert!(waiter.wait());
        });
        // The free came before the wait.
        waiters.notify();
        assert!(waiter.wait());

        // A thread for which blocks are freed all the time does not wait for
        // ever.
        let mut waiter = waiters.begin(Duration::from_millis(20));
        let start = Instant::now();
        waiters.notify();
        while waiter.wait() {
            assert!(start.elapsed() < Duration::from_secs(9));
            waiters.notify();
        }
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
