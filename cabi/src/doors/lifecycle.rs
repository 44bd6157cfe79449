//! The ends of contexts.
//!
//! A context takes its memory with it, and its handle may come back for the
//! next one. But only the driver knows which call ends a context: it refuses
//! some, and counts the users of others. So a call that may end one is made in
//! three steps. First, our calls in the context are over and further ones are
//! held back, and its pools are not found; other contexts go on, and wait for
//! nothing in this one. Then the real function is called. Then the context is
//! forgotten, with all that appeared meanwhile; or, if it is still there,
//! everything goes on as it was.
//!
//! Meanwhile nothing is known of the context. A thread that asks for something
//! in it waits until the end is decided ([`Context::await_decision`]). The
//! driver is asked who owns an address that was the context's
//! ([`whose`](crate::driver::whose)). A callback that the driver makes on the
//! ending thread finds a call of ours under way (see
//! [`guard`](crate::process::guard)): it waits for nothing, a free in it is
//! only recorded, and a request goes to the driver.
//!
//! A context that is gone is known by its [`Context`], not by its handle. A
//! thread that sees the driver hand its handle or its memory out again forgets
//! it at once. [`users`] counts the users of contexts. Cost: a few stores for
//! an end; a look at one number for each chunk and each free.

mod parting;

use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;

use vramalloc_core::Code;
use vramalloc_core::patience::Patience;

use crate::driver::context::Context;
use crate::driver::users::{self, Alone, Counted};
use crate::driver::whose::Ending;
use crate::driver::{capture, contexts, green, primary, streams};
use crate::pools::{device, lanes};
use crate::process::guard::own_call;
use crate::types::{CUcontext, CUdevice, CudaResult};
use crate::{families, ipc, real};

/// What a call may end.
#[derive(Copy, Clone)]
enum What {
    Context(CUcontext),
    Primary(CUdevice),
}

impl What {
    fn context(self) -> Option<Arc<Context>> {
        match self {
            What::Context(handle) => contexts::known(handle).map(|(context, _)| context),
            What::Primary(device) => contexts::primary(device),
        }
    }

    /// How its users are counted.
    fn counted(self) -> Counted {
        match self {
            What::Context(handle) => Counted::Handle(handle.addr()),
            What::Primary(device) => Counted::Primary(device),
        }
    }

    /// Before the call: waits for others' uses of memory that was freed here.
    /// Returns whether the call certainly ends the context, with its work done.
    fn prepare(self, sure: Sure) -> bool {
        let known = match self {
            // The driver refuses to end a primary context in this way.
            What::Context(handle) => contexts::known(handle).filter(|&(_, primary)| !primary),
            What::Primary(device) => contexts::primary(device).map(|context| (context, true)),
        };
        let Some((context, _)) = known else {
            return false;
        };
        parting::wait_for_peers(&context, sure);
        sure == Sure::Yes && parting::is_quiet(&context)
    }
}

/// Whether a call ends a context, as far as that is known before.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Sure {
    /// It does, unless the driver fails.
    Yes,
    /// It does if there is no other user that we have not seen.
    No,
}

doors! {
    destroy(handle) cuCtxDestroy(handle: CUcontext);
    destroy(handle) cuCtxDestroy_v2(handle: CUcontext);
    reset(device) cuDevicePrimaryCtxReset(device: CUdevice);
    reset(device) cuDevicePrimaryCtxReset_v2(device: CUdevice);
    release(device) cuDevicePrimaryCtxRelease(device: CUdevice);
    release(device) cuDevicePrimaryCtxRelease_v2(device: CUdevice);
}

/// Adds a user to the current context.
pub(crate) unsafe fn cuCtxAttach(to: *mut CUcontext, flags: c_uint) -> Option<CudaResult> {
    let mut current: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    unsafe { real::cuCtxGetCurrent(&raw mut current) };
    let of = Counted::Handle(current.addr());
    // SAFETY: the caller's own arguments, here and below.
    Some(users::join(of, || unsafe { real::cuCtxAttach(to, flags) }))
}

/// The oldest way to end a context, which counts who is attached to it.
pub(crate) unsafe fn cuCtxDetach(handle: CUcontext) -> Option<CudaResult> {
    let was_current = is_current(handle);
    let what = What::Context(handle);
    // SAFETY: as above.
    let call = || unsafe { real::cuCtxDetach(handle) };
    Some(leave(what, call, |result| {
        let left = result == 0 && was_current && !is_current(handle);
        left || is_gone(handle, result)
    }))
}

fn destroy(handle: CUcontext, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    Some(end(What::Context(handle), Sure::Yes, call, |result| {
        result == 0 || is_gone(handle, result)
    }))
}

fn reset(device: CUdevice, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    Some(end(What::Primary(device), Sure::Yes, call, |result| {
        result == 0 || is_unmade(device, result)
    }))
}

