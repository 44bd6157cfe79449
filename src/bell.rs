//! Waiting for other threads' frees, in all arenas of a device.
//!
//! Owns the number of threads that listen and the number of frees they heard.
//! Invariant: a free that comes after a thread began to listen wakes it, or is
//! found by what it tries before it sleeps. Cost: one load per free while
//! nobody listens; nobody holds a lock while asleep.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// See the module.
pub(crate) struct Bell {
    listeners: AtomicUsize,
    rung: Mutex<u64>,
    heard: Condvar,
}

/// A thread that listens.
pub(crate) struct Listener<'a> {
    bell: &'a Bell,
    rung: u64,
    /// None: for ever.
    until: Option<Instant>,
}

impl Bell {
    pub(crate) fn new() -> Bell {
        Bell {
            listeners: AtomicUsize::new(0),
            rung: Mutex::new(0),
            heard: Condvar::new(),
        }
    }

    /// A block was freed: it is in the books.
    pub(crate) fn ring(&self) {
        // Relaxed: both sides take the lock of the same books in between.
        // Whoever freed before a listener looked there is found by it; whoever
        // freed after that has seen it listen.
        if self.listeners.load(Ordering::Relaxed) > 0 {
            *self.rung() += 1;
            self.heard.notify_all();
        }
    }

    /// Begins to listen, for so long at the most. The caller looks for memory in
    /// all arenas of the device before it waits.
    pub(crate) fn listen(&self, patience: Duration) -> Listener<'_> {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        Listener {
            bell: self,
            rung: *self.rung(),
            until: Instant::now().checked_add(patience),
        }
    }

    fn rung(&self) -> MutexGuard<'_, u64> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener<'_> {
    /// Sleeps until something was freed since this was last asked. False where
    /// patience has ended, whatever rang: others' frees may come faster than the
    /// caller looks.
    pub(crate) fn wait(&mut self) -> bool {
        let mut rung = self.bell.rung();
        loop {
            let left = match self.until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return false;
            }
            if *rung != self.rung {
                break;
            }
            let heard = self.bell.heard.wait_timeout(rung, left);
            rung = heard.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.rung = *rung;
        true
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.bell.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::Lock;
    use loom::sync::Arc;
    use loom::thread;

    /// Who waits for a block that another thread frees gets it: the checker
    /// finds a thread that sleeps for ever, since time does not pass in it.
    #[test]
    fn loom_no_free_goes_unheard() {
        loom::model(|| {
            let shared = Arc::new((Bell::new(), Lock::new(false)));
            let freeing = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    *shared.1.lock() = true;
                    shared.0.ring();
                })
            };
            let mut listener = shared.0.listen(Duration::from_secs(1_000_000));
            while !*shared.1.lock() {
                assert!(listener.wait());
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
        let bell = Bell::new();
        // Nobody listens.
        bell.ring();
        let start = Instant::now();
        assert!(!bell.listen(Duration::from_millis(20)).wait());
        assert!(start.elapsed() >= Duration::from_millis(20));

        let mut listener = bell.listen(Duration::from_secs(600));
        thread::scope(|scope| {
            scope.spawn(|| bell.ring());
            assert!(listener.wait());
        });
        // Heard before it was waited for.
        bell.ring();
        assert!(listener.wait());

        // Who is always rung for does not wait for ever.
        let mut listener = bell.listen(Duration::from_millis(20));
        let start = Instant::now();
        bell.ring();
        while listener.wait() {
            assert!(start.elapsed() < Duration::from_secs(9));
            bell.ring();
        }
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
