//! Contexts that were given access to another's memory.
//!
//! CUDA's own free waits for them too, so a fence of the memory's context has
//! to cover them. Owns the list of grants, whose
//! lock is taken alone and spans no driver call. Invariant: whoever can use the
//! memory of a context is on its list; a grant that was taken back may stay,
//! which costs a mark more per fence. Cost: nothing without peers but a look
//! at an empty list per fence.

use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;

use spin::relax::Yield;
use spin::rwlock::RwLock;

use crate::context;
use crate::marker::Marker;
use crate::symbols::real;
use crate::types::{CUcontext, CUdevice, CudaResult};

/// One context's access to the memory of another.
struct Grant {
    owner: usize,
    user: Arc<Marker>,
    /// The user's device, if it is that device's primary context.
    primary_of: Option<CUdevice>,
}

static GRANTS: RwLock<Vec<Grant>, Yield> = RwLock::new(Vec::new());

/// Gives the current context access to the memory of `owner`.
pub(crate) unsafe fn cuCtxEnablePeerAccess(owner: CUcontext, flags: c_uint) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real::cuCtxEnablePeerAccess(owner, flags) };
    if result == 0 {
        note(owner);
    }
    Some(result)
}

fn note(owner: CUcontext) {
    let mut user: CUcontext = ptr::null_mut();
    let mut device: CUdevice = 0;
    // SAFETY: places for the answers.
    let told = unsafe {
        real::cuCtxGetCurrent(&raw mut user) == 0 && real::cuCtxGetDevice(&raw mut device) == 0
    };
    if !told || user.is_null() {
        return;
    }
    let grant = Grant {
        owner: owner.addr(),
        user: Marker::new(user),
        primary_of: context::is_primary(user, device).then_some(device),
    };
    let mut grants = GRANTS.write();
    let known = |other: &Grant| other.owner == grant.owner && other.user.context() == user;
    if !grants.iter().any(known) {
        grants.push(grant);
    }
}

/// Those who can use the memory of a context.
pub(crate) fn of(owner: CUcontext) -> Vec<Arc<Marker>> {
    let grants = GRANTS.read();
    let theirs = grants.iter().filter(|grant| grant.owner == owner.addr());
    theirs.map(|grant| Arc::clone(&grant.user)).collect()
}

/// The context ends.
pub(crate) fn end(context: CUcontext) {
    end_where(|grant| grant.user.context() == context);
    GRANTS.write().retain(|grant| grant.owner != context.addr());
}

/// The device's primary context ends.
pub(crate) fn end_primary(device: CUdevice) {
    end_where(|grant| grant.primary_of == Some(device));
}

/// Whether the device's primary context can use another's memory.
pub(crate) fn has_primary(device: CUdevice) -> bool {
    let grants = GRANTS.read();
    (grants.iter()).any(|grant| grant.primary_of == Some(device))
}

fn end_where(ends: impl Fn(&Grant) -> bool) {
    GRANTS.write().retain(|grant| {
        let ended = ends(grant);
        if ended {
            grant.user.end();
        }
        !ended
    });
}