pub(crate) fn release(device: CUdevice, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    Some(leave(What::Primary(device), call, |result| {
        is_unmade(device, result)
    }))
}

/// Makes a call by which a user lets go of a context. While there are other
/// users it ends nothing, and nothing is waited for.
fn leave(
    what: What,
    call: impl FnOnce() -> CudaResult,
    has_ended: impl FnOnce(CudaResult) -> bool,
) -> CudaResult {
    if let Some(_others) = users::leave(what.counted()) {
        return call();
    }
    let result = end(what, Sure::No, call, has_ended);
    if result == 0 {
        users::left(what.counted());
    }
    result
}

/// Makes a call that may end a context; `has_ended` says whether it did.
fn end(
    what: What,
    sure: Sure,
    call: impl FnOnce() -> CudaResult,
    has_ended: impl FnOnce(CudaResult) -> bool,
) -> CudaResult {
    let quiet = what.prepare(sure);
    let alone = Alone::begin(what.counted());
    let context = what.context();
    let under_way = UnderWay::begin(context.as_ref(), quiet);
    let result = own_call(call);
    if has_ended(result) {
        alone.forget();
        match &context {
            Some(context) => gone(context, what),
            None => forget(what),
        }
    }
    drop(under_way);
    result
}

/// Keeps all calls of ours out of a context, while it lives.
struct UnderWay<'a> {
    context: Option<&'a Arc<Context>>,
    quiet: bool,
    _ending: Ending,
}

impl<'a> UnderWay<'a> {
    fn begin(context: Option<&'a Arc<Context>>, quiet: bool) -> UnderWay<'a> {
        let ending = Ending::begin(gone_already);
        if let Some(context) = context {
            context.pause(quiet);
            device::close_pools();
        }
        UnderWay {
            context,
            quiet,
            _ending: ending,
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.context {
            context.resume(self.quiet);
        }
    }
}

/// The driver has shown that a context is gone whose end is under way.
fn gone_already(context: &Arc<Context>) {
    let what = match contexts::device_of_primary(context) {
        Some(device) => What::Primary(device),
        None => What::Context(context.handle()),
    };
    gone(context, what);
}

/// Forgets a context that is gone, and its memory.
fn gone(context: &Arc<Context>, what: What) {
    struct Forgetting<'a>(&'a Context);
    impl Drop for Forgetting<'_> {
        fn drop(&mut self) {
            self.0.forgot();
        }
    }
    if !context.end() {
        // Another thread is forgetting it, which waits for nothing.
        let mut patience = Patience::new();
        while !context.is_forgotten() {
            patience.pause();
        }
        return;
    }
    let _forgetting = Forgetting(context);
    device::retire(context).unmap();
    capture::forget_context(context.handle());
    lanes::end_context(context);
    forget(what);
    // Last: as long as it is listed, a new context that has its handle waits, of which all
    // this would be forgotten.
    contexts::forget(context);
    streams::forget_ended();
}

/// Forgets what else is known of a context.
fn forget(what: What) {
    match what {
        What::Context(handle) => {
            families::end_context(|context| context.handle == handle.addr());
            ipc::end(handle);
        }
        What::Primary(device) => {
            families::end_context(|context| context.primary_of == Some(device));
            ipc::end_primary(device);
            green::forget_device(device);
        }
    }
}

/// Called when the driver has just made a context with this handle: one that
/// had it before and was ending is gone.
pub(crate) fn made(handle: CUcontext) {
    if let Some((context, false)) = contexts::known(handle)
        && context.is_paused()
    {
        gone(&context, What::Context(handle));
    }
}

fn is_current(handle: CUcontext) -> bool {
    let mut current: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    let asked = own_call(|| unsafe { real::cuCtxGetCurrent(&raw mut current) });
    asked == 0 && !current.is_null() && current == handle
}

/// Whether a context is gone after a call that was to end it returned `result`.
/// The driver may only have counted, or report an earlier failure.
fn is_gone(handle: CUcontext, result: CudaResult) -> bool {
    if says_nothing(result) || handle.is_null() || contexts::known(handle).is_none() {
        return false;
    }
    let mut version: c_uint = 0;
    // SAFETY: a handle that the driver checks, and a place for the answer.
    let answer = own_call(|| unsafe { real::cuCtxGetApiVersion(handle, &raw mut version) });
    matches!(answer, INVALID_CONTEXT | CONTEXT_IS_DESTROYED)
}

/// Whether a primary context does not exist, after a call that was to end it
/// returned `result`.
fn is_unmade(device: CUdevice, result: CudaResult) -> bool {
    !says_nothing(result) && primary::is_active(device) == Some(false)
}

const INVALID_CONTEXT: CudaResult = 201;
const CONTEXT_IS_DESTROYED: CudaResult = 709;

/// Whether the driver takes no calls, not yet or no more.
fn says_nothing(result: CudaResult) -> bool {
    result == Code::NOT_INITIALIZED.get() || result == Code::DEINITIALIZED.get()
}
