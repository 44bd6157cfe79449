//! Stream capture.
//!
//! Owns what the open captures record. Invariant: a captured graph is the list
//! of the work in the order of capture.

use vramalloc_core::Code;
use vramalloc_model::CaptureMode;

use crate::entry::{Call, driver};
use crate::ffi::{
    CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_WRONG_THREAD, Done, Handle, Out, code,
};
use crate::state::Graph;
use crate::thread;

const ILLEGAL_STATE: Code = code(401);

/// The answers of `cuStreamIsCapturing`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

fn mode_of(number: u32) -> Result<CaptureMode, Code> {
    match number {
        0 => Ok(CaptureMode::Global),
        1 => Ok(CaptureMode::ThreadLocal),
        2 => Ok(CaptureMode::Relaxed),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn number_of(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => 0,
        CaptureMode::ThreadLocal => 1,
        CaptureMode::Relaxed => 2,
    }
}

impl Call<'_> {
    fn begin(&mut self, handle: Handle, mode: u32) -> Done {
        let mode = mode_of(mode)?;
        let stream = self.stream(handle)?;
        let context = self.sim.model.context_of(stream);
        if context.and_then(|c| self.sim.model.legacy(c)) == Some(stream) {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        if self.sim.model.capture_of(stream).is_some() {
            return Err(ILLEGAL_STATE);
        }
        let id = self.sim.model.begin_capture(stream, mode, thread::number());
        self.sim.captured.insert(id, Graph::default());
        Ok(())
    }

    fn end(&mut self, handle: Handle, to: &Out<Handle>) -> Done {
        let stream = self.stream(handle)?;
        let capture = self.sim.model.capture_of(stream).ok_or(ILLEGAL_STATE)?;
        if capture.origin != stream {
            return Err(CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread::number() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let (id, invalidated) = (capture.id, capture.invalidated);
        self.sim.model.end_capture(stream);
        if invalidated {
            self.sim.drop_captured(id);
            to.maybe(0);
            return Err(CAPTURE_INVALIDATED);
        }
        let graph = self.sim.captured.remove(&id).unwrap_or_default();
        to.maybe(self.sim.add_graph(graph));
        Ok(())
    }

    /// The status and the number of the capture that a stream is part of.
    fn status(&mut self, handle: Handle) -> Result<(u32, u64), Code> {
        let stream = self.stream(handle)?;
        self.sim.asks_implicit(stream)?;
        Ok(match self.sim.model.capture_of(stream) {
            None => (NONE, 0),
            Some(c) if c.invalidated => (INVALIDATED, c.id),
            Some(c) => (ACTIVE, c.id),
        })
    }
}

driver! {
    fn cuStreamBeginCapture / cuStreamBeginCapture_ptsz(call, stream: Handle) {
        call.begin(stream, 0)
    }

    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz(call, stream: Handle, mode: u32) {
        call.begin(stream, mode)
    }

    fn cuStreamEndCapture / cuStreamEndCapture_ptsz(call, stream: Handle, graph: Out<Handle>) {
        call.end(stream, &graph)
    }

    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz(call, stream: Handle, status: Out<u32>) {
        status.required()?;
        status.set(call.status(stream)?.0)
    }

    fn cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz(
        call, stream: Handle, status: Out<u32>, id: Out<u64>,
    ) {
        let (now, number) = call.status(stream)?;
        id.maybe(number);
        status.set(now)
    }

    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz(
        call, stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>,
        dependencies: Out<u64>, count: Out<u64>,
    ) {
        let (now, number) = call.status(stream)?;
        id.maybe(number);
        graph.maybe(0);
        dependencies.maybe(0);
        count.maybe(0);
        status.set(now)
    }

    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz(
        call, stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>,
        dependencies: Out<u64>, edges: Out<u64>, count: Out<u64>,
    ) {
        let (now, number) = call.status(stream)?;
        id.maybe(number);
        graph.maybe(0);
        dependencies.maybe(0);
        edges.maybe(0);
        count.maybe(0);
        status.set(now)
    }

    fn cuThreadExchangeStreamCaptureMode(_, mode: Out<u32>) {
        let wanted = mode_of(mode.get()?)?;
        let before = thread::mode();
        thread::set_mode(wanted);
        mode.set(number_of(before))
    }
}
