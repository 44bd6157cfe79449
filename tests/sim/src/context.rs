//! Contexts, primary ones and others, and which is current on a thread.
//!
//! Invariant: the handle of a device's primary context never changes, also when
//! the context is reset; a context is alive while it has a model context. Cost:
//! O(log n).

use vramalloc_core::Code;
use vramalloc_model::{ContextId, Family, StreamId};

use crate::entry::{Call, driver};
use crate::ffi::{CONTEXT_IN_USE, Done, Handle, In, Out, code};
use crate::machine::Machine;
use crate::state::Context;
use crate::thread::{stack, top};

const CONTEXT_DESTROYED: Code = code(709);

impl Machine {
    /// Destroys what a context holds; its handle stays valid.
    fn end_context(&mut self, handle: Handle) {
        let Some(context) = self.contexts.get_mut(handle) else {
            return;
        };
        context.retained = 0;
        context.broken = None;
        context.storage.clear();
        context.thread_streams.clear();
        context.peers.clear();
        let (device, whole) = (context.device, context.part_of.is_none());
        let Some(id) = context.model.take() else {
            return;
        };
        self.end_parts_of(handle);
        self.wait(&self.model.context_mark(id));
        let model = &self.model;
        let own: Vec<StreamId> = (model.captures())
            .map(|c| c.origin)
            .filter(|&s| model.context_of(s) == Some(id))
            .collect();
        self.drop_captures(|s| own.contains(&s));
        self.drop_pool_memory_of(id);
        self.drop_blocks_of(id);
        let pages = self.model.destroy_context(id);
        for (start, size) in pages {
            self.backing.expose(start, size, false);
            self.backing.discard(start, size);
        }
        if whole {
            let size = self.environment.context_size;
            self.model.uncharge(device, Family::Context, size);
        }
        let model = &self.model;
        let lives = |base: u64| model.find(vramalloc_core::Address::new(base)).is_some();
        self.kinds.retain(|&base, _| lives(base));
        self.managed.retain(|&base, _| lives(base));
        self.drop_arrays();
        self.streams.remove_if(|s| s.context == handle);
        self.events.remove_if(|e| e.context == handle);
        self.modules.remove_if(|m| m.context == Some(handle));
        self.kernels.remove_if(|k| k.context == Some(handle));
        self.drop_host_of(handle);
    }
}

impl Machine {
    /// Whether a device has a page that nobody uses: contexts and streams, however
    /// little they take, are not made without.
    pub(crate) fn has_room(&self, device: u32) -> Done {
        let free = self.model.mem_info(device).map(|info| info.free);
        let has_room = free.is_some_and(|free| free >= self.model.settings().page);
        if has_room {
            Ok(())
        } else {
            Err(Code::OUT_OF_MEMORY)
        }
    }

    /// Makes a context in the model, if the device has room for it.
    fn begin_context(&mut self, device: u32) -> Result<ContextId, Code> {
        let size = self.environment.context_size;
        self.has_room(device)?;
        self.model.charge(device, Family::Context, size)?;
        let made = self.model.create_context(device);
        if made.is_err() {
            self.model.uncharge(device, Family::Context, size);
        }
        made
    }
}

