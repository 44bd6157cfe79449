//! Stream captures: which streams record a graph instead of working.
//!
//! Owns the open captures. Invariant: a stream belongs to at most one; an
//! invalidated capture stays until it is ended. Cost: O(captures).

use crate::ids::StreamId;

/// Which calls a capture forbids while it is open.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum CaptureMode {
    /// Unsafe calls are forbidden to every thread.
    #[default]
    Global,
    /// Unsafe calls are forbidden to the thread that captures.
    ThreadLocal,
    /// Unsafe calls are not forbidden.
    Relaxed,
}

/// An open capture.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Number of this capture, never used twice.
    pub id: u64,
    /// The stream on which it began.
    pub origin: StreamId,
    /// What it forbids.
    pub mode: CaptureMode,
    /// The thread that began it, as the caller names threads.
    pub thread: u64,
    /// Whether a forbidden call has invalidated it.
    pub invalidated: bool,
    /// All streams that record into it, the origin first.
    pub streams: Vec<StreamId>,
}

#[derive(Debug, Default)]
pub(crate) struct Captures {
    open: Vec<Capture>,
    begun: u64,
}

impl Captures {
    pub(crate) fn begin(&mut self, origin: StreamId, mode: CaptureMode, thread: u64) -> u64 {
        self.begun += 1;
        self.open.push(Capture {
            id: self.begun,
            origin,
            mode,
            thread,
            invalidated: false,
            streams: vec![origin],
        });
        self.begun
    }

    /// Ends the capture that began on `origin`.
    pub(crate) fn end(&mut self, origin: StreamId) -> Option<Capture> {
        let at = self.open.iter().position(|c| c.origin == origin)?;
        Some(self.open.remove(at))
    }

    /// The capture that `stream` records into.
    pub(crate) fn of(&self, stream: StreamId) -> Option<&Capture> {
        self.open.iter().find(|c| c.streams.contains(&stream))
    }

    pub(crate) fn join(&mut self, id: u64, stream: StreamId) {
        if self.of(stream).is_none()
            && let Some(capture) = self.open.iter_mut().find(|c| c.id == id)
        {
            capture.streams.push(stream);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Capture> {
        self.open.iter()
    }

    pub(crate) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Capture> {
        self.open.iter().find(|c| c.id == id)
    }

    /// Invalidates every open capture that `which` accepts; returns whether
    /// there was one.
    pub(crate) fn invalidate(&mut self, which: impl Fn(&Capture) -> bool) -> bool {
        let mut any = false;
        for capture in self.open.iter_mut().filter(|c| which(c)) {
            capture.invalidated = true;
            any = true;
        }
        any
    }
}
