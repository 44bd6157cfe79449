//! Holds back the cancellation (`pthread_cancel`) of threads in our code.
//!
//! A cancelled thread is unwound at the next call that can wait. Our frames are
//! not prepared for that, and the process would be aborted. So cancellation is
//! disabled wherever our code can reach such a call (the driver's functions,
//! files, a sleep, a line on standard error), and the thread is cancelled at
//! the next one outside of it. A hit reaches none. Cost: two calls of libc,
//! some 10 ns each.

use std::ffi::c_int;
use std::marker::PhantomData;

const ENABLED: c_int = 0;
const DISABLED: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Disables the cancellation of the calling thread while it lives.
pub(crate) struct Held {
    before: c_int,
    /// Keeps it on the thread whose state it restores.
    _stays: PhantomData<*const ()>,
}

impl Held {
    pub(crate) fn back() -> Held {
        let mut before = DISABLED;
        // SAFETY: writes the old state to a local.
        unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
        Held {
            before,
            _stays: PhantomData,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.before == ENABLED {
            let mut held = DISABLED;
            // SAFETY: writes the old state to a local. It cancels nothing
            // itself, unless the program asked for asynchronous cancellation.
            unsafe { pthread_setcancelstate(ENABLED, &raw mut held) };
        }
    }
}
