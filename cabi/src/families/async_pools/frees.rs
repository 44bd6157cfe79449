//! The frees that streams have yet to get to, on devices that have a limit.
//!
//! Each free in the order of a stream is marked there by an event, as long as
//! few such events stand unreached in the stream's queue, which is bounded.
//! Those that are not marked, also since a stream was capturing, are covered by
//! a fence over all work that is made when somebody looks.
//!
//! Owns the marks; their lock spans no driver call, and of other locks only that
//! of a context's events is taken under it. Cost: two
//! questions and an event for each free; two questions for each stream that has
//! freed, when a request is short.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;

use super::{ANY, FAMILY, PER_THREAD, Pool, captures, read_all};
use crate::driver::capture::this_thread;
use crate::driver::context::Context;
use crate::driver::fence::Fence;
use crate::driver::{capture, contexts, devices};
use crate::families::owned;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice, CUdeviceptr, CUstream, CudaResult};

/// The most events of ours that are added to a stream's queue before the first
/// of them is known to be reached.
const MOST: u32 = 32;

/// How many streams are noted before those are looked for that are done.
const MANY: usize = 64;

/// What comes after a free; nothing once that is reached, or cannot be told.
#[derive(Clone)]
struct Mark {
    number: u64,
    fence: Option<Fence>,
}

impl Mark {
    fn new(fence: Option<Fence>) -> Mark {
        let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        Mark { number, fence }
    }

    fn is_reached(&self) -> bool {
        let fence = self.fence.as_ref();
        fence.is_none_or(|fence| fence.is_reached() != Ok(false))
    }
}

/// Whose memory was freed, and in the order of which stream.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Place {
    device: CUdevice,
    context: usize,
    stream: usize,
    /// Whose stream it is, where the handle means one per thread; or 0.
    thread: usize,
}

#[derive(Clone)]
struct Freed {
    place: Place,
    /// The first mark that is not known to be reached, and the last one.
    first: Mark,
    last: Mark,
    /// How many events there are since the first.
    marked: u32,
    /// How many frees came after the last mark and are not marked.
    more: u64,
    /// The threads that waited for the first in vain: not again, as what runs
    /// before it may run for ever.
    in_vain: Vec<usize>,
}

static FREED: SpinMutex<Vec<Freed>, Brief> = SpinMutex::new(Vec::new());

/// How many marks there were, and how often some were found reached. Relaxed:
/// the lock orders what they count.
static MADE: AtomicU64 = AtomicU64::new(0);
static REACHED: AtomicU64 = AtomicU64::new(0);

/// The number of the last mark.
pub(super) fn newest() -> u64 {
    MADE.load(Ordering::Relaxed)
}

/// How often marks were found reached.
pub(super) fn reached() -> u64 {
    REACHED.load(Ordering::Relaxed)
}

/// Frees memory in the order of a stream by `call`.
pub(crate) fn free(
    address: CUdeviceptr,
    stream: CUstream,
    call: impl FnOnce() -> CudaResult,
) -> CudaResult {
    // Asked before: afterwards it may be another's memory.
    let is_any = ANY.load(Ordering::Relaxed) && devices::any_limited();
    let is_free = is_any && !captures(stream);
    let device = is_free.then(|| limited(address)).flatten();
    // It lives until the mark is there, where this is the last of a pool that is gone.
    let pool = device.and_then(|_| owned::kept::<Pool>((FAMILY, address)));
    let result = call();
    if let Some(device) = device.filter(|_| result == 0) {
        let noted = note(device, stream);
        if let Some(pool) = pool {
            pool.frees.note(noted);
        }
        if devices::device(device).quota.is_beyond_limit() {
            read_all(|on| on == device);
        }
    }
    result
}

/// The device that memory lies on, if there is a limit for it.
fn limited(address: CUdeviceptr) -> Option<CUdevice> {
    const DEVICE_ORDINAL: c_int = 9;
    let mut device: CUdevice = 0;
    let to = (&raw mut device).cast();
    // SAFETY: writes the answer to a local; the driver checks the address.
    let told = own_call(|| unsafe { real::cuPointerGetAttribute(to, DEVICE_ORDINAL, address) });
    let known = devices::find(device).filter(|_| told == 0)?;
    known.quota.limit().map(|_| device)
}

/// The context of a stream.
pub(super) fn context_of(stream: CUstream) -> Option<Arc<Context>> {
    let mut handle: CUcontext = ptr::null_mut();
    // SAFETY: the caller's own stream, and a local for the answer.
    let told = own_call(|| unsafe { real::cuStreamGetCtx(stream, &raw mut handle) });
    (told == 0).then(|| contexts::of(handle))
}

/// Whether streams have yet to get to frees of a device's memory.
pub(super) fn are_left(device: CUdevice) -> bool {
    let all = FREED.lock();
    let of_device = all.iter().filter(|freed| freed.place.device == device);
    let last: Vec<Mark> = of_device.map(|freed| freed.last.clone()).collect();
    drop(all);
    let is_left = || last.iter().any(|mark| !mark.is_reached());
    capture::outside(is_left) == Some(true)
}

/// The frees of one pool that streams have yet to get to: a mark after each of them.
pub(super) struct LastFrees(SpinMutex<Frees, Brief>);

struct Frees {
    marks: Vec<Fence>,
    /// There are some without a mark.
    are_more: bool,
}

impl Frees {
    fn give_up(&mut self) {
        self.are_more = true;
        self.marks.clear();
    }
}

