//! Memory of a device that the program takes from CUDA past our pools.
//!
//! It stays CUDA's own: who asks for it gets what the driver gives, at the
//! driver's speed. Here it is counted ([`vramalloc_core::families`]), it comes
//! out of the quota that the pools' chunks come out of, and where the driver
//! has none left while our pools hold some that is idle, that goes back and the
//! driver is asked once more ([`relief`]).
//!
//! A call beyond the limit is answered with CUDA's own out of memory, and the
//! driver hears nothing of it. Memory that another process made counts nothing
//! here; it is listed ([`imports`]).
//!
//! Invariant: bytes leave the quota before the driver is asked for them, and
//! return after the driver took the memory back. Nothing is found again by a
//! name (a handle, an address) that the driver may have given to somebody else:
//! it is forgotten before the call that ends it, and remembered again if that
//! call fails. No lock spans a driver call. Cost: a few short locks for each of
//! these calls; a read of an attribute for a memory pool.

pub(crate) mod arrays;
pub(crate) mod async_pools;
pub(crate) mod departed;
pub(crate) mod graphs;
pub(crate) mod imports;
pub(crate) mod managed;
mod owned;
pub(crate) mod relief;
pub(crate) mod virtual_memory;

use std::sync::atomic::{AtomicU64, Ordering};

use vramalloc_core::families::Charge;
use vramalloc_core::library::LibraryId;
use vramalloc_core::recording::Mark;
use vramalloc_core::stats::{Family, FamilyReport, ImportReport};
use vramalloc_core::{Bytes, Code};

use crate::driver::devices::{self, Device};
use crate::owners;
use crate::pools::device::{settled, shortage};
use crate::process;
use crate::process::guard::{self, own_call};
use crate::real;
use crate::recording;
use crate::types::{CUdevice, CUdeviceptr, CudaResult};

/// What the driver rounds to: the pages of a device.
const PAGE: Bytes = Bytes::mib(2);

/// The device of the context that is current on this thread.
pub(crate) fn current_device() -> Option<&'static Device> {
    let mut device: CUdevice = 0;
    // SAFETY: writes the answer to a local.
    let told = own_call(|| unsafe { real::cuCtxGetDevice(&raw mut device) }) == 0;
    told.then(|| devices::device(device))
}

/// Makes a call to the driver that takes so many bytes of a device. The answer
/// is the driver's, or out of memory because of the limit.
fn take(
    device: &'static Device,
    family: Family,
    size: Bytes,
    mut call: impl FnMut() -> CudaResult,
) -> CudaResult {
    relief::join();
    let library = owners::current();
    let mut order = ask(device, family, size);
    if order.is_none() {
        return refuse(device, family, size);
    }
    // Who waits for room has nothing on its way: others would wait for that.
    let mut is_refused = false;
    let mut call = || {
        let again = || device.families.ask(&device.quota, family, size);
        let order = order.take().or_else(again);
        is_refused = order.is_none();
        let Some(order) = order else {
            return Code::OUT_OF_MEMORY.get();
        };
        let result = call();
        if result == 0 {
            order.got(library);
        }
        result
    };
    // More than the device has comes from nowhere.
    let is_hopeless = device.total.is_some_and(|total| size > total);
    let result = if is_hopeless {
        own_call(call)
    } else {
        relief::with_room(Some(device.handle), &mut call)
    };
    if is_refused {
        return refuse(device, family, size);
    }
    if result == 0 {
        settled();
    }
    result
}

