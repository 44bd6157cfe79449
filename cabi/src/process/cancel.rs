//! Threads that are cancelled (`pthread_cancel`) while they are in our code.
//!
//! A cancelled thread is unwound at the next call that can wait, and its frames
//! are not prepared for that where they are ours: the process would be aborted.
//! So wherever such a call can be reached (the driver's functions, files, a
//! sleep, a line on standard error) cancellation is held back; the thread is
//! cancelled at the next such call of its own. A hit reaches none.
//!
//! Owns nothing. Cost: two calls into libc, some 10 ns each.

use std::ffi::c_int;
use std::marker::PhantomData;

const ENABLED: c_int = 0;
const DISABLED: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Holds the cancellation of the calling thread back while it lives.
pub(crate) struct Held {
    before: c_int,
    /// It is the thread's own.
    _stays: PhantomData<*const ()>,
}

impl Held {
    pub(crate) fn back() -> Held {
        let mut before = DISABLED;
        // SAFETY: a place for the answer.
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
            // SAFETY: a place for the answer. By itself it cancels nothing,
            // unless the program asked for cancellation at any instruction.
            unsafe { pthread_setcancelstate(ENABLED, &raw mut held) };
        }
    }
}
