//! Memory of streams: which lane serves a request, and marks on streams.
//!
//! A stream is known by the number that its driver never gives to another.
//! Drivers without such numbers (before CUDA 12) leave us the handle, which is
//! good as long as we hear of its end; where we do not, and for what is no
//! stream of its own, the context's arena serves. Owns nothing but whether
//! there are lanes. Cost: two driver calls per request that look something up.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vramalloc_core::config::StrategyKind::Passthrough;
use vramalloc_core::driver::Driver;
use vramalloc_core::lanes::{Capture, LaneKey, Streams};
use vramalloc_core::page_map::{ArenaId, Owner};
use vramalloc_core::{Address, Bytes, Code, FreeError};

use crate::driver::capture;
use crate::driver::fence::{Fence, runs_nothing};
use crate::driver::marker::Marker;
use crate::driver::peers;
use crate::driver::real_driver::RealDriver;
use crate::linker::resolve::MISSING;
use crate::pools::background;
use crate::pools::context::{self, Arena, Asking, Home};
use crate::pools::places;
use crate::process;
use crate::process::guard::own_call;
use crate::real;
use crate::real::reach;
use crate::types::{CAPTURE_STATUS_NONE, CUcontext, CUdevice, CUstream, CudaResult};

/// Handles below stand for streams of the context or the thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// A thread's own stream.
pub(crate) fn per_thread() -> CUstream {
    ptr::without_provenance_mut(PER_THREAD)
}

/// Asks whether a stream that is named is one.
///
/// # Errors
/// What the driver answers to a handle of none.
pub(crate) fn check(stream: CUstream) -> Result<(), Code> {
    if stream.addr() <= PER_THREAD {
        return Ok(());
    }
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: the caller's own stream, and a place for the answer.
    let asked = own_call(|| unsafe { real::cuStreamGetCtx(stream, &raw mut context) });
    match Code::check(asked) {
        Err(Code::INVALID_HANDLE) => Err(Code::INVALID_HANDLE),
        // A question of ours that fails otherwise is no failure of the program's.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether there is or was a lane. Relaxed: it only spares work.
static ANY: AtomicBool = AtomicBool::new(false);

/// A stream as it is marked.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) struct Stream {
    handle: usize,
    context: usize,
}

impl Stream {
    /// The stream of this handle, which is current or of the home's context.
    fn of(handle: CUstream, home: &Home) -> Stream {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: a live stream by the caller's promise, and a place for the
        // answer.
        let ask = || unsafe { real::cuStreamGetCtx(handle, &raw mut context) };
        let context = match ask_of(handle, home, ask) {
            Ok(()) => context,
            Err(_) => home.arena().driver().marker().context(),
        };
        Stream {
            // A thread's own stream cannot be named by others; it orders with
            // the legacy one, which is marked in its place.
            handle: if handle.addr() <= PER_THREAD {
                0
            } else {
                handle.expose_provenance()
            },
            context: context.expose_provenance(),
        }
    }

    fn handle(self) -> CUstream {
        ptr::with_exposed_provenance_mut(self.handle)
    }

    fn marker(self) -> Arc<Marker> {
        peers::of(ptr::with_exposed_provenance_mut(self.context))
    }
}

impl Streams for RealDriver {
    type Stream = Stream;

    fn mark(&self, stream: Stream) -> Result<Fence, Code> {
        let mark = || Fence::of_stream(&stream.marker(), stream.handle());
        if reach::is_in_front() {
            return capture::outside(mark).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED));
        }
        // Nobody tells us of captures; but what captures is the stream itself,
        // or the mark disturbs nothing.
        let quiet = stream.marker().call_now(|| captures(stream.handle()));
        quiet.and_then(|()| mark())
    }

    fn mark_all(&self) -> Option<Fence> {
        if !reach::is_in_front() {
            return None;
        }
        self.fence().ok()
    }
}

/// An error where the stream captures, or orders with one that does.
fn captures(stream: CUstream) -> u32 {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: a live stream, and a place for the answer.
    match unsafe { real::cuStreamIsCapturing(stream, &raw mut status) } {
        // Drivers without captures.
        MISSING => 0,
        0 if status == CAPTURE_STATUS_NONE => 0,
        0 => Code::CAPTURE_UNSUPPORTED.get(),
        result => result,
    }
}

/// What is known of the uses of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Uses {
    /// Every use on another stream is recorded.
    Recorded,
    /// They are not told.
    Unknown,
}

/// Memory for a stream. A number stands for the capture, if the caller has
/// one of its own for it.
///
/// # Errors
/// What CUDA answers.
pub(crate) fn allocate(
    home: &'static Home,
    stream: CUstream,
    size: Bytes,
    uses: Uses,
    pool: Option<u64>,
) -> Result<Address, Code> {
    let capture = capture_on(home, stream).map(|number| Capture {
        number: pool.unwrap_or(number),
        told: uses == Uses::Recorded,
    });
    // Without pools the driver's own free waits for whoever uses a block.
    let pools = || process::options(|loaded| loaded.settings.config.strategy) != Passthrough;
    if capture.is_none() && (uses == Uses::Unknown || !pools()) {
        return places::allocate_in(home.arena(), size);
    }
    ANY.store(true, Ordering::Relaxed);
    home.lanes().poll();
    let served = number(home, stream).and_then(|stream| {
        let key = LaneKey { stream, capture };
        let make = || context::make_lane(home);
        let request = |lane: &Arc<Arena>| places::allocate_in(lane, size);
        home.lanes().serve(key, make, request)
    });
    served.unwrap_or_else(|| match capture {
        // Memory of a graph would be somebody else's one day.
        Some(_) => Err(Code::NOT_SUPPORTED),
        None => places::allocate_in(home.arena(), size),
    })
}

