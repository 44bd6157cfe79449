//! Which streams capture a graph, so that no fence is made meanwhile.
//!
//! Recording an event over a whole context invalidates every capture in it,
//! whatever mode the thread is in. Owns the list of captures (the streams
//! they began on) and the gate that they close. Invariant: from before the real
//! begin until after the real end no event is recorded by us; a thread
//! that is just recording one holds a beginning capture back for that moment,
//! also where its context is another: a capture spreads to streams of others by
//! the events that they wait for. But a mark may itself be waiting in the driver
//! (a full queue, a profiler's callback) for what the beginning thread does
//! next, so it is waited for no longer than marks take that do not.
//! Cost: passing the gate, per fence; one load per free.

use std::ptr;
use std::time::Duration;

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::gate::Gate;
use vramalloc_core::patience::Brief;

use crate::driver::contexts;
use crate::driver::green;
use crate::driver::reserve;
use crate::linker::resolve::MISSING;
use crate::process::guard::{self, own_call};
use crate::real;
use crate::types::{CAPTURE_STATUS_NONE, CUcontext, CUstream, CaptureStatus, CudaResult};

/// Handles that mean a stream of the calling thread: 0 for the functions with
/// `_ptsz`, 2 for all.
const PER_THREAD_STREAM: usize = 2;

/// Closed once by each capture; fences pass it.
static FENCES: Gate = Gate::new();

/// A mark that is being made is waited for no longer than this: most take a
/// microsecond, and one whose thread was put aside some milliseconds.
const MOST: Duration = Duration::from_secs(1);

/// A stream on which a capture began.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Origin {
    stream: usize,
    /// Whose stream it is, where the handle means one per thread; else 0.
    thread: usize,
}

/// A capture that goes on.
struct Capture {
    origin: Origin,
    /// The context it began in; its end ends the capture.
    context: usize,
}

static OPEN: SpinMutex<Vec<Capture>, Brief> = SpinMutex::new(Vec::new());

/// Whether any stream of the process captures.
pub(crate) fn any() -> bool {
    FENCES.is_closed()
}

/// Runs `record` while no capture can begin; `None` where one goes on, or no
/// driver call may be made.
pub(crate) fn outside<R>(record: impl FnOnce() -> R) -> Option<R> {
    if guard::is_called_back() {
        return None;
    }
    FENCES.pass(record)
}

/// Begins a capture with the real function `call`.
pub(crate) unsafe fn begin(
    stream: CUstream,
    twin: bool,
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    reserve::prepare_capture(contexts::all);
    let context = context_of(stream);
    // Where the mark stays, the capture is the driver's to begin or refuse.
    let _nobody_marks = FENCES.close_within(MOST);
    let result = call();
    if result == 0 {
        OPEN.lock().push(Capture {
            origin: origin(stream, twin),
            context: context.addr(),
        });
    } else {
        FENCES.open(1);
    }
    Some(result)
}

/// The context in which a capture on a stream begins: the stream's; the current
/// one where the driver does not say, or where that is a part of it.
fn context_of(stream: CUstream) -> CUcontext {
    let (mut context, mut current) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the caller's own stream, and places for the answers.
    let asked = own_call(|| unsafe {
        real::cuCtxGetCurrent(&raw mut current);
        real::cuStreamGetCtx(stream, &raw mut context)
    });
    if asked != 0 || green::whole(current) == context {
        return current;
    }
    context
}

/// Ends a capture with the real function `call`. A failing end may leave the
/// capture open (another thread's, say) or not (it was invalid): the driver
/// is asked.
pub(crate) unsafe fn end(
    stream: CUstream,
    twin: bool,
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    let result = call();
    if any() {
        // SAFETY: the caller's own stream.
        let ended = result == 0 || unsafe { captures_no_more(stream, twin) };
        if ended {
            let origin = origin(stream, twin);
            forget(|capture| capture.origin == origin);
        }
    }
    Some(result)
}

/// A stream was destroyed; a capture that began on it is over.
pub(crate) fn destroyed(stream: CUstream) {
    if any() {
        let origin = origin(stream, false);
        forget(|capture| capture.origin == origin);
    }
}

/// Whether a stream surely captures nothing.
pub(crate) fn has_ended_on(stream: CUstream) -> bool {
    // SAFETY: the caller's own stream, as below.
    unsafe { captures_no_more(stream, false) }
}