impl Call<'_> {
    /// The handle of the current context, which must be alive.
    pub(crate) fn context(&self) -> Result<Handle, Code> {
        match top() {
            0 => Err(Code::INVALID_CONTEXT),
            handle => self.alive(handle).map(|_| handle),
        }
    }

    /// The model's context of the current context.
    pub(crate) fn model_context(&self) -> Result<ContextId, Code> {
        self.alive(self.context()?)
    }

    /// The model's context of a handle; an error if it is not alive.
    pub(crate) fn alive(&self, handle: Handle) -> Result<ContextId, Code> {
        let context = self.sim.contexts.get(handle);
        let context = context.ok_or(CONTEXT_DESTROYED)?;
        context.model.ok_or(CONTEXT_DESTROYED)
    }

    /// The model's context of an argument.
    pub(crate) fn given(&self, handle: Handle) -> Result<ContextId, Code> {
        self.alive(handle).map_err(|_| Code::INVALID_CONTEXT)
    }

    /// Checks a context that is to be made current. A primary context's handle
    /// is always accepted: it may be current before the context is made and
    /// after it was reset.
    fn named(&self, handle: Handle) -> Done {
        match self.sim.contexts.get(handle) {
            Some(context) if context.primary => Ok(()),
            _ => self.given(handle).map(|_| ()),
        }
    }

    fn context_or_current(&self, handle: Handle) -> Result<ContextId, Code> {
        if handle == 0 {
            return self.model_context();
        }
        self.given(handle)
    }

    pub(crate) fn current_mut(&mut self) -> Result<&mut Context, Code> {
        let handle = self.context()?;
        let context = self.sim.contexts.get_mut(handle);
        context.ok_or(Code::INVALID_CONTEXT)
    }

    fn create(&mut self, to: &Out<Handle>, flags: u32, device: i32) -> Done {
        to.required()?;
        let device = self.device(device)?;
        let mut context = Context::primary(device);
        context.primary = false;
        context.flags = flags;
        context.model = Some(self.sim.begin_context(device)?);
        let handle = self.sim.contexts.insert(context);
        stack(|s| s.push(handle));
        to.set(handle)
    }

    fn primary(&mut self, device: i32) -> Result<(Handle, &mut Context), Code> {
        let device = self.device(device)?;
        let handle = self.sim.primaries.get(device as usize).copied();
        let handle = handle.ok_or(Code::INVALID_VALUE)?;
        let context = self.sim.contexts.get_mut(handle);
        Ok((handle, context.ok_or(Code::INVALID_CONTEXT)?))
    }

    pub(crate) fn retain(&mut self, device: i32) -> Result<Handle, Code> {
        let ordinal = self.device(device)?;
        if self.primary(device)?.1.model.is_none() {
            let model = self.sim.begin_context(ordinal)?;
            self.primary(device)?.1.model = Some(model);
        }
        let (handle, context) = self.primary(device)?;
        context.retained += 1;
        Ok(handle)
    }

    pub(crate) fn primary_handle(&mut self, device: i32) -> Result<Handle, Code> {
        Ok(self.primary(device)?.0)
    }

    /// The context that the next release ends, if any.
    fn ending_by_release(&mut self, device: i32) -> Result<Option<Handle>, Code> {
        let (handle, context) = self.primary(device)?;
        Ok((context.retained == 1).then_some(handle))
    }

    pub(crate) fn release_primary(&mut self, device: i32) -> Done {
        let (handle, context) = self.primary(device)?;
        if context.retained == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        context.retained -= 1;
        if context.retained == 0 {
            self.sim.end_context(handle);
        }
        Ok(())
    }

    fn reset_primary(&mut self, device: i32) -> Done {
        let (handle, _) = self.primary(device)?;
        self.sim.end_context(handle);
        Ok(())
    }

    fn attach(&mut self) -> Result<Handle, Code> {
        let handle = self.context()?;
        let context = self.current_mut()?;
        if context.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        context.attached += 1;
        Ok(handle)
    }

    /// The count of users of a context that the thread may detach from.
    fn attached(&mut self, handle: Handle) -> Result<&mut u32, Code> {
        let current = self.context()?;
        let context = self.current_mut()?;
        if context.primary || current != handle {
            return Err(Code::INVALID_CONTEXT);
        }
        Ok(&mut context.attached)
    }

    fn destroy(&mut self, handle: Handle) {
        self.sim.end_context(handle);
        self.sim.contexts.remove(handle);
        stack(|s| {
            if s.last() == Some(&handle) {
                s.pop();
            }
        });
    }

    fn set_primary_flags(&mut self, device: i32, flags: u32) -> Done {
        let (_, context) = self.primary(device)?;
        if context.model.is_some() && context.flags != flags {
            return Err(CONTEXT_IN_USE);
        }
        context.flags = flags;
        Ok(())
    }

    fn synchronize(&mut self, context: ContextId) -> Done {
        let streams = |s: &StreamId| self.sim.model.context_of(*s) == Some(context);
        let open: Vec<StreamId> = (self.sim.model.captures())
            .flat_map(|c| c.streams.iter().copied())
            .filter(streams)
            .collect();
        let refused = self.sim.model.refuse(self.name, |capture| {
            capture.streams.iter().any(|s| open.contains(s))
        });
        self.sim.announce();
        refused?;
        self.sim.wait(&self.sim.model.context_mark(context));
        self.sim.settle_pools();
        Ok(())
    }
}

