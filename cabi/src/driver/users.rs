//! Counts the users of contexts whose users the driver counts: the devices'
//! primary contexts, and others that are attached to.
//!
//! The driver does not tell its counts, so the program's own calls are counted
//! here. A call that we did not see makes a count too small and never too
//! large, so a release or a detachment that ends the context is always known as
//! one that may. Our own calls are counted where they make the library a user for good;
//! the others are undone at once, and not made while the context may be ending.
//!
//! Owns the counts. Its lock is taken alone and spans no driver call.
//! Invariant: while a thread is alone with a context, no other becomes a user
//! of it or leaves it. Cost: a look at a short list for each call.

use std::cell::Cell;

use spin::mutex::SpinMutex;
use vramalloc_core::patience::{Brief, Patience};

use crate::process::guard::own_call;
use crate::types::{CUdevice, CudaResult};

/// A context whose users are counted.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Counted {
    /// A device's primary context.
    Primary(CUdevice),
    /// The context with this handle.
    Handle(usize),
}

impl Counted {
    /// Users that no call of the program shows: the one that made it.
    fn unseen(self) -> usize {
        match self {
            Counted::Primary(_) => 0,
            Counted::Handle(_) => 1,
        }
    }
}

struct Users {
    of: Counted,
    /// How many users there are at least.
    held: usize,
    /// Threads that join or leave without ending the context.
    passing: usize,
    /// Threads that may be ending it.
    ending: usize,
}

static USERS: SpinMutex<Vec<Users>, Brief> = SpinMutex::new(Vec::new());

thread_local! {
    /// How often this thread is passing: the driver may call back from there,
    /// and a thread must not wait for itself.
    static PASSING: Cell<usize> = const { Cell::new(0) };
}

/// Runs `work` on the users of a context. Keeps no entry for one without any.
fn with<R>(of: Counted, work: impl FnOnce(&mut Users) -> R) -> R {
    let mut all = USERS.lock();
    let at = all.iter().position(|users| users.of == of);
    let mut users = at.map_or(
        Users {
            of,
            held: 0,
            passing: 0,
            ending: 0,
        },
        |at| all.swap_remove(at),
    );
    let result = work(&mut users);
    if users.held + users.passing + users.ending > 0 {
        all.push(users);
    }
    result
}

/// Keeps other threads from being alone with a context, while it lives.
pub(crate) struct Passing(Counted);

impl Passing {
    fn enter(of: Counted) -> Passing {
        // A thread that wants to be alone waits for this one, if it is passing.
        let inside = PASSING.get() > 0;
        let mut patience = Patience::new();
        while !with(of, |users| (inside || users.ending == 0) && users.pass()) {
            patience.pause();
        }
        Passing::entered(of)
    }

    fn entered(of: Counted) -> Passing {
        PASSING.set(PASSING.get() + 1);
        Passing(of)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        PASSING.set(PASSING.get() - 1);
        with(self.0, |users| users.passing -= 1);
    }
}

impl Users {
    fn pass(&mut self) -> bool {
        self.passing += 1;
        true
    }
}

/// Retains the primary context of a device by `call`.
pub(crate) fn retain(device: CUdevice, call: impl FnOnce() -> CudaResult) -> CudaResult {
    join(Counted::Primary(device), call)
}

/// Makes the program one more user of a context, by `call`.
pub(crate) fn join(of: Counted, call: impl FnOnce() -> CudaResult) -> CudaResult {
    let _passing = Passing::enter(of);
    let result = call();
    if result == 0 {
        joined(of);
    }
    result
}

/// Notes a user more, after a call that made one while nobody was alone with the context.
pub(crate) fn joined(of: Counted) {
    with(of, |users| users.held = users.held.max(of.unseen()) + 1);
}

/// Makes calls of ours about a device's primary context, whose count stays.
pub(crate) fn ask<R>(device: CUdevice, calls: impl FnOnce() -> R) -> R {
    let _passing = Passing::enter(Counted::Primary(device));
    own_call(calls)
}

/// The program is going to let go of a context. `None` if that may end it.
pub(crate) fn leave(of: Counted) -> Option<Passing> {
    let stays = with(of, |users| {
        let stays = users.held > 1 && users.ending == 0;
        if stays {
            users.held -= 1;
            users.pass();
        }
        stays
    });
    stays.then(|| Passing::entered(of))
}

/// Notes that the program has let go of a context, alone with it.
pub(crate) fn left(of: Counted) {
    with(of, |users| users.held = users.held.saturating_sub(1));
}

/// Keeps other threads from joining and from leaving a context, while it lives.
pub(crate) struct Alone(Counted);

impl Alone {
    /// Waits for the threads that are joining or leaving.
    pub(crate) fn begin(of: Counted) -> Alone {
        with(of, |users| users.ending += 1);
        let mut patience = Patience::new();
        while PASSING.get() == 0 && with(of, |users| users.passing != 0) {
            patience.pause();
        }
        Alone(of)
    }

    /// Notes that the context is gone: it has no users.
    pub(crate) fn forget(&self) {
        with(self.0, |users| users.held = 0);
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        with(self.0, |users| users.ending -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Of a device that no other test has.
    const DEVICE: CUdevice = 77;
    const PRIMARY: Counted = Counted::Primary(DEVICE);

    #[test]
    fn a_release_counts() {
        assert_eq!(retain(DEVICE, || 0), 0);
        // It may be the last release: other users may not have been seen.
        assert!(leave(PRIMARY).is_none());
        assert_eq!(retain(DEVICE, || 2), 2);
        assert!(leave(PRIMARY).is_none());
        retain(DEVICE, || retain(DEVICE, || 0));
        for stays in [true, true, false] {
            assert_eq!(leave(PRIMARY).is_some(), stays);
        }
        retain(DEVICE, || 0);
        let alone = Alone::begin(PRIMARY);
        // Another end is under way: a release meanwhile may be the last.
        assert!(leave(PRIMARY).is_none());
        alone.forget();
        drop(alone);
        retain(DEVICE, || 0);
        assert!(leave(PRIMARY).is_none());
        left(PRIMARY);
        left(PRIMARY);
    }

    #[test]
    fn a_detachment_counts() {
        const CONTEXT: Counted = Counted::Handle(77);
        assert!(leave(CONTEXT).is_none());
        for _ in 0..3 {
            // Its maker is a user too.
            assert_eq!(join(CONTEXT, || 0), 0);
            assert!(leave(CONTEXT).is_some());
            assert!(leave(CONTEXT).is_none());
        }
        Alone::begin(CONTEXT).forget();
        assert!(USERS.lock().iter().all(|users| users.of != CONTEXT));
    }

    #[test]
    fn nobody_retains_while_a_thread_is_alone() {
        const DEVICE: CUdevice = 78;
        const PRIMARY: Counted = Counted::Primary(DEVICE);
        // A thread inside does not wait for itself.
        retain(DEVICE, || {
            drop(Alone::begin(PRIMARY));
            ask(DEVICE, || 0)
        });
        let alone = Alone::begin(PRIMARY);
        let other = thread::spawn(|| ask(DEVICE, || 7));
        assert_eq!(with(PRIMARY, |users| users.passing), 0);
        drop(alone);
        assert_eq!(other.join().unwrap(), 7);
    }
}