/// The capture that a stream is part of.
fn capture_on(home: &Home, stream: CUstream) -> Option<u64> {
    if reach::is_in_front() && !capture::any() {
        return None;
    }
    in_context(home, || capture::number_on(stream))
}

/// A number that the stream has and no other ever has, or none while this one
/// lives and we hear of its end.
fn number(home: &Home, stream: CUstream) -> Option<u64> {
    let mut number = 0;
    // SAFETY: a live stream by the caller's promise, and a place for the
    // answer.
    let ask = || unsafe { real::cuStreamGetId(stream, &raw mut number) };
    match (ask_of(stream, home, ask), stream.addr()) {
        (Ok(()), _) => Some(number),
        (_, 0 | LEGACY) => Some(LEGACY as u64),
        (_, handle) => (handle > PER_THREAD && reach::is_in_front()).then_some(handle as u64),
    }
}

/// Asks something of a stream. What stands for one of the home's context, with
/// that current; one of its own wherever the thread is, or in any context: it
/// is the same everywhere, and the end of none is waited for.
fn ask_of(stream: CUstream, home: &Home, mut ask: impl FnMut() -> CudaResult) -> Result<(), Code> {
    if stream.addr() <= PER_THREAD {
        return home.arena().driver().marker().call(ask);
    }
    let told = Code::check(own_call(&mut ask));
    let is_nowhere = |told: &Result<(), Code>| {
        told.is_err_and(|code| runs_nothing(code) || code == Code::NOT_READY)
    };
    if !is_nowhere(&told) {
        return told;
    }
    let mut elsewhere = peers::all().into_iter().map(|its| its.call_now(&mut ask));
    let answer = elsewhere.find(|told| !is_nowhere(told));
    answer.unwrap_or(told)
}

/// Looks something up with the home's context current.
fn in_context<R>(home: &Home, look: impl FnOnce() -> Option<R>) -> Option<R> {
    let mut found = None;
    let called = home.arena().driver().marker().call(|| {
        found = look();
        0
    });
    called.ok().and(found)
}

/// Notes that a stream uses a block besides the stream that it was made for.
/// What is nobody's stream's waits for all streams in any case.
///
/// # Errors
/// [`FreeError::NotLive`] where no block of ours starts there.
pub(crate) fn record(address: u64, stream: CUstream) -> Result<(), FreeError> {
    let Owner::Arena(id) = context::owner(address) else {
        return Err(FreeError::NotLive);
    };
    let home = context::home_with(id).ok_or(FreeError::NotLive)?;
    if !home.is_lane() {
        return Ok(());
    }
    record_in(home, Address::new(address), stream)
}

/// The same of a block of this lane.
///
/// # Errors
/// As `record`.
pub(crate) fn record_in(home: &Home, address: Address, stream: CUstream) -> Result<(), FreeError> {
    let note = |number, stream| {
        let lanes = home.lanes();
        lanes.record(home.arena(), address, number, stream)
    };
    let known = number(home, stream).unwrap_or(u64::MAX);
    note(known, Stream::of(stream, home))?;
    // A default stream's handle is the same in all contexts: what is current
    // may mean another one than the block's.
    match context::current_home(Asking::Api) {
        Some(current) if stream.addr() <= PER_THREAD && !current.is_of_context(home) => {
            note(u64::MAX, Stream::of(stream, current))
        }
        _ => Ok(()),
    }
}

/// A stream is going to be destroyed.
pub(crate) fn end_stream(handle: CUstream) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    // Also those whose context may be ending: it may live on, and its lanes.
    let homes = context::serving_homes();
    let Some(any) = homes.first() else { return };
    let Some(number) = number(any, handle) else {
        return;
    };
    let stream = Stream::of(handle, any);
    let fence = any.arena().driver().mark(stream).ok();
    for home in homes {
        home.lanes().end_stream(number, stream, fence.as_ref());
    }
}

/// Gives back what is idle elsewhere on a device, in whatever context, for an
/// arena that is short; whether it is worth asking again. It is where another
/// context has an arena, even one that gave nothing: what somebody else made it
/// give is with the driver by now.
pub(crate) fn relieve(device: CUdevice, asking: ArenaId) -> bool {
    background::finish();
    let mut released = Bytes::ZERO;
    let mut has_others = false;
    for home in context::homes_on(device) {
        released = released.saturating_add(home.lanes().trim());
        if home.arena().id() != asking {
            has_others = true;
            home.arena().trim();
        }
    }
    has_others || !released.is_zero()
}

/// Whether some of what is live on a device was freed by the program: it waits
/// for other streams, or to be freed in the background.
pub(crate) fn has_freed(device: CUdevice) -> bool {
    let homes = context::homes_on(device);
    background::is_busy() || homes.iter().any(|home| home.lanes().has_uses())
}

/// The graphs of these captures on a device are gone. How many bytes went back.
pub(crate) fn release_captures(device: CUdevice, gone: impl Fn(u64) -> bool) -> Bytes {
    let homes = context::homes_on(device);
    let released = homes
        .iter()
        .map(|home| home.lanes().release_captures(&gone));
    released.fold(Bytes::ZERO, Bytes::saturating_add)
}