driver! {
    fn cuDevicePrimaryCtxRetain(call, to: Out<Handle>, device: i32) {
        to.required()?;
        to.set(call.retain(device)?)
    }

    ending fn cuDevicePrimaryCtxRelease(call, device: i32) {
        call.ending_by_release(device)
    } {
        call.release_primary(device)
    }

    ending fn cuDevicePrimaryCtxRelease_v2(call, device: i32) {
        call.ending_by_release(device)
    } {
        call.release_primary(device)
    }

    ending fn cuDevicePrimaryCtxReset(call, device: i32) {
        call.primary_handle(device).map(Some)
    } {
        call.reset_primary(device)
    }

    ending fn cuDevicePrimaryCtxReset_v2(call, device: i32) {
        call.primary_handle(device).map(Some)
    } {
        call.reset_primary(device)
    }

    fn cuDevicePrimaryCtxSetFlags(call, device: i32, flags: u32) {
        call.set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(call, device: i32, flags: u32) {
        call.set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState(call, device: i32, flags: Out<u32>, active: Out<i32>) {
        let (_, context) = call.primary(device)?;
        flags.set(context.flags)?;
        active.set(i32::from(context.model.is_some()))
    }

    fn cuCtxCreate_v2(call, to: Out<Handle>, flags: u32, device: i32) {
        call.create(&to, flags, device)
    }

    fn cuCtxCreate_v3(
        call, to: Out<Handle>, _affinity: In<u64>, _count: i32, flags: u32, device: i32,
    ) {
        call.create(&to, flags, device)
    }

    fn cuCtxCreate_v4(call, to: Out<Handle>, _params: In<u64>, flags: u32, device: i32) {
        call.create(&to, flags, device)
    }

    ending fn cuCtxDestroy_v2(call, handle: Handle) {
        call.given(handle)?;
        if call.sim.contexts.get(handle).is_some_and(|c| c.primary) {
            return Err(Code::INVALID_CONTEXT);
        }
        Ok(Some(handle))
    } {
        call.given(handle)?;
        call.destroy(handle);
        Ok(())
    }

    fn cuCtxAttach(call, to: Out<Handle>, flags: u32) {
        to.required()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        to.set(call.attach()?)
    }

    ending fn cuCtxDetach(call, handle: Handle) {
        let users = *call.attached(handle)?;
        Ok((users == 1).then_some(handle))
    } {
        let users = call.attached(handle)?;
        *users -= 1;
        if *users == 0 {
            call.destroy(handle);
        }
        Ok(())
    }

    fn cuCtxPushCurrent_v2(call, handle: Handle) {
        call.named(handle)?;
        stack(|s| s.push(handle));
        call.sim.becomes_current(handle);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(call, to: Out<Handle>) {
        let popped = stack(|s| s.pop()).ok_or(Code::INVALID_CONTEXT)?;
        call.sim.is_current_no_more(popped);
        to.maybe(popped);
        Ok(())
    }

    fn cuCtxSetCurrent(call, handle: Handle) {
        if handle != 0 {
            call.named(handle)?;
        }
        let before = stack(|s| {
            let before = s.pop();
            if handle != 0 {
                s.push(handle);
            }
            before
        });
        call.sim.is_current_no_more(before.unwrap_or(0));
        call.sim.becomes_current(handle);
        Ok(())
    }

    fn cuCtxGetCurrent(_, to: Out<Handle>) {
        to.set(top())
    }

    fn cuCtxGetDevice(call, device: Out<i32>) {
        let handle = top();
        if handle == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        call.named(handle).map_err(|_| CONTEXT_DESTROYED)?;
        let context = call.sim.contexts.get(handle).ok_or(CONTEXT_DESTROYED)?;
        device.set(i32::try_from(context.device).unwrap_or(-1))
    }

    fn cuCtxGetDevice_v2(call, device: Out<i32>, handle: Handle) {
        let model = call.context_or_current(handle)?;
        let found = call.sim.model.device_of(model).ok_or(Code::INVALID_CONTEXT)?;
        device.set(i32::try_from(found).unwrap_or(-1))
    }

    fn cuCtxGetFlags(call, flags: Out<u32>) {
        flags.set(call.current_mut()?.flags)
    }

    fn cuCtxSetFlags(call, flags: u32) {
        call.current_mut()?.flags = flags;
        Ok(())
    }

    fn cuCtxGetId(call, handle: Handle, id: Out<u64>) {
        let model = call.context_or_current(handle)?;
        id.set(u64::from(model.number()) + 1)
    }

    fn cuCtxGetApiVersion(call, handle: Handle, version: Out<u32>) {
        call.context_or_current(handle)?;
        version.set(3020)
    }

    fn cuCtxSynchronize(call) {
        let context = call.model_context()?;
        call.synchronize(context)
    }

    fn cuCtxSynchronize_v2(call, handle: Handle) {
        let context = call.context_or_current(handle)?;
        call.synchronize(context)
    }
}
