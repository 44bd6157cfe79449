//! What work does to memory when it ends, as values.

use std::ffi::c_void;

use vramalloc_model::Mark;

/// A host function, and whether it takes a stream and a status before its
/// argument.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Callback {
    Plain(extern "C" fn(*mut c_void)),
    Stream(extern "C" fn(u64, u32, *mut c_void), u64),
}

/// Rows of bytes, each `pitch` after the last.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) start: u64,
    pub(crate) pitch: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Writes a value of `unit` (1, 2 or 4) bytes again and again.
    Set {
        to: Rows,
        unit: usize,
        value: u32,
        width: u64,
        rows: u64,
    },
    /// Copies rows between any two places.
    Copy {
        to: Rows,
        from: Rows,
        width: u64,
        rows: u64,
    },
    /// Writes bytes that were read when the work was submitted.
    Write { to: u64, bytes: Vec<u8> },
    /// Calls a function of the program; the host then knows that the mark is
    /// reached.
    Call {
        callback: Callback,
        argument: u64,
        mark: Mark,
    },
    /// Frees memory of a pool.
    Release(u64),
}
