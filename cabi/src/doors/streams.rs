//! The doors by which streams are made and destroyed.

use std::ffi::{c_int, c_uint};

use crate::driver::streams;
use crate::families::relief;
use crate::pools::lanes;
use crate::real;
use crate::types::{CUstream, CudaResult};

/// Destroys a stream; its lanes are told before.
fn destroy(stream: CUstream, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    lanes::end_stream(stream);
    streams::destroy(stream, call)
}

/// Makes a stream by `call`, and notes it.
///
/// # Safety
/// `call` writes a stream to `stream` when it succeeds.
unsafe fn make(
    stream: *mut CUstream,
    flags: c_uint,
    mut call: impl FnMut() -> CudaResult,
) -> Option<CudaResult> {
    let result = relief::retry(None, &mut call);
    if streams::are_watched() {
        // SAFETY: the caller's promise.
        unsafe { streams::made(result, stream, flags) };
    }
    Some(result)
}

doors! {
    make(stream, flags) cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    make(stream, flags) cuStreamCreateWithPriority(
        stream: *mut CUstream, flags: c_uint, priority: c_int,
    );
    destroy(stream) cuStreamDestroy(stream: CUstream);
    destroy(stream) cuStreamDestroy_v2(stream: CUstream);
}
