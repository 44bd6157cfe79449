//! CUDA's memory pools: `cuMemAllocAsync` and its like.
//!
//! A pool reserves memory of the device in pieces of its own size, and keeps
//! what is freed until a synchronisation, or for good, as its threshold says.
//! Reserved memory is missing for everybody else, so that is what counts, and
//! not what the program asked for; it also survives frees that nobody sees. It
//! is read after each call that may have changed it.
//!
//! Under a limit the growth that a request may cause is taken out of the quota
//! before the call. A pool takes pieces of 32 MiB or so even for little, so it
//! can overshoot the limit by one piece, of which the next request hears.
//!
//! Owns the list of pools; its lock is taken alone. Cost: two or three
//! questions to the driver for each request, one more without a limit.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::Bytes;
use vramalloc_core::families::Reading;
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::Family;

use super::{PAGE, current_device, graphs, refuse, relief};
use crate::driver::devices::{self, Device};
use crate::driver::{capture, contexts};
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice, CUmemoryPool, CUstream, CudaResult};

/// `CUmemPool_attribute`.
const RESERVED: c_int = 5;
const USED: c_int = 7;

/// Handles of streams up to this one mean streams of the current context.
const PER_THREAD: usize = 2;

const FAMILY: Family = Family::AsyncPools;

/// A pool whose memory lies on a device.
struct Pool {
    handle: usize,
    device: &'static Device,
    reserved: Reading,
}

static POOLS: SpinMutex<Vec<Arc<Pool>>, Brief> = SpinMutex::new(Vec::new());
/// Whether there is or was one. Relaxed: it only saves work.
static ANY: AtomicBool = AtomicBool::new(false);

impl Pool {
    fn handle(&self) -> CUmemoryPool {
        ptr::with_exposed_provenance_mut(self.handle)
    }

    fn attribute(&self, attribute: c_int) -> Option<Bytes> {
        let mut bytes = 0_u64;
        let to = (&raw mut bytes).cast();
        // SAFETY: a pool that is alive, and a place for a number of 64 bits.
        let ask = || unsafe { real::cuMemPoolGetAttribute(self.handle(), attribute, to) };
        (own_call(ask) == 0).then(|| Bytes::new(bytes))
    }

    /// Reads what it has reserved, and counts that.
    fn read(&self) -> Bytes {
        let (families, quota) = (&self.device.families, &self.device.quota);
        let read = || self.attribute(RESERVED);
        self.reserved.take(families, quota, FAMILY, None, read)
    }
}

/// The pool with this handle; one that is new has its memory on `device`.
fn pool(handle: CUmemoryPool, device: &'static Device) -> Arc<Pool> {
    let mut pools = POOLS.lock();
    let known = pools.iter().find(|pool| pool.handle == handle.addr());
    if let Some(known) = known {
        return Arc::clone(known);
    }
    let pool = Arc::new(Pool {
        handle: handle.expose_provenance(),
        device,
        reserved: Reading::new(),
    });
    pools.push(Arc::clone(&pool));
    relief::join();
    ANY.store(true, Ordering::Relaxed);
    pool
}

fn known(handle: CUmemoryPool) -> Option<Arc<Pool>> {
    let pools = POOLS.lock();
    let pool = pools.iter().find(|pool| pool.handle == handle.addr())?;
    Some(Arc::clone(pool))
}

/// All pools on the devices that `on` says.
fn pools(on: impl Fn(CUdevice) -> bool) -> Vec<Arc<Pool>> {
    if !ANY.load(Ordering::Relaxed) {
        return Vec::new();
    }
    let mut pools = POOLS.lock().clone();
    pools.retain(|pool| on(pool.device.handle));
    pools
}

/// Reads all pools on the devices that `on` says.
pub(crate) fn read_all(on: impl Fn(CUdevice) -> bool) {
    for pool in pools(on) {
        pool.read();
    }
}

