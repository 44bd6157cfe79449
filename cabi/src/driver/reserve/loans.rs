//! While a wait has freed a page that a context kept back, the pools of the device do not
//! ask the driver for memory: one of them would get the page.
//!
//! Invariant: nobody asks while something is lent, except who has waited for a second.
//! Cost: two atomic operations for each driver allocation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use vramalloc_core::patience::wait_within;
use vramalloc_core::{Address, Bytes, Code};

use super::bytes;
use crate::driver::context::Context;
use crate::real;
use crate::types::CUdeviceptr;

/// A driver that is asked for memory answers sooner than that.
const ANSWER: Duration = Duration::from_secs(1);

/// What is kept back is free in the driver while this lives.
pub(super) struct Lent<'a>(&'a AtomicUsize);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The driver is asked for memory while this lives.
pub(super) struct AsksDriver<'a>(&'a AtomicUsize);

impl Drop for AsksDriver<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Who lends, and who asks meanwhile.
pub(super) struct Loans {
    /// How often a page that a context of the device kept back is free in the driver now,
    /// to be taken again.
    lent: AtomicUsize,
    /// Threads that ask the driver for memory of the context.
    asking: AtomicUsize,
}

impl Loans {
    pub(super) const fn new() -> Loans {
        Loans {
            lent: AtomicUsize::new(0),
            asking: AtomicUsize::new(0),
        }
    }

    /// Before what is kept back is freed: once all who ask the driver have their answer.
    pub(super) fn lend(&self) -> Lent<'_> {
        // SeqCst here and in `asks`: of one who lends and one who asks, at least
        // one sees the other.
        self.lent.fetch_add(1, Ordering::SeqCst);
        let lent = Lent(&self.lent);
        wait_within(ANSWER, || self.asking.load(Ordering::SeqCst) == 0);
        lent
    }

    /// Before the driver is asked for memory; `None` while it has none but what is
    /// lent.
    pub(super) fn asks(&self) -> Option<AsksDriver<'_>> {
        self.asking.fetch_add(1, Ordering::SeqCst);
        let asking = AsksDriver(&self.asking);
        (self.lent.load(Ordering::SeqCst) == 0).then_some(asking)
    }
}

/// Asks the driver for memory by `ask`, for the pools of a context; `None`, without
/// asking, while the driver has none but what is lent.
pub(in crate::driver) fn asking<R>(context: &Context, ask: impl FnOnce() -> R) -> Option<R> {
    let _asking = context.reserve().loans.asks()?;
    Some(ask())
}

/// The same where the answer is the program's: waits for a while until nothing is lent.
pub(crate) fn asking_last<R>(context: &Context, ask: impl FnOnce() -> R) -> R {
    let mut asking = None;
    wait_within(ANSWER, || {
        asking = context.reserve().loans.asks();
        asking.is_some()
    });
    ask()
}

/// Allocates in a context, for its pools.
pub(crate) fn alloc(context: &Context, size: Bytes) -> Result<Address, Code> {
    let size = bytes(size)?;
    let mut address: CUdeviceptr = 0;
    context.call(|| {
        // SAFETY: writes the answer to a local.
        let ask = || unsafe { real::cuMemAlloc_v2(&raw mut address, size) };
        asking(context, ask).unwrap_or(Code::OUT_OF_MEMORY.get())
    })?;
    Ok(Address::new(address))
}
