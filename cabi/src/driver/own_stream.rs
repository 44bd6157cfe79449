//! Streams of ours, beside those of the program.
//!
//! Owns one for each context, which a thread takes and gives back; others make theirs
//! meanwhile. Invariant: nobody else knows them, they and others do not wait for each other,
//! and one that is taken has nothing to do. Cost: two calls to the driver for one that is new,
//! a question for one that is not.

use std::mem::ManuallyDrop;
use std::ptr;

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::patience::Brief;

use crate::driver::streams::NON_BLOCKING;
use crate::process::guard::own_call;
use crate::real;
use crate::types::CUstream;

/// See the [module](self).
pub(crate) struct OwnStream(CUstream);

// SAFETY: a handle, which any thread may use.
unsafe impl Send for OwnStream {}

impl OwnStream {
    /// One of the current context.
    pub(crate) fn make() -> Result<OwnStream, Code> {
        let mut stream: CUstream = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        let make = || unsafe { real::cuStreamCreate(&raw mut stream, NON_BLOCKING) };
        Code::check(own_call(make))?;
        Ok(OwnStream(stream))
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.0
    }

    /// Whether all that it was given is done.
    pub(crate) fn is_done(&self) -> Result<bool, Code> {
        // SAFETY: a stream that is alive.
        match Code::check(own_call(|| unsafe { real::cuStreamQuery(self.0) })) {
            Err(Code::NOT_READY) => Ok(false),
            asked => asked.map(|()| true),
        }
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: a stream that nobody else knows. What it still does goes on.
        own_call(|| unsafe { real::cuStreamDestroy_v2(self.0) });
    }
}

/// The stream that a context keeps.
#[derive(Default)]
pub(crate) struct KeptStream(SpinMutex<Option<OwnStream>, Brief>);

impl KeptStream {
    /// Takes it; where there is none, or that has something to do, a new one. Called in its
    /// context.
    pub(crate) fn take(&self) -> Result<OwnStream, Code> {
        let kept = self.0.lock().take();
        let idle = kept.filter(|kept| kept.is_done() == Ok(true));
        idle.map_or_else(OwnStream::make, Ok)
    }

    /// Gives one back.
    pub(crate) fn keep(&self, stream: OwnStream) {
        let other = self.0.lock().replace(stream);
        // That calls the driver.
        drop(other);
    }

    /// The context has ended, and the stream with it.
    pub(crate) fn forget(&self) {
        let kept = self.0.lock().take();
        let _gone = ManuallyDrop::new(kept);
    }
}