/// The number of the capture that a stream is part of, if it is.
pub(crate) fn number_on(stream: CUstream) -> Option<u64> {
    let (mut status, mut number) = (CAPTURE_STATUS_NONE, 0);
    let (to, nothing) = (&raw mut number, ptr::null_mut());
    // SAFETY: a live stream by the caller's promise to us, and places for the
    // answers or null. Older drivers have the first form alone, and those
    // without any have no captures.
    let result = own_call(|| unsafe {
        let status = &raw mut status;
        let none = ptr::null_mut();
        let mut result =
            real::cuStreamGetCaptureInfo_v2(stream, status, to, none, ptr::null_mut(), nothing);
        if result == MISSING {
            result = real::cuStreamGetCaptureInfo(stream, status, to);
        }
        if result == MISSING {
            let edges = ptr::null_mut();
            result = real::cuStreamGetCaptureInfo_v3(
                stream,
                status,
                to,
                none,
                ptr::null_mut(),
                edges,
                nothing,
            );
        }
        result
    });
    (result == 0 && status != CAPTURE_STATUS_NONE).then_some(number)
}

/// Whether a call failed because a stream captures.
pub(crate) fn is_about(code: Code) -> bool {
    (900..=908).contains(&code.get())
}

/// The captures of a context that is gone are over.
pub(crate) fn forget_context(context: CUcontext) {
    if any() {
        forget(|capture| capture.context == context.addr());
    }
}

/// The captures of a part that is gone are over, but for those that began on a
/// stream of the whole while the part was current. Such a stream lives; one of
/// the part's own answers with an error. Of another thread's own stream nobody
/// can ask.
pub(crate) fn forget_part(part: CUcontext) {
    if !any() {
        return;
    }
    let began = |capture: &&Capture| capture.context == part.addr();
    let began: Vec<Origin> = {
        let open = OPEN.lock();
        open.iter().filter(began).map(|c| c.origin).collect()
    };
    let over = |origin: &Origin| {
        let stream = ptr::without_provenance_mut(origin.stream);
        let is_asked = origin.thread == 0 || origin.thread == this_thread();
        // SAFETY: a handle that the driver knows, alive or as one of a part that
        // is gone.
        !is_asked || unsafe { status(stream, false) }.is_none_or(|s| s == CAPTURE_STATUS_NONE)
    };
    let over: Vec<Origin> = began.into_iter().filter(over).collect();
    forget(|capture| over.contains(&capture.origin));
}

fn forget(over: impl Fn(&Capture) -> bool) {
    let mut open = OPEN.lock();
    let before = open.len();
    open.retain(|capture| !over(capture));
    FENCES.open(before - open.len());
}

fn origin(stream: CUstream, twin: bool) -> Origin {
    let stream = stream.addr();
    let per_thread = stream == PER_THREAD_STREAM || (twin && stream == 0);
    Origin {
        stream: if per_thread {
            PER_THREAD_STREAM
        } else {
            stream
        },
        thread: if per_thread { this_thread() } else { 0 },
    }
}

/// A number that no other living thread has.
fn this_thread() -> usize {
    thread_local! { static HERE: u8 = const { 0 }; }
    HERE.with(|here| ptr::from_ref(here).addr())
}

unsafe fn captures_no_more(stream: CUstream, twin: bool) -> bool {
    // SAFETY: the caller's own promise.
    let status = unsafe { status(stream, twin) };
    status == Some(CAPTURE_STATUS_NONE)
}

/// Whether a stream captures; none where the driver does not say.
unsafe fn status(stream: CUstream, twin: bool) -> Option<CaptureStatus> {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: a stream by the caller's promise, and a place for the answer.
    let result = own_call(|| unsafe {
        if twin {
            real::cuStreamIsCapturing_ptsz(stream, &raw mut status)
        } else {
            real::cuStreamIsCapturing(stream, &raw mut status)
        }
    });
    (result == 0).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn stream(handle: usize) -> CUstream {
        ptr::without_provenance_mut(handle)
    }

    // One test, because the gate belongs to the process.
    #[test]
    fn captures_close_the_gate() {
        let ok = || 0;
        let refused = || 1;
        assert_eq!(outside(|| 7), Some(7));
        // SAFETY: the calls are the test's own.
        unsafe {
            assert_eq!(begin(stream(16), false, refused), Some(1));
            assert!(!any());
            assert_eq!(begin(stream(16), false, ok), Some(0));
            assert_eq!(begin(stream(0), true, ok), Some(0));
            assert_eq!(outside(|| 7), None);
            // Not the origin of a capture.
            assert_eq!(end(stream(32), false, ok), Some(0));
            assert_eq!(end(stream(16), false, ok), Some(0));
            assert!(any());
            // The same stream by its other name.
            assert_eq!(end(stream(2), false, ok), Some(0));
        }
        assert_eq!(outside(|| 7), Some(7));
        // SAFETY: as above.
        unsafe { begin(stream(48), false, ok) };
        destroyed(stream(64));
        assert!(any());
        destroyed(stream(48));
        assert!(!any());
        destroyed(stream(48));
    }

    #[test]
    fn a_per_thread_stream_is_the_threads() {
        let here = origin(stream(0), true);
        let there = thread::spawn(|| origin(stream(0), true).thread)
            .join()
            .unwrap();
        assert_ne!(here.thread, there);
        assert!(here == origin(stream(2), false));
        assert!(here != origin(stream(0), false));
    }
}
