//! `trait Driver` over the real libcuda, for one context.
//!
//! Owns the context's events, which are recycled and never destroyed (they
//! end with the context). Invariant: every call finds the context current,
//! disturbs no stream capture, passes our own doors, and leaves the thread as
//! it was. Cost: three cheap driver calls around each; nothing of this is on
//! the path of a hit.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use core_arena::{Address, Bytes, Code, Driver, MemInfo};
use spin::mutex::SpinMutex;
use spin::relax::Yield;

use crate::capture;
use crate::guard::own_call;
use crate::resolve::MISSING;
use crate::symbols::real;
use crate::types::{
    CAPTURE_MODE_RELAXED, CUcontext, CUdeviceptr, CUevent, CaptureMode, CudaResult,
    EVENT_DISABLE_TIMING,
};

/// One context of the real driver.
pub(crate) struct RealDriver {
    /// A `CUcontext`, as a number: it is handed back to the driver and never
    /// looked into.
    context: usize,
    events: Arc<EventPool>,
    /// The driver can mark a whole context at once (since CUDA 12.5).
    marks_contexts: AtomicBool,
}

/// Events of one context that mark nothing at present.
struct EventPool {
    idle: SpinMutex<Vec<usize>, Yield>,
}

/// An event that was recorded. Back into the pool with the last clone.
struct Mark {
    event: usize,
    pool: Arc<EventPool>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.pool.idle.lock().push(self.event);
    }
}

/// A mark in the work of the context; none where everything before it was
/// waited for when it was made.
#[derive(Clone)]
pub(crate) struct Fence(Option<Arc<Mark>>);

impl RealDriver {
    pub(crate) fn new(context: CUcontext) -> RealDriver {
        RealDriver {
            context: context.expose_provenance(),
            events: Arc::new(EventPool {
                idle: SpinMutex::new(Vec::new()),
            }),
            marks_contexts: AtomicBool::new(true),
        }
    }

    fn context(&self) -> CUcontext {
        ptr::with_exposed_provenance_mut(self.context)
    }

    /// Makes `call` in the context, with the thread's calls disturbing no
    /// capture.
    fn call(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        own_call(|| {
            let _current = Current::make(self.context())?;
            let _relaxed = Relaxed::enter();
            Code::check(call())
        })
    }

    /// An event of this context.
    fn event(&self) -> Result<Mark, Code> {
        let idle = self.events.idle.lock().pop();
        let event = match idle {
            Some(event) => event,
            None => {
                let mut event: CUevent = ptr::null_mut();
                // SAFETY: a place for the answer.
                self.call(|| unsafe { real::cuEventCreate(&raw mut event, EVENT_DISABLE_TIMING) })?;
                event.expose_provenance()
            }
        };
        Ok(Mark {
            event,
            pool: Arc::clone(&self.events),
        })
    }

    /// Marks the whole context with one event.
    fn mark(&self) -> Result<Fence, Code> {
        let mark = self.event()?;
        let event = ptr::with_exposed_provenance_mut(mark.event);
        // SAFETY: an event of this context, and the context.
        self.call(|| unsafe { real::cuCtxRecordEvent(self.context(), event) })?;
        Ok(Fence(Some(Arc::new(mark))))
    }

    /// Waits for the whole context: the last resort where no mark can be
    /// made.
    fn synchronize(&self) -> Result<Fence, Code> {
        // SAFETY: no arguments.
        self.call(|| unsafe { real::cuCtxSynchronize() })?;
        Ok(Fence(None))
    }

    fn make_fence(&self) -> Result<Fence, Code> {
        // Relaxed: a hint; a thread that sees the old value asks in vain once.
        if !self.marks_contexts.load(Ordering::Relaxed) {
            return self.synchronize();
        }
        match self.mark() {
            Err(code) if code.get() == MISSING => {
                self.marks_contexts.store(false, Ordering::Relaxed);
                self.synchronize()
            }
            made => made,
        }
    }
}

impl Driver for RealDriver {
    type Fence = Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let size = usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)?;
        let mut address: CUdeviceptr = 0;
        // SAFETY: a place for the answer.
        self.call(|| unsafe { real::cuMemAlloc_v2(&raw mut address, size) })?;
        Ok(Address::new(address))
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        // SAFETY: a number that the driver checks.
        self.call(|| unsafe { real::cuMemFree_v2(address.get()) })
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: places for both answers.
        self.call(|| unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(MemInfo {
            free: Bytes::new(free as u64),
            total: Bytes::new(total as u64),
        })
    }

    fn may_fence(&self) -> bool {
        !capture::any()
    }

    fn fence(&self) -> Result<Fence, Code> {
        capture::outside(|| self.make_fence()).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))
    }

    fn reached(&self, fence: &Fence) -> Result<bool, Code> {
        let Some(mark) = &fence.0 else {
            return Ok(true);
        };
        let event = ptr::with_exposed_provenance_mut(mark.event);
        // SAFETY: an event of this context that is never destroyed.
        match self.call(|| unsafe { real::cuEventQuery(event) }) {
            Ok(()) => Ok(true),
            Err(Code::NOT_READY) => Ok(false),
            Err(code) => Err(code),
        }
    }

    fn wait(&self, fence: &Fence) -> Result<(), Code> {
        let Some(mark) = &fence.0 else {
            return Ok(());
        };
        let event = ptr::with_exposed_provenance_mut(mark.event);
        // SAFETY: an event of this context that is never destroyed.
        self.call(|| unsafe { real::cuEventSynchronize(event) })
    }
}

/// Keeps a context current while it lives, if it was not so already.
struct Current {
    pushed: bool,
}

impl Current {
    fn make(context: CUcontext) -> Result<Current, Code> {
        let mut current: CUcontext = ptr::null_mut();
        // SAFETY: a place for the answer.
        Code::check(unsafe { real::cuCtxGetCurrent(&raw mut current) })?;
        let pushed = current != context;
        if pushed {
            // SAFETY: a context whose end our doors have not seen.
            Code::check(unsafe { real::cuCtxPushCurrent_v2(context) })?;
        }
        Ok(Current { pushed })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped: CUcontext = ptr::null_mut();
            // SAFETY: a place for the answer; pops what `make` pushed.
            unsafe { real::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

/// Keeps the thread's calls from disturbing captures while it lives.
struct Relaxed {
    /// The mode before; none where the driver has no captures.
    before: Option<CaptureMode>,
}

impl Relaxed {
    fn enter() -> Relaxed {
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
    // SAFETY: a mode to read and a place for the one before.
    let result = unsafe { real::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    (result == 0).then_some(mode)
}
