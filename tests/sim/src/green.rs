//! Green contexts: parts of a device, each with streams of its own.
//!
//! A green context is a part of its device's primary context, whose memory,
//! streams and end it shares (the model gives it no order of its own).
//! Invariant: it retains the primary context while it lives, and is current on
//! one thread at a time. Resources are numbers without effect.

use vramalloc_core::Code;
use vramalloc_model::Violation;

use crate::entry::{Call, driver};
use crate::ffi::{Handle, In, Out};
use crate::machine::Machine;
use crate::state::Context;
use crate::thread;

/// The kind of resource, and where its count stands in `CUdevResource`.
const SM: u32 = 1;
const COUNT_AT: usize = 24;

impl Machine {
    /// Ends the parts of a primary context that is gone.
    pub(crate) fn end_parts_of(&mut self, primary: Handle) {
        let all = self.contexts.iter();
        let parts: Vec<Handle> = all
            .filter(|(_, context)| context.part_of == Some(primary))
            .map(|(handle, _)| handle)
            .collect();
        for part in parts {
            if let Some(context) = self.contexts.get_mut(part) {
                context.model = None;
            }
        }
    }

    /// Notes that a context was made current.
    pub(crate) fn becomes_current(&mut self, handle: Handle) {
        let Some(context) = self.contexts.get_mut(handle) else {
            return;
        };
        if context.part_of.is_none() {
            return;
        }
        let before = context.current_on.replace(thread::number());
        if before.is_some_and(|other| other != thread::number()) {
            let text = "a green context is current on two threads".to_owned();
            self.violate(Violation::Other(text));
        }
    }

    /// Notes that a context is not current any more.
    pub(crate) fn is_current_no_more(&mut self, handle: Handle) {
        if let Some(context) = self.contexts.get_mut(handle) {
            context.current_on = None;
        }
    }
}

impl Call<'_> {
    /// The green context of an argument.
    fn green(&self, handle: Handle) -> Result<&Context, Code> {
        let context = self.sim.contexts.get(handle);
        let context = context.filter(|context| context.part_of.is_some());
        context.ok_or(Code::INVALID_CONTEXT)
    }
}

driver! {
    fn cuDeviceGetDevResource(call, device: i32, to: Out<[u32; 36]>, sort: u32) {
        call.device(device)?;
        if sort != SM {
            return Err(Code::INVALID_VALUE);
        }
        let mut resource = [0; 36];
        resource[0] = SM;
        resource[COUNT_AT] = 132;
        to.set(resource)
    }

    fn cuDevResourceGenerateDesc(_, to: Out<Handle>, resource: In<u32>, count: u32) {
        if count == 0 || resource.get()? != SM {
            return Err(Code::INVALID_VALUE);
        }
        to.set(0x5100_0000_0001)
    }

    fn cuGreenCtxCreate(call, to: Out<Handle>, description: Handle, device: i32, flags: u32) {
        to.required()?;
        if description == 0 || flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let primary = call.retain(device)?;
        let mut context = Context::primary(call.device(device)?);
        context.be_part_of(primary, call.alive(primary)?);
        to.set(call.sim.contexts.insert(context))
    }

    fn cuGreenCtxDestroy(call, handle: Handle) {
        let device = i32::try_from(call.green(handle)?.device);
        call.sim.contexts.remove(handle);
        call.release_primary(device.unwrap_or(-1))
    }

    fn cuCtxFromGreenCtx(call, to: Out<Handle>, handle: Handle) {
        call.green(handle)?;
        to.set(handle)
    }

    fn cuGreenCtxStreamCreate(
        call, to: Out<Handle>, handle: Handle, flags: u32, priority: i32,
    ) {
        call.green(handle)?;
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        call.create_stream_in(handle, &to, flags, priority)
    }
}