/// Makes the pools of a device give back what they do not use. Returns how many
/// bytes that were.
pub(super) fn trim(device: CUdevice) -> Bytes {
    let all = pools(|on| on == device).into_iter();
    let gave = all.map(|pool| {
        let before = pool.reserved.bytes();
        // SAFETY: a pool that is alive.
        own_call(|| unsafe { real::cuMemPoolTrimTo(pool.handle(), 0) });
        before.saturating_sub(pool.read())
    });
    gave.fold(Bytes::ZERO, Bytes::saturating_add)
}

/// How many bytes of a device the program holds in pools, at least.
pub(super) fn used(device: CUdevice) -> Bytes {
    let all = pools(|on| on == device).into_iter();
    let used = all.filter_map(|pool| pool.attribute(USED));
    used.fold(Bytes::ZERO, Bytes::saturating_add)
}

/// A request for the memory of a stream, from the pool that is named, or from
/// the one that is current on the stream's device.
pub(crate) fn allocate(
    named: Option<CUmemoryPool>,
    size: usize,
    stream: CUstream,
    mut call: impl FnMut() -> CudaResult,
) -> CudaResult {
    let Some(pool) = pool_for(named, stream) else {
        return own_call(call);
    };
    let size = Bytes::new(size as u64);
    if captures(stream) {
        return graphs::add(pool.device, size, call);
    }
    let device = pool.device;
    relief::below_soft(device, size);
    // What a request may make the pool reserve comes out of the quota first.
    let asked = match device.quota.limit() {
        None => None,
        Some(_) => {
            let growth = || growth(&pool, size);
            let ask = || match growth() {
                Bytes::ZERO => Some(None),
                growth => device.quota.ask(growth).map(Some),
            };
            let asked = ask().or_else(|| {
                read_all(|on| on == device.handle);
                relief::below_limit(device, growth());
                ask()
            });
            match asked {
                Some(asked) => asked,
                None => return refuse(device, FAMILY, size),
            }
        }
    };
    let result = relief::with_room(Some(device.handle), &mut call);
    let (families, quota) = (&device.families, &device.quota);
    (pool.reserved).take(families, quota, FAMILY, asked, || pool.attribute(RESERVED));
    if result == 0 {
        families.served(FAMILY);
    }
    result
}

/// By how much a pool may have to grow for a request.
fn growth(pool: &Pool, size: Bytes) -> Bytes {
    let used = pool.attribute(USED).unwrap_or(Bytes::ZERO);
    let room = pool.read().saturating_sub(used);
    if size <= room {
        return Bytes::ZERO;
    }
    size.round_up(PAGE).unwrap_or(Bytes::MAX)
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
    Some(pool(handle, devices::device(device)))
}

/// The device of a stream.
fn device_of(stream: CUstream) -> Option<&'static Device> {
    let (mut context, mut current): (CUcontext, CUcontext) = (ptr::null_mut(), ptr::null_mut());
    if stream.addr() > PER_THREAD {
        // SAFETY: the caller's own stream, and places for the answers.
        own_call(|| unsafe {
            real::cuStreamGetCtx(stream, &raw mut context);
            real::cuCtxGetCurrent(&raw mut current)
        });
    }
    if context == current {
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
    POOLS.lock().retain(|pool| pool.handle != handle.addr());
    pool(handle, devices::device(device));
}

/// Trims a pool by the program's own call.
pub(crate) fn trimmed(handle: CUmemoryPool, call: impl FnOnce() -> CudaResult) -> CudaResult {
    let result = own_call(call);
    if let Some(pool) = known(handle) {
        pool.read();
    }
    result
}

/// Destroys a pool. What of it is in use then lives on, and counts until the
/// process ends: the driver answers for the pool no more.
pub(crate) fn destroy(handle: CUmemoryPool, call: impl FnOnce() -> CudaResult) -> CudaResult {
    let Some(pool) = known(handle) else {
        return own_call(call);
    };
    let used = pool.attribute(USED).unwrap_or(Bytes::ZERO);
    POOLS.lock().retain(|other| !Arc::ptr_eq(other, &pool));
    let result = own_call(call);
    if result == 0 {
        let (families, quota) = (&pool.device.families, &pool.device.quota);
        let left = used.min(pool.reserved.bytes());
        (pool.reserved).take(families, quota, FAMILY, None, || Some(left));
    } else {
        POOLS.lock().push(pool);
    }
    result
}
