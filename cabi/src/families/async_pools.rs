//! CUDA's memory pools: `cuMemAllocAsync` and its like.
//!
//! A pool reserves memory of the device in pieces of its own size, and keeps
//! what is freed until a synchronisation, or for good, as its threshold says.
//! Reserved memory is missing for everybody else, so that is what counts, and
//! not what the program asked for; it also survives frees that nobody sees. It
//! is read after each call that may have changed it.
//!
//! Under a limit the pieces by which a pool may grow for a request are taken out
//! of the quota before the call. Where that leaves less, the pool may have room
//! all the same, but perhaps not in one piece: if the limit is passed by that,
//! the memory goes back, and the request is out of memory. Of the requests to pools of a
//! device that could pass the limit so, one is made at a time, and on a stream of ours that
//! has nothing to do ([`excess`]), so that what passes the limit goes back at once.
//!
//! Owns the list of pools; its lock is taken alone. Cost: two questions to the
//! driver for each request, and two more where the limit leaves little.

mod excess;
mod frees;
mod limit;

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::busy::Busy;
use vramalloc_core::families::LastRead;
use vramalloc_core::gate::Gate;
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::Family;
use vramalloc_core::{Bytes, Code};

use super::{MadeIn, PAGE, current_device, departed, graphs, looked_after, owned, refuse, relief};
use crate::driver::devices::{self, Device};
use crate::driver::{capture, contexts};
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice, CUdeviceptr, CUmemoryPool, CUstream, CudaResult};

pub(super) use excess::await_back;
use excess::{Excess, OnStream, free_unseen, give_back, outside_excess};
use frees::LastFrees;
pub(crate) use frees::{free, mark_on};
use limit::{Leave, after_frees, leave};

/// What pools of all drivers so far consist of.
const PIECE: Bytes = Bytes::mib(32);

/// `CUmemPool_attribute`.
const THRESHOLD: c_int = 4;
const RESERVED: c_int = 5;
const USED: c_int = 7;

/// Handles of streams up to this one mean streams of the current context.
const PER_THREAD: usize = 2;

const FAMILY: Family = Family::AsyncPools;

/// A pool whose memory lies on a device. It lives until it is destroyed and all
/// of its memory is freed, as the driver's does.
struct Pool {
    handle: usize,
    device: &'static Device,
    /// Whether the program made it, and may destroy it.
    is_own: bool,
    /// Passed by calls of ours about it; closed when it is destroyed.
    calls: Gate,
    reserved: LastRead,
    /// The size of the pieces in which it grows. Relaxed: an estimate, which only
    /// falls.
    piece: AtomicU64,
    /// How many calls that make it give back are over, and how many have begun: what it grows
    /// by meanwhile does not show. Acquire and Release: those that are over are done.
    trims: (AtomicU64, AtomicU64),
    frees: LastFrees,
    /// What it has beyond the limit.
    excess: SpinMutex<Option<Excess>, Brief>,
    /// The turn of requests that may pass the limit: all pools of the device have it in
    /// common.
    passing: Arc<Busy>,
}

static POOLS: SpinMutex<Vec<Arc<Pool>>, Brief> = SpinMutex::new(Vec::new());
/// Whether there is or was one. Relaxed: it only saves work.
static ANY: AtomicBool = AtomicBool::new(false);

impl Pool {
    fn handle(&self) -> CUmemoryPool {
        ptr::with_exposed_provenance_mut(self.handle)
    }

    /// Makes a call of ours about it; `None` if it is not alive any more.
    fn call(&self, call: impl FnOnce(CUmemoryPool) -> CudaResult) -> Option<CudaResult> {
        self.calls.pass(|| own_call(|| call(self.handle())))
    }

    fn attribute(&self, attribute: c_int) -> Option<Bytes> {
        let mut bytes = 0_u64;
        let to = (&raw mut bytes).cast();
        // SAFETY: a pool that is alive, and a place for a number of 64 bits.
        let result = self.call(|pool| unsafe { real::cuMemPoolGetAttribute(pool, attribute, to) });
        (result == Some(0)).then(|| Bytes::new(bytes))
    }

    /// Makes it give back what it does not use, but for so many bytes; not while a stream
    /// captures. Returns how many that were.
    fn trim(&self, keep: Bytes) -> Bytes {
        let before = self.reserved.bytes();
        let keep = usize::try_from(keep.get()).unwrap_or(usize::MAX);
        // SAFETY: a pool that is alive.
        let call = || self.call(|pool| unsafe { real::cuMemPoolTrimTo(pool, keep) });
        capture::outside(|| self.trimming(call));
        before.saturating_sub(self.read())
    }

