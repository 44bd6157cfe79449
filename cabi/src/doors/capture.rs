//! The doors by which captures begin and end.

use std::ffi::c_void;

use vramalloc_core::recording::Mark;

use crate::driver::capture;
use crate::pools::device;
use crate::real;
use crate::recording;
use crate::types::{CUgraph, CUgraphNode, CUstream, CaptureMode, CudaResult};

unsafe fn begin(
    stream: CUstream,
    twin: bool,
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    // The context gets an arena, so that its end is noticed.
    if let Some((arena, _)) = device::current()
        && !capture::any()
    {
        arena.prepare_capture();
    }
    // SAFETY: the caller's own promise.
    let result = unsafe { capture::begin(stream, twin, call) };
    tell(true, stream, result);
    result
}

unsafe fn end(
    stream: CUstream,
    twin: bool,
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    // SAFETY: the caller's own promise.
    let result = unsafe { capture::end(stream, twin, call) };
    tell(false, stream, result);
    result
}

/// Tells the recording of it.
fn tell(begins: bool, stream: CUstream, result: Option<CudaResult>) {
    let stream = stream.addr() as u64;
    recording::mark(|| (result == Some(0)).then_some(Mark::Capture { begins, stream }));
}

doors! {
    begin(stream, false) cuStreamBeginCapture(stream: CUstream);
    begin(stream, true) cuStreamBeginCapture_ptsz(stream: CUstream);
    begin(stream, false) cuStreamBeginCapture_v2(stream: CUstream, mode: CaptureMode);
    begin(stream, true) cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: CaptureMode);
    begin(stream, false) cuStreamBeginCaptureToGraph(
        stream: CUstream, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
        count: usize, mode: CaptureMode,
    );
    begin(stream, true) cuStreamBeginCaptureToGraph_ptsz(
        stream: CUstream, graph: CUgraph, after: *const CUgraphNode, edges: *const c_void,
        count: usize, mode: CaptureMode,
    );
    begin(stream, false) cuStreamBeginRecaptureToGraph(
        stream: CUstream, mode: CaptureMode, graph: CUgraph, callback: *const c_void,
        data: *mut c_void,
    );
    begin(stream, true) cuStreamBeginRecaptureToGraph_ptsz(
        stream: CUstream, mode: CaptureMode, graph: CUgraph, callback: *const c_void,
        data: *mut c_void,
    );
    end(stream, false) cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    end(stream, true) cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph);
}
