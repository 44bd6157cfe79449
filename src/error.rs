//! The codes that CUDA answers with, and the ways an allocation or a free can
//! end badly.
//!
//! A code is an integer and never an enum: a driver newer than this project
//! may answer with a number that has no name here, and that must stay
//! harmless. The driver's and the runtime's numbers agree for all that are
//! named here.

use std::num::NonZeroU32;

/// A `CUresult` or `cudaError_t` other than success.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Code(NonZeroU32);

impl Code {
    /// An argument is out of range.
    pub const INVALID_VALUE: Code = Code::named(1);
    /// The device (or the limit) has no such amount of memory left.
    pub const OUT_OF_MEMORY: Code = Code::named(2);
    /// `cuInit` was not called yet.
    pub const NOT_INITIALIZED: Code = Code::named(3);
    /// The driver is shutting down.
    pub const DEINITIALIZED: Code = Code::named(4);
    /// No context is current, or it is not a valid one.
    pub const INVALID_CONTEXT: Code = Code::named(201);
    /// A handle that names nothing.
    pub const INVALID_HANDLE: Code = Code::named(400);
    /// The work that was asked about is still going on.
    pub const NOT_READY: Code = Code::named(600);
    /// The function exists in the interface but not in this driver.
    pub const NOT_SUPPORTED: Code = Code::named(801);
    /// The call is not allowed while a stream captures a graph.
    pub const CAPTURE_UNSUPPORTED: Code = Code::named(900);
    /// The driver does not say what went wrong.
    pub const UNKNOWN: Code = Code::named(999);

    const fn named(n: u32) -> Code {
        match NonZeroU32::new(n) {
            Some(n) => Code(n),
            None => Code(NonZeroU32::MIN),
        }
    }

    /// What a call answered: zero is success.
    ///
    /// # Errors
    /// The code, where `raw` is not zero.
    pub const fn check(raw: u32) -> Result<(), Code> {
        match NonZeroU32::new(raw) {
            Some(n) => Err(Code(n)),
            None => Ok(()),
        }
    }

    /// The number as CUDA has it.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// Why a request was not served.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// The request would pass the option `limit`: out of memory, although the
    /// device may have some.
    Limit,
    /// The driver said so, after everything that could be given back was.
    Driver(Code),
}

/// Why a pointer was not freed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// The address lies in memory of ours, but no live block starts there:
    /// freed before, or an interior pointer. Nothing was changed.
    NotLive,
    /// The memory was the program's own driver allocation and the driver
    /// refused to take it back.
    Driver(Code),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_four_bytes_also_where_it_may_be_absent() {
        assert_eq!(size_of::<Result<(), Code>>(), 4);
        assert_eq!(Code::check(0), Ok(()));
        assert_eq!(Code::check(2), Err(Code::OUT_OF_MEMORY));
        assert_eq!(Code::check(7_777).map_err(Code::get), Err(7_777));
    }
}
