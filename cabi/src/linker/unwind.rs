//! The return addresses on this thread's stack.
//!
//! On x86-64 they come from a walk of our own ([`walk`]), which takes no lock of
//! the linker's and costs 2 to 8 ns a frame; elsewhere from the unwinder of the C
//! compiler, at a quarter of a microsecond a frame. Both follow the tables that
//! compilers emit for exceptions, and end at code without them.

use std::ffi::{c_int, c_void};

use super::objects;

mod closing;
#[cfg(target_arch = "x86_64")]
mod frame_tables;
#[cfg(target_arch = "x86_64")]
mod last;
mod maps;
pub(crate) mod modules;
#[cfg(target_arch = "x86_64")]
mod rules;
#[cfg(target_arch = "x86_64")]
mod top;
#[cfg(target_arch = "x86_64")]
mod walk;

/// How a walk ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Where the thread began.
    Whole,
    /// Whoever was told of the places had enough.
    Enough,
    /// At code without a rule that we can follow.
    Cut,
    /// At once: the thread is on a stack of the program's own.
    Elsewhere,
}

/// A place in the code of a caller.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct CodePlace {
    /// Where the call returns to.
    pub(crate) address: usize,
    /// Whether it is in a Python interpreter; never where the walk is not ours.
    pub(crate) is_python: bool,
}

/// Finds out what a walk and `dlclose` need to know of the linker, before they are in a
/// hurry, or wait for each other's library.
pub(crate) fn prepare() {
    modules::prepare();
    objects::own();
    closing::next();
}

/// What addresses of code are good for: in another epoch, they may be another
/// object's.
pub(crate) fn epoch() -> u16 {
    modules::epoch()
}

/// Passes each place to `more`, from that in the caller of this library outwards,
/// as long as `more` returns true. `more` must not panic.
#[inline(always)]
pub(crate) fn places(mut more: impl FnMut(CodePlace) -> bool) -> End {
    let own = objects::own();
    let mut outside = false;
    by_rules(|place| {
        outside |= !own.contains(&place.address);
        !outside || more(place)
    })
}

#[cfg(target_arch = "x86_64")]
use walk::walk as by_rules;

#[cfg(not(target_arch = "x86_64"))]
fn by_rules(mut more: impl FnMut(CodePlace) -> bool) -> End {
    let mut end = End::Whole;
    by_compiler(|address| {
        let is_python = false;
        let goes_on = more(CodePlace { address, is_python });
        if !goes_on {
            end = End::Enough;
        }
        goes_on
    });
    end
}

/// The innermost address on the stack that is not in this library. What our own
/// walk cannot tell, such as on a coroutine's stack, the compiler's may.
pub(crate) fn caller() -> Option<usize> {
    let mut found = None;
    places(|place| {
        found = Some(place.address);
        false
    });
    if found.is_none() {
        let own = objects::own();
        by_compiler(|address| {
            found = Some(address).filter(|address| !own.contains(address));
            found.is_none()
        });
    }
    found
}

/// What a visit returns to the compiler's unwinder: go on, or (any other value)
/// stop.
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

/// Passes each return address to `more`, from that in here outwards, as long as
/// `more` returns true. `more` must not panic.
fn by_compiler<F: FnMut(usize) -> bool>(mut more: F) {
    unsafe extern "C" fn visit<F: FnMut(usize) -> bool>(
        frame: *mut Frame,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the frame is the unwinder's, and the data our callback, which
        // is used nowhere else meanwhile.
        let (address, more) = unsafe { (_Unwind_GetIP(frame), &mut *data.cast::<F>()) };
        if address != 0 && more(address) {
            return GO_ON;
        }
        ENOUGH
    }
    // SAFETY: the callback has the prototype asked for, and what it is given
    // lives until the walk is over.
    unsafe { _Unwind_Backtrace(visit::<F>, (&raw mut more).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_those_that_are_not_us() {
        // A unit test is the program: all of its stack but the end is its own.
        let own = objects::own();
        assert!(own.contains(&(callers_are_those_that_are_not_us as *const () as usize)));
        assert!(caller().is_none_or(|address| !own.contains(&address)));
    }

    /// The frames of a stack are the same by both walks, up to where they are
    /// asked from.
    #[test]
    fn both_walks_tell_the_same() {
        fn deep(depth: usize, pad: &mut [u64]) -> (Vec<usize>, Vec<usize>) {
            // Frames of two sizes.
            pad[0] += 1;
            let mut other = [0; 9];
            if depth > 0 {
                let pad = if depth.is_multiple_of(3) {
                    &mut other[..]
                } else {
                    pad
                };
                return deep(depth - 1, pad);
            }
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            let end = by_rules(|place| {
                ours.push(place.address);
                true
            });
            by_compiler(|address| {
                theirs.push(address);
                true
            });
            assert_eq!(end, End::Whole);
            (ours, theirs)
        }
        let look = || {
            let (ours, theirs) = deep(40, &mut [0; 3]);
            let same = ours.iter().rev().zip(theirs.iter().rev());
            let same = same.take_while(|(one, other)| one == other).count();
            assert!(ours.len() > 44, "{ours:x?}");
            // All but `deep` itself, which makes both calls, and what they call.
            assert!(
                same + 3 >= ours.len() && same + 4 >= theirs.len(),
                "{ours:x?} {theirs:x?}"
            );
        };
        look();
        std::thread::spawn(look).join().unwrap();
    }
}
