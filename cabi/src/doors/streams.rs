//! The doors by which streams are made and destroyed.

use std::ffi::{c_int, c_uint};

use crate::driver::streams;
use crate::pools::lanes;
use crate::real;
use crate::types::{CUstream, CudaResult};

/// Destroys a stream; its lanes are told before.
fn destroy(stream: CUstream, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    lanes::end_stream(stream);
    streams::destroy(stream, call)
}

pub(crate) unsafe fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> Option<CudaResult> {
    if !streams::are_watched() {
        return None;
    }
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuStreamCreate(stream, flags) };
    // SAFETY: the real function has just written there.
    unsafe { streams::made(result, stream, flags) };
    Some(result)
}

pub(crate) unsafe fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> Option<CudaResult> {
    if !streams::are_watched() {
        return None;
    }
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuStreamCreateWithPriority(stream, flags, priority) };
    // SAFETY: the real function has just written there.
    unsafe { streams::made(result, stream, flags) };
    Some(result)
}

pub(crate) unsafe fn cuStreamDestroy(stream: CUstream) -> Option<CudaResult> {
    // SAFETY: the caller's own argument.
    destroy(stream, || unsafe { real::cuStreamDestroy(stream) })
}

pub(crate) unsafe fn cuStreamDestroy_v2(stream: CUstream) -> Option<CudaResult> {
    // SAFETY: the caller's own argument.
    destroy(stream, || unsafe { real::cuStreamDestroy_v2(stream) })
}
