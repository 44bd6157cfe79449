//! A model shared between threads, and the [`Driver`] of one of its contexts.
//!
//! Owns the lock. Invariant: each call is one critical section, so that a run
//! is a sequence of calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::capture::{Capture, CaptureMode};
use crate::faults::{Call, Script, Violation};
use crate::flight::{Touch, Work};
use crate::ids::{ContextId, StreamId};
use crate::model::Model;
use crate::order::Mark;
use crate::settings::{Nanos, Settings};
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::driver::mapping::{Backup, Mapping, MappingTraits, Unit};
use vramalloc_core::driver::{Driver, MemInfo, Whose};
use vramalloc_core::error::Code;
use vramalloc_core::lanes::Streams;

#[derive(Debug)]
struct State {
    model: Model<()>,
    script: Script,
    fills: Vec<(Address, Bytes, u8)>,
    shut_down: bool,
}

/// A model GPU that threads share; clones are the same GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    state: Arc<Mutex<State>>,
}

impl Gpu {
    /// A GPU with these settings.
    #[must_use]
    pub fn new(settings: Settings) -> Gpu {
        let state = State {
            model: Model::new(settings),
            script: Script::default(),
            fills: Vec::new(),
            shut_down: false,
        };
        Gpu {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver of a new context on `device`.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] if there is no such device.
    pub fn driver(&self, device: u32) -> Result<SimDriver, Code> {
        let context = self.lock().model.create_context(device)?;
        Ok(SimDriver {
            gpu: self.clone(),
            context,
        })
    }

    /// Makes a stream of a context.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`] if the context is gone.
    pub fn stream(&self, context: ContextId, blocking: bool) -> Result<StreamId, Code> {
        self.lock().model.create_stream(context, blocking)
    }

    /// The legacy default stream of a context; `None` if there never was such a
    /// context.
    #[must_use]
    pub fn legacy(&self, context: ContextId) -> Option<StreamId> {
        self.lock().model.legacy(context)
    }

    /// Destroys a stream; its work goes on.
    pub fn destroy_stream(&self, stream: StreamId) {
        self.lock().model.destroy_stream(stream);
    }

    /// Destroys a context with all its memory, after waiting for its work.
    pub fn destroy_context(&self, context: ContextId) {
        self.lock().model.destroy_context(context);
    }

    /// Submits work that takes `duration` and writes these ranges. Returns when
    /// it ends.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`] if the stream is gone.
    pub fn launch(
        &self,
        stream: StreamId,
        duration: Nanos,
        writes: &[(Address, Bytes)],
    ) -> Result<Nanos, Code> {
        let mut work = Work::lasting(duration);
        work.touches = (writes.iter())
            .map(|&(start, size)| Touch::write(start, size))
            .collect();
        self.lock().model.submit(stream, work)
    }

    /// Makes a stream wait for the work that another was given so far, as by an
    /// event.
    pub fn stream_wait(&self, stream: StreamId, other: StreamId) {
        let state = &mut *self.lock();
        let mark = state.model.stream_mark(other);
        state.model.hold(stream, &mark);
    }

    /// Waits for all work on a stream.
    pub fn synchronize(&self, stream: StreamId) {
        let state = &mut *self.lock();
        let mark = state.model.stream_mark(stream);
        state.model.wait(&mark);
    }

    /// The time of the virtual clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.lock().model.now()
    }

    /// Advances the clock by `duration`.
    pub fn pass(&self, duration: Nanos) {
        let state = &mut *self.lock();
        let time = state.model.now().saturating_add(duration);
        state.model.advance_to(time);
    }

    /// Whether unfinished work touches any of these bytes. A test asks this for
    /// every block that is handed out.
    #[must_use]
    pub fn in_use(&self, start: Address, size: Bytes) -> bool {
        self.lock().model.used_until(start, size).is_some()
    }

    /// When all work that a context was given so far is done.
    #[must_use]
    pub fn tail(&self, context: ContextId) -> Nanos {
        self.lock().model.context_tail(context)
    }

    /// Begins a capture in global mode on a stream.
    pub fn begin_capture(&self, stream: StreamId) {
        let state = &mut *self.lock();
        state.model.begin_capture(stream, CaptureMode::Global, 0);
    }

    /// Ends the capture that began on a stream; returns whether it was still
    /// valid.
    pub fn end_capture(&self, stream: StreamId) -> bool {
        let ended = self.lock().model.end_capture(stream);
        ended.is_some_and(|capture| !capture.invalidated)
    }

    /// Sets how much of a device's memory another process uses.
    pub fn occupy(&self, device: u32, size: Bytes) {
        self.lock().model.occupy(device, size);
    }

    /// Bytes in use on a device now, in whole pages.
    #[must_use]
    pub fn used(&self, device: u32) -> Bytes {
        self.lock().model.used_and_peak(device).0
    }

