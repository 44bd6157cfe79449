//! The contexts of the process, any of which may be using the memory of any
//! other.
//!
//! CUDA's own free waits for whoever still uses the memory, so a fence has to
//! cover every context that could: one that was given access to the memory,
//! and just as well one that was not, because a copy between devices (or from
//! a device to the host, in whatever context) needs no access. Such a context
//! need never have allocated through us; therefore contexts are noted when
//! they are made, and those made behind our back when they first come by.
//!
//! Owns the list of contexts that are alive, whose lock is taken alone and
//! spans no driver call. Invariant: a context has one marker from its
//! beginning to its end. Cost: a look at the list per fence; a mark more per
//! fence for each context beyond the first.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::rwlock::RwLock;
use vramalloc_core::patience::Brief;

use crate::driver::green;
use crate::driver::marker::Marker;
use crate::driver::primary;
use crate::driver::streams;
use crate::real;
use crate::types::{CUcontext, CUdevice};

/// A context that is alive.
struct Known {
    marker: Arc<Marker>,
    /// Its device, if it is that device's primary context.
    primary_of: Option<CUdevice>,
}

/// Whether two contexts were alive at once. Relaxed: a thread to which another
/// context is current has learned of it from whoever made it.
static SEVERAL: AtomicBool = AtomicBool::new(false);

static CONTEXTS: RwLock<Vec<Known>, Brief> = RwLock::new(Vec::new());

/// Changes when an arena is retired, and when a handle stands for another context
/// from now on: what threads remember of either may be old then.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Of what threads remember.
pub(crate) fn generation() -> u64 {
    // Acquire: pairs with the Release in `forget_remembered`.
    GENERATION.load(Ordering::Acquire)
}

/// What threads remember is old.
pub(crate) fn forget_remembered() {
    // Release: pairs with the Acquire in `generation`.
    GENERATION.fetch_add(1, Ordering::Release);
}

/// What is known of a context: its marker, and whether it is its device's
/// primary one.
pub(crate) fn known(context: CUcontext) -> Option<(Arc<Marker>, bool)> {
    let contexts = CONTEXTS.read();
    let known = contexts.iter().find(|k| k.marker.context() == context)?;
    Some((Arc::clone(&known.marker), known.primary_of.is_some()))
}

/// The same of one that may not have come by yet; none where it is the primary
/// context of this device and not made: it may be current before it is made,
/// and after a reset. Any other one is noted when it is made.
pub(crate) fn learn(context: CUcontext, device: CUdevice) -> Option<(Arc<Marker>, bool)> {
    if let Some(known) = known(context) {
        return Some(known);
    }
    if primary::is_active(device) == Some(false) {
        return None;
    }
    let primary = primary::is_primary(context, device);
    let marker = marker(context, || primary.then_some(device));
    Some((marker, primary))
}

/// The marker of a context.
pub(crate) fn marker(
    context: CUcontext,
    primary_of: impl FnOnce() -> Option<CUdevice>,
) -> Arc<Marker> {
    let context = green::whole(context);
    let find = |known: &[Known]| {
        let known = known.iter().find(|k| k.marker.context() == context)?;
        Some(Arc::clone(&known.marker))
    };
    if let Some(marker) = find(&CONTEXTS.read()) {
        return marker;
    }
    if real::find_all() {
        streams::find_way();
    }
    let known = Known {
        marker: Marker::new(context),
        primary_of: primary_of(),
    };
    let mut contexts = CONTEXTS.write();
    // Another thread may have been faster.
    if let Some(marker) = find(&contexts) {
        return marker;
    }
    let marker = Arc::clone(&known.marker);
    contexts.push(known);
    if contexts.len() > 1 {
        SEVERAL.store(true, Ordering::Relaxed);
    }
    marker
}

/// The marker of the context that is current on this thread.
pub(crate) fn current() -> Option<Arc<Marker>> {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: a place for the answer.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    if result != 0 || context.is_null() {
        return None;
    }
    let context = green::whole(context);
    if let Some((marker, _)) = known(context) {
        return Some(marker);
    }
    let mut device: CUdevice = 0;
    // SAFETY: a place for the answer.
    if unsafe { real::cuCtxGetDevice(&raw mut device) } != 0 {
        return Some(marker(context, || None));
    }
    learn(context, device).map(|(marker, _)| marker)
}

/// Whether there are, or were, several contexts.
pub(crate) fn are_several() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

/// Whether this is the context that is current on this thread, or a part of it is.
pub(crate) fn is_current(context: CUcontext) -> bool {
    let mut current: CUcontext = ptr::null_mut();
    // SAFETY: a place for the answer.
    let asked = unsafe { real::cuCtxGetCurrent(&raw mut current) };
    asked == 0 && green::whole(current) == context
}

/// All contexts.
pub(crate) fn all() -> Vec<Arc<Marker>> {
    let contexts = CONTEXTS.read();
    contexts.iter().map(|k| Arc::clone(&k.marker)).collect()
}

/// The marker of a context that may not have come by yet.
pub(crate) fn of(context: CUcontext) -> Arc<Marker> {
    marker(context, || {
        let mut device: CUdevice = 0;
        let passing = Marker::new(context);
        // SAFETY: a place for the answer.
        let told = passing.call(|| unsafe { real::cuCtxGetDevice(&raw mut device) });
        (told.is_ok() && primary::is_primary(context, device)).then_some(device)
    })
}

/// All contexts but this one.
pub(crate) fn others_than(own: CUcontext) -> Vec<Arc<Marker>> {
    let contexts = CONTEXTS.read();
    let markers = contexts.iter().map(|known| &known.marker);
    (markers.filter(|marker| marker.context() != own))
        .map(Arc::clone)
        .collect()
}

/// The context of this marker is gone; another one may have its handle now.
pub(crate) fn forget(marker: &Arc<Marker>) {
    let mut contexts = CONTEXTS.write();
    contexts.retain(|known| !Arc::ptr_eq(&known.marker, marker));
}

/// The device whose primary context this marker's is.
pub(crate) fn device_of_primary(marker: &Arc<Marker>) -> Option<CUdevice> {
    let contexts = CONTEXTS.read();
    let known = contexts.iter().find(|k| Arc::ptr_eq(&k.marker, marker))?;
    known.primary_of
}

/// The marker of the device's primary context, if it was made.
pub(crate) fn primary(device: CUdevice) -> Option<Arc<Marker>> {
    let contexts = CONTEXTS.read();
    let known = (contexts.iter()).find(|known| known.primary_of == Some(device))?;
    Some(Arc::clone(&known.marker))
}
