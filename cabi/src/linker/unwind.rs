//! The return addresses on this thread's stack.
//!
//! The walk is done by the unwinder that is part of this library's own code, so
//! nothing is loaded for it. It follows the tables that compilers emit for
//! exceptions, and ends at code without them. Cost: up to a microsecond per
//! frame.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::objects;

/// What a visit returns to the unwinder: go on, or (any other value) stop.
const GO_ON: c_int = 0;
const ENOUGH: c_int = 5;

/// A frame, opaque to us.
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

/// Passes each return address to `more`, from the one in the caller of this
/// library outwards, as long as `more` returns true. `more` must not panic.
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
        // A unit test is the program: all of its stack but the end is its own.
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