    /// The most bytes that were in use on a device so far, in whole pages.
    #[must_use]
    pub fn peak(&self, device: u32) -> Bytes {
        self.lock().model.used_and_peak(device).1
    }

    /// The number of live driver allocations, on all devices.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.lock().model.live_count()
    }

    /// How many units of memory there are, and how many reservations of addresses.
    #[must_use]
    pub fn units_and_reservations(&self) -> (usize, usize) {
        self.lock().model.units_and_reservations()
    }

    /// Writes a tag to memory, at once and without work.
    pub fn write_tag(&self, at: Address, size: Bytes, tag: u64) {
        self.lock().model.write_tag(at, size, tag);
    }

    /// Whether memory holds what was written there with this tag, from its start on.
    #[must_use]
    pub fn holds_tag(&self, at: Address, size: Bytes, tag: u64) -> bool {
        self.lock().model.holds_tag(at, size, tag)
    }

    /// How many backups there are, and their bytes.
    #[must_use]
    pub fn backups(&self) -> (usize, Bytes) {
        self.lock().model.backups()
    }

    /// How often a driver method was called.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.lock().script.counted(call)
    }

    /// Makes the `n`-th of the calls that follow (1: the next) fail.
    pub fn fail_nth(&self, call: Call, n: u64, code: Code) {
        self.lock().script.fail_nth(call, n, code);
    }

    /// From now on no call fails that was to.
    pub fn end_faults(&self) {
        self.lock().script.end();
    }

    /// Makes `per_mille` of the calls that follow fail, chosen by the seed.
    pub fn fail_randomly(&self, call: Call, per_mille: u64, code: Code) {
        self.lock().script.fail_randomly(call, per_mille, code);
    }

    /// The ranges that were filled so far, and with which byte.
    #[must_use]
    pub fn fills(&self) -> Vec<(Address, Bytes, u8)> {
        self.lock().fills.clone()
    }

    /// Shuts the driver down: every later call is a violation.
    pub fn shut_down(&self) {
        self.lock().shut_down = true;
    }

    /// All violations so far.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().model.violations().to_vec()
    }
}

impl Streams for SimDriver {
    type Stream = StreamId;

    fn mark(&self, stream: StreamId) -> Result<SimFence, Code> {
        let state = &mut *self.gpu.lock();
        if state.model.capture_of(stream).is_some() {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        self.enter_on(Call::Fence, state, |_| false)?;
        let mark = state.model.stream_mark(stream);
        Ok(SimFence { mark })
    }

    fn mark_all(&self) -> Option<SimFence> {
        self.may_fence().then(|| self.fence().ok()).flatten()
    }
}

/// A fence: a mark in a context's work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimFence {
    mark: Mark,
}

impl SimFence {
    /// When the fence is reached.
    #[must_use]
    pub const fn at(&self) -> Nanos {
        self.mark.time()
    }
}

/// The driver of one context of a model GPU.
#[derive(Clone, Debug)]
pub struct SimDriver {
    gpu: Gpu,
    context: ContextId,
}

impl SimDriver {
    /// The GPU below.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> ContextId {
        self.context
    }

    fn device(&self, state: &State) -> u32 {
        state.model.device_of(self.context).unwrap_or(0)
    }

    /// As `enter`, for a call that needs no context.
    fn enter_past(&self, call: Call, state: &mut State) -> Result<(), Code> {
        self.enter_if(call, state, |_| true, false)
    }

    /// Counts a call, lets its time pass, and refuses it if it may not be made.
    fn enter(&self, call: Call, state: &mut State) -> Result<(), Code> {
        self.enter_on(call, state, |_| true)
    }

    /// As `enter`, for a call that disturbs only the captures that `disturbed`
    /// accepts.
    fn enter_on(
        &self,
        call: Call,
        state: &mut State,
        disturbs: impl Fn(&Capture) -> bool,
    ) -> Result<(), Code> {
        self.enter_if(call, state, disturbs, true)
    }

    fn enter_if(
        &self,
        call: Call,
        state: &mut State,
        disturbs: impl Fn(&Capture) -> bool,
        needs_context: bool,
    ) -> Result<(), Code> {
        let model = &mut state.model;
        if state.shut_down {
            model.violate(Violation::AfterShutdown(call.name().to_owned()));
            return Err(Code::DEINITIALIZED);
        }
        model.tick();
        state.script.count(call, model.random())?;
        if needs_context && !model.is_alive(self.context) {
            model.violate(Violation::DeadContext(call.name().to_owned()));
            return Err(Code::INVALID_CONTEXT);
        }
        match call {
            // Memory calls are made in relaxed mode, and querying free memory
            // is always allowed.
            Call::Alloc | Call::Free | Call::MemInfo | Call::TakeBackup => Ok(()),
            // So are these. Addresses are given back as memory is.
            Call::Reserve | Call::Create | Call::Map | Call::Admit | Call::Release => Ok(()),
            Call::Fence
            | Call::Reached
            | Call::Wait
            | Call::Fill
            | Call::Synchronize
            | Call::Unmap
            | Call::Save
            | Call::Restore => model.refuse(call.name(), disturbs),
        }
    }
}

