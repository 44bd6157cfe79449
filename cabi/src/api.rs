//! The C API: what `include/vramalloc.h` declares.
//!
//! Each function here is a guard, a check of its arguments, one call and a
//! conversion. cbindgen makes the header from these items and their comments,
//! and `ci/header` compares the two. No panic crosses, and nothing here decides
//! where memory comes from.
//!
//! Cost of a call: a thread-local read and an atomic load.

#![allow(
    unreachable_pub,
    non_camel_case_types,
    reason = "items of a C header, which reads what is public"
)]

// In the order of the header.
mod memory;

mod streams;

mod groups;
mod scopes;

mod regions;

mod control;
mod whose;

mod torch;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use vramalloc_core::{Code, FreeError};

use crate::linker::resolve::{MISSING, driver_is_loaded};
use crate::owners;
use crate::process::guard::{self, Shut};
use crate::real;

/// The version of this header: 10000 times the major version, plus 100 times
/// the minor one, plus the patch.
pub const VRAMALLOC_VERSION: c_int = 200;

/// The result of a function of this library: `VRAMALLOC_SUCCESS`; above it
/// CUDA's code, as the driver returned it (2 is "out of memory"); below it a
/// code of the library's own.
pub type vramalloc_result = c_int;

/// The call succeeded.
pub const VRAMALLOC_SUCCESS: c_int = 0;
/// An argument is null that must not be, or out of its range.
pub const VRAMALLOC_INVALID_ARGUMENT: c_int = -1;
/// No block that this library handed out begins at the address: it belongs to
/// another allocator, was freed before, or points into a block.
pub const VRAMALLOC_NOT_OURS: c_int = -2;
/// The buffer is too small for the text; the length it needs was written.
pub const VRAMALLOC_TOO_SMALL: c_int = -3;
/// There is nothing of this name.
pub const VRAMALLOC_UNKNOWN_NAME: c_int = -4;
/// It cannot be set, or cannot be set any more.
pub const VRAMALLOC_READ_ONLY: c_int = -5;
/// The text is no valid value of what it was given for.
pub const VRAMALLOC_INVALID_VALUE: c_int = -6;
/// There is no CUDA driver.
pub const VRAMALLOC_NO_CUDA: c_int = -7;
/// The process is a child by fork of one that used this library: memory is its
/// parent's.
pub const VRAMALLOC_FORKED: c_int = -8;
/// The thread is inside another call of this library: nothing can be asked from
/// a signal handler or a callback of the driver.
pub const VRAMALLOC_REENTERED: c_int = -9;
/// The library met an error of its own, and has printed a line about it on
/// standard error. It serves no more requests, and keeps what it holds.
pub const VRAMALLOC_BROKEN: c_int = -10;
/// A file could not be written; errno says why.
pub const VRAMALLOC_IO: c_int = -11;
/// A thread's scopes end in the reverse order of their beginnings, and in the
/// thread that began them.
pub const VRAMALLOC_WRONG_SCOPE: c_int = -12;
/// Not now: the memory is paused, or the thread is in no region.
pub const VRAMALLOC_INVALID_STATE: c_int = -13;

/// The library's own codes, with their names.
const NAMES: [(c_int, &CStr); 14] = [
    (VRAMALLOC_SUCCESS, c"VRAMALLOC_SUCCESS"),
    (VRAMALLOC_INVALID_ARGUMENT, c"VRAMALLOC_INVALID_ARGUMENT"),
    (VRAMALLOC_NOT_OURS, c"VRAMALLOC_NOT_OURS"),
    (VRAMALLOC_TOO_SMALL, c"VRAMALLOC_TOO_SMALL"),
    (VRAMALLOC_UNKNOWN_NAME, c"VRAMALLOC_UNKNOWN_NAME"),
    (VRAMALLOC_READ_ONLY, c"VRAMALLOC_READ_ONLY"),
    (VRAMALLOC_INVALID_VALUE, c"VRAMALLOC_INVALID_VALUE"),
    (VRAMALLOC_NO_CUDA, c"VRAMALLOC_NO_CUDA"),
    (VRAMALLOC_FORKED, c"VRAMALLOC_FORKED"),
    (VRAMALLOC_REENTERED, c"VRAMALLOC_REENTERED"),
    (VRAMALLOC_BROKEN, c"VRAMALLOC_BROKEN"),
    (VRAMALLOC_IO, c"VRAMALLOC_IO"),
    (VRAMALLOC_WRONG_SCOPE, c"VRAMALLOC_WRONG_SCOPE"),
    (VRAMALLOC_INVALID_STATE, c"VRAMALLOC_INVALID_STATE"),
];

/// Why a call failed: a code other than success.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Failure(vramalloc_result);

