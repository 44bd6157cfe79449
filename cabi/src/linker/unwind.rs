//! Who has called us: the addresses on the stack of this thread.
//!
//! Owns nothing. The walk is that of the unwinder which comes with this
//! library's own code: nothing is loaded on its account. It follows the tables
//! that compilers leave for exceptions, and ends where code has none. Cost: up
//! to a microsecond for each place.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::objects;

/// "Go on", and any other: "enough", as the unwinder has them.
const GO_ON: c_int = 0;
const ENOUGH: c_int = 5;

/// What the unwinder knows of a frame.
#[repr(C)]
struct Frame {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: unsafe extern "C" fn(*mut Frame, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut Frame) -> usize;
}

/// Shows the addresses to which calls return, from the one in whatever called
/// this library on outwards, as long as `more` answers true. It must not
/// panic.
pub(crate) fn callers<F: FnMut(usize) -> bool>(more: F) {
    struct Walk<F> {
        own: Range<usize>,
        outside: bool,
        more: F,
    }
    unsafe extern "C" fn visit<F: FnMut(usize) -> bool>(
        frame: *mut Frame,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the frame is the unwinder's, and the data our Walk, which
        // only this callback touches meanwhile.
        let (address, walk) = unsafe { (_Unwind_GetIP(frame), &mut *data.cast::<Walk<F>>()) };
        walk.outside |= !walk.own.contains(&address);
        if !walk.outside || (address != 0 && (walk.more)(address)) {
            return GO_ON;
        }
        ENOUGH
    }
    let mut walk = Walk {
        own: objects::own(),
        outside: false,
        more,
    };
    // SAFETY: the callback has the prototype asked for, and the walk lives
    // until it is over.
    unsafe { _Unwind_Backtrace(visit::<F>, (&raw mut walk).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_those_that_are_not_us() {
        // A test is the program: all of its stack but the end is its own.
        let own = objects::own();
        assert!(own.contains(&(callers_are_those_that_are_not_us as *const () as usize)));
        let mut first = None;
        callers(|address| {
            first = Some(address);
            false
        });
        assert!(first.is_none_or(|address| !own.contains(&address)));
    }
}
