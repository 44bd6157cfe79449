//! The codes that CUDA answers with, and the reasons why an allocation or a
//! free fails.
//!
//! A code is an integer and never an enum: a driver newer than this project may
//! answer with a number that has no name here, and that must stay harmless. The
//! codes named here have the same numbers in the driver API and in the runtime
//! API.

use std::num::NonZeroU32;

use crate::address::Address;

/// A `CUresult` or `cudaError_t` other than success.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Code(NonZeroU32);

impl Code {
    /// An argument is out of range.
    pub const INVALID_VALUE: Code = Code::named(1);
    /// The device, or the limit, has not enough memory left.
    pub const OUT_OF_MEMORY: Code = Code::named(2);
    /// `cuInit` was not called yet.
    pub const NOT_INITIALIZED: Code = Code::named(3);
    /// The driver is shutting down.
    pub const DEINITIALIZED: Code = Code::named(4);
    /// No context is current, or it is not a valid one.
    pub const INVALID_CONTEXT: Code = Code::named(201);
    /// A handle is not valid.
    pub const INVALID_HANDLE: Code = Code::named(400);
    /// Something that the call needs is not in the state for it.
    pub const ILLEGAL_STATE: Code = Code::named(401);
    /// The work that was queried is not done yet.
    pub const NOT_READY: Code = Code::named(600);
    /// The driver takes no call here, as in a host function.
    pub const NOT_PERMITTED: Code = Code::named(800);
    /// The function is declared, but this driver does not implement it.
    pub const NOT_SUPPORTED: Code = Code::named(801);
    /// The call is not allowed while a stream captures a graph.
    pub const CAPTURE_UNSUPPORTED: Code = Code::named(900);
    /// An unknown error.
    pub const UNKNOWN: Code = Code::named(999);

    const fn named(n: u32) -> Code {
        match NonZeroU32::new(n) {
            Some(n) => Code(n),
            None => Code(NonZeroU32::MIN),
        }
    }

    /// Turns a result into `Ok` (zero) or its code.
    ///
    /// # Errors
    /// The code, if `raw` is not zero.
    pub const fn check(raw: u32) -> Result<(), Code> {
        match NonZeroU32::new(raw) {
            Some(n) => Err(Code(n)),
            None => Ok(()),
        }
    }

    /// The number that CUDA uses.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// Why an allocation failed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// The request would exceed the option `limit`: out of memory, although the
    /// device may have some.
    Limit,
    /// The arena is paused, and hands nothing out.
    Paused,
    /// The driver's answer, after everything that could be given back was.
    Driver(Code),
}

/// The answer to a request in two words. A function returns these in registers, where
/// `Result<Address, AllocError>` takes three and goes through memory.
#[derive(Copy, Clone)]
pub(crate) struct Answer {
    address: Address,
    /// Zero, a code, or one of `LIMIT` and `PAUSED`.
    error: u64,
}

/// Beyond all codes.
const LIMIT: u64 = 1 << 32;
const PAUSED: u64 = 2 << 32;

impl Answer {
    pub(crate) fn of(result: Result<Address, AllocError>) -> Answer {
        let (address, error) = match result {
            Ok(address) => (address, 0),
            Err(AllocError::Limit) => (Address::new(0), LIMIT),
            Err(AllocError::Paused) => (Address::new(0), PAUSED),
            Err(AllocError::Driver(code)) => (Address::new(0), u64::from(code.get())),
        };
        Answer { address, error }
    }

    #[inline(always)]
    pub(crate) fn result(self) -> Result<Address, AllocError> {
        match self.error {
            0 => Ok(self.address),
            error => Err(alloc_error(error)),
        }
    }
}

/// What an answer that is not zero stands for.
#[cold]
#[inline(never)]
#[allow(clippy::cast_possible_truncation, reason = "codes have 32 bits")]
fn alloc_error(error: u64) -> AllocError {
    match error {
        LIMIT => AllocError::Limit,
        PAUSED => AllocError::Paused,
        code => AllocError::Driver(Code::check(code as u32).err().unwrap_or(Code::UNKNOWN)),
    }
}

/// Why a free failed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// The address lies in our memory, but no live block starts there: it was
    /// freed before, or is an interior pointer. Nothing was changed.
    NotLive,
    /// The driver refused to free memory that was a driver allocation of its
    /// own.
    Driver(Code),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_it_was_told() {
        let errors = [Code::INVALID_VALUE, Code::UNKNOWN, Code::named(u32::MAX)];
        let refused = errors.map(AllocError::Driver).into_iter();
        let refused = refused
            .chain([AllocError::Limit, AllocError::Paused])
            .map(Err);
        for result in refused.chain([0, u64::MAX].map(|at| Ok(Address::new(at)))) {
            assert_eq!(Answer::of(result).result(), result);
        }
    }

    #[test]
    fn a_code_is_four_bytes_also_where_it_may_be_absent() {
        assert_eq!(size_of::<Result<(), Code>>(), 4);
        assert_eq!(Code::check(0), Ok(()));
        assert_eq!(Code::check(2), Err(Code::OUT_OF_MEMORY));
        assert_eq!(Code::check(7_777).map_err(Code::get), Err(7_777));
    }
}