impl LastFrees {
    /// `is_limited`: whether the device had a limit when the pool was made. Frees of before
    /// a limit are not noted.
    pub(super) fn new(is_limited: bool) -> LastFrees {
        LastFrees(SpinMutex::new(Frees {
            marks: Vec::new(),
            are_more: !is_limited,
        }))
    }

    fn note(&self, mark: Option<Fence>) {
        let mut many = {
            let mut all = self.0.lock();
            match mark {
                Some(mark) if !all.are_more => all.marks.push(mark),
                // None of them serves any more.
                _ => return all.give_up(),
            }
            if all.marks.len() < MANY {
                return;
            }
            std::mem::take(&mut all.marks)
        };
        capture::outside(|| many.retain(|mark| mark.is_reached() == Ok(false)));
        let mut all = self.0.lock();
        all.marks.extend(many);
        if all.marks.len() >= MANY {
            all.give_up();
        }
    }

    /// All the marks; `None` where some could not be made, or nothing is known.
    pub(super) fn take(&self) -> Option<Vec<Fence>> {
        let mut all = self.0.lock();
        let marks = std::mem::take(&mut all.marks);
        (!all.are_more && !marks.is_empty()).then_some(marks)
    }
}

/// A mark after what a stream was given so far, where it captures nothing.
pub(crate) fn mark_on(stream: CUstream) -> Option<Fence> {
    if captures(stream) {
        return None;
    }
    let context = context_of(stream)?;
    capture::outside(|| Fence::of_stream(&context, stream))?.ok()
}

/// Notes a free; returns the mark after it.
fn note(device: CUdevice, stream: CUstream) -> Option<Fence> {
    let context = context_of(stream);
    let is_per_thread = stream.addr() == PER_THREAD;
    let place = Place {
        device,
        context: (context.as_ref()).map_or(0, |context| context.handle().addr()),
        stream: stream.addr(),
        thread: if is_per_thread { this_thread() } else { 0 },
    };
    let is = |freed: &Freed| freed.place == place;
    let known = FREED.lock().iter().find(|freed| is(freed)).cloned();
    let is_full = |known: &Freed| known.marked >= MOST && !known.first.is_reached();
    let context = context.filter(|_| !known.as_ref().is_some_and(is_full));
    let fence = context.and_then(|context| {
        let mark = || Fence::of_stream(&context, stream);
        capture::outside(mark)?.ok()
    });
    let is_marked = fence.is_some();
    let noted = fence.clone();
    let mark = Mark::new(fence);
    let mut all = FREED.lock();
    if let Some(freed) = all.iter_mut().find(|freed| is(freed)) {
        if is_marked {
            if freed.marked >= MOST {
                freed.begin(freed.last.clone());
            }
            freed.marked += 1;
            freed.more = 0;
            freed.last = mark;
        } else {
            freed.more += 1;
        }
        return noted;
    }
    all.push(Freed {
        place,
        first: mark.clone(),
        last: mark,
        marked: 1,
        more: u64::from(!is_marked),
        in_vain: Vec::new(),
    });
    let are_many = all.len().is_multiple_of(MANY);
    drop(all);
    if are_many {
        look(device);
    }
    noted
}

impl Freed {
    /// The marks before this one are reached.
    fn begin(&mut self, first: Mark) {
        self.first = first;
        self.marked = 0;
        self.in_vain.clear();
    }
}

/// The number of the oldest free of a device's memory that is not reached; none
/// that this thread has waited for in vain.
pub(super) fn look(device: CUdevice) -> Option<u64> {
    let all = FREED.lock();
    let of_device = all.iter().filter(|freed| freed.place.device == device);
    let seen: Vec<Freed> = of_device.cloned().collect();
    drop(all);
    let left = seen.iter().filter_map(|freed| {
        if freed.first.is_reached() {
            return go_on(freed);
        }
        let is_in_vain = freed.in_vain.contains(&this_thread());
        (!is_in_vain).then_some(freed.first.number)
    });
    left.min()
}

/// Takes note that the first mark of a stream was reached, and the number of the
/// next.
fn go_on(seen: &Freed) -> Option<u64> {
    let are_all = seen.first.number == seen.last.number || seen.last.is_reached();
    let rest = (are_all && seen.more > 0).then(|| {
        let context = contexts::current();
        let fence = context.and_then(|context| capture::outside(|| Fence::of_all(&context))?.ok());
        Mark::new(fence)
    });
    let mut all = FREED.lock();
    let at = all.iter().position(|freed| freed.place == seen.place)?;
    let freed = all.get_mut(at)?;
    if freed.first.number != seen.first.number {
        // Another thread was faster.
        return Some(freed.first.number);
    }
    REACHED.fetch_add(1, Ordering::Relaxed);
    if !are_all || freed.last.number != seen.last.number {
        freed.begin(freed.last.clone());
    } else if let Some(rest) = rest {
        freed.last = rest.clone();
        freed.begin(rest);
        freed.more -= seen.more;
    } else if freed.more == 0 {
        all.swap_remove(at);
        return None;
    }
    Some(freed.first.number)
}

/// The calling thread has waited in vain for what is left of a device's frees.
pub(super) fn waited_in_vain(device: CUdevice) {
    let thread = this_thread();
    for freed in FREED.lock().iter_mut() {
        if freed.place.device == device && !freed.in_vain.contains(&thread) {
            freed.in_vain.push(thread);
        }
    }
}
