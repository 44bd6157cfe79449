//! Which streams capture a graph, so that no fence is made meanwhile.
//!
//! Recording an event over a whole context invalidates every capture in it,
//! whatever mode the thread is in. Owns the list of captures (the streams they
//! began on) and the gate that they close. Invariant: we record no event from
//! before the real begin of a capture until after its real end. So a capture
//! that begins waits for a thread that is recording an event, also in another
//! context: a capture spreads to streams of other contexts by the events that
//! they wait for. But that thread may itself be waiting in the driver (a full
//! queue, a profiler's callback) for what the beginning thread does next, so
//! the wait is bounded by [`MOST`]. Cost: a gate per fence, a load per free.
//!
//! A pause of memory is many calls that a capture forbids, and half of them is worse
//! than none. So a capture that begins waits until they are all made, for the same
//! reason not for ever ([`LONGEST`]).

mod status;

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::gate::Gate;
use vramalloc_core::patience::Brief;

use crate::driver::context::lasts;
use crate::driver::{contexts, green, leavings, mapping};
use crate::process::guard::{self, own_call};
use crate::real;
use crate::types::{CAPTURE_STATUS_NONE, CUcontext, CUstream, CudaResult};

use status::{captures_no_more, status};
pub(crate) use status::{has_ended_on, number_on};

/// The handle of the calling thread's own stream: 2 in all functions, and 0 in
/// those with `_ptsz`.
const PER_THREAD_STREAM: usize = 2;

/// Closed once by each capture; a thread that makes a fence passes it.
static FENCES: Gate = Gate::new();

/// The longest wait for an event that is being recorded: most take a
/// microsecond, and some milliseconds if the thread is descheduled.
const MOST: Duration = Duration::from_secs(1);

/// Closed by each capture before [`FENCES`]; a thread that pauses memory, or ends a
/// pause, passes it with all its calls.
static PAUSES: Gate = Gate::new();

/// The longest wait for a thread that pauses memory or ends a pause: a copy of all of
/// a device's memory to page-locked memory takes a tenth of it.
const LONGEST: Duration = Duration::from_secs(60);

/// A stream on which a capture began.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Origin {
    stream: usize,
    /// The thread whose stream it is, if the handle means one per thread; or 0.
    thread: usize,
}

/// A capture that is under way.
struct Capture {
    /// One of its own: soon after its end, another may have its stream's handle.
    number: u64,
    origin: Origin,
    /// The context it began in, whose end ends the capture.
    context: usize,
    /// The call that begins it has returned.
    has_begun: bool,
    /// Before that, a call failed that ends one on its stream: perhaps this one.
    is_doubted: bool,
}

static OPEN: SpinMutex<Vec<Capture>, Brief> = SpinMutex::new(Vec::new());

/// Whether any stream of the process captures.
pub(crate) fn any() -> bool {
    FENCES.is_closed()
}

/// Runs `record` while no capture can begin. Returns `None` if one is under
/// way, or if no driver call may be made.
pub(crate) fn outside<R>(record: impl FnOnce() -> R) -> Option<R> {
    if guard::is_called_back() {
        return None;
    }
    FENCES.pass(record)
}

/// Runs `work`, and lets captures that want to begin wait until it is done, unless it
/// takes very long. Returns `None` as [`outside`] does.
pub(crate) fn hold_off<R>(work: impl FnOnce() -> R) -> Option<R> {
    if guard::is_called_back() {
        return None;
    }
    PAUSES.pass(work)
}

/// As many captures fewer are open.
fn ended(captures: usize) {
    FENCES.open(captures);
    PAUSES.open(captures);
}

/// Begins a capture with the real function `call`.
pub(crate) unsafe fn begin(
    stream: CUstream,
    twin: bool,
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    mapping::prepare_capture(contexts::all);
    let context = context_of(stream, twin);
    // If the event takes longer, the driver decides whether the capture begins. A pause
    // that takes longer fails.
    let _nobody_pauses = PAUSES.close_within(LONGEST);
    let _nobody_marks = FENCES.close_within(MOST);
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    let number = BEGUN.fetch_add(1, Ordering::Relaxed);
    let origin = origin(stream, twin);
    // Entered before: another thread may end it before the call returns here.
    OPEN.lock().push(Capture {
        number,
        origin,
        context: context.expose_provenance(),
        has_begun: false,
        is_doubted: false,
    });
    let result = call();
    if result != 0 {
        forget(|capture| capture.number == number);
        return Some(result);
    }
    let mut is_doubted = false;
    let is_older = {
        let mut open = OPEN.lock();
        if let Some(its) = open.iter_mut().find(|its| its.number == number) {
            its.has_begun = true;
            is_doubted = its.is_doubted;
        }
        // Two do not go on there, so that one is over.
        let older = |other: &Capture| other.number < number && other.is_on(origin);
        open.iter().any(older).then_some(older)
    };
    if let Some(is_older) = is_older {
        forget(is_older);
    }
    // SAFETY: the caller's own stream.
    if is_doubted && unsafe { captures_no_more(stream, twin) } {
        forget(|capture| capture.number == number);
    }
    Some(result)
}