impl From<Code> for Failure {
    fn from(code: Code) -> Failure {
        // `MISSING` stands for a missing function, but is also the driver's
        // "not supported": only a driver could say which.
        if code.get() == MISSING && !driver_is_loaded() {
            return Failure(VRAMALLOC_NO_CUDA);
        }
        if code == Code::ILLEGAL_STATE {
            return Failure(VRAMALLOC_INVALID_STATE);
        }
        Failure(c_int::try_from(code.get()).unwrap_or(c_int::MAX))
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Failure {
        match error {
            FreeError::NotLive => Failure(VRAMALLOC_NOT_OURS),
            FreeError::Driver(code) => code.into(),
        }
    }
}

impl From<Shut> for Failure {
    fn from(shut: Shut) -> Failure {
        Failure(match shut {
            Shut::Inside => VRAMALLOC_REENTERED,
            Shut::Broken => VRAMALLOC_BROKEN,
            Shut::Forked => VRAMALLOC_FORKED,
        })
    }
}

/// Serves a call.
fn serve<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let called = || {
        owners::came_from(0);
        call()
    };
    guard::serve(called)?
}

/// Serves a call that returns its code alone.
fn answer(call: impl FnOnce() -> Result<(), Failure>) -> vramalloc_result {
    match serve(call) {
        Ok(()) => VRAMALLOC_SUCCESS,
        Err(Failure(code)) => code,
    }
}

/// Fails if the pointer is null.
fn given<T>(pointer: *mut T) -> Result<*mut T, Failure> {
    if pointer.is_null() {
        return Err(Failure(VRAMALLOC_INVALID_ARGUMENT));
    }
    Ok(pointer)
}

/// The version of the library that is loaded, such as "0.2.0".
///
/// The text belongs to the library and stays valid. May be called at any time,
/// also before CUDA is initialised, in a forked child, during a capture and
/// from a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn vramalloc_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The version of the library that is loaded as a number, made up as
/// `VRAMALLOC_VERSION`, to be compared with it. May be called at any time, as
/// `vramalloc_version`.
#[unsafe(no_mangle)]
pub extern "C" fn vramalloc_version_number() -> c_int {
    VRAMALLOC_VERSION
}

const _: () = assert!(
    VRAMALLOC_VERSION
        == 10_000 * decimal(env!("CARGO_PKG_VERSION_MAJOR"))
            + 100 * decimal(env!("CARGO_PKG_VERSION_MINOR"))
            + decimal(env!("CARGO_PKG_VERSION_PATCH"))
);

/// A decimal number, read when compiled.
const fn decimal(text: &str) -> c_int {
    let digits = text.as_bytes();
    let (mut value, mut at) = (0, 0);
    while at < digits.len() {
        value = 10 * value + (digits[at] - b'0') as c_int;
        at += 1;
    }
    value
}

/// The name of a code: "VRAMALLOC_NOT_OURS", or CUDA's own name for one of
/// CUDA's codes, or "unknown" for what neither knows (CUDA's are known once its
/// driver is loaded). The text stays valid and belongs to the library or the
/// driver.
///
/// May be called at any time, but not from a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn vramalloc_error_name(code: vramalloc_result) -> *const c_char {
    let own = NAMES.iter().find(|(own, _)| *own == code);
    let name = own.map_or_else(|| cuda_name(code), |(_, name)| name.as_ptr());
    if name.is_null() {
        return c"unknown".as_ptr();
    }
    name
}

/// CUDA's name of a code, or null.
fn cuda_name(code: vramalloc_result) -> *const c_char {
    let mut name = ptr::null();
    if let Ok(code) = u32::try_from(code) {
        // SAFETY: writes the answer to a local; the driver looks into a table.
        unsafe { real::cuGetErrorName(code, &raw mut name) };
    }
    name
}

/// An address of ours as a pointer.
fn pointer(address: vramalloc_core::Address) -> Result<*mut c_void, Failure> {
    Ok(ptr::with_exposed_provenance_mut(number(address)?))
}

/// An address of ours as a number.
fn number(address: vramalloc_core::Address) -> Result<usize, Failure> {
    Ok(usize::try_from(address.get()).map_err(|_| Code::UNKNOWN)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(code: c_int) -> &'static str {
        // SAFETY: a text that ends in zero and stays.
        let name = unsafe { CStr::from_ptr(vramalloc_error_name(code)) };
        name.to_str().unwrap()
    }

    #[test]
    fn codes_have_their_names() {
        assert_eq!(name(VRAMALLOC_SUCCESS), "VRAMALLOC_SUCCESS");
        assert_eq!(
            name(VRAMALLOC_INVALID_ARGUMENT),
            "VRAMALLOC_INVALID_ARGUMENT"
        );
        assert_eq!(name(VRAMALLOC_NO_CUDA), "VRAMALLOC_NO_CUDA");
        assert_eq!(name(VRAMALLOC_WRONG_SCOPE), "VRAMALLOC_WRONG_SCOPE");
        assert_eq!(name(VRAMALLOC_INVALID_STATE), "VRAMALLOC_INVALID_STATE");
        assert_eq!(name(-14), "unknown");
        assert_eq!(name(c_int::MIN), "unknown");
        // No driver here to ask.
        assert_eq!(name(2), "unknown");
    }

    #[test]
    fn the_version_is_the_packages() {
        // SAFETY: a text that ends in zero and stays.
        let version = unsafe { CStr::from_ptr(vramalloc_version()) };
        assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
        assert_eq!(decimal("1207"), 1207);
    }
}
