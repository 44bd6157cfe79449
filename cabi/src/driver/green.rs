//! Green contexts: parts of a device, made by functions of their own.
//!
//! The driver treats each as a part of its device's primary context: it retains
//! that one while it lives, shares its memory, and an event or a wait over the
//! primary context covers it. So to us it *is* that context: memory that is
//! asked for in it comes from the primary context's arena, and stays when the
//! green one goes. We never make a green context current, as it can be current
//! on one thread alone.
//!
//! Owns the list of live green contexts; its lock is taken alone and spans no
//! driver call. Invariant: a primary context with a green one is known. Cost:
//! an atomic load for each context that is looked up anew.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use crate::driver::{capture, contexts, primary};
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice};

/// A green context that is alive.
struct Part {
    /// One of its own: another may have the same handles soon after it.
    number: u64,
    green: usize,
    /// The handle by which it can be current; 0 where the driver did not say.
    handle: usize,
    /// The context that it is a part of, and the device of both.
    primary: usize,
    device: CUdevice,
}

static PARTS: SpinMutex<Vec<Part>, Brief> = SpinMutex::new(Vec::new());
/// Whether there is or was one. Relaxed: a thread with a green context's handle
/// learned of it from the thread that made it, and so sees this set.
static ANY: AtomicBool = AtomicBool::new(false);

/// The context whose memory and work this one shares: its device's primary
/// context for a green one, else itself.
pub(crate) fn whole(handle: CUcontext) -> CUcontext {
    if !ANY.load(Ordering::Relaxed) {
        return handle;
    }
    let parts = PARTS.lock();
    let part = parts.iter().find(|part| part.handle == handle.addr());
    part.map_or(handle, |part| {
        ptr::with_exposed_provenance_mut(part.primary)
    })
}

/// Notes a green context, and the primary context that it has retained.
pub(crate) fn note(green: *mut c_void, device: CUdevice) {
    let mut primary: CUcontext = ptr::null_mut();
    own_call(|| {
        // SAFETY: writes the answer to a local.
        if unsafe { real::cuDevicePrimaryCtxRetain(&raw mut primary, device) } == 0 {
            primary::release_primary(device);
        }
    });
    if primary.is_null() {
        return;
    }
    contexts::context(primary, || Some(device));
    ANY.store(true, Ordering::Relaxed);
    static MADE: AtomicU64 = AtomicU64::new(0);
    // Its streams name it by that, whether the program has it or not.
    let mut handle: CUcontext = ptr::null_mut();
    // SAFETY: the caller's green context, and a place for the answer.
    own_call(|| unsafe { real::cuCtxFromGreenCtx(&raw mut handle, green) });
    // An earlier one with this handle is gone.
    forget(|part| part.green == green.addr(), capture::forget_part);
    PARTS.lock().push(Part {
        number: MADE.fetch_add(1, Ordering::Relaxed),
        green: green.addr(),
        handle: handle.addr(),
        primary: primary.expose_provenance(),
        device,
    });
}

/// Notes the handle by which a green context can be current.
pub(crate) fn note_context(green: *mut c_void, handle: CUcontext) {
    let mut parts = PARTS.lock();
    if let Some(part) = parts.iter_mut().find(|part| part.green == green.addr()) {
        part.handle = handle.addr();
    }
}

/// The number of a green context, and the device that it is a part of.
pub(crate) fn find(green: *mut c_void) -> Option<(u64, CUdevice)> {
    let parts = PARTS.lock();
    let part = parts.iter().find(|part| part.green == green.addr())?;
    Some((part.number, part.device))
}

/// Forgets the green context of a number that is gone, and ends the captures on its
/// streams.
pub(crate) fn gone(number: u64, device: CUdevice) {
    // If the primary context is gone too, so are all streams: none is asked.
    let is_left = primary::is_active(device) == Some(true);
    let over = if is_left {
        capture::forget_part
    } else {
        capture::forget_context
    };
    forget(|part| part.number == number, over);
}

/// Forgets every part of a device whose primary context is gone.
pub(crate) fn forget_device(device: CUdevice) {
    forget(|part| part.device == device, capture::forget_context);
}

/// Forgets a part that had this handle: the driver has just made a context with
/// it, so the part is gone.
pub(crate) fn forget_handle(handle: CUcontext) {
    forget(|part| part.handle == handle.addr(), capture::forget_context);
}

/// Forgets the parts that are gone, and calls `over` with the handle of each.
fn forget(is_gone: impl Fn(&Part) -> bool, over: fn(CUcontext)) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let gone: Vec<Part> = {
        let mut parts = PARTS.lock();
        let (gone, kept) = parts.drain(..).partition(is_gone);
        *parts = kept;
        gone
    };
    for part in &gone {
        over(ptr::without_provenance_mut(part.handle));
    }
    if !gone.is_empty() {
        contexts::forget_remembered();
    }
}
