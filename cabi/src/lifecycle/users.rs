//! Who holds the primary contexts of the devices.
//!
//! The driver counts how often each was retained, and does not tell. So the
//! program's own calls are counted here; what was not seen makes the count too
//! small and never too large, so that a release which ends the context is
//! always known as one that may. Ours are not counted: they are given back at
//! once, and not made while the context may be ending.
//!
//! Owns the counts. Its lock is taken alone and spans no driver call.
//! Invariant: while a thread is alone with a device, no other retains its
//! primary context or releases it. Cost: a look at a short list for each call.

use std::cell::Cell;

use core_arena::patience::{Brief, Patience};
use spin::mutex::SpinMutex;

use crate::guard::own_call;
use crate::types::{CUdevice, CudaResult};

struct Users {
    device: CUdevice,
    /// How often the context is retained, at the least.
    retained: usize,
    /// Threads that are retaining it or releasing it, without ending it.
    passing: usize,
    /// Threads that may be ending it.
    ending: usize,
}

static USERS: SpinMutex<Vec<Users>, Brief> = SpinMutex::new(Vec::new());

thread_local! {
    /// How often this thread is passing: the driver may call back from there,
    /// and a thread does not wait for itself.
    static PASSING: Cell<usize> = const { Cell::new(0) };
}

fn with<R>(device: CUdevice, work: impl FnOnce(&mut Users) -> R) -> R {
    let mut all = USERS.lock();
    if let Some(users) = all.iter_mut().find(|users| users.device == device) {
        return work(users);
    }
    let mut users = Users {
        device,
        retained: 0,
        passing: 0,
        ending: 0,
    };
    let result = work(&mut users);
    all.push(users);
    result
}

/// Keeps others from being alone with a device while it lives.
pub(super) struct Passing(CUdevice);

impl Passing {
    fn enter(device: CUdevice) -> Passing {
        // Whoever wants to be alone waits for this thread, if it is passing.
        let inside = PASSING.get() > 0;
        let mut patience = Patience::new();
        while !with(device, |users| {
            (inside || users.ending == 0) && users.pass()
        }) {
            patience.pause();
        }
        Passing::entered(device)
    }

    fn entered(device: CUdevice) -> Passing {
        PASSING.set(PASSING.get() + 1);
        Passing(device)
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
    let _passing = Passing::enter(device);
    let result = call();
    if result == 0 {
        with(device, |users| users.retained += 1);
    }
    result
}

/// Makes calls of ours about the primary context of a device, which leave it as
/// it was.
pub(crate) fn ask<R>(device: CUdevice, calls: impl FnOnce() -> R) -> R {
    let _passing = Passing::enter(device);
    own_call(calls)
}

/// The program is going to release the primary context of a device; none where
/// that may end it.
pub(super) fn leave(device: CUdevice) -> Option<Passing> {
    let stays = with(device, |users| {
        let stays = users.retained > 1 && users.ending == 0;
        if stays {
            users.retained -= 1;
            users.pass();
        }
        stays
    });
    stays.then(|| Passing::entered(device))
}

/// The program has released the primary context of a device, alone with it.
pub(super) fn released(device: CUdevice) {
    with(device, |users| {
        users.retained = users.retained.saturating_sub(1);
    });
}

/// Keeps others from retaining and releasing a primary context while it lives.
pub(super) struct Alone(CUdevice);

impl Alone {
    /// Waits for those who are at it.
    pub(super) fn begin(device: CUdevice) -> Alone {
        with(device, |users| users.ending += 1);
        let mut patience = Patience::new();
        while PASSING.get() == 0 && with(device, |users| users.passing != 0) {
            patience.pause();
        }
        Alone(device)
    }

    /// The context is gone: nobody holds it.
    pub(super) fn forget(&self) {
        with(self.0, |users| users.retained = 0);
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

    /// A device that no other test has.
    const DEVICE: CUdevice = 77;

    #[test]
    fn a_release_counts() {
        assert_eq!(retain(DEVICE, || 0), 0);
        // It may be the last one, also where others were not seen.
        assert!(leave(DEVICE).is_none());
        assert_eq!(retain(DEVICE, || 2), 2);
        assert!(leave(DEVICE).is_none());
        retain(DEVICE, || retain(DEVICE, || 0));
        for stays in [true, true, false] {
            assert_eq!(leave(DEVICE).is_some(), stays);
        }
        retain(DEVICE, || 0);
        let alone = Alone::begin(DEVICE);
        // Another end goes on: who releases meanwhile may be the last.
        assert!(leave(DEVICE).is_none());
        alone.forget();
        drop(alone);
        retain(DEVICE, || 0);
        assert!(leave(DEVICE).is_none());
        released(DEVICE);
        released(DEVICE);
    }

    #[test]
    fn nobody_retains_while_a_thread_is_alone() {
        const DEVICE: CUdevice = 78;
        // Whoever is inside does not wait for itself.
        retain(DEVICE, || {
            drop(Alone::begin(DEVICE));
            ask(DEVICE, || 0)
        });
        let alone = Alone::begin(DEVICE);
        let other = thread::spawn(|| ask(DEVICE, || 7));
        assert_eq!(with(DEVICE, |users| users.passing), 0);
        drop(alone);
        assert_eq!(other.join().unwrap(), 7);
    }
}
