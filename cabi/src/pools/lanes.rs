//! Memory of streams: which lane serves a request, and events on streams.
//!
//! A stream is known by its id, which the driver never gives to another.
//! Drivers without ids (before CUDA 12) leave us the handle, which is good as
//! long as we hear of the stream's end. If we do not, and for handles that
//! stand for no stream of their own, the context's arena serves.
//!
//! Whoever asks a stream that captures for its id, its context or its device
//! invalidates the capture, whatever mode the thread is in. So a stream is first
//! asked whether it captures, and in a capture it is known by its handle: a
//! stream that gets the handle later gets it in a later capture, and graphs that
//! share memory run one after the other. Cost: two driver calls per request, to
//! look the stream up.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use vramalloc_core::config::StrategyKind::Passthrough;
use vramalloc_core::driver::Driver;
use vramalloc_core::lanes::{Capture, LaneKey, Streams};
use vramalloc_core::page_map::{ArenaId, Owner};
use vramalloc_core::{Address, Bytes, Code, FreeError};

use crate::driver::context::Context;
use crate::driver::fence::{Fence, runs_nothing};
use crate::driver::real_driver::RealDriver;
use crate::driver::{capture, contexts};
use crate::linker::resolve::MISSING;
use crate::pools::device::{self, Asking, DeviceArena, DevicePool, shortage};
use crate::pools::{background, places};
use crate::process::guard::own_call;
use crate::real::reach;
use crate::types::{CAPTURE_STATUS_NONE, CUcontext, CUdevice, CUstream, CudaResult};
use crate::{process, real};

/// Handles up to these stand for streams of the context or the thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// The number of a context's legacy stream, and that of one that is not known: ids
/// count up from the bottom.
const LEGACY_NUMBER: u64 = u64::MAX - 1;
const UNKNOWN_NUMBER: u64 = u64::MAX;

/// The handle of a thread's own stream.
pub(crate) fn per_thread() -> CUstream {
    ptr::without_provenance_mut(PER_THREAD)
}

