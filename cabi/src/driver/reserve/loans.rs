//! While a wait has freed a page that a context kept back, nobody in the process asks the
//! driver for memory of the device: whoever did would get the page.
//!
//! Both sides wait for each other, and not for long: bare CUDA waits for nobody here, and
//! what is lent comes back only once another context's work is done.
//!
//! Invariant: nobody asks while something is lent, unless the newest loan is [`PATIENCE`] old.
//! Cost: two atomic operations for each driver allocation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::{Brief, wait_within};
use vramalloc_core::{Address, Bytes, Code};

use super::bytes;
use crate::driver::context::Context;
use crate::driver::devices::Device;
use crate::real;
use crate::types::CUdeviceptr;

/// A driver that is asked for memory answers sooner than that, and most kernels end sooner.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// How much is lent, on all devices.
static LENT: AtomicUsize = AtomicUsize::new(0);

/// When the newest loan began.
static BEGAN: SpinMutex<Option<Instant>, Brief> = SpinMutex::new(None);

/// Threads that ask the driver for memory.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// What is kept back on a device is free in the driver while this lives.
pub(super) struct Lent(&'static Device);

impl Lent {
    /// Before it is freed: once all who ask the driver have their answer.
    pub(super) fn begin(device: &'static Device) -> Lent {
        *BEGAN.lock() = Some(Instant::now());
        // SeqCst here and in `asks`: of one who lends and one who asks, at least
        // one sees the other.
        device.lent.fetch_add(1, Ordering::SeqCst);
        LENT.fetch_add(1, Ordering::SeqCst);
        let lent = Lent(device);
        wait_within(PATIENCE, || ASKING.load(Ordering::SeqCst) == 0);
        lent
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        LENT.fetch_sub(1, Ordering::SeqCst);
        self.0.lent.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The driver is asked for memory while this lives.
struct AsksDriver;

impl Drop for AsksDriver {
    fn drop(&mut self) {
        ASKING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether the newest loan is so old that nobody waits for its end.
pub(super) fn are_overdue() -> bool {
    (*BEGAN.lock()).is_none_or(|began| began.elapsed() >= PATIENCE)
}

/// Before the driver is asked for memory of a device; `None` while some of it is lent.
fn asks(device: impl FnOnce() -> Option<&'static Device>) -> Option<AsksDriver> {
    ASKING.fetch_add(1, Ordering::SeqCst);
    let asks = AsksDriver;
    let is_lent = LENT.load(Ordering::SeqCst) > 0
        && device().is_none_or(|device| device.lent.load(Ordering::SeqCst) > 0)
        && !are_overdue();
    (!is_lent).then_some(asks)
}

/// Asks the driver for memory of a device by `ask`, once nothing of it is lent.
pub(crate) fn asking<R>(
    device: impl Fn() -> Option<&'static Device>,
    ask: impl FnOnce() -> R,
) -> R {
    let mut asking = None;
    wait_within(PATIENCE, || {
        asking = asks(&device);
        asking.is_some()
    });
    ask()
}

/// The same for a context.
pub(in crate::driver) fn asking_in<R>(context: &Context, ask: impl FnOnce() -> R) -> R {
    asking(|| context.reserve().known_device(), ask)
}

/// Allocates in a context, for its pools.
pub(crate) fn alloc(context: &Context, size: Bytes) -> Result<Address, Code> {
    let size = bytes(size)?;
    let mut address: CUdeviceptr = 0;
    context.call(|| {
        // SAFETY: writes the answer to a local.
        let ask = || unsafe { real::cuMemAlloc_v2(&raw mut address, size) };
        asking_in(context, ask)
    })?;
    Ok(Address::new(address))
}
