//! What a context owns of a family's memory, by its address or handle.
//!
//! Owns the list; its lock is taken alone. Invariant: an entry stands for
//! memory that counts, from the return of the call that made it until just
//! before the call that ends it, or until its context is gone. Cost: a search
//! among the entries.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::Bytes;
use vramalloc_core::library::LibraryId;
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::Family;

use super::{put_back, settled, take};
use crate::driver::devices::Device;
use crate::driver::{contexts, green};
use crate::owners;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUcontext, CUdevice, CUstream, CudaResult};

/// The context in which something was made.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct MadeIn {
    /// Its handle, as a number.
    pub(crate) handle: usize,
    /// The device whose primary context it is, if it is one.
    pub(crate) primary_of: Option<CUdevice>,
}

impl MadeIn {
    /// The one that is current on this thread.
    fn current(device: &Device) -> MadeIn {
        let mut handle: CUcontext = ptr::null_mut();
        // SAFETY: writes the answer to a local.
        own_call(|| unsafe { real::cuCtxGetCurrent(&raw mut handle) });
        MadeIn::of(handle, device)
    }

    /// The one that a stream belongs to.
    pub(super) fn of_stream(stream: CUstream, device: &Device) -> MadeIn {
        let mut handle: CUcontext = ptr::null_mut();
        // SAFETY: the program's own stream, and a local for the answer.
        let told = own_call(|| unsafe { real::cuStreamGetCtx(stream, &raw mut handle) });
        if told == 0 {
            MadeIn::of(handle, device)
        } else {
            MadeIn::current(device)
        }
    }

    fn of(handle: CUcontext, device: &Device) -> MadeIn {
        let handle = green::whole(handle);
        let is_primary = contexts::learn(handle, device.handle).is_some_and(|(_, primary)| primary);
        MadeIn {
            handle: handle.addr(),
            primary_of: is_primary.then_some(device.handle),
        }
    }
}

struct Item {
    device: &'static Device,
    size: Bytes,
    library: LibraryId,
    context: MadeIn,
    /// What it keeps alive.
    keeps: Option<Arc<dyn Any + Send + Sync>>,
}

/// By family and address or handle.
pub(super) type Made = (Family, u64);

static ITEMS: SpinMutex<BTreeMap<Made, Item>, Brief> = SpinMutex::new(BTreeMap::new());
/// Whether there is or was one. Relaxed: a thread that ends what another one
/// made learned of it from there.
static ANY: AtomicBool = AtomicBool::new(false);

/// Enters what was made just now.
fn enter(
    key: Made,
    device: &'static Device,
    (size, library): (Bytes, LibraryId),
    context: MadeIn,
    keeps: Option<Arc<dyn Any + Send + Sync>>,
) {
    let item = Item {
        device,
        size,
        library,
        context,
        keeps,
    };
    ANY.store(true, Ordering::Relaxed);
    let before = ITEMS.lock().insert(key, item);
    // Its end was not seen, and the driver gave the name to somebody else.
    if let Some(gone) = before {
        put_back(gone.device, key.0, gone.size, gone.library);
    }
}

/// Makes a call that takes so many bytes and writes the memory's address or
/// handle to where `made` finds it.
pub(super) fn make(
    device: &'static Device,
    family: Family,
    size: Bytes,
    call: impl FnMut() -> CudaResult,
    made: impl FnOnce() -> u64,
) -> CudaResult {
    let library = owners::current();
    let result = take(device, family, size, call);
    if result == 0 {
        enter(
            (family, made()),
            device,
            (size, library),
            MadeIn::current(device),
            None,
        );
    }
    result
}

/// Enters something that is counted elsewhere and keeps `keeps` until it ends.
pub(super) fn keep(
    key: Made,
    device: &'static Device,
    context: MadeIn,
    keeps: Arc<dyn Any + Send + Sync>,
) {
    let nothing = (Bytes::ZERO, LibraryId::UNKNOWN);
    enter(key, device, nothing, context, Some(keeps));
}

/// What is kept alive by what has this name.
pub(super) fn kept<T: Any + Send + Sync>(key: Made) -> Option<Arc<T>> {
    let kept = ITEMS.lock().get(&key)?.keeps.clone()?;
    kept.downcast().ok()
}

/// Makes the call that ends what is known by one of these names; `None`, without
/// a call, if nothing is.
pub(super) fn end_by<const N: usize>(
    names: [Made; N],
    call: impl FnOnce() -> CudaResult,
) -> Option<CudaResult> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let (key, item) = {
        let mut items = ITEMS.lock();
        names.iter().find_map(|name| items.remove_entry(name))?
    };
    let result = own_call(call);
    if result == 0 {
        put_back(item.device, key.0, item.size, item.library);
        // What it keeps may be the last of something that counts.
        drop(item);
        settled();
    } else {
        ITEMS.lock().insert(key, item);
    }
    Some(result)
}

/// Forgets what was made in the contexts that `of` says are gone.
pub(super) fn end(of: impl Fn(MadeIn) -> bool) {
    let gone: Vec<(Made, Item)> = {
        let mut items = ITEMS.lock();
        let keys: Vec<Made> = (items.iter())
            .filter(|(_, item)| of(item.context))
            .map(|(key, _)| *key)
            .collect();
        keys.into_iter()
            .filter_map(|key| items.remove_entry(&key))
            .collect()
    };
    for ((family, _), item) in gone {
        put_back(item.device, family, item.size, item.library);
    }
}
