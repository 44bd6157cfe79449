//! Streams, and the meaning of a stream argument.
//!
//! Owns the streams' handles. Invariant: 0 is the legacy stream, or the
//! thread's own for the per-thread twins; 1 is the legacy stream, 2 the
//! thread's own; both belong to the current context. Cost: O(log n).

use std::ffi::c_void;

use vramalloc_core::Code;
use vramalloc_model::{Mark, StreamId, Work};

use crate::effect::{Callback, Effect};
use crate::entry::{Call, driver};
use crate::ffi::{CAPTURE_ISOLATION, Done, Handle, INVALID_HANDLE, In, Out, code};
use crate::state::{EventState, Stream};
use crate::thread;

const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;
const CAPTURE_MERGE: Code = code(902);

impl Call<'_> {
    /// The stream of an argument.
    pub(crate) fn stream(&mut self, handle: Handle) -> Result<StreamId, Code> {
        match handle {
            0 if self.per_thread => self.thread_stream(),
            PER_THREAD => self.thread_stream(),
            0 | LEGACY => {
                let context = self.model_context()?;
                self.sim.model.legacy(context).ok_or(Code::INVALID_CONTEXT)
            }
            _ => {
                let stream = self.sim.streams.get(handle);
                stream.map(|s| s.id).ok_or(INVALID_HANDLE)
            }
        }
    }

    fn thread_stream(&mut self) -> Result<StreamId, Code> {
        let handle = self.context()?;
        let model = self.alive(handle)?;
        let context = self.sim.contexts.get_mut(handle);
        let context = context.ok_or(Code::INVALID_CONTEXT)?;
        if let Some(known) = context.thread_stream(thread::number()) {
            return Ok(known);
        }
        let id = self.sim.model.create_stream(model, true)?;
        context.keep_thread_stream(thread::number(), id);
        Ok(id)
    }

    /// The context of a stream argument, which captures nothing.
    fn context_of(&mut self, handle: Handle) -> Result<Handle, Code> {
        self.stream(handle)?;
        match self.sim.streams.get(handle) {
            Some(stream) => Ok(stream.context),
            None if handle <= PER_THREAD => self.context(),
            None => Err(INVALID_HANDLE),
        }
    }

    /// The stream of an argument, for a question that a stream refuses while it
    /// captures, in every mode: that invalidates the capture.
    fn unless_it_captures(&mut self, handle: Handle) -> Result<StreamId, Code> {
        let stream = self.stream(handle)?;
        let refused = (self.sim.model).refuse(self.name, |c| c.streams.contains(&stream));
        self.sim.announce();
        refused.map(|()| stream)
    }

    fn create_stream(&mut self, to: &Out<Handle>, flags: u32, priority: i32) -> Done {
        self.create_stream_in(self.context()?, to, flags, priority)
    }

    pub(crate) fn create_stream_in(
        &mut self,
        context: Handle,
        to: &Out<Handle>,
        flags: u32,
        priority: i32,
    ) -> Done {
        to.required()?;
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let non_blocking = flags == 1;
        let model = self.alive(context)?;
        let device = self.sim.model.device_of(model);
        self.sim.has_room(device.ok_or(Code::INVALID_CONTEXT)?)?;
        let id = self.sim.model.create_stream(model, !non_blocking)?;
        let stream = Stream {
            id,
            context,
            non_blocking,
            priority: priority.clamp(-5, 0),
        };
        to.set(self.sim.streams.insert(stream))
    }

    /// A mark after the work of a stream. Refused if the stream captures, or
    /// orders with one that does.
    fn ask(&mut self, handle: Handle) -> Result<Mark, Code> {
        let stream = self.stream(handle)?;
        self.sim.check_implicit(stream)?;
        self.unless_it_captures(handle)?;
        Ok(self.sim.model.stream_mark(stream))
    }

    fn wait_event(&mut self, handle: Handle, event: Handle) -> Done {
        let stream = self.stream(handle)?;
        let event = self.sim.events.get(event).ok_or(INVALID_HANDLE)?;
        let state = event.state.clone();
        let capture = self.sim.model.capture_of(stream).map(|c| c.id);
        match (state, capture) {
            (EventState::Never, _) => Ok(()),
            (EventState::At(mark), None) => {
                self.sim.check_implicit(stream)?;
                self.sim.model.hold(stream, &mark);
                Ok(())
            }
            (EventState::At(_), Some(_)) => Err(CAPTURE_ISOLATION),
            (EventState::Captured(id), None) => {
                self.sim.model.join_capture(id, stream);
                Ok(())
            }
            (EventState::Captured(id), Some(own)) if id == own => Ok(()),
            (EventState::Captured(_), Some(_)) => Err(CAPTURE_MERGE),
        }
    }

    fn call_back(&mut self, handle: Handle, callback: Callback, argument: u64) -> Done {
        let stream = self.stream(handle)?;
        let mark = self.sim.model.stream_mark(stream);
        let work = Work {
            effect: Some(Effect::Call {
                callback,
                argument,
                mark,
            }),
            ..Work::lasting(0)
        };
        self.sim.submit(stream, work)
    }
}