/// Takes the bytes out of the quota; if it has not so many, idle memory goes
/// back first, and what other threads have on its way is waited for.
fn ask(device: &'static Device, family: Family, size: Bytes) -> Option<Charge<'static>> {
    relief::below_soft(device, size);
    relief::at_limit(device, size, || {
        device.families.ask(&device.quota, family, size)
    })
}

/// A moment, and how often something is done at the most.
struct Paced(AtomicU64);

impl Paced {
    const PAUSE_MS: u64 = 100;

    const fn new() -> Paced {
        Paced(AtomicU64::new(0))
    }

    /// Whether it is time again, or `anyway`; then it was now.
    fn is_time(&self, anyway: bool) -> bool {
        let since = process::started().map(|start| start.began.elapsed());
        let since = since.and_then(Result::ok).unwrap_or_default();
        let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // Relaxed: it stands for itself.
        let is_time = now.abs_diff(self.0.load(Ordering::Relaxed)) >= Self::PAUSE_MS;
        if is_time || anyway {
            self.0.store(now, Ordering::Relaxed);
        }
        is_time || anyway
    }
}

/// Has the end of a call looked at that may change nothing of what counts: now
/// and then.
fn looked_after(has_changed: bool) {
    static LAST: Paced = Paced::new();
    if LAST.is_time(has_changed) {
        settled();
    }
}

/// Counts, now and then, what CUDA's own pools gave back by themselves.
pub(crate) fn look_again() {
    static LAST: Paced = Paced::new();
    let is_any = async_pools::any() || departed::any();
    if is_any && guard::may_wait() && LAST.is_time(false) {
        departed::look();
        async_pools::read_all(|_| true);
    }
}

/// Refuses a call because of the limit.
fn refuse(device: &'static Device, family: Family, size: Bytes) -> CudaResult {
    device.families.refuse(family);
    shortage::of_family(family, size, device);
    Code::OUT_OF_MEMORY.get()
}

/// Puts bytes back that the driver took back, and that this library had got.
fn put_back(device: &'static Device, family: Family, size: Bytes, library: LibraryId) {
    (device.families).put_back(&device.quota, family, size, library);
}

/// Frees an address by `call`, if it is known here.
pub(crate) fn free(address: CUdeviceptr, call: impl FnOnce() -> CudaResult) -> Option<CudaResult> {
    let of = |family| (family, address);
    owned::end_by([of(Family::Managed), of(Family::AsyncPools)], call)
}

/// How many bytes of a device the program holds in all families, at least.
fn held(device: CUdevice) -> Bytes {
    let families = &devices::device(device).families;
    let whole = [Family::Virtual, Family::Managed, Family::Arrays];
    let whole = whole.map(|family| families.stats(family).bytes.current);
    // What graphs hold and do not run, the driver gives back.
    (whole.into_iter()).fold(async_pools::used(device), Bytes::saturating_add)
}

/// What was counted on all devices, of the families that the program used.
pub(crate) fn reports() -> Vec<FamilyReport> {
    let devices = devices::known().into_iter();
    let of = devices.flat_map(|device| {
        Family::ALL.map(|family| FamilyReport {
            device: u32::try_from(device.handle).unwrap_or(0),
            family,
            stats: device.families.stats(family),
        })
    });
    of.filter(FamilyReport::is_used).collect()
}

/// Tells the recording, if there is one, of each family of which the program has memory
/// for the first time. Nothing is held.
pub(crate) fn tell_used() {
    if !recording::is_there() {
        return;
    }
    for device in devices::known() {
        for (bit, family) in (0..).zip(Family::ALL) {
            let stats = device.families.stats(family);
            let is_used = stats.calls > 0 || !stats.bytes.peak.is_zero();
            // Relaxed: each bit is set by one thread, which tells of it.
            let told = |bit: u8| device.told.fetch_or(bit, Ordering::Relaxed) & bit != 0;
            if is_used && !told(1 << bit) {
                recording::mark(|| {
                    let device = u32::try_from(device.handle).unwrap_or(0);
                    Some(Mark::Past { device, family })
                });
            }
        }
    }
}

/// Whether there is anything to report.
pub(crate) fn any() -> bool {
    imports::counts().next().is_some() || !reports().is_empty()
}

/// What came from other processes and other interfaces.
pub(crate) fn imports() -> Vec<ImportReport> {
    let counts = imports::counts();
    let report = |(way, count, bytes)| ImportReport { way, count, bytes };
    counts.map(report).collect()
}

/// Called when a context is gone, with what was made in it; see
/// [`owned::end`].
pub(crate) fn end_context(of: impl Fn(MadeIn) -> bool) {
    owned::end(of);
    async_pools::read_all(|_| true);
    graphs::read_all();
}

pub(crate) use owned::MadeIn;
