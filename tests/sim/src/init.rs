//! The driver's beginning and end.
//!
//! Invariant: after the exit handlers of the process have reached ours, every
//! call answers `DEINITIALIZED`, unless the environment lets the driver live
//! longer. Cost: the first `cuInit` maps the devices' memory.

use std::sync::Once;

use vramalloc_core::Code;

use crate::entry::{driver, forked, is_forked, is_shut_down, shut_down};
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
            Some(_) if is_shut_down() => Err(Code::DEINITIALIZED),
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

/// Registers handlers for a fork and for the process's end.
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
    if !env::flag("SIM_CUDA_LATE") {
        shut_down();
    }
}

/// Answers for a function of the interface that this driver does not have; with
/// `SIM_CUDA_VERBOSE` it prints that once.
pub(crate) fn unsupported(name: &str, said: &Once) -> Done {
    said.call_once(|| {
        if env::flag("SIM_CUDA_VERBOSE") {
            eprintln!("simulated CUDA: {name} is not there");
        }
    });
    Err(Code::NOT_SUPPORTED)
}
