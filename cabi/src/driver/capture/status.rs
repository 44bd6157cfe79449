//! What the driver says of a stream and captures. Who asks disturbs none.

use std::ptr;

use crate::linker::resolve::MISSING;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CAPTURE_STATUS_NONE, CUstream, CaptureStatus};

/// Whether a stream certainly captures nothing.
pub(crate) fn has_ended_on(stream: CUstream) -> bool {
    // SAFETY: the caller's own stream, as below.
    unsafe { captures_no_more(stream, false) }
}

/// The number of the capture that a stream is part of, if any.
pub(crate) fn number_on(stream: CUstream) -> Option<u64> {
    let (mut status, mut number) = (CAPTURE_STATUS_NONE, 0);
    let (to, nothing) = (&raw mut number, ptr::null_mut());
    // SAFETY: a live stream by the caller's promise to us; the other pointers
    // are to locals, or null. Older drivers have the first form alone, and
    // those without any have no captures.
    let result = own_call(|| unsafe {
        let status = &raw mut status;
        let none = ptr::null_mut();
        let mut result =
            real::cuStreamGetCaptureInfo_v2(stream, status, to, none, ptr::null_mut(), nothing);
        if result == MISSING {
            result = real::cuStreamGetCaptureInfo(stream, status, to);
        }
        if result == MISSING {
            let edges = ptr::null_mut();
            result = real::cuStreamGetCaptureInfo_v3(
                stream,
                status,
                to,
                none,
                ptr::null_mut(),
                edges,
                nothing,
            );
        }
        result
    });
    (result == 0 && status != CAPTURE_STATUS_NONE).then_some(number)
}

pub(super) unsafe fn captures_no_more(stream: CUstream, twin: bool) -> bool {
    // SAFETY: the caller's promise.
    let status = unsafe { status(stream, twin) };
    status == Some(CAPTURE_STATUS_NONE)
}

/// The capture status of a stream; `None` if the driver does not say.
pub(super) unsafe fn status(stream: CUstream, twin: bool) -> Option<CaptureStatus> {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: a stream by the caller's promise, and a place for the answer.
    let result = own_call(|| unsafe {
        if twin {
            real::cuStreamIsCapturing_ptsz(stream, &raw mut status)
        } else {
            real::cuStreamIsCapturing(stream, &raw mut status)
        }
    });
    (result == 0).then_some(status)
}