    /// Makes a call by which it gives back.
    fn trimming<T>(&self, call: impl FnOnce() -> T) -> T {
        let (over, begun) = &self.trims;
        begun.fetch_add(1, Ordering::AcqRel);
        let result = call();
        over.fetch_add(1, Ordering::Release);
        result
    }

    /// How often it was made to give back; `None` while it is.
    fn trims(&self) -> Option<u64> {
        let (over, begun) = &self.trims;
        let over = over.load(Ordering::Acquire);
        (begun.load(Ordering::Acquire) == over).then_some(over)
    }

    /// What it keeps although the device is short of memory: what the program
    /// told it to. Below a limit that would be missing for all the others, and
    /// the device may have room for it later.
    fn keeps(&self) -> Bytes {
        match self.device.quota.limit() {
            Some(_) => Bytes::ZERO,
            None => self.attribute(THRESHOLD).unwrap_or(Bytes::ZERO),
        }
    }

    /// By how much it may have to grow for a request.
    fn growth(&self, size: Bytes) -> Bytes {
        let piece = Bytes::new(self.piece.load(Ordering::Relaxed));
        size.round_up(piece).unwrap_or(Bytes::MAX)
    }

    /// Notes what it has reserved: that is made of pieces, whose size is a power
    /// of two.
    fn consists_of(&self, reserved: Bytes) {
        let piece = 1 << reserved.get().trailing_zeros().min(63);
        if piece >= PAGE.get() {
            self.piece.fetch_min(piece, Ordering::Relaxed);
        }
    }

    /// Reads what it has reserved, and counts that.
    fn read(&self) -> Bytes {
        let (families, quota) = (&self.device.families, &self.device.quota);
        let read = || self.attribute(RESERVED);
        self.reserved.take(families, quota, FAMILY, None, read)
    }
}

impl Drop for Pool {
    /// Nothing of it is left.
    fn drop(&mut self) {
        let reserved = std::mem::take(&mut self.reserved);
        departed::pool(self.device, reserved, self.frees.take());
    }
}

/// Nothing is reserved any more.
pub(super) fn count_nothing(device: &Device, reserved: &LastRead) {
    reserved.take(&device.families, &device.quota, FAMILY, None, || {
        Some(Bytes::ZERO)
    });
}

/// The pool with this handle; one that is new has its memory on `device`.
fn pool(handle: CUmemoryPool, device: &'static Device, is_own: bool) -> Arc<Pool> {
    let mut pools = POOLS.lock();
    let known = pools.iter().find(|pool| pool.handle == handle.addr());
    if let Some(known) = known {
        return Arc::clone(known);
    }
    let beside = pools
        .iter()
        .find(|pool| pool.device.handle == device.handle);
    let passing = beside.map_or_else(Arc::default, |pool| Arc::clone(&pool.passing));
    let pool = Arc::new(Pool {
        handle: handle.expose_provenance(),
        device,
        is_own,
        calls: Gate::new(),
        reserved: LastRead::new(),
        piece: AtomicU64::new(PIECE.get()),
        trims: (AtomicU64::new(0), AtomicU64::new(0)),
        frees: LastFrees::new(device.quota.limit().is_some()),
        excess: SpinMutex::new(None),
        passing,
    });
    pools.push(Arc::clone(&pool));
    drop(pools);
    relief::join();
    ANY.store(true, Ordering::Relaxed);
    pool
}

fn known(handle: CUmemoryPool) -> Option<Arc<Pool>> {
    let pools = POOLS.lock();
    let pool = pools.iter().find(|pool| pool.handle == handle.addr())?;
    Some(Arc::clone(pool))
}

/// Whether there is or was one.
pub(super) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// All pools on the devices that `on` says.
fn pools(on: impl Fn(CUdevice) -> bool) -> Vec<Arc<Pool>> {
    if !any() {
        return Vec::new();
    }
    let mut pools = POOLS.lock().clone();
    pools.retain(|pool| on(pool.device.handle));
    pools
}

/// Reads all pools on the devices that `on` says; what they have beyond the limit goes back if
/// their streams got there.
pub(crate) fn read_all(on: impl Fn(CUdevice) -> bool) {
    for pool in pools(on) {
        pool.is_within_limit();
        pool.read();
    }
}

/// Makes the pools of a device give back what they do not use. Returns how many
/// bytes that were.
pub(super) fn trim(device: CUdevice) -> Bytes {
    let all = pools(|on| on == device).into_iter();
    all.map(|pool| pool.trim(pool.keeps()))
        .fold(Bytes::ZERO, Bytes::saturating_add)
}

