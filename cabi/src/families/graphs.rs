//! Memory that graphs allocate for themselves.
//!
//! A graph with memory nodes reserves what they need when it is instantiated or
//! launched, and the device keeps it until it is told to give it back
//! (`cuDeviceGraphMemTrim`). A launch cannot be refused without harm to the
//! program's work, so this memory is counted after the fact: the next request
//! of any family hears of it. A node that alone is beyond the limit is refused
//! when it is added.
//!
//! Owns one amount for each device. Cost: an atomic load for each launch of a
//! graph in a process without memory nodes; else a question for each device.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use vramalloc_core::families::LastRead;
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::Family;
use vramalloc_core::{Bytes, Code};

use super::{PAGE, current_device, looked_after, refuse, relief};
use crate::driver::devices::{self, Device};
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUdevice, CudaResult};

/// `CUgraphMem_attribute`.
const RESERVED: c_int = 2;

const FAMILY: Family = Family::Graphs;

/// What the graphs of a device have reserved.
struct Graphs {
    device: &'static Device,
    reserved: LastRead,
}

static GRAPHS: SpinMutex<Vec<Arc<Graphs>>, Brief> = SpinMutex::new(Vec::new());
/// Whether a graph has a memory node, or had one. Relaxed: a thread that
/// launches the graph learned of it from the thread that added the node.
static ANY: AtomicBool = AtomicBool::new(false);

fn reserved(device: CUdevice) -> Option<Bytes> {
    let mut bytes = 0_u64;
    let to = (&raw mut bytes).cast();
    // SAFETY: a place for a number of 64 bits.
    let ask = || unsafe { real::cuDeviceGetGraphMemAttribute(device, RESERVED, to) };
    (own_call(ask) == 0).then(|| Bytes::new(bytes))
}

fn all() -> Vec<Arc<Graphs>> {
    if !ANY.load(Ordering::Relaxed) {
        return Vec::new();
    }
    GRAPHS.lock().clone()
}

impl Graphs {
    /// Whether that has changed.
    fn read(&self) -> bool {
        let (families, quota) = (&self.device.families, &self.device.quota);
        let before = self.reserved.bytes();
        let read = || reserved(self.device.handle);
        before != self.reserved.take(families, quota, FAMILY, None, read)
    }
}

/// Counts what the graphs of all devices have reserved now; whether that has
/// changed.
pub(crate) fn read_all() -> bool {
    let changed = all().into_iter().filter(|graphs| graphs.read());
    changed.count() > 0
}

/// Makes the graphs of a device give back what they do not use. Returns how many
/// bytes that were.
pub(super) fn trim(device: CUdevice) -> Bytes {
    let own = all()
        .into_iter()
        .filter(|graphs| graphs.device.handle == device);
    let gave = own.map(|graphs| {
        let before = graphs.reserved.bytes();
        // SAFETY: a device that the driver has.
        own_call(|| unsafe { real::cuDeviceGraphMemTrim(device) });
        graphs.read();
        before.saturating_sub(graphs.reserved.bytes())
    });
    gave.fold(Bytes::ZERO, Bytes::saturating_add)
}

/// Adds a node for so many bytes of a device by `call`.
pub(crate) fn add(
    device: &'static Device,
    size: Bytes,
    call: impl FnOnce() -> CudaResult,
) -> CudaResult {
    let is_beyond = |limit| size.round_up(PAGE).is_none_or(|size| size > limit);
    if device.quota.limit().is_some_and(is_beyond) {
        return refuse(device, FAMILY, size);
    }
    let result = own_call(call);
    if result == 0 {
        device.families.served(FAMILY);
        let mut graphs = GRAPHS.lock();
        if !graphs
            .iter()
            .any(|graphs| graphs.device.handle == device.handle)
        {
            let reserved = LastRead::new();
            graphs.push(Arc::new(Graphs { device, reserved }));
        }
        ANY.store(true, Ordering::Relaxed);
        relief::join();
    }
    result
}

/// Adds a node whose memory lies on the device of this ordinal.
pub(crate) fn add_on(
    device: CUdevice,
    size: usize,
    call: impl FnOnce() -> CudaResult,
) -> CudaResult {
    match devices::named(device) {
        Some(device) => add(device, Bytes::new(size as u64), call),
        None => own_call(call),
    }
}

/// Makes a call that may reserve memory for a graph. A launch that finds none has
/// begun nothing, so it can be made again as well. Which device lacks it is not told:
/// it may be any that graphs have memory of.
pub(crate) fn prepare(mut call: impl FnMut() -> CudaResult) -> CudaResult {
    let mut result = relief::with_room(None, &mut call);
    if result == Code::OUT_OF_MEMORY.get() {
        let current = current_device().map(|device| device.handle);
        let others = all().into_iter().map(|graphs| graphs.device.handle);
        for device in others.filter(|&device| Some(device) != current) {
            if result == Code::OUT_OF_MEMORY.get() {
                result = relief::with_room(Some(device), &mut call);
            }
        }
    }
    looked_after(read_all());
    result
}

/// Makes a call after which graphs may have reserved memory, or given it back;
/// `None`, without a call, if no graph has any.
pub(crate) fn run(call: impl FnMut() -> CudaResult) -> Option<CudaResult> {
    ANY.load(Ordering::Relaxed).then(|| prepare(call))
}
