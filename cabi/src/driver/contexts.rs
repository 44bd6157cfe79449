//! The contexts of the process. Each may be using the memory of any other.
//!
//! CUDA's own free waits for all work that still uses the memory, so a fence
//! has to cover every context that could use it: one that was given access to
//! the memory, and also one that was not, because a copy between devices (or
//! from a device to the host, in whatever context) needs no access. Such a
//! context need never have allocated through us. So contexts are noted when
//! they are made, and those made without our knowledge when we first see them.
//!
//! Owns the list of live contexts, whose lock is taken alone and spans no
//! driver call. Invariant: a context has one [`Context`] from its beginning to
//! its end. Cost: a look at the list per fence, and an event more per fence for
//! each context beyond the first.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::rwlock::RwLock;
use vramalloc_core::patience::Brief;

use crate::driver::context::Context;
use crate::driver::{green, primary, streams};
use crate::real;
use crate::types::{CUcontext, CUdevice};

/// A context that is alive.
struct Known {
    context: Arc<Context>,
    /// Its device, if it is that device's primary context.
    primary_of: Option<CUdevice>,
}

/// Whether two contexts were alive at once. Relaxed: a thread that has another
/// context current learned of it from the thread that made it.
static SEVERAL: AtomicBool = AtomicBool::new(false);

static CONTEXTS: RwLock<Vec<Known>, Brief> = RwLock::new(Vec::new());

/// Changes when an arena is retired, and when a handle comes to stand for
/// another context: what threads remember of either may then be out of date.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The generation of what threads remember.
pub(crate) fn generation() -> u64 {
    // Acquire: pairs with the Release in `forget_remembered`.
    GENERATION.load(Ordering::Acquire)
}

/// Makes threads forget what they remember.
pub(crate) fn forget_remembered() {
    // Release: pairs with the Acquire in `generation`.
    GENERATION.fetch_add(1, Ordering::Release);
}

/// What is known of a context, and whether it is its device's primary one.
pub(crate) fn known(handle: CUcontext) -> Option<(Arc<Context>, bool)> {
    let contexts = CONTEXTS.read();
    let known = contexts.iter().find(|k| k.context.handle() == handle)?;
    Some((Arc::clone(&known.context), known.primary_of.is_some()))
}

/// Like [`known`], for a context that may not have been seen yet. Returns
/// `None` for the primary context of this device while it does not exist: it
/// may be current before it is made, and after a reset. Any other context is
/// noted when it is made.
pub(crate) fn learn(handle: CUcontext, device: CUdevice) -> Option<(Arc<Context>, bool)> {
    if let Some(known) = known(handle) {
        return Some(known);
    }
    if primary::is_active(device) == Some(false) {
        return None;
    }
    let primary = primary::is_primary(handle, device);
    let context = context(handle, || primary.then_some(device));
    Some((context, primary))
}

/// The context with this handle, noted now if it is new; `primary_of` then
/// names the device whose primary context it is.
pub(crate) fn context(
    handle: CUcontext,
    primary_of: impl FnOnce() -> Option<CUdevice>,
) -> Arc<Context> {
    let handle = green::whole(handle);
    let find = |known: &[Known]| {
        let known = known.iter().find(|k| k.context.handle() == handle)?;
        Some(Arc::clone(&known.context))
    };
    if let Some(context) = find(&CONTEXTS.read()) {
        return context;
    }
    if real::find_all() {
        streams::find_way();
    }
    let known = Known {
        context: Context::new(handle),
        primary_of: primary_of(),
    };
    let mut contexts = CONTEXTS.write();
    // Another thread may have been faster.
    if let Some(context) = find(&contexts) {
        return context;
    }
    let context = Arc::clone(&known.context);
    contexts.push(known);
    if contexts.len() > 1 {
        SEVERAL.store(true, Ordering::Relaxed);
    }
    context
}

/// The context that is current on this thread.
pub(crate) fn current() -> Option<Arc<Context>> {
    let mut handle: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut handle) };
    if result != 0 || handle.is_null() {
        return None;
    }
    let handle = green::whole(handle);
    if let Some((context, _)) = known(handle) {
        return Some(context);
    }
    let mut device: CUdevice = 0;
    // SAFETY: writes the answer to a local.
    if unsafe { real::cuCtxGetDevice(&raw mut device) } != 0 {
        return Some(context(handle, || None));
    }
    learn(handle, device).map(|(context, _)| context)
}

/// Whether there are, or were, several contexts.
pub(crate) fn are_several() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

/// Whether this is the context that is current on this thread, or a part of it is.
pub(crate) fn is_current(handle: CUcontext) -> bool {
    let mut current: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    let asked = unsafe { real::cuCtxGetCurrent(&raw mut current) };
    asked == 0 && green::whole(current) == handle
}

/// All contexts.
pub(crate) fn all() -> Vec<Arc<Context>> {
    let contexts = CONTEXTS.read();
    contexts.iter().map(|k| Arc::clone(&k.context)).collect()
}

/// The context with this handle, which may not have been seen yet.
pub(crate) fn of(handle: CUcontext) -> Arc<Context> {
    context(handle, || {
        let mut device: CUdevice = 0;
        let passing = Context::new(handle);
        // SAFETY: writes the answer to a local.
        let told = passing.call(|| unsafe { real::cuCtxGetDevice(&raw mut device) });
        (told.is_ok() && primary::is_primary(handle, device)).then_some(device)
    })
}

/// All contexts but this one.
pub(crate) fn others_than(own: CUcontext) -> Vec<Arc<Context>> {
    let contexts = CONTEXTS.read();
    let contexts = contexts.iter().map(|known| &known.context);
    (contexts.filter(|context| context.handle() != own))
        .map(Arc::clone)
        .collect()
}

/// Forgets a context that is gone; another one may have its handle now.
pub(crate) fn forget(context: &Arc<Context>) {
    let mut contexts = CONTEXTS.write();
    contexts.retain(|known| !Arc::ptr_eq(&known.context, context));
}

/// The device whose primary context this is, if it is one.
pub(crate) fn device_of_primary(context: &Arc<Context>) -> Option<CUdevice> {
    let contexts = CONTEXTS.read();
    let known = contexts.iter().find(|k| Arc::ptr_eq(&k.context, context))?;
    known.primary_of
}

/// The device's primary context, if it is known.
pub(crate) fn primary(device: CUdevice) -> Option<Arc<Context>> {
    let contexts = CONTEXTS.read();
    let known = (contexts.iter()).find(|known| known.primary_of == Some(device))?;
    Some(Arc::clone(&known.context))
}
