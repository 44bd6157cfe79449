//! Who owns an address while contexts may be ending.
//!
//! The driver takes a context's memory back, and may hand it out again, before
//! we have heard that the context is gone: its end is still under way here, and
//! the page maps still name it for its addresses. So if the owner of an address
//! may be ending, the driver is asked whose the memory is now; and memory that
//! it has just given us belongs to no other context.
//!
//! Owns the count of the ends that are under way. Invariant: memory that the
//! driver has given to another owner is not taken for ours. Cost: a load for
//! each look-up of an owner; a question to the driver if it may be ending.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use vramalloc_core::page_map::Owner;
use vramalloc_core::{Address, Bytes, Code};

use crate::driver::context::Context;
use crate::driver::{green, reserved};
use crate::process::guard::{self, own_call};
use crate::process::shortcut;
use crate::real;
use crate::types::CUcontext;

/// How many ends are under way.
static ENDS: AtomicUsize = AtomicUsize::new(0);

/// What to call when a context turns out to be gone.
static GONE: OnceLock<fn(&Arc<Context>)> = OnceLock::new();

/// An end of a context that is under way, while it lives.
pub(crate) struct Ending;

impl Ending {
    /// Begins it. `gone` is called if the context turns out to have ended.
    pub(crate) fn begin(gone: fn(&Arc<Context>)) -> Ending {
        GONE.get_or_init(|| gone);
        shortcut::close();
        // Acquire and Release: pair with each other and with the loads below,
        // which come after the end by way of the driver.
        ENDS.fetch_add(1, Ordering::AcqRel);
        Ending
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // As in `begin`.
        ENDS.fetch_sub(1, Ordering::AcqRel);
        shortcut::open();
    }
}

/// The attribute of a pointer that names its context.
const CONTEXT: c_int = 1;

/// Chunks begin at multiples of this.
const STEP: Bytes = Bytes::kib(64);

/// Whether some end is under way.
#[inline(always)]
pub(crate) fn may_be_ending() -> bool {
    // Acquire: pairs with the Release in `Ending`.
    ENDS.load(Ordering::Acquire) != 0
}

/// The owner of an address that `look` finds in a page map. Returns
/// [`Owner::Foreign`] if the driver has given the memory to another context
/// than the one that `context` names for that owner.
#[inline]
pub(crate) fn owner<'a>(
    address: Address,
    look: impl FnOnce() -> Owner,
    context: impl FnOnce(Owner) -> Option<&'a Arc<Context>>,
) -> Owner {
    // Before the look: a thread that got the memory from the driver after it had
    // left its context either finds that end under way here, or finds the map
    // without it.
    let may_be_ending = may_be_ending();
    let owner = look();
    if may_be_ending && context(owner).is_some_and(|context| has_lost(context, address)) {
        return Owner::Foreign;
    }
    owner
}

/// Whether the driver says that memory does not belong to this context,
/// which may be ending. The driver is not asked from inside a call of its
/// own.
#[cold]
fn has_lost(context: &Context, address: Address) -> bool {
    // Mapped memory outlives contexts, and the driver names none for it.
    let is_kept = || reserved::holds(address.get());
    if !context.is_paused() || guard::is_called_back() || is_kept() {
        return false;
    }
    let mut handle: CUcontext = ptr::null_mut();
    let to = (&raw mut handle).cast();
    // SAFETY: writes the answer to a local; the driver checks the address.
    let asked = own_call(|| unsafe { real::cuPointerGetAttribute(to, CONTEXT, address.get()) });
    match Code::check(asked) {
        Ok(()) => green::whole(handle) != context.handle(),
        // It has nothing there, or memory of a graph that was not launched yet.
        Err(code) => code == Code::INVALID_VALUE,
    }
}

/// Called with memory that the driver has just given. If a page map names an
/// ending context for it, found by `context`, that context is gone.
pub(crate) fn took<'a>(
    address: Address,
    size: Bytes,
    context: impl Fn(Address) -> Option<&'a Arc<Context>>,
) {
    if !may_be_ending() {
        return;
    }
    // What lies between two starts of pages of the map has one owner.
    let mut at = address;
    let mut left = size;
    while !left.is_zero() {
        let ending = context(at).filter(|context| context.is_paused());
        if let (Some(context), Some(gone)) = (ending, GONE.get()) {
            gone(context);
        }
        let step = STEP.min(left);
        left = left.saturating_sub(step);
        let Some(next) = at.checked_add(step) else {
            return;
        };
        at = next;
    }
}
