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

/// Functions that begin or end a capture: the stream is the first argument.
macro_rules! watched {
    ($($what:ident $twin:literal $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case, reason = "CUDA's names")]
            pub(crate) unsafe fn $name(
                stream: CUstream, $($argument: $type),*
            ) -> Option<CudaResult> {
                // SAFETY: the caller's own arguments.
                unsafe { $what(stream, $twin, || real::$name(stream, $($argument),*)) }
            }
        )*
    };
}

watched! {
    begin false cuStreamBeginCapture();
    begin true cuStreamBeginCapture_ptsz();
    begin false cuStreamBeginCapture_v2(mode: CaptureMode);
    begin true cuStreamBeginCapture_v2_ptsz(mode: CaptureMode);
    begin false cuStreamBeginCaptureToGraph(
        graph: CUgraph, after: *const CUgraphNode, edges: *const c_void, count: usize,
        mode: CaptureMode,
    );
    begin true cuStreamBeginCaptureToGraph_ptsz(
        graph: CUgraph, after: *const CUgraphNode, edges: *const c_void, count: usize,
        mode: CaptureMode,
    );
    begin false cuStreamBeginRecaptureToGraph(
        mode: CaptureMode, graph: CUgraph, callback: *const c_void, data: *mut c_void,
    );
    begin true cuStreamBeginRecaptureToGraph_ptsz(
        mode: CaptureMode, graph: CUgraph, callback: *const c_void, data: *mut c_void,
    );
    end false cuStreamEndCapture(graph: *mut CUgraph);
    end true cuStreamEndCapture_ptsz(graph: *mut CUgraph);
}