/// Checks that a stream which is named exists. It says which context is meant; the
/// default ones are those of the current one.
///
/// # Errors
/// What the driver returns for a handle that is no stream, or without a context.
pub(crate) fn check(stream: CUstream) -> Result<(), Code> {
    if stream.addr() <= PER_THREAD {
        return device::check_current();
    }
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: the caller's own stream, and a place for the answer.
    let asked = own_call(|| unsafe { real::cuStreamIsCapturing(stream, &raw mut status) });
    match Code::check(asked) {
        Err(Code::INVALID_HANDLE) => Err(Code::INVALID_HANDLE),
        // Any other failure of our question is no failure of the program's.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether there is or was a lane. Relaxed: it only saves work.
static ANY: AtomicBool = AtomicBool::new(false);

/// Why the context's arena served the latest request that a lane did not, if
/// there was one. Relaxed: it is told at the end.
static NO_LANE: AtomicU8 = AtomicU8::new(0);

const UNTOLD: u8 = 1;
const PASSTHROUGH: u8 = 2;

/// What becomes of requests for the memory of a stream, for the statistics.
pub(crate) fn mode() -> &'static str {
    match (NO_LANE.load(Ordering::Relaxed), ANY.load(Ordering::Relaxed)) {
        (0, false) => "unused",
        (0, true) => "on",
        (UNTOLD, true) => "on since the program says which streams use a block",
        (UNTOLD, false) => "off: the program does not say which streams use a block",
        _ => "off: strategy:passthrough",
    }
}

/// A stream on which events are recorded.
#[derive(Copy, Clone)]
pub(crate) struct Stream {
    handle: usize,
    /// The context that it is in and ends with; 0 where that was not to be asked
    /// when the stream was named.
    context: usize,
}

impl PartialEq for Stream {
    /// As far as is known: a stream that gets the handle of one that went with its context
    /// is another one.
    fn eq(&self, other: &Stream) -> bool {
        let is_known = self.handle == 0 || (self.context != 0 && other.context != 0);
        self.handle == other.handle && (!is_known || self.context == other.context)
    }
}

impl Stream {
    /// The stream of this handle; a default one is of the pool's context.
    fn of(handle: CUstream, pool: &DevicePool, captures: bool) -> Stream {
        if handle.addr() <= PER_THREAD {
            return Stream {
                // A thread's own stream cannot be named by others. It orders with
                // the legacy one, on which the event is recorded instead.
                handle: 0,
                context: pool.arena().driver().context().handle().expose_provenance(),
            };
        }
        let context = if captures {
            capture::began_in(handle)
        } else {
            context_of(handle).ok()
        };
        Stream {
            handle: handle.expose_provenance(),
            // Noted now, while it is there: it may never have asked for memory.
            context: context.map_or(0, |context| {
                contexts::of(context).handle().expose_provenance()
            }),
        }
    }

    fn handle(self) -> CUstream {
        ptr::with_exposed_provenance_mut(self.handle)
    }

    /// The context in which the driver is asked about the stream, which may be
    /// `any` for all but a default one.
    fn asked_in(self, any: &Arc<Context>) -> Arc<Context> {
        let own = (self.handle == 0).then(|| self.context().ok()).flatten();
        own.unwrap_or_else(|| Arc::clone(any))
    }

    /// Makes a fence on it by `mark`, which is given its context; `any` may be asked about it.
    fn mark(
        self,
        any: &Arc<Context>,
        mark: impl FnOnce(&Arc<Context>) -> Result<Fence, Code>,
    ) -> Result<Fence, Code> {
        let mark = || mark(&self.context()?);
        if reach::is_in_front() {
            return capture::outside(mark).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED));
        }
        // We do not hear of captures here. But either the stream itself
        // captures, or the event disturbs nothing.
        let quiet = (self.asked_in(any)).call_now(|| captures(self.handle()));
        quiet.and_then(|()| mark())
    }

    /// The stream's context. It captures nothing.
    fn context(self) -> Result<Arc<Context>, Code> {
        if self.context == 0 {
            return context_of(self.handle()).map(contexts::of);
        }
        let known = contexts::known(ptr::with_exposed_provenance_mut(self.context));
        known
            .map(|(context, _)| context)
            .ok_or(Code::INVALID_CONTEXT)
    }
}

/// The context of a live stream with a handle of its own, which captures nothing.
fn context_of(stream: CUstream) -> Result<CUcontext, Code> {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: a live stream by the caller's promise; writes to a local.
    ask_anywhere(|| unsafe { real::cuStreamGetCtx(stream, &raw mut context) })?;
    Ok(context)
}

impl Streams for RealDriver {
    type Stream = Stream;

    fn mark(&self, stream: Stream) -> Result<Fence, Code> {
        stream.mark(self.context(), |context| {
            if Arc::ptr_eq(context, self.context()) {
                Fence::of_stream(context, stream.handle())
            } else {
                Fence::of_stream_elsewhere(context, stream.handle())
            }
        })
    }

    fn mark_all(&self) -> Option<Fence> {
        if !reach::is_in_front() {
            return None;
        }
        self.fence().ok()
    }
}

/// Returns an error if the stream captures, or orders with one that does.
fn captures(stream: CUstream) -> u32 {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: a live stream; writes the answer to a local.
    match unsafe { real::cuStreamIsCapturing(stream, &raw mut status) } {
        // The driver has no captures.
        MISSING => 0,
        0 if status == CAPTURE_STATUS_NONE => 0,
        0 => Code::CAPTURE_UNSUPPORTED.get(),
        result => result,
    }
}

/// What is known of other streams' uses of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Uses {
    /// Each of them is recorded.
    Recorded,
    /// They are not reported.
    Unknown,
}

