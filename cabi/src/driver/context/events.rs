//! Events in the work of a context.
//!
//! They are recycled and never destroyed: they end with the context. Invariant: an event is
//! recorded again only when nobody waits for what it stood for. Cost: a lock, and three
//! cheap driver calls for each.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::patience::Brief;

use super::{Context, Decision};
use crate::driver::fence::{Events, all_reached};
use crate::real;
use crate::types::{CUevent, CUstream, CudaResult, EVENT_DISABLE_TIMING};

/// The most events for other contexts' fences in a context's queue. Devices
/// have room for some thousand entries; programs rarely run that far ahead.
const MOST_QUEUED: usize = 64;

/// The events of a context.
#[derive(Default)]
pub(super) struct EventPool {
    /// Those that are free for use.
    idle: SpinMutex<Vec<usize>, Brief>,
    /// Those that were recorded here for other contexts' fences and were not
    /// found reached yet, the oldest first.
    queued: SpinMutex<VecDeque<Events>, Brief>,
}

impl EventPool {
    /// Lets go of those of other contexts' fences, since the context has ended: they hold
    /// it, and it them.
    pub(super) fn forget_queued(&self) {
        let queued = std::mem::take(&mut *self.queued.lock());
        drop(queued);
    }
}

impl Context {
    /// Whether another context's fence may record events here: few such events
    /// stand unreached in the queue.
    pub(crate) fn has_room(&self) -> bool {
        loop {
            let oldest = {
                let queued = self.events.queued.lock();
                let count: usize = queued.iter().map(Events::len).sum();
                match queued.front() {
                    Some(oldest) if count >= MOST_QUEUED => oldest.clone(),
                    _ => return true,
                }
            };
            if all_reached(&oldest) == Ok(false) {
                return false;
            }
            let mut queued = self.events.queued.lock();
            if queued.front().is_some_and(|front| front.are(&oldest)) {
                queued.pop_front();
            }
        }
    }

    /// Notes events that were recorded here for another context's fence.
    pub(crate) fn stands_in_queue(&self, marks: &Events) {
        if marks.len() > 0 {
            self.events.queued.lock().push_back(marks.clone());
        }
    }

    /// Records one event over the whole context.
    pub(crate) fn record(self: &Arc<Context>) -> Result<Events, Code> {
        let mark = self.blank()?;
        // SAFETY: the context, and an event of it.
        self.call_now(|| unsafe { real::cuCtxRecordEvent(self.handle(), mark.event()) })?;
        Ok(Events::One(mark.keep()))
    }

    /// Records an event over all work of the context, and asks for it in the same
    /// passage if `may_ask` says so by then: none where all of that work is done.
    pub(crate) fn record_unless_done(
        self: &Arc<Context>,
        may_ask: impl FnOnce() -> bool,
    ) -> Result<Events, Code> {
        let mark = self.blank()?;
        let mut is_recorded = false;
        let done = self.within_now(|| {
            // SAFETY: the context, and an event of it.
            Code::check(unsafe { real::cuCtxRecordEvent(self.handle(), mark.event()) })?;
            is_recorded = true;
            if !may_ask() {
                return Err(Code::NOT_READY);
            }
            // SAFETY: an event of the context that is never destroyed.
            Code::check(unsafe { real::cuEventQuery(mark.event()) })
        });
        match done {
            Ok(()) => Ok(Events::None),
            Err(_) if is_recorded => Ok(Events::One(mark.keep())),
            Err(code) => Err(code),
        }
    }

    /// Records an event on a stream of the context, which must stay alive.
    pub(crate) fn record_in(self: &Arc<Context>, stream: CUstream) -> Result<Arc<Event>, Code> {
        let mark = self.blank()?;
        // SAFETY: an event of the context; the stream is the caller's promise.
        self.call_now(|| unsafe { real::cuEventRecord(mark.event(), stream) })?;
        Ok(mark.keep())
    }

    /// An event of this context, to be recorded.
    #[inline]
    fn blank(self: &Arc<Context>) -> Result<Blank<'_>, Code> {
        Ok(Blank {
            event: self.event()?,
            context: self,
        })
    }

    #[inline]
    fn event(&self) -> Result<usize, Code> {
        let idle = self.events.idle.lock().pop();
        idle.map_or_else(|| self.new_event(), Ok)
    }

    #[cold]
    fn new_event(&self) -> Result<usize, Code> {
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        self.call_now(|| unsafe { real::cuEventCreate(&raw mut event, EVENT_DISABLE_TIMING) })?;
        Ok(event.expose_provenance())
    }
}

/// An event that is not recorded yet, or that nobody has to wait for. Dropping it
/// gives it back to its context.
struct Blank<'a> {
    event: usize,
    context: &'a Arc<Context>,
}

impl Drop for Blank<'_> {
    fn drop(&mut self) {
        self.context.events.idle.lock().push(self.event);
    }
}

impl Blank<'_> {
    fn event(&self) -> CUevent {
        ptr::with_exposed_provenance_mut(self.event)
    }

    /// Makes it an event that somebody waits for.
    fn keep(self) -> Arc<Event> {
        let blank = ManuallyDrop::new(self);
        Arc::new(Event {
            event: blank.event,
            context: Arc::clone(blank.context),
        })
    }
}

/// A recorded event. Dropping it gives it back to its context.
pub(crate) struct Event {
    event: usize,
    context: Arc<Context>,
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.events.idle.lock().push(self.event);
    }
}

impl Event {
    fn event(&self) -> CUevent {
        ptr::with_exposed_provenance_mut(self.event)
    }

    /// Whether the work before the event is done, as far as is known now.
    pub(crate) fn reached(&self) -> Result<bool, Code> {
        // SAFETY: an event of the context that is never destroyed.
        self.ask(|| unsafe { real::cuEventQuery(self.event()) })
    }

    /// Waits until the work before the event is done. Returns false if that
    /// cannot be told, because the context is ending and its end stays
    /// undecided.
    pub(crate) fn wait(&self) -> Result<bool, Code> {
        // SAFETY: an event of the context that is never destroyed.
        let wait = || self.ask(|| unsafe { real::cuEventSynchronize(self.event()) });
        loop {
            if wait()? {
                return Ok(true);
            }
            if self.context.await_decision() == Decision::Open {
                return Ok(false);
            }
        }
    }

    fn ask(&self, call: impl FnOnce() -> CudaResult) -> Result<bool, Code> {
        match self.context.call_now(call) {
            Ok(()) => Ok(true),
            Err(_) if self.context.has_ended() => Ok(true),
            Err(Code::NOT_READY) => Ok(self.context.is_quiet()),
            Err(code) => Err(code),
        }
    }
}
