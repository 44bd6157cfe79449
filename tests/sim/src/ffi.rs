//! Arguments and results of the driver's interface.
//!
//! Owns the only dereferences of pointers that a caller passed as arguments
//! ([`Out`], [`In`], [`Text`]); all of them accept NULL and answer
//! `INVALID_VALUE` as the driver does.

use std::ffi::{CStr, c_char, c_void};

use vramalloc_core::Code;

/// The result of a driver function, before it becomes a number.
pub(crate) type Done = Result<(), Code>;

/// An opaque handle of the driver; 0 is NULL.
pub(crate) type Handle = u64;

/// A pointer to which a result is written; may be NULL.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// A result for a pointer of unknown type.
    pub(crate) fn at(place: *mut T) -> Out<T> {
        Out(place)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The same pointer, for a value of another type.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// The place behind the value, for one of another type.
    pub(crate) fn following<U>(&self) -> Out<U> {
        Out(self.0.wrapping_add(1).cast())
    }

    /// Refuses NULL, before anything is done.
    pub(crate) fn required(&self) -> Done {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }

    /// Writes the result; NULL is an error.
    pub(crate) fn set(&self, value: T) -> Done {
        self.required()?;
        self.maybe(value);
        Ok(())
    }

    /// Writes the result if the pointer is not NULL.
    pub(crate) fn maybe(&self, value: T) {
        self.set_at(0, value);
    }

    /// Writes one element of an array if the pointer is not NULL.
    pub(crate) fn set_at(&self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the interface says that a pointer that is not NULL can
            // be written, for as many elements as the caller announced.
            unsafe { self.0.add(index).write_unaligned(value) }
        }
    }

    /// Reads the present value.
    pub(crate) fn get(&self) -> Result<T, Code>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

/// A pointer from which an argument is read; may be NULL.
#[repr(transparent)]
pub(crate) struct In<T>(pub(crate) *const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(&self) -> Result<T, Code> {
        self.at(0)
    }

    /// One element of an array.
    pub(crate) fn at(&self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the interface says that a pointer that is not NULL can be
        // read, for as many elements as the caller announced.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// A NUL-terminated text as an argument; may be NULL.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text at an address.
    #[cfg(test)]
    pub(crate) fn at(place: *const c_char) -> Text {
        Text(place)
    }

    pub(crate) fn get(&self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the interface says that it is NUL-terminated.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// The bytes at an address, copied.
pub(crate) fn bytes_at(start: *const c_void, length: usize) -> Vec<u8> {
    if start.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: the caller of the driver announced `length` readable bytes.
    unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }.to_vec()
}

/// Writes a text and its NUL into a buffer of `length` bytes, cut to fit.
pub(crate) fn put_text(to: &Out<u8>, length: i32, text: &str) -> Done {
    to.required()?;
    let room = usize::try_from(length).map_err(|_| Code::INVALID_VALUE)?;
    let cut = text
        .len()
        .min(room.checked_sub(1).ok_or(Code::INVALID_VALUE)?);
    for (i, byte) in text.bytes().take(cut).chain([0]).enumerate() {
        to.set_at(i, byte);
    }
    Ok(())
}

/// The code with this number; `UNKNOWN` for 0.
pub(crate) const fn code(number: u32) -> Code {
    match Code::check(number) {
        Ok(()) => Code::UNKNOWN,
        Err(code) => code,
    }
}

pub(crate) const NO_DEVICE: Code = code(100);
pub(crate) const INVALID_DEVICE: Code = code(101);
pub(crate) const INVALID_IMAGE: Code = code(200);
pub(crate) const CONTEXT_IN_USE: Code = code(708);
pub(crate) const INVALID_HANDLE: Code = code(400);
pub(crate) const NOT_FOUND: Code = code(500);
pub(crate) const PEER_ENABLED: Code = code(704);
pub(crate) const PEER_NOT_ENABLED: Code = code(705);
pub(crate) const REGISTERED: Code = code(712);
pub(crate) const NOT_REGISTERED: Code = code(713);
pub(crate) const NOT_PERMITTED: Code = code(800);
pub(crate) const CAPTURE_INVALIDATED: Code = code(901);
pub(crate) const CAPTURE_UNMATCHED: Code = code(903);
pub(crate) const CAPTURE_ISOLATION: Code = code(905);
pub(crate) const CAPTURE_IMPLICIT: Code = code(906);
pub(crate) const CAPTURED_EVENT: Code = code(907);
pub(crate) const CAPTURE_WRONG_THREAD: Code = code(908);