/// How many bytes of a device the program holds in pools, at least.
pub(super) fn used(device: CUdevice) -> Bytes {
    let all = pools(|on| on == device).into_iter();
    let used = all.filter_map(|pool| pool.attribute(USED));
    used.fold(Bytes::ZERO, Bytes::saturating_add)
}

/// A request for the memory of a stream, from the pool that is named, or from
/// the one that is current on the stream's device. `call` writes to `made`.
pub(crate) fn allocate(
    named: Option<CUmemoryPool>,
    size: usize,
    stream: CUstream,
    call: impl Fn() -> CudaResult,
    made: &Cell<CUdeviceptr>,
) -> CudaResult {
    let Some(pool) = pool_for(named, stream) else {
        return own_call(call);
    };
    let request = Request { size, stream, made };
    if captures(stream) {
        return graphs::add(pool.device, request.bytes(), call);
    }
    let device = pool.device;
    relief::below_soft(device, request.bytes());
    let ask = || below_limit(&pool, &request, &call);
    let served = after_frees(&pool, request.bytes(), ask);
    excess::request_is_over();
    served.unwrap_or_else(|| refuse(device, FAMILY, request.bytes()))
}

/// A request of the program's.
struct Request<'a> {
    size: usize,
    stream: CUstream,
    made: &'a Cell<CUdeviceptr>,
}

impl Request<'_> {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.size as u64)
    }
}

/// Makes a request; `None` if the limit leaves less.
fn below_limit(
    pool: &Arc<Pool>,
    request: &Request<'_>,
    call: &dyn Fn() -> CudaResult,
) -> Option<CudaResult> {
    let (device, size, made) = (pool.device, request.bytes(), request.made);
    let (on, mut asked, _turn) = match leave(pool, size, request.stream)? {
        Leave::Unlimited => (None, None, None),
        Leave::Paid(asked) => (None, Some(asked), None),
        Leave::Within(turn, on) => (Some(on), None, Some(turn)),
    };
    let trims = pool.trims();
    let (before, was_beyond) = (pool.reserved.bytes(), device.quota.is_beyond_limit());
    let stream = on
        .as_ref()
        .map_or(request.stream, |on| on.stream(request.stream));
    // SAFETY: a pool that is alive, a stream of ours, and a place for the answer.
    let mut beside = || unsafe {
        real::cuMemAllocFromPoolAsync(made.as_ptr(), request.size, pool.handle(), stream)
    };
    let block = || (made.get(), size);
    let is_paid = asked.is_some();
    // Who waits for room has nothing on its way: others would wait for that.
    let mut ask = || {
        if is_paid && asked.is_none() {
            asked = device.quota.ask(pool.growth(size));
            if asked.is_none() {
                return Code::OUT_OF_MEMORY.get();
            }
        }
        let result = match &on {
            Some(OnStream::Ours(_)) => outside_excess(pool, stream, &mut beside, &block),
            _ => call(),
        };
        if result == Code::OUT_OF_MEMORY.get() {
            asked = None;
        }
        result
    };
    let result = relief::with_room(Some(device.handle), &mut ask);
    let (families, quota) = (&device.families, &device.quota);
    let mut is_told = false;
    let now = (pool.reserved).take(families, quota, FAMILY, asked, || {
        let reserved = pool.attribute(RESERVED);
        is_told = reserved.is_some();
        reserved
    });
    if result != 0 {
        return Some(result);
    }
    let now = if is_told { now } else { pool.read() };
    pool.consists_of(now);
    if let Some(on) = on {
        let passes = || {
            relief::await_others(device);
            device.quota.is_beyond_limit()
        };
        // Others may have made the pool give back meanwhile: then what it has grown by does
        // not show, and may be a piece.
        let shows = is_told && trims.is_some() && pool.trims() == trims;
        let growth = match now.saturating_sub(before) {
            growth if shows => growth,
            growth => growth.max(pool.growth(size)),
        };
        let may_pass = !was_beyond || !growth.is_zero();
        if may_pass && device.quota.is_beyond_limit() && passes() {
            let before = now.saturating_sub(growth);
            give_back(pool, block(), (&on, request.stream), (before, growth));
            return None;
        }
        if !on.is_ready() || pool.is_in_excess(block()) {
            free_unseen(made.get(), stream);
            return None;
        }
    }
    families.served(FAMILY);
    if pool.is_own {
        let context = MadeIn::of_stream(request.stream, device);
        owned::keep((FAMILY, made.get()), device, context, Arc::clone(pool) as _);
    }
    looked_after(now != before);
    Some(result)
}

