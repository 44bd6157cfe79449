//! Captures of the model's streams, and the calls that they forbid.

use super::Model;
use crate::capture::{Capture, CaptureMode};
use crate::faults::Violation;
use crate::ids::StreamId;
use vramalloc_core::error::Code;

impl<E> Model<E> {
    /// Begins a capture on a stream. Returns its number.
    pub fn begin_capture(&mut self, stream: StreamId, mode: CaptureMode, thread: u64) -> u64 {
        self.captures.begin(stream, mode, thread)
    }

    /// Ends the capture that began on a stream.
    pub fn end_capture(&mut self, stream: StreamId) -> Option<Capture> {
        self.captures.end(stream)
    }

    /// All open captures.
    pub fn captures(&self) -> impl Iterator<Item = &Capture> {
        self.captures.all()
    }

    /// The capture that a stream records into.
    pub fn capture_of(&self, stream: StreamId) -> Option<&Capture> {
        self.captures.of(stream)
    }

    /// The open capture with this number.
    pub fn capture(&self, id: u64) -> Option<&Capture> {
        self.captures.get(id)
    }

    /// Makes a stream record into an open capture as well.
    pub fn join_capture(&mut self, id: u64, stream: StreamId) {
        self.captures.join(id, stream);
    }

    /// Whether any capture is open.
    pub fn is_capturing(&self) -> bool {
        self.captures.any()
    }

    /// Checks an unsafe call of a thread whose own mode is `mode`. Captures
    /// that forbid the call are invalidated, and then it is refused.
    ///
    /// # Errors
    /// [`Code::CAPTURE_UNSUPPORTED`].
    pub fn unsafe_call(&mut self, call: &str, mode: CaptureMode, thread: u64) -> Result<(), Code> {
        if mode == CaptureMode::Relaxed || !self.captures.any() {
            return Ok(());
        }
        let forbids = |c: &Capture| match c.mode {
            CaptureMode::Relaxed => false,
            CaptureMode::ThreadLocal => c.thread == thread,
            CaptureMode::Global => c.thread == thread || mode == CaptureMode::Global,
        };
        self.refuse(call, forbids)
    }

    /// Refuses a call that is forbidden in every mode while a capture that
    /// `which` accepts is open, and invalidates those captures.
    ///
    /// # Errors
    /// [`Code::CAPTURE_UNSUPPORTED`] if there is such a capture.
    pub fn refuse(&mut self, call: &str, which: impl Fn(&Capture) -> bool) -> Result<(), Code> {
        if !self.captures.invalidate(which) {
            return Ok(());
        }
        self.violations.push(Violation::InCapture(call.to_owned()));
        Err(Code::CAPTURE_UNSUPPORTED)
    }
}
