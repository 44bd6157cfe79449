//! Records events in a context stream by stream, where the driver cannot record
//! one over all of it (before CUDA 12.5).
//!
//! An event on the legacy default stream comes after all earlier work of that
//! stream and of every stream that orders with it, among them the threads' own
//! default streams, which no other thread can name. Streams that do not order
//! with it get an event each. The event on the legacy stream orders the others
//! among each other at that point; that costs some overlap and changes no
//! result, and the alternative would be to stop the host. A stream of either
//! sort that is destroyed with work pending leaves an event behind, and fences
//! cover that until it is reached.
//!
//! If any of this fails, and if there are streams that cannot be marked, the
//! whole context is waited for instead.
//!
//! Owns the list of live streams and of what destroyed ones left behind; its
//! lock is taken alone and spans no driver call. Invariant: a stream is in one
//! of the two from the return of its making until its work is done, and is not
//! destroyed while an event is being recorded on it. Cost: an entry per stream
//! and an event per destroyed one; an event per stream and fence. Nothing of
//! this on drivers that can record over a context.

use std::ffi::{CStr, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::patience::{Brief, Patience};

use crate::driver::context::{Context, Event};
use crate::driver::fence::{Events, all_reached};
use crate::driver::{capture, contexts};
use crate::linker::resolve::driver_function;
use crate::real::reach;
use crate::types::{CUstream, CudaResult};

/// The flag of a stream that does not order with the legacy default stream.
pub(super) const NON_BLOCKING: c_uint = 1;

/// How many events are left in a context before reached ones are looked for.
const MOST_LEFT: usize = 64;

/// How events are recorded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Way {
    /// The driver was not asked yet.
    Unknown = 0,
    /// One for the whole context.
    Context = 1,
    /// Stream by stream.
    Streams = 2,
    /// Not at all: the context is waited for.
    Wait = 3,
}

// Relaxed throughout: the value guards no other memory.
static WAY: AtomicU8 = AtomicU8::new(Way::Unknown as u8);

/// How events are recorded with this driver. Known before the first stream is
/// made, so that none is missed.
fn way() -> Way {
    match WAY.load(Ordering::Relaxed) {
        1 => Way::Context,
        2 => Way::Streams,
        3 => Way::Wait,
        _ => {
            let has = |name: &CStr| driver_function(name).is_some();
            let way = if has(c"cuCtxRecordEvent") {
                Way::Context
            } else if has(c"cuEventCreate") && has(c"cuEventRecord") && has(c"cuEventQuery") {
                Way::Streams
            } else {
                Way::Wait
            };
            take(way);
            way
        }
    }
}

/// Whether events order a context's streams with each other.
pub(crate) fn marks_order() -> bool {
    way() == Way::Streams
}

/// Finds out now how events are recorded.
pub(crate) fn find_way() {
    way();
}

fn take(way: Way) {
    WAY.store(way as u8, Ordering::Relaxed);
}

/// A stream that is alive.
struct Stream {
    handle: usize,
    context: Arc<Context>,
    /// Orders with the legacy default stream.
    blocking: bool,
    /// Threads that are recording an event on it.
    users: Arc<AtomicUsize>,
}

/// What is left of a destroyed stream.
struct Left {
    number: u64,
    context: Arc<Context>,
    trace: Trace,
}

enum Trace {
    /// Work before this event.
    Marked(Arc<Event>),
    /// Work after which no event could be recorded.
    Unmarked,
    /// Perhaps the stream itself.
    Unwatched,
}

struct Book {
    streams: Vec<Stream>,
    left: Vec<Left>,
    next_number: u64,
}

static BOOK: SpinMutex<Book, Brief> = SpinMutex::new(Book {
    streams: Vec::new(),
    left: Vec::new(),
    next_number: 0,
});

impl Book {
    fn leave(&mut self, context: &Arc<Context>, trace: Trace) {
        self.left.push(Left {
            number: self.next_number,
            context: Arc::clone(context),
            trace,
        });
        self.next_number += 1;
    }

    fn left_in(&self, context: &Arc<Context>) -> impl Iterator<Item = &Left> {
        (self.left.iter()).filter(move |left| Arc::ptr_eq(&left.context, context))
    }

    /// Forgets what was left in a context before `number` was given out and is
    /// known to be done.
    fn forget_before(&mut self, context: &Arc<Context>, number: u64) {
        self.left.retain(|left| {
            left.number >= number
                || !Arc::ptr_eq(&left.context, context)
                || matches!(left.trace, Trace::Unwatched)
        });
    }

    fn forget_mark(&mut self, mark: &Arc<Event>) {
        self.left.retain(|left| match &left.trace {
            Trace::Marked(other) => !Arc::ptr_eq(other, mark),
            Trace::Unmarked | Trace::Unwatched => true,
        });
    }
}