driver! {
    fn cuStreamCreate(call, to: Out<Handle>, flags: u32) {
        call.create_stream(&to, flags, 0)
    }

    fn cuStreamCreateWithPriority(call, to: Out<Handle>, flags: u32, priority: i32) {
        call.create_stream(&to, flags, priority)
    }

    fn cuStreamDestroy_v2(call, handle: Handle) {
        let stream = call.sim.streams.remove(handle).ok_or(INVALID_HANDLE)?;
        let refused = call.sim.model.refuse(call.name, |c| c.streams.contains(&stream.id));
        call.sim.announce();
        call.sim.drop_captures(|origin| origin == stream.id);
        call.sim.model.destroy_stream(stream.id);
        refused
    }

    fn cuStreamQuery / cuStreamQuery_ptsz(call, handle: Handle) {
        let done = call.ask(handle)?;
        if call.sim.model.has_reached(&done) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamSynchronize / cuStreamSynchronize_ptsz(call, handle: Handle) {
        let done = call.ask(handle)?;
        // A wait for a stream that takes part in no capture is forbidden too, as growth is.
        call.unsafe_in_capture()?;
        call.sim.wait(&done);
        call.sim.settle_pools();
        Ok(())
    }

    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz(
        call, handle: Handle, event: Handle, _flags: u32,
    ) {
        call.wait_event(handle, event)
    }

    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz(
        call, handle: Handle, function: Option<extern "C" fn(*mut c_void)>, argument: u64,
    ) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        call.call_back(handle, Callback::Plain(function), argument)
    }

    fn cuStreamAddCallback / cuStreamAddCallback_ptsz(
        call, handle: Handle, function: Option<extern "C" fn(u64, u32, *mut c_void)>,
        argument: u64, _flags: u32,
    ) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        call.call_back(handle, Callback::Stream(function, handle), argument)
    }

    fn cuStreamGetCtx / cuStreamGetCtx_ptsz(call, handle: Handle, to: Out<Handle>) {
        to.required()?;
        to.set(call.context_of(handle)?)
    }

    fn cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz(
        call, handle: Handle, to: Out<Handle>, green: Out<Handle>,
    ) {
        to.required()?;
        green.maybe(0);
        to.set(call.context_of(handle)?)
    }

    fn cuStreamGetDevice / cuStreamGetDevice_ptsz(call, handle: Handle, device: Out<i32>) {
        call.unless_it_captures(handle)?;
        let context = call.context_of(handle)?;
        let found = call.sim.contexts.get(context).map_or(0, |c| c.device);
        device.set(i32::try_from(found).unwrap_or(-1))
    }

    fn cuStreamGetFlags / cuStreamGetFlags_ptsz(call, handle: Handle, flags: Out<u32>) {
        call.unless_it_captures(handle)?;
        let stream = call.sim.streams.get(handle);
        flags.set(stream.map_or(0, |s| u32::from(s.non_blocking)))
    }

    fn cuStreamGetPriority / cuStreamGetPriority_ptsz(call, handle: Handle, to: Out<i32>) {
        call.stream(handle)?;
        to.set(call.sim.streams.get(handle).map_or(0, |s| s.priority))
    }

    fn cuStreamSetAttribute / cuStreamSetAttribute_ptsz(
        call, handle: Handle, _attribute: u32, _value: In<u64>,
    ) {
        call.stream(handle).map(|_| ())
    }

    fn cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz(call, to: Handle, from: Handle) {
        call.stream(to)?;
        call.stream(from).map(|_| ())
    }

    fn cuStreamGetId / cuStreamGetId_ptsz(call, handle: Handle, id: Out<u64>) {
        let stream = call.unless_it_captures(handle)?;
        id.set(u64::from(stream.number()) + 1)
    }
}
