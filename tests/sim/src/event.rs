//! Events, and marks in the work of a whole context.
//!
//! Owns the events. Invariant: an event is the time at which its mark is
//! reached, or the capture that it was recorded into. Cost: O(log n).

use vramalloc_core::Code;
use vramalloc_model::{Mark, StreamId, Violation, Work};

use crate::entry::{Call, driver};
use crate::ffi::{CAPTURE_INVALIDATED, CAPTURED_EVENT, Done, Handle, INVALID_HANDLE, Out};
use crate::state::{Event, EventState};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

impl Call<'_> {
    fn event(&self, handle: Handle) -> Result<&Event, Code> {
        self.sim.events.get(handle).ok_or(INVALID_HANDLE)
    }

    fn set_event(&mut self, handle: Handle, state: EventState) -> Done {
        let event = self.sim.events.get_mut(handle).ok_or(INVALID_HANDLE)?;
        event.state = state;
        Ok(())
    }

    /// The event that is to be recorded; a violation if it does not exist.
    fn event_to_record(&mut self, handle: Handle) -> Result<&Event, Code> {
        if self.sim.events.get(handle).is_none() {
            self.is_not_there("of event", handle);
        }
        self.event(handle)
    }

    /// Records a violation: a real driver would read whatever memory is there
    /// now.
    fn is_not_there(&mut self, what: &str, handle: Handle) {
        let text = format!("{} {what} {handle:#x}, which is not there", self.name);
        self.sim.violate(Violation::Other(text));
    }

    fn record(&mut self, handle: Handle, stream: Handle) -> Done {
        let context = self.event_to_record(handle)?.context;
        let context = self.alive(context)?;
        let found = self.stream(stream);
        if found.is_err() {
            self.is_not_there("on stream", stream);
        }
        let stream = found?;
        if self.sim.model.context_of(stream) != Some(context) {
            return Err(INVALID_HANDLE);
        }
        if let Some(capture) = self.sim.model.capture_of(stream) {
            if capture.invalidated {
                return Err(CAPTURE_INVALIDATED);
            }
            let id = capture.id;
            return self.set_event(handle, EventState::Captured(id));
        }
        self.sim.submit(stream, Work::lasting(0))?;
        let mark = self.sim.model.stream_mark(stream);
        self.set_event(handle, EventState::At(mark))
    }

    /// The mark of an event that is not part of a capture.
    fn mark_of(&mut self, handle: Handle) -> Result<Mark, Code> {
        let state = self.event(handle)?.state.clone();
        if let EventState::Captured(id) = state {
            let refused = self.sim.model.refuse(self.name, |c| c.id == id);
            self.sim.announce();
            return refused.and(Err(CAPTURED_EVENT));
        }
        self.unsafe_in_capture()?;
        match state {
            EventState::At(mark) => Ok(mark),
            _ => Ok(Mark::default()),
        }
    }

    fn elapsed(&mut self, to: &Out<f32>, start: Handle, end: Handle) -> Done {
        to.required()?;
        let times = [self.event(start)?, self.event(end)?].map(|e| match e.state {
            EventState::At(ref mark) if e.timing => Ok(mark.time()),
            _ => Err(INVALID_HANDLE),
        });
        let (start, end) = (times[0]?, times[1]?);
        if start.max(end) > self.sim.model.now() {
            return Err(Code::NOT_READY);
        }
        let apart = i128::from(end) - i128::from(start);
        // Converts without loss: a float holds hours of nanoseconds.
        to.set(apart as f32 / 1e6)
    }

    /// Waits for an event that may be shared with other processes.
    pub(crate) fn reach_shared_event(&mut self, handle: Handle) -> Done {
        if !self.event(handle)?.shared {
            return Err(INVALID_HANDLE);
        }
        let mark = self.mark_of(handle)?;
        self.sim.wait(&mark);
        Ok(())
    }

    /// Makes this process's handle of another process's event.
    pub(crate) fn shared_event(&mut self) -> Result<Handle, Code> {
        let event = Event {
            context: self.context()?,
            state: EventState::Never,
            timing: false,
            shared: true,
        };
        Ok(self.sim.events.insert(event))
    }

    /// Refuses a call that would order with a capture on any stream of the
    /// context.
    fn whole_context(&mut self, handle: Handle) -> Result<vramalloc_model::ContextId, Code> {
        let Ok(context) = self.alive(handle) else {
            self.sim
                .violate(Violation::DeadContext(self.name.to_owned()));
            return Err(Code::INVALID_CONTEXT);
        };
        let model = &mut self.sim.model;
        let inside: Vec<StreamId> = (model.captures())
            .flat_map(|c| c.streams.iter().copied())
            .filter(|&s| model.context_of(s) == Some(context))
            .collect();
        let refused = model.refuse(self.name, |c| c.streams.iter().any(|s| inside.contains(s)));
        self.sim.announce();
        refused.map(|()| context)
    }
}

driver! {
    fn cuEventCreate(call, to: Out<Handle>, flags: u32) {
        to.required()?;
        let timed_and_shared = flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS;
        if flags > 7 || timed_and_shared {
            return Err(Code::INVALID_VALUE);
        }
        let event = Event {
            context: call.context()?,
            state: EventState::Never,
            timing: flags & DISABLE_TIMING == 0,
            shared: flags & INTERPROCESS != 0,
        };
        to.set(call.sim.events.insert(event))
    }

    fn cuEventDestroy_v2(call, handle: Handle) {
        call.sim.events.remove(handle).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord / cuEventRecord_ptsz(call, handle: Handle, stream: Handle) {
        call.record(handle, stream)
    }

    fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz(
        call, handle: Handle, stream: Handle, _flags: u32,
    ) {
        call.record(handle, stream)
    }

    fn cuEventQuery(call, handle: Handle) {
        let mark = call.mark_of(handle)?;
        if call.sim.is_reached(handle, &mark) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(call, handle: Handle) {
        let mark = call.mark_of(handle)?;
        call.sim.wait(&mark);
        call.sim.settle_pools();
        Ok(())
    }

    fn cuEventElapsedTime(call, to: Out<f32>, start: Handle, end: Handle) {
        call.elapsed(&to, start, end)
    }

    fn cuEventElapsedTime_v2(call, to: Out<f32>, start: Handle, end: Handle) {
        call.elapsed(&to, start, end)
    }

    fn cuCtxRecordEvent(call, context: Handle, handle: Handle) {
        let model = call.whole_context(context)?;
        if call.event_to_record(handle)?.context != context {
            return Err(INVALID_HANDLE);
        }
        call.sim.wait_for_room(model);
        let mark = call.sim.model.context_mark(model);
        call.sim.stands_in_queue(model, mark.time());
        call.set_event(handle, EventState::At(mark))
    }

    fn cuCtxWaitEvent(call, context: Handle, handle: Handle) {
        let state = call.event(handle)?.state.clone();
        let model = call.whole_context(context)?;
        match state {
            EventState::Never => Ok(()),
            EventState::Captured(_) => Err(CAPTURED_EVENT),
            EventState::At(mark) => {
                call.sim.model.hold_context(model, &mark);
                Ok(())
            }
        }
    }
}
