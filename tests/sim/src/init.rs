//! The driver's beginning and end.
//!
//! Owns nothing. Invariant: after the exit handlers of the process have
//! reached ours, every call answers `DEINITIALIZED`, unless the environment has
//! the driver live longer. Cost: the first `cuInit` maps the devices' memory.

use std::sync::Once;

use vramalloc_core::Code;

use crate::entry::{driver, forked, is_forked};
use crate::env;
use crate::ffi::{Done, Out};
use crate::machine::{self, Machine};

driver! {
    bare fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if is_forked() {
            return Err(Code::NOT_INITIALIZED);
        }
        let mut lock = machine::lock();
        match lock.as_ref() {
            Some(sim) if sim.shut_down => Err(Code::DEINITIALIZED),
            Some(_) => Ok(()),
            None => {
                *lock = Some(Machine::new()?);
                watch_the_process();
                Ok(())
            }
        }
    }

    bare fn cuDriverGetVersion(version: Out<i32>) {
        version.set(env::version())
    }
}

/// Lets us know of a fork and of the process's end.
fn watch_the_process() {
    // SAFETY: both functions live as long as this library, which a driver's
    // user does not unload.
    unsafe {
        libc::pthread_atfork(None, None, Some(child));
        libc::atexit(end);
    }
}

unsafe extern "C" fn child() {
    forked();
}

extern "C" fn end() {
    if env::flag("SIM_CUDA_LATE") {
        return;
    }
    if let Some(sim) = machine::lock().as_mut() {
        sim.shut_down = true;
    }
}

/// A function that the interface has and this driver does not: it says so,
/// the first time on standard error if that is wanted.
pub(crate) fn unsupported(name: &str, said: &Once) -> Done {
    said.call_once(|| {
        if env::flag("SIM_CUDA_VERBOSE") {
            eprintln!("simulated CUDA: {name} is not there");
        }
    });
    Err(Code::NOT_SUPPORTED)
}