impl Capture {
    /// Whether it has begun on that stream.
    fn is_on(&self, origin: Origin) -> bool {
        self.has_begun && self.origin == origin
    }
}

/// The capture that goes on where it began on this stream, by its number and context; or
/// else the one whose begin has yet to return.
fn found_on(origin: Origin) -> Option<(u64, usize)> {
    let open = OPEN.lock();
    let on = open.iter().filter(|capture| capture.origin == origin);
    let found = on.min_by_key(|capture| (!capture.has_begun, capture.number))?;
    Some((found.number, found.context))
}

/// The context in which a capture on a stream begins: that of the stream. The
/// current one, if the driver does not say or if that is a part of the
/// stream's.
fn context_of(stream: CUstream, twin: bool) -> CUcontext {
    let (mut context, mut current) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: writes the answer to a local.
    own_call(|| unsafe { real::cuCtxGetCurrent(&raw mut current) });
    // The question would invalidate a capture that goes on there.
    // SAFETY: the caller's own stream.
    if !unsafe { captures_no_more(stream, twin) } {
        return current;
    }
    // SAFETY: the caller's own stream, and a place for the answer.
    let asked = own_call(|| unsafe { real::cuStreamGetCtx(stream, &raw mut context) });
    if asked != 0 || green::whole(current) == context {
        return current;
    }
    context
}

/// Ends a capture with the real function `call`. After a failure the capture
/// may be open (it is another thread's, say) or over (it was invalid): the
/// driver is asked.
pub(crate) unsafe fn end(
    stream: CUstream,
    twin: bool,
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    let found = found_on(origin(stream, twin));
    let result = call();
    let Some((number, context)) = found else {
        return Some(result);
    };
    let is_over = match Code::check(result) {
        Ok(()) => true,
        Err(code) => {
            // SAFETY: the caller's own stream.
            let captures_no_more = || unsafe { captures_no_more(stream, twin) };
            is_over_by(code, context) || (!doubt(number) && captures_no_more())
        }
    };
    if is_over {
        forget(|capture| capture.number == number);
    }
    Some(result)
}

/// Has a begin that has yet to return ask whether its capture goes on. Returns whether
/// there is such a one.
fn doubt(number: u64) -> bool {
    let mut open = OPEN.lock();
    let mut open = open.iter_mut();
    let yet = open.find(|capture| capture.number == number && !capture.has_begun);
    yet.map(|yet| yet.is_doubted = true).is_some()
}

/// Whether a lasting error has ended all work of the context where a capture began: it may
/// be that of another context, which is current.
fn is_over_by(code: Code, context: usize) -> bool {
    let context = ptr::with_exposed_provenance_mut(context);
    lasts(code) && contexts::of(context).is_broken()
}

/// Destroys a stream by `call`, which ends a capture that began there, also where it says
/// that there is one. It is looked for before: another stream may have the handle, and
/// capture, as soon as it is free.
pub(crate) fn destroy(stream: CUstream, call: impl FnOnce() -> CudaResult) -> CudaResult {
    let found = found_on(origin(stream, false));
    let result = call();
    let Some((number, context)) = found else {
        return result;
    };
    let is_over = |code| is_about(code) || is_over_by(code, context);
    if Code::check(result).map_or_else(is_over, |()| true) {
        forget(|capture| capture.number == number);
    }
    result
}

/// The context in which the capture on a stream began, if it began there.
pub(crate) fn began_in(stream: CUstream) -> Option<CUcontext> {
    let origin = origin(stream, false);
    let open = OPEN.lock();
    let its = open.iter().find(|capture| capture.origin == origin)?;
    Some(ptr::with_exposed_provenance_mut(its.context))
}

/// Whether a code says that a call failed because a stream captures.
pub(crate) fn is_about(code: Code) -> bool {
    (900..=908).contains(&code.get())
}

/// Ends the captures of a context that is gone.
pub(crate) fn forget_context(context: CUcontext) {
    if any() {
        forget(|capture| capture.context == context.addr());
    }
}

/// Ends the captures of a green context that is gone, except those that began
/// on a stream of the primary context while the part was current. Such a stream
/// lives, while one of the part's own returns an error. Another thread's own
/// stream cannot be asked: its captures count as over.
pub(crate) fn forget_part(part: CUcontext) {
    if !any() {
        return;
    }
    let began = |capture: &&Capture| capture.has_begun && capture.context == part.addr();
    let began: Vec<(u64, Origin)> = {
        let open = OPEN.lock();
        (open.iter().filter(began).map(|c| (c.number, c.origin))).collect()
    };
    let over = |(_, origin): &(u64, Origin)| {
        let stream = ptr::without_provenance_mut(origin.stream);
        let is_asked = origin.thread == 0 || origin.thread == this_thread();
        // SAFETY: a handle that the driver knows, of a live stream or of a part
        // that is gone.
        !is_asked || unsafe { status(stream, false) }.is_none_or(|s| s == CAPTURE_STATUS_NONE)
    };
    let over = began.into_iter().filter(over);
    let over: Vec<u64> = over.map(|(number, _)| number).collect();
    forget(|capture| over.contains(&capture.number));
}

