//! Marks in the work of a context where the driver cannot mark all of it at
//! once (before CUDA 12.5), stream by stream.
//!
//! An event on the legacy default stream comes after all earlier work of that
//! stream and of every stream that orders with it, the threads' own default
//! streams among them, which nobody else could name. Streams that do not order
//! with it get an event each. The event on the legacy stream orders the
//! others among each other at that point; that costs some overlap and changes
//! no result, and the alternative would be to stop the host. A stream that is
//! destroyed with work pending leaves an event behind, of whichever sort it
//! was, and fences cover that until it is reached.
//!
//! Where anything of this fails, and where streams came to be that cannot be
//! marked, the whole context is waited for instead.
//!
//! Owns the list of the streams that are alive and of what destroyed ones left
//! behind; its lock is taken alone and spans no driver call. Invariant: a
//! stream is in one of the two from the return of its making until its work is
//! done, and is not destroyed while a mark is being put on it. Cost: an entry
//! per stream and an event per destroyed one; a mark per stream and fence.
//! Nothing of this on drivers that can mark a context.

use std::ffi::{CStr, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::Code;
use vramalloc_core::patience::{Brief, Patience};

use crate::driver::capture;
use crate::driver::context::{Context, Event};
use crate::driver::contexts;
use crate::linker::resolve::driver_function;
use crate::types::{CUstream, CudaResult};

/// The flag of a stream that does not order with the legacy default stream.
const NON_BLOCKING: c_uint = 1;

/// Events left behind in a context before it is looked which were reached.
const MOST_LEFT: usize = 64;

/// How work is marked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Way {
    /// Nobody has asked the driver yet.
    Unknown = 0,
    /// The whole context at once.
    Context = 1,
    /// Stream by stream.
    Streams = 2,
    /// Not at all: the context is waited for.
    Wait = 3,
}

// Relaxed throughout: the value stands for itself.
static WAY: AtomicU8 = AtomicU8::new(Way::Unknown as u8);

/// How this driver's work is marked. Known before the first stream is made, so
/// that none is missed.
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

/// Whether a mark orders a context's streams with each other.
pub(crate) fn marks_order() -> bool {
    way() == Way::Streams
}

/// Finds it out now.
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
    /// Threads that are putting a mark on it.
    users: Arc<AtomicUsize>,
}

/// What is left of a stream that was destroyed.
struct Left {
    number: u64,
    context: Arc<Context>,
    trace: Trace,
}

enum Trace {
    /// Work before this mark.
    Marked(Arc<Event>),
    /// Work that no mark could be put after.
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

    /// Forgets what was left in a context before the number was given and is
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

/// A stream on which a mark is being put: it is not destroyed meanwhile.
struct InUse {
    handle: usize,
    users: Arc<AtomicUsize>,
}

impl InUse {
    /// The lock of the book is held, so that the stream is still in it.
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
        // Release: pairs with the Acquire in `leave`; the mark is made.
        self.users.fetch_sub(1, Ordering::Release);
    }
}

/// Marks all work that the context was given so far; no marks where that was
/// waited for instead, or the context is gone.
///
/// # Errors
/// What the driver answers; [`Code::NOT_READY`] where the context may be ending.
pub(crate) fn mark(context: &Arc<Context>) -> Result<Vec<Arc<Event>>, Code> {
    match mark_at_once(context) {
        Err(code)
            if !capture::is_about(code)
                && !matches!(code, Code::DEINITIALIZED | Code::NOT_READY) =>
        {
            wait(context)
        }
        marked => marked,
    }
}

/// The same without a wait.
///
/// # Errors
/// As `mark`, and where only a wait would do.
pub(crate) fn mark_at_once(context: &Arc<Context>) -> Result<Vec<Arc<Event>>, Code> {
    let way = way();
    let marked = match way {
        Way::Context => context.record().map(|mark| vec![mark]),
        Way::Streams => mark_streams(context),
        Way::Wait | Way::Unknown => Err(Code::NOT_SUPPORTED),
    };
    if marked.is_err() && context.has_ended() {
        return Ok(Vec::new());
    }
    if way == Way::Context && matches!(marked, Err(Code::NOT_SUPPORTED)) {
        // It exports a function that it does not have; no stream was watched.
        take(Way::Wait);
    }
    marked
}

fn wait(context: &Arc<Context>) -> Result<Vec<Arc<Event>>, Code> {
    let before = BOOK.lock().next_number;
    match context.synchronize() {
        Err(code) if !context.has_ended() => Err(code),
        _ => {
            BOOK.lock().forget_before(context, before);
            Ok(Vec::new())
        }
    }
}

/// One mark per stream that needs its own, and those that were left behind.
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

/// The streams of a context that need a mark of their own, and the marks that
/// others have left; none where marks cannot cover all of the work. Both at
/// the same moment: a stream that is no longer among the first has left its
/// mark among the second.
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

/// Notes a stream that was made where `result` is success.
///
/// # Safety
/// Where `result` is success, a stream was written to `stream`.
pub(crate) unsafe fn made(result: CudaResult, stream: *mut CUstream, flags: c_uint) {
    if result != 0 {
        return;
    }
    let Some(context) = contexts::current() else {
        // It was made in some context that cannot be told.
        take(Way::Wait);
        return;
    };
    // SAFETY: the caller's promise.
    let handle = unsafe { *stream }.expose_provenance();
    let mut book = BOOK.lock();
    book.streams.push(Stream {
        handle,
        context,
        blocking: flags & NON_BLOCKING == 0,
        users: Arc::new(AtomicUsize::new(0)),
    });
}

/// Takes a stream that is going to be destroyed off the list, with a mark left
/// behind; its context, if the stream was on the list.
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
            // One is as good as many, if it is the latest.
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

/// Forgets the marks left in a context that were reached, where there are
/// many: nobody may be making fences.
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

/// A green context is going to be made. Its streams are made by functions of its
/// own, and its work is no work of the legacy stream; waiting for the primary
/// context covers it. Drivers that have green contexts and lack marks of
/// contexts are few.
pub(crate) fn expect_parts() {
    if way() == Way::Streams {
        take(Way::Wait);
    }
}

/// Whether each stream has to be known.
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
    let result = call();
    if result == 0 {
        capture::destroyed(stream);
    } else if let Some(context) = left {
        // Whether it lives on, only the driver knows.
        BOOK.lock().leave(&context, Trace::Unwatched);
    }
    Some(result)
}
