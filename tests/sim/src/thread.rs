//! The state of each thread of the program: a number, a capture mode, and a
//! stack of contexts. A number is given once.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use vramalloc_model::CaptureMode;

use crate::ffi::Handle;

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static CAPTURE_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    // Never dropped: a destructor of a thread is registered under the linker's
    // lock, which the real driver does not take here.
    static STACK: RefCell<ManuallyDrop<Vec<Handle>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// The number of the calling thread, from 1.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let known = NUMBER.get();
    if known != 0 {
        return known;
    }
    NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.get()
}

/// The calling thread's own capture mode.
pub(crate) fn mode() -> CaptureMode {
    CAPTURE_MODE.get()
}

pub(crate) fn set_mode(mode: CaptureMode) {
    CAPTURE_MODE.set(mode);
}

/// Runs a callback of the program, which may not call the driver.
pub(crate) fn in_callback(callback: impl FnOnce()) {
    let before = IN_CALLBACK.replace(true);
    callback();
    IN_CALLBACK.set(before);
}

pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Works on the thread's stack of contexts, or on an empty one if the stack is
/// in use.
pub(crate) fn stack<R>(work: impl FnOnce(&mut Vec<Handle>) -> R) -> R {
    let mut work = Some(work);
    let done = STACK.try_with(|s| {
        let mut s = s.try_borrow_mut().ok()?;
        work.take().map(|w| w(&mut s))
    });
    match (done, work) {
        (Ok(Some(result)), _) => result,
        (_, Some(work)) => work(&mut Vec::new()),
        // The work was done, so the first arm had its result.
        (_, None) => std::process::abort(),
    }
}

/// The current context; 0 if there is none.
pub(crate) fn top() -> Handle {
    stack(|s| s.last().copied().unwrap_or(0))
}