/// Allocates memory for a stream. If several captures share memory, `shared` is
/// the number to use for all of them.
///
/// # Errors
/// What CUDA returns.
pub(crate) fn allocate(
    pool: &'static DevicePool,
    stream: CUstream,
    size: Bytes,
    uses: Uses,
    shared: Option<u64>,
) -> Result<Address, Code> {
    let capture = capture_on(pool, stream).map(|number| Capture {
        number: shared.unwrap_or(number),
        told: uses == Uses::Recorded,
    });
    let own = pool.serving_thread();
    if capture.is_none() && own.tag().is_some() {
        return places::allocate_in(own.arena(), size);
    }
    // Without pools the driver's own free waits for all uses of a block.
    let pools = || process::options(|loaded| loaded.settings.config.strategy) != Passthrough;
    let why_not = match uses {
        _ if capture.is_some() => None,
        Uses::Unknown => Some(UNTOLD),
        Uses::Recorded => (!pools()).then_some(PASSTHROUGH),
    };
    if let Some(why) = why_not {
        NO_LANE.store(why, Ordering::Relaxed);
        return places::allocate_in(pool.arena(), size);
    }
    ANY.store(true, Ordering::Relaxed);
    pool.lanes().poll();
    let number = match capture {
        Some(_) => Some(number_in_capture(stream)),
        None => number(pool, stream),
    };
    let served = number.and_then(|stream| {
        let key = LaneKey { stream, capture };
        let make = || device::make_lane(pool);
        let request = |lane: &Arc<DeviceArena>| places::allocate_in(lane, size);
        pool.lanes().serve(key, make, request)
    });
    served.unwrap_or_else(|| match capture {
        // Elsewhere, memory of a graph would be handed out again one day.
        Some(_) => Err(Code::NOT_SUPPORTED),
        None => places::allocate_in(pool.arena(), size),
    })
}

/// The number of the capture that a stream is part of.
fn capture_on(pool: &DevicePool, stream: CUstream) -> Option<u64> {
    if reach::is_in_front() && !capture::any() {
        return None;
    }
    in_context(pool, || capture::number_on(stream))
}

/// A number that no other stream of the same capture has, without a question to
/// the driver.
fn number_in_capture(stream: CUstream) -> u64 {
    match stream.addr() {
        PER_THREAD => capture::this_thread() as u64,
        handle => handle as u64,
    }
}

/// The stream's id, or else a number that no other stream has while this one
/// lives, if we hear of its end. It captures nothing.
fn number(pool: &DevicePool, stream: CUstream) -> Option<u64> {
    let mut number = 0;
    // SAFETY: a live stream by the caller's promise; writes to a local.
    let ask = || unsafe { real::cuStreamGetId(stream, &raw mut number) };
    let told = match stream.addr() {
        // It orders with blocking streams, of which one may capture: then the
        // driver is not to be asked.
        0 | LEGACY => return Some(LEGACY_NUMBER),
        PER_THREAD => pool.arena().driver().context().call(ask),
        _ => ask_anywhere(ask),
    };
    match (told, stream.addr()) {
        (Ok(()), _) => Some(number),
        (_, handle) => (handle > PER_THREAD && reach::is_in_front()).then_some(handle as u64),
    }
}

/// Asks the driver about a stream with a handle of its own: in the current
/// context, or else in any. The answer is the same in all of them, and no
/// context's end is waited for.
fn ask_anywhere(mut ask: impl FnMut() -> CudaResult) -> Result<(), Code> {
    let told = Code::check(own_call(&mut ask));
    let is_nowhere = |told: &Result<(), Code>| {
        told.is_err_and(|code| runs_nothing(code) || code == Code::NOT_READY)
    };
    if !is_nowhere(&told) {
        return told;
    }
    let mut elsewhere = contexts::all()
        .into_iter()
        .map(|its| its.call_now(&mut ask));
    let answer = elsewhere.find(|told| !is_nowhere(told));
    answer.unwrap_or(told)
}

/// Runs `look` with the pool's context current.
fn in_context<R>(pool: &DevicePool, look: impl FnOnce() -> Option<R>) -> Option<R> {
    let mut found = None;
    let called = pool.arena().driver().context().call(|| {
        found = look();
        0
    });
    called.ok().and(found)
}

