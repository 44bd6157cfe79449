//! What a call of ours changes on its thread and puts back: the current context
//! and the capture mode. Cost: two cheap driver calls each, fewer if the
//! context is current already.

use std::ptr;

use vramalloc_core::Code;

use crate::real;
use crate::types::{CAPTURE_MODE_RELAXED, CUcontext, CaptureMode};

/// Returns the current context; null if there is none, or if the driver does
/// not say: a failure of this question is no failure of the call that follows.
///
/// # Errors
/// [`Code::DEINITIALIZED`]: the process is at its end, and the driver takes no
/// calls any more.
pub(super) fn ask_current() -> Result<CUcontext, Code> {
    let mut current: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    match Code::check(unsafe { real::cuCtxGetCurrent(&raw mut current) }) {
        Err(Code::DEINITIALIZED) => Err(Code::DEINITIALIZED),
        _ => Ok(current),
    }
}

/// Keeps a context current while it lives.
pub(super) enum Current {
    /// It was current before.
    Already,
    /// It was pushed onto the thread's stack, above this context.
    Pushed(CUcontext),
    /// It could only replace this context.
    Replaced(CUcontext),
}

impl Current {
    pub(super) fn make(context: CUcontext) -> Result<Current, Code> {
        let before = ask_current()?;
        if before == context {
            return Ok(Current::Already);
        }
        // SAFETY: a context whose end our doors have not seen.
        if unsafe { real::cuCtxPushCurrent_v2(context) } == 0 {
            return Ok(Current::Pushed(before));
        }
        // SAFETY: as above.
        Code::check(unsafe { real::cuCtxSetCurrent(context) })?;
        Ok(Current::Replaced(before))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let before = match *self {
            Current::Already => return,
            Current::Pushed(before) => {
                let mut popped: CUcontext = ptr::null_mut();
                // SAFETY: writes the answer to a local; pops what `make` pushed.
                if unsafe { real::cuCtxPopCurrent_v2(&raw mut popped) } == 0 {
                    return;
                }
                before
            }
            Current::Replaced(before) => before,
        };
        // The program must not go on in another context than its own.
        // SAFETY: the context that was current, or null for none.
        unsafe { real::cuCtxSetCurrent(before) };
    }
}

/// Keeps the thread's calls from disturbing captures while it lives.
pub(super) struct Relaxed {
    /// The mode before; `None` if the driver has no captures.
    before: Option<CaptureMode>,
}

impl Relaxed {
    pub(super) fn enter() -> Relaxed {
        Relaxed {
            before: exchange_mode(CAPTURE_MODE_RELAXED),
        }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mode) = self.before {
            exchange_mode(mode);
        }
    }
}

/// Sets the thread's mode and returns the one before.
fn exchange_mode(mut mode: CaptureMode) -> Option<CaptureMode> {
    // SAFETY: reads a mode from a local and writes the old one there.
    let result = unsafe { real::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    (result == 0).then_some(mode)
}
