//! Which runtime a call belongs to that came by a runtime's door.
//!
//! Several runtimes can be in one process, each brought by a library for
//! itself; but the doors have the runtime's names, and whoever calls such a
//! name comes to the same door. What is handed on, and the last error after a
//! failure, belong to the caller's own runtime: the one that the linker would
//! have found for it without us.
//!
//! Owns the handles of the libraries that have called. Cost: a look at the
//! stack, some microseconds; nothing of it on the path of a request that is
//! served.

use std::ffi::CStr;
use std::ops::Range;
use std::ptr;

use spin::mutex::SpinMutex;
use spin::relax::Yield;

use crate::{resolve, unwind};

/// A library that has called, and its handle; 0 for the program itself.
struct Known {
    range: Range<usize>,
    handle: usize,
}

static KNOWN: SpinMutex<Vec<Known>, Yield> = SpinMutex::new(Vec::new());

/// The address of the function `name` as the library finds it that called the
/// door which this thread is behind; none where it has no runtime of its own.
pub(crate) fn function(name: &CStr) -> Option<usize> {
    let handle = handle_of(caller()?)?;
    resolve::look_up(ptr::with_exposed_provenance_mut(handle), name)
}

/// The innermost address on the stack that is not in this library.
fn caller() -> Option<usize> {
    let mut found = None;
    unwind::callers(|address| {
        found = Some(address);
        false
    });
    found
}

/// The handle of the library around an address, if it is not the program.
fn handle_of(address: usize) -> Option<usize> {
    let known = |known: &Vec<Known>| {
        let known = known.iter().find(|known| known.range.contains(&address))?;
        Some(known.handle)
    };
    if let Some(handle) = known(&KNOWN.lock()) {
        return (handle != 0).then_some(handle);
    }
    let (range, handle) = resolve::object_around(address)?;
    let handle = handle.map_or(0, |handle| handle.expose_provenance());
    KNOWN.lock().push(Known { range, handle });
    (handle != 0).then_some(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_itself_has_no_handle() {
        // A test is one: all of its stack but the end of it is its own.
        assert_eq!(handle_of(caller as *const () as usize), None);
        assert!(handle_of(libc::getpid as *const () as usize).is_some());
        assert_eq!(handle_of(8), None);
    }
}
