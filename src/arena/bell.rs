//! Waiting for other threads' frees.
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
pub(super) struct Bell {
    /// How long a thread listens before it gives up.
    patience: Duration,
    listeners: AtomicUsize,
    rung: Mutex<u64>,
    heard: Condvar,
}

/// A thread that listens.
pub(super) struct Listener<'a> {
    bell: &'a Bell,
    rung: u64,
    /// None: for ever.
    until: Option<Instant>,
}

impl Bell {
    /// None where nobody is to wait at all.
    pub(super) fn new(patience: Duration) -> Option<Bell> {
        (!patience.is_zero()).then(|| Bell {
            patience,
            listeners: AtomicUsize::new(0),
            rung: Mutex::new(0),
            heard: Condvar::new(),
        })
    }

    /// A block was freed: it is in the books.
    pub(super) fn ring(&self) {
        // Relaxed: both sides take the lock of the books in between. Whoever
        // freed before a listener looked there is found by it; whoever freed
        // after that has seen it listen.
        if self.listeners.load(Ordering::Relaxed) > 0 {
            *self.rung() += 1;
            self.heard.notify_all();
        }
    }

    /// Begins to listen. The caller looks for memory before it waits.
    pub(super) fn listen(&self) -> Listener<'_> {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        Listener {
            bell: self,
            rung: *self.rung(),
            until: Instant::now().checked_add(self.patience),
        }
    }

    fn rung(&self) -> MutexGuard<'_, u64> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener<'_> {
    /// Sleeps until something was freed since this was last asked; false where
    /// nothing was until patience ended.
    pub(super) fn wait(&mut self) -> bool {
        let mut rung = self.bell.rung();
        while *rung == self.rung {
            let left = match self.until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return false;
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
            let shared = Arc::new((
                Bell::new(Duration::from_secs(1_000_000)).unwrap(),
                Lock::new(false),
            ));
            let freeing = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    *shared.1.lock() = true;
                    shared.0.ring();
                })
            };
            let mut listener = shared.0.listen();
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
        assert!(Bell::new(Duration::ZERO).is_none());
        let bell = Bell::new(Duration::from_millis(20)).unwrap();
        // Nobody listens.
        bell.ring();
        let start = Instant::now();
        assert!(!bell.listen().wait());
        assert!(start.elapsed() >= Duration::from_millis(20));

        let bell = Bell::new(Duration::from_secs(600)).unwrap();
        let mut listener = bell.listen();
        thread::scope(|scope| {
            scope.spawn(|| bell.ring());
            assert!(listener.wait());
        });
        // Heard before it was waited for.
        bell.ring();
        assert!(listener.wait());
    }
}
