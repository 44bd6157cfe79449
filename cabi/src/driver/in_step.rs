//! Contexts whose calls wait until what they do is done.
//!
//! Where other hardware reads a device's memory, a copy that the host need not wait
//! for may come too late. So programs have the driver synchronise all calls about
//! such an allocation; and for mapped memory, where it does not, about a context.
//!
//! Owns the wish, which stays for all contexts to come. Cost: none until it is there;
//! then two driver calls for each context.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::context::Context;
use crate::driver::contexts;
use crate::real;

/// `CU_CTX_SYNC_MEMOPS`.
const SYNCHRONOUS: c_uint = 0x80;

/// Whether contexts are to be so. Relaxed: who makes a context after it was set
/// learned of that from the thread that set it.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Has every context of the process synchronise its calls; false where one cannot.
pub(crate) fn begin() -> bool {
    WANTED.store(true, Ordering::Relaxed);
    contexts::all().iter().all(tell)
}

/// Called when a context is new.
pub(crate) fn joins(context: &Arc<Context>) {
    if WANTED.load(Ordering::Relaxed) {
        tell(context);
    }
}

fn tell(context: &Arc<Context>) -> bool {
    let mut flags: c_uint = 0;
    let told = context.call_now(|| {
        // SAFETY: writes the answer to a local.
        match unsafe { real::cuCtxGetFlags(&raw mut flags) } {
            // SAFETY: flags that the driver checks.
            0 => unsafe { real::cuCtxSetFlags(flags | SYNCHRONOUS) },
            failed => failed,
        }
    });
    told.is_ok()
}
