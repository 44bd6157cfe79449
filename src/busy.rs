//! What one thread does at a time; the others go on without.
//!
//! Invariant: nobody waits. Of what is done for all ([`Shared`]), the last
//! doing begins after the last asking. Cost: two atomics; a fence more for
//! [`Shared`].

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Something that one thread does at a time.
pub struct Busy(AtomicBool);

/// Until it is dropped, no other thread does it.
pub struct Turn<'a>(&'a Busy);

impl Busy {
    /// Nobody does it.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> Busy {
        Busy(AtomicBool::new(false))
    }

    /// The same for the model checker.
    #[must_use]
    #[cfg(loom)]
    pub fn new() -> Busy {
        Busy(AtomicBool::new(false))
    }

    /// The turn, if no other thread has it.
    pub fn turn(&self) -> Option<Turn<'_>> {
        // Acquire: pairs with the Release of the thread whose turn it was. Only
        // a thread that gets the turn stores.
        let taken = (self.0).compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Turn(self))
    }
}

impl Default for Busy {
    fn default() -> Busy {
        Busy::new()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `turn`.
        self.0.0.store(false, Ordering::Release);
    }
}

/// Something that one thread does for all that ask for it meanwhile.
#[derive(Default)]
pub struct Shared {
    doing: Busy,
    /// Somebody asks.
    asked: AtomicBool,
}

impl Shared {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Shared {
        Shared::default()
    }

    /// Does it, or leaves it to the thread that is doing it, which does it
    /// again. A thread goes on as long as others come while it does it, but not
    /// for ever: then the next one to come does it.
    pub fn run(&self, mut work: impl FnMut()) {
        const ROUNDS: usize = if cfg!(loom) { 3 } else { 64 };
        // Release: pairs with the Acquire below, so that what this thread has
        // done before is seen by the work. Acquire: this overwrites what
        // another one asked, who is then seen through this one.
        self.asked.swap(true, Ordering::AcqRel);
        for _ in 0..ROUNDS {
            // SeqCst: pairs with itself. A thread that finds another's turn has
            // asked before, and that one sees it after its turn.
            fence(Ordering::SeqCst);
            if !self.asked.load(Ordering::Relaxed) {
                return;
            }
            let Some(_turn) = self.doing.turn() else {
                return;
            };
            // Acquire: pairs with the Release above.
            if self.asked.swap(false, Ordering::Acquire) {
                work();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_get_the_turn_leaves_it_to_the_other() {
        let busy = Busy::new();
        let turn = busy.turn();
        assert!(turn.is_some());
        assert!(busy.turn().is_none());
        assert!(busy.turn().is_none(), "the first one still has it");
        drop(turn);
        assert!(busy.turn().is_some());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::atomic::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    /// What was asked for last is done, whatever the other thread does.
    #[test]
    fn loom_the_last_asking_is_not_lost() {
        loom::model(|| {
            let state = Arc::new((Shared::new(), AtomicU64::new(0), AtomicU64::new(0)));
            let ask = |state: &(Shared, AtomicU64, AtomicU64)| {
                let (shared, current, told) = state;
                current.fetch_add(1, Ordering::Relaxed);
                shared.run(|| told.store(current.load(Ordering::Relaxed), Ordering::Relaxed));
            };
            let other = {
                let state = Arc::clone(&state);
                thread::spawn(move || ask(&state))
            };
            ask(&state);
            other.join().unwrap();
            assert_eq!(state.2.load(Ordering::Relaxed), 2);
        });
    }
}