/// Notes that a stream uses a block which was made for another. A block that
/// was made for no stream waits for all of them in any case.
///
/// # Errors
/// [`FreeError::NotLive`] if no block of ours starts there.
pub(crate) fn record(address: u64, stream: CUstream) -> Result<(), FreeError> {
    let Owner::Arena(id) = device::owner(address) else {
        return Err(FreeError::NotLive);
    };
    let pool = device::pool_with(id).ok_or(FreeError::NotLive)?;
    if !pool.is_lane() {
        return Ok(());
    }
    record_in(pool, Address::new(address), stream)
}

/// Notes that a stream uses a block of this lane.
///
/// # Errors
/// As `record`.
pub(crate) fn record_in(
    pool: &DevicePool,
    address: Address,
    stream: CUstream,
) -> Result<(), FreeError> {
    let captures = capture_on(pool, stream).is_some();
    let note = |number, of| {
        let lanes = pool.lanes();
        let stream = || Stream::of(stream, of, captures);
        lanes.record(pool.arena(), address, number, stream)
    };
    let known = if pool.lanes().is_of_capture(pool.arena()) {
        number_in_capture(stream)
    } else if captures {
        // Perhaps the lane's own, which would not have to be noted.
        UNKNOWN_NUMBER
    } else {
        number(pool, stream).unwrap_or(UNKNOWN_NUMBER)
    };
    note(known, pool)?;
    // A default stream's handle is the same in all contexts: it may mean that
    // of the current context, and not that of the block's.
    match device::current_pool(Asking::Api) {
        Some(current) if stream.addr() <= PER_THREAD && !current.is_of_context(pool) => {
            note(UNKNOWN_NUMBER, current)
        }
        _ => Ok(()),
    }
}

/// Called before a stream is destroyed.
pub(crate) fn end_stream(handle: CUstream) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    // Also pools whose context may be ending: it may live on, with its lanes.
    let pools = device::serving_pools();
    let Some(any) = pools.first() else { return };
    let captures = capture_on(any, handle).is_some();
    let number = if captures {
        // Its lane is found when there are many that nobody needs.
        UNKNOWN_NUMBER
    } else if let Some(number) = number(any, handle) {
        number
    } else {
        return;
    };
    let stream = Stream::of(handle, any, captures);
    // In pools of all contexts: an error that ends the stream's own ends its work.
    let elsewhere = |context: &Arc<Context>| Fence::of_stream_elsewhere(context, stream.handle());
    let fence = stream.mark(any.arena().driver().context(), elsewhere).ok();
    for pool in pools {
        pool.lanes().end_stream(number, stream, fence.as_ref());
    }
}

/// Called when a context is gone: nothing waits for its streams any more.
pub(crate) fn end_context(context: &Context) {
    if ANY.load(Ordering::Relaxed) {
        let context = context.handle().addr();
        for pool in device::serving_pools() {
            pool.lanes()
                .forget_streams(|stream| stream.context == context);
        }
    }
}

/// Gives back idle memory elsewhere on a device, in whatever context, for an
/// arena that is short. Returns whether to ask again: also if another context
/// has an arena that gave nothing, because what another thread made it give is
/// with the driver by now.
pub(crate) fn relieve(device: CUdevice, asking: ArenaId) -> bool {
    background::finish();
    let mut released = Bytes::ZERO;
    let mut has_others = false;
    for pool in device::pools_on(device) {
        released = released.saturating_add(pool.lanes().trim());
        if pool.arena().id() != asking {
            has_others = true;
            pool.arena().trim();
        }
    }
    let elsewhere = shortage::give_back_elsewhere(device);
    has_others || elsewhere || !released.is_zero()
}

/// Whether some of the live memory on a device was freed by the program: it
/// waits for other streams, or to be freed in the background.
pub(crate) fn has_freed(device: CUdevice) -> bool {
    let pools = device::pools_on(device);
    background::is_busy() || pools.iter().any(|pool| pool.lanes().has_uses())
}

/// Releases the memory of these captures on a device, as their graphs are gone.
/// Returns how many bytes went back.
pub(crate) fn release_captures(device: CUdevice, gone: impl Fn(u64) -> bool) -> Bytes {
    let pools = device::pools_on(device);
    let released = pools
        .iter()
        .map(|pool| pool.lanes().release_captures(&gone));
    released.fold(Bytes::ZERO, Bytes::saturating_add)
}
