//! The names and texts of the codes.

use std::ffi::{CStr, c_char};

use vramalloc_core::Code;

use crate::entry::driver;
use crate::ffi::Out;

/// Number, name and text.
type Entry = (u32, &'static CStr, &'static CStr);

const SUCCESS: Entry = (0, c"CUDA_SUCCESS", c"no error");

/// The codes of failures; each name begins alike.
macro_rules! failures {
    ($($number:literal $name:ident $text:literal,)*) => {
        const FAILURES: &[Entry] = &[$((
            $number,
            match CStr::from_bytes_with_nul(
                concat!("CUDA_ERROR_", stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            },
            $text,
        ),)*];
    };
}

failures! {
    1 INVALID_VALUE c"invalid argument",
    2 OUT_OF_MEMORY c"out of memory",
    3 NOT_INITIALIZED c"initialization error",
    4 DEINITIALIZED c"driver shutting down",
    100 NO_DEVICE c"no CUDA-capable device is detected",
    101 INVALID_DEVICE c"invalid device ordinal",
    200 INVALID_IMAGE c"device kernel image is invalid",
    201 INVALID_CONTEXT c"invalid device context",
    215 UNSUPPORTED_LIMIT c"limit is not supported on this architecture",
    217 PEER_ACCESS_UNSUPPORTED c"peer access is not supported",
    218 INVALID_PTX c"a PTX compilation failed",
    301 FILE_NOT_FOUND c"file not found",
    400 INVALID_HANDLE c"invalid resource handle",
    401 ILLEGAL_STATE c"the operation cannot be performed in the present state",
    500 NOT_FOUND c"named symbol not found",
    600 NOT_READY c"device not ready",
    700 ILLEGAL_ADDRESS c"an illegal memory access was encountered",
    701 LAUNCH_OUT_OF_RESOURCES c"too many resources requested for launch",
    704 PEER_ACCESS_ALREADY_ENABLED c"peer access is already enabled",
    705 PEER_ACCESS_NOT_ENABLED c"peer access has not been enabled",
    708 PRIMARY_CONTEXT_ACTIVE c"the primary context is active",
    709 CONTEXT_IS_DESTROYED c"context is destroyed",
    712 HOST_MEMORY_ALREADY_REGISTERED c"the memory is already registered",
    713 HOST_MEMORY_NOT_REGISTERED c"the memory is not registered",
    719 LAUNCH_FAILED c"unspecified launch failure",
    800 NOT_PERMITTED c"operation not permitted",
    801 NOT_SUPPORTED c"operation not supported",
    900 STREAM_CAPTURE_UNSUPPORTED c"operation not permitted when a stream is capturing",
    901 STREAM_CAPTURE_INVALIDATED c"operation failed due to a previous error during capture",
    902 STREAM_CAPTURE_MERGE c"operation would merge separate captures",
    903 STREAM_CAPTURE_UNMATCHED c"the capture was not begun in this stream",
    904 STREAM_CAPTURE_UNJOINED c"the capture has streams that were not joined",
    905 STREAM_CAPTURE_ISOLATION c"dependency on uncaptured work in another stream",
    906 STREAM_CAPTURE_IMPLICIT c"operation would depend on the capture implicitly",
    907 CAPTURED_EVENT c"operation not permitted on an event last recorded in a capture",
    908 STREAM_CAPTURE_WRONG_THREAD c"the capture was begun by another thread",
    999 UNKNOWN c"unknown error",
}

fn find(number: u32) -> Option<&'static Entry> {
    let mut all = std::iter::once(&SUCCESS).chain(FAILURES);
    all.find(|(n, _, _)| *n == number)
}

driver! {
    bare fn cuGetErrorName(error: u32, text: Out<*const c_char>) {
        text.set(find(error).map_or(std::ptr::null(), |c| c.1.as_ptr()))?;
        find(error).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    bare fn cuGetErrorString(error: u32, text: Out<*const c_char>) {
        text.set(find(error).map_or(std::ptr::null(), |c| c.2.as_ptr()))?;
        find(error).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }
}