/// A stream on which an event is being recorded: it is not destroyed meanwhile.
struct InUse {
    handle: usize,
    users: Arc<AtomicUsize>,
}

impl InUse {
    /// The caller holds the lock of the book, so the stream is still in it.
    fn of(stream: &Stream) -> InUse {
        stream.users.fetch_add(1, Ordering::Relaxed);
        InUse {
            handle: stream.handle,
            users: Arc::clone(&stream.users),
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `leave`; the event is recorded.
        self.users.fetch_sub(1, Ordering::Release);
    }
}

/// Records events after all work that the context was given so far. Returns
/// none if that was waited for instead, or if the context is gone.
///
/// # Errors
/// What the driver returns; [`Code::NOT_READY`] if the context may be ending.
pub(crate) fn mark(context: &Arc<Context>) -> Result<Events, Code> {
    mark_at_once(context).or_else(|code| wait_instead(context, code))
}

/// The same of a context that is another's: where that has no memory for an event, a free
/// here does not wait for what it does.
///
/// # Errors
/// As `mark`; [`Code::NOT_READY`] also there.
pub(crate) fn mark_elsewhere(context: &Arc<Context>) -> Result<Events, Code> {
    mark_at_once(context).or_else(|code| match code {
        Code::OUT_OF_MEMORY => Err(Code::NOT_READY),
        code => wait_instead(context, code),
    })
}

/// Marks all work of a context, and asks for the marks at once: none if all of that
/// work is done.
///
/// # Errors
/// As `mark`.
pub(crate) fn mark_unless_done(context: &Arc<Context>) -> Result<Events, Code> {
    let may_ask = || !capture::any();
    let marked = mark_by(context, |context| context.record_unless_done(may_ask));
    let marks = marked.or_else(|code| wait_instead(context, code))?;
    // Several events were recorded one by one, and not asked for.
    let is_done = marks_order() && may_ask() && all_reached(&marks) == Ok(true);
    Ok(if is_done { Events::None } else { marks })
}

/// Records events as `mark` does, but never waits.
///
/// # Errors
/// As `mark`; also if only a wait would do.
pub(crate) fn mark_at_once(context: &Arc<Context>) -> Result<Events, Code> {
    mark_by(context, Context::record)
}

/// The same where `over` records over a whole context.
#[inline]
fn mark_by(
    context: &Arc<Context>,
    over: impl FnOnce(&Arc<Context>) -> Result<Events, Code>,
) -> Result<Events, Code> {
    if !reach::hears_of_captures() {
        // One may go on, which this would invalidate.
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    let way = way();
    let marked = match way {
        Way::Context => over(context),
        Way::Streams => mark_streams(context).map(|marks| Events::Several(marks.into())),
        Way::Wait | Way::Unknown => Err(Code::NOT_SUPPORTED),
    };
    if marked.is_err() && context.has_ended() {
        return Ok(Events::None);
    }
    if way == Way::Context && matches!(marked, Err(Code::NOT_SUPPORTED)) {
        // The driver does not support what it exports; no stream was tracked.
        take(Way::Wait);
    }
    marked
}

/// Waits for the context where no event could be recorded for this reason.
#[cold]
fn wait_instead(context: &Arc<Context>, code: Code) -> Result<Events, Code> {
    if capture::is_about(code) || matches!(code, Code::DEINITIALIZED | Code::NOT_READY) {
        return Err(code);
    }
    wait(context)
}

fn wait(context: &Arc<Context>) -> Result<Events, Code> {
    let before = BOOK.lock().next_number;
    match context.synchronize() {
        Err(code) if !context.has_ended() => Err(code),
        _ => {
            BOOK.lock().forget_before(context, before);
            Ok(Events::None)
        }
    }
}

/// An event for each stream that needs one, and those left behind.
fn mark_streams(context: &Arc<Context>) -> Result<Vec<Arc<Event>>, Code> {
    let (streams, left) = look(context).ok_or(Code::NOT_SUPPORTED)?;
    let mut marks = Vec::with_capacity(1 + streams.len() + left.len());
    marks.push(context.record_in(ptr::null_mut())?);
    for stream in streams {
        marks.push(context.record_in(ptr::with_exposed_provenance_mut(stream.handle))?);
    }
    for mark in left {
        if mark.reached()? {
            BOOK.lock().forget_mark(&mark);
        } else {
            marks.push(mark);
        }
    }
    Ok(marks)
}

/// The streams of a context that need an event of their own, and the events
/// that destroyed ones left. Returns `None` if events cannot cover all of the
/// work. Both are taken at the same moment: a stream that is no longer among
/// the first has left its event among the second.
fn look(context: &Arc<Context>) -> Option<(Vec<InUse>, Vec<Arc<Event>>)> {
    let book = BOOK.lock();
    let left = book.left_in(context).map(|left| match &left.trace {
        Trace::Marked(mark) => Some(Arc::clone(mark)),
        Trace::Unmarked | Trace::Unwatched => None,
    });
    let left = left.collect::<Option<Vec<_>>>()?;
    let own = |stream: &&Stream| !stream.blocking && Arc::ptr_eq(&stream.context, context);
    let streams = book.streams.iter().filter(own).map(InUse::of).collect();
    Some((streams, left))
}

/// Forgets the streams of contexts that are gone.
pub(crate) fn forget_ended() {
    let mut book = BOOK.lock();
    book.streams.retain(|stream| !stream.context.has_ended());
    book.left.retain(|left| !left.context.has_ended());
}

/// Notes a stream that was made, if `result` is success.
///
/// # Safety
/// If `result` is success, a stream was written to `stream`.
pub(crate) unsafe fn made(result: CudaResult, stream: *mut CUstream, flags: c_uint) {
    if result != 0 {
        return;
    }
    let Some(context) = contexts::current() else {
        // It was made in a context that is not known.
        take(Way::Wait);
        return;
    };
    // SAFETY: the caller's promise.
    let handle = unsafe { *stream }.expose_provenance();
    let mut book = BOOK.lock();
    // Whatever had the handle is gone, though we did not see its end: it was made while
    // its context ended, or destroyed past us.
    if let Some(at) = book.streams.iter().position(|s| s.handle == handle) {
        let gone = book.streams.swap_remove(at);
        if !gone.context.has_ended() {
            book.leave(&gone.context, Trace::Unmarked);
        }
    }
    book.streams.push(Stream {
        handle,
        context,
        blocking: flags & NON_BLOCKING == 0,
        users: Arc::new(AtomicUsize::new(0)),
    });
}

/// Takes a stream that is about to be destroyed off the list and leaves an
/// event behind. Returns its context, if the stream was on the list.
fn leave(stream: CUstream) -> Option<Arc<Context>> {
    let handle = stream.addr();
    let context = {
        let book = BOOK.lock();
        let known = book.streams.iter().find(|s| s.handle == handle)?;
        Arc::clone(&known.context)
    };
    tidy(&context);
    let captures = capture::any() && !capture::has_ended_on(stream);
    let mark = if captures {
        Err(Code::CAPTURE_UNSUPPORTED)
    } else {
        context.record_in(stream)
    };
    let trace = mark.map_or(Trace::Unmarked, Trace::Marked);
    let users = {
        let mut book = BOOK.lock();
        let at = book.streams.iter().position(|s| s.handle == handle)?;
        let known = book.streams.swap_remove(at);
        if matches!(trace, Trace::Unmarked) {
            // The latest one stands for all of them.
            let same = |left: &Left| {
                matches!(left.trace, Trace::Unmarked) && Arc::ptr_eq(&left.context, &context)
            };
            book.left.retain(|left| !same(left));
        }
        book.leave(&context, trace);
        known.users
    };
    // Acquire: pairs with the Release in the drop of `InUse`.
    let mut patience = Patience::new();
    while users.load(Ordering::Acquire) != 0 {
        patience.pause();
    }
    Some(context)
}

/// Forgets the reached events left in a context, if there are many: fences
/// would forget them, but perhaps none are made.
fn tidy(context: &Arc<Context>) {
    let marks: Vec<Arc<Event>> = {
        let book = BOOK.lock();
        let marks = book.left_in(context).filter_map(|left| match &left.trace {
            Trace::Marked(mark) => Some(Arc::clone(mark)),
            Trace::Unmarked | Trace::Unwatched => None,
        });
        marks.collect()
    };
    if marks.len() < MOST_LEFT {
        return;
    }
    for mark in marks {
        if mark.reached() == Ok(true) {
            BOOK.lock().forget_mark(&mark);
        }
    }
}

/// Called before a green context is made. Its streams are made by functions of
/// its own, and its work is no work of the legacy stream; waiting for the
/// primary context covers it. Few drivers have them and cannot record over a
/// context.
pub(crate) fn expect_parts() {
    if way() == Way::Streams {
        take(Way::Wait);
    }
}

/// Whether every stream has to be tracked.
pub(crate) fn are_watched() -> bool {
    way() == Way::Streams
}

/// Destroys a stream with the real function `call`.
pub(crate) fn destroy(stream: CUstream, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    let watched = are_watched();
    if !watched && !capture::any() {
        return None;
    }
    let left = watched.then(|| leave(stream)).flatten();
    let result = capture::destroy(stream, call);
    if let Some(context) = left.filter(|_| result != 0) {
        // Only the driver knows whether the stream lives on.
        BOOK.lock().leave(&context, Trace::Unwatched);
    }
    Some(result)
}