fn forget(over: impl Fn(&Capture) -> bool) {
    {
        let mut open = OPEN.lock();
        let before = open.len();
        open.retain(|capture| !over(capture));
        ended(before - open.len());
    }
    // What could not go back meanwhile.
    leavings::tend();
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
pub(crate) fn this_thread() -> usize {
    thread_local! { static HERE: u8 = const { 0 }; }
    HERE.with(|here| ptr::from_ref(here).addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    /// The gates belong to the process.
    static TESTS: SpinMutex<(), Brief> = SpinMutex::new(());

    fn stream(handle: usize) -> CUstream {
        ptr::without_provenance_mut(handle)
    }

    #[test]
    fn captures_close_the_gate() {
        let _turn = TESTS.lock();
        let ok = || 0;
        let refused = || 1;
        assert_eq!(outside(|| 7), Some(7));
        assert_eq!(hold_off(|| outside(|| 7)), Some(Some(7)));
        // SAFETY: the calls are the test's own.
        unsafe {
            assert_eq!(begin(stream(16), false, refused), Some(1));
            assert!(!any());
            assert_eq!(begin(stream(16), false, ok), Some(0));
            assert_eq!(begin(stream(0), true, ok), Some(0));
            assert_eq!(outside(|| 7), None);
            assert_eq!(hold_off(|| 7), None);
            // Not the origin of a capture.
            assert_eq!(end(stream(32), false, ok), Some(0));
            assert_eq!(end(stream(16), false, ok), Some(0));
            assert!(any());
            // The per-thread stream by its other handle.
            assert_eq!(end(stream(2), false, ok), Some(0));
        }
        assert_eq!(outside(|| 7), Some(7));
        assert_eq!(hold_off(|| 7), Some(7));
        // SAFETY: as above.
        unsafe { begin(stream(48), false, ok) };
        assert_eq!(destroy(stream(64), ok), 0);
        assert!(any());
        assert_eq!(destroy(stream(48), refused), 1);
        assert!(any());
        // Another one has the handle, and captures, before the call returns.
        let reused = || {
            // SAFETY: as above.
            unsafe { begin(stream(96), false, ok) };
            0
        };
        assert_eq!(destroy(stream(96), reused), 0);
        assert_eq!(destroy(stream(48), ok), 0);
        assert!(any());
        // The same where the first one captured too.
        assert_eq!(destroy(stream(96), reused), 0);
        assert!(any());
        assert_eq!(destroy(stream(96), ok), 0);
        assert!(!any());
        assert_eq!(destroy(stream(48), ok), 0);
        // The driver says that it captures, and destroys it.
        // SAFETY: as above.
        unsafe { begin(stream(48), false, ok) };
        assert_eq!(destroy(stream(48), || 900), 900);
        assert!(!any());
    }

    #[test]
    fn a_call_may_end_a_capture_whose_begin_has_yet_to_return() {
        let _turn = TESTS.lock();
        // SAFETY: the calls are the test's own.
        let begins = |call: fn() -> CudaResult| unsafe { begin(stream(48), false, call) };
        // SAFETY: as above.
        let ends = |result: CudaResult| unsafe { end(stream(48), false, || result) };
        begins(|| {
            // SAFETY: as above.
            unsafe { end(stream(48), false, || 0) };
            0
        });
        assert!(!any());
        // It comes too early, and fails.
        begins(|| {
            // SAFETY: as above.
            unsafe { end(stream(48), false, || 401) };
            0
        });
        assert!(any());
        // Another begin fails, while the one that goes on is ended.
        begins(|| {
            // SAFETY: as above.
            unsafe { end(stream(48), false, || 0) };
            401
        });
        assert!(!any());
        // One that was ended unseen makes way for the next one.
        begins(|| 0);
        begins(|| 0);
        ends(0);
        assert!(!any());
    }

    #[test]
    fn a_capture_begins_when_a_pause_has_ended() {
        let _turn = TESTS.lock();
        let is_over = AtomicBool::new(false);
        let begins = Barrier::new(2);
        thread::scope(|scope| {
            let beginning = scope.spawn(|| {
                begins.wait();
                let ok = || u32::from(!is_over.load(Ordering::Relaxed));
                // SAFETY: the call is the test's own.
                unsafe { begin(stream(80), false, ok) }
            });
            let paused = hold_off(|| {
                begins.wait();
                thread::sleep(Duration::from_millis(20));
                // It has not begun, so what a capture forbids can be called.
                let is_free = outside(|| ()).is_some();
                is_over.store(true, Ordering::Relaxed);
                is_free
            });
            assert_eq!(paused, Some(true));
            assert_eq!(beginning.join().unwrap(), Some(0));
        });
        assert_eq!(destroy(stream(80), || 0), 0);
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