/// The pool that serves a request; `None` where its memory is no device's, or
/// that cannot be found out.
fn pool_for(named: Option<CUmemoryPool>, stream: CUstream) -> Option<Arc<Pool>> {
    if let Some(handle) = named {
        return known(handle).or_else(|| default_pool(handle));
    }
    let device = device_of(stream)?;
    let mut handle: CUmemoryPool = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    let ask = || unsafe { real::cuDeviceGetMemPool(&raw mut handle, device.handle) };
    if own_call(ask) != 0 {
        return None;
    }
    if let Some(known) = known(handle) {
        return Some(known);
    }
    // A device's own pool, or one whose making we have not seen.
    default_pool(handle)
}

/// The pool with this handle, if it is the default one of a device.
fn default_pool(handle: CUmemoryPool) -> Option<Arc<Pool>> {
    let mut count: c_int = 0;
    // SAFETY: writes the answer to a local.
    own_call(|| unsafe { real::cuDeviceGetCount(&raw mut count) });
    let is_of = |device: &CUdevice| {
        let mut own: CUmemoryPool = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        let ask = || unsafe { real::cuDeviceGetDefaultMemPool(&raw mut own, *device) };
        own_call(ask) == 0 && own == handle
    };
    let device = (0..count).find(is_of)?;
    Some(pool(handle, devices::device(device), false))
}

/// The device of a stream. A stream that captures cannot be asked: it is that of
/// the context where the capture began, or for another stream of a capture the
/// current one.
fn device_of(stream: CUstream) -> Option<&'static Device> {
    let (mut context, mut current): (CUcontext, CUcontext) = (ptr::null_mut(), ptr::null_mut());
    if captures(stream) {
        // SAFETY: writes the answer to a local.
        own_call(|| unsafe { real::cuCtxGetCurrent(&raw mut current) });
        context = capture::began_in(stream).unwrap_or(current);
    } else if stream.addr() > PER_THREAD {
        // SAFETY: the caller's own stream, and places for the answers.
        own_call(|| unsafe {
            real::cuStreamGetCtx(stream, &raw mut context);
            real::cuCtxGetCurrent(&raw mut current)
        });
    }
    // Where the driver did not say, it is the current one.
    if context.is_null() || context == current {
        return current_device();
    }
    let mut device: CUdevice = 0;
    // SAFETY: writes the answer to a local.
    let told = contexts::of(context).call(|| unsafe { real::cuCtxGetDevice(&raw mut device) });
    told.is_ok().then(|| devices::device(device))
}

/// Whether a request on a stream becomes a node of a graph.
fn captures(stream: CUstream) -> bool {
    capture::any() && capture::number_on(stream).is_some()
}

/// Notes a pool that was made with this location.
pub(crate) fn made(handle: CUmemoryPool, device: CUdevice) {
    // One that had the handle before is gone.
    drop(forget(|pool| pool.handle == handle.addr()));
    pool(handle, devices::device(device), true);
}

/// Takes the pool that `is` it off the list.
fn forget(is: impl Fn(&Pool) -> bool) -> Option<Arc<Pool>> {
    let mut pools = POOLS.lock();
    let at = pools.iter().position(|pool| is(pool))?;
    Some(pools.swap_remove(at))
}

/// Trims a pool by the program's own call.
pub(crate) fn trimmed(handle: CUmemoryPool, call: impl FnOnce() -> CudaResult) -> CudaResult {
    let Some(pool) = known(handle) else {
        return own_call(call);
    };
    let result = pool.trimming(|| own_call(call));
    pool.read();
    result
}

/// Destroys a pool. If any of it is in use, all of it counts on until that is
/// freed: the driver answers for the pool no more.
pub(crate) fn destroy(handle: CUmemoryPool, call: impl FnOnce() -> CudaResult) -> CudaResult {
    // The driver keeps a device's own pool.
    let Some(pool) = known(handle).filter(|pool| pool.is_own) else {
        return own_call(call);
    };
    pool.is_within_limit();
    // What it keeps and does not use has nothing to wait for.
    if pool.device.quota.limit().is_some() {
        pool.trim(Bytes::ZERO);
    } else {
        pool.read();
    }
    drop(forget(|other| ptr::eq(other, &*pool)));
    // Other threads may be asking about it for requests of theirs.
    pool.calls.close();
    let result = own_call(call);
    if result != 0 {
        pool.calls.open(1);
        POOLS.lock().push(pool);
    } else {
        // It says no more when that is back.
        *pool.excess.lock() = None;
    }
    result
}
