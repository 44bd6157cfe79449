//! The driver's beginning and end, and the look-up of its functions.
//!
//! Owns nothing. Invariant: after the exit handlers of the process have
//! reached ours, every call answers `DEINITIALIZED`, unless the environment has
//! the driver live longer. Cost: the first `cuInit` maps the devices' memory.

use std::ffi::c_void;
use std::sync::Once;

use vramalloc_core::Code;

use crate::entry::{driver, forked, is_forked};
use crate::env;
use crate::ffi::{Done, NOT_FOUND, Out, Text};
use crate::machine::{self, Machine};
use crate::table;

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

    bare fn cuGetProcAddress(symbol: Text, pfn: Out<*const c_void>, version: i32, flags: u64) {
        pfn.required()?;
        let (address, _) = table::look_up(&symbol.get()?, version, flags);
        pfn.maybe(address);
        if address.is_null() { Err(NOT_FOUND) } else { Ok(()) }
    }

    bare fn cuGetProcAddress_v2(
        symbol: Text,
        pfn: Out<*const c_void>,
        version: i32,
        flags: u64,
        status: Out<u32>,
    ) {
        pfn.required()?;
        let (address, found) = table::look_up(&symbol.get()?, version, flags);
        pfn.maybe(address);
        status.maybe(found);
        if address.is_null() { Err(NOT_FOUND) } else { Ok(()) }
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