impl Mapping for SimDriver {
    fn mapping_traits(&self) -> Result<Option<MappingTraits>, Code> {
        let state = self.gpu.lock();
        let settings = state.model.settings();
        Ok(settings.maps.then_some(MappingTraits {
            granule: settings.page,
            unmaps_runs: settings.unmaps_runs,
        }))
    }

    fn reserve(&self, size: Bytes) -> Result<Address, Code> {
        let state = &mut *self.gpu.lock();
        self.enter_past(Call::Reserve, state)?;
        state.model.reserve(self.device(state), size)
    }

    fn unreserve(&self, at: Address, size: Bytes) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter_past(Call::Reserve, state)?;
        state.model.unreserve(at, size)
    }

    fn create(&self, size: Bytes) -> Result<Unit, Code> {
        let state = &mut *self.gpu.lock();
        self.enter_past(Call::Create, state)?;
        state.model.create_unit(self.device(state), size).map(Unit)
    }

    fn release(&self, unit: Unit) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter_past(Call::Release, state)?;
        state.model.release_unit(unit.0)
    }

    fn map(&self, at: Address, size: Bytes, unit: Unit) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter_past(Call::Map, state)?;
        state.model.map_unit(at, size, unit.0)
    }

    fn admit(&self, at: Address, size: Bytes) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter_past(Call::Admit, state)?;
        state.model.admit_units(at, size)
    }

    fn unmap(&self, at: Address, size: Bytes) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter_past(Call::Unmap, state)?;
        if !state.model.settings().unmaps_runs && size != state.model.mapped_size(at) {
            return Err(Code::INVALID_VALUE);
        }
        state.model.unmap_units(at, size)
    }

    fn take_backup(&self, size: Bytes, wanted: Bytes) -> Result<Backup, Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::TakeBackup, state)?;
        let (_, taken) = state.model.backups();
        if taken.saturating_add(wanted) > state.model.settings().host {
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(Backup(state.model.take_backup(size)))
    }

    fn drop_backup(&self, backup: Backup) {
        self.gpu.lock().model.drop_backup(backup.0);
    }

    fn save(&self, from: Address, size: Bytes, to: Backup, offset: Bytes) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Save, state)?;
        state.model.copy_backup(from, size, to.0, offset, false)
    }

    fn restore(&self, to: Address, size: Bytes, from: Backup, offset: Bytes) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Restore, state)?;
        state.model.copy_backup(to, size, from.0, offset, true)
    }
}

impl Driver for SimDriver {
    type Fence = SimFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Alloc, state)?;
        state.model.allocate(self.context, size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Free, state)?;
        state.model.free(address).map(|_| ())
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::MemInfo, state)?;
        let device = state.model.device_of(self.context);
        device
            .and_then(|d| state.model.mem_info(d))
            .ok_or(Code::INVALID_CONTEXT)
    }

    fn may_fence(&self) -> bool {
        !self.gpu.lock().model.is_capturing()
    }

    fn fence(&self) -> Result<SimFence, Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Fence, state)?;
        let mark = state.model.context_mark(self.context);
        Ok(SimFence { mark })
    }

    fn reached(&self, fence: &SimFence) -> Result<bool, Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Reached, state)?;
        Ok(state.model.has_reached(&fence.mark))
    }

    fn wait(&self, fence: &SimFence, _whose: Whose) -> Result<bool, Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Wait, state)?;
        state.model.wait(&fence.mark);
        Ok(true)
    }

    fn wait_within(&self, fence: &SimFence, most: Duration) -> Result<bool, Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Wait, state)?;
        let most = Nanos::try_from(most.as_nanos()).unwrap_or(Nanos::MAX);
        Ok(state.model.wait_within(&fence.mark, most))
    }

    /// A fill is work on the legacy stream that takes as long as a call.
    fn fill(&self, address: Address, size: Bytes, byte: u8) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Fill, state)?;
        let model = &mut state.model;
        let legacy = model.legacy(self.context).ok_or(Code::INVALID_CONTEXT)?;
        let mut work = Work::lasting(model.settings().call_ns);
        work.touches = vec![Touch::write(address, size)];
        model.submit(legacy, work)?;
        let mark = model.stream_mark(legacy);
        model.wait(&mark);
        state.fills.push((address, size, byte));
        Ok(())
    }

    fn synchronize(&self) -> Result<(), Code> {
        let state = &mut *self.gpu.lock();
        self.enter(Call::Synchronize, state)?;
        let mark = state.model.context_mark(self.context);
        state.model.wait(&mark);
        Ok(())
    }
}
