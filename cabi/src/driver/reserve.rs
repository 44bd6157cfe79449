//! A page of driver memory that each context keeps back, to wait with while a
//! stream captures a graph.
//!
//! The driver's own free is the only call that waits for a device and that a
//! capture allows, and it needs memory to free. When memory is short there is
//! none to be had for that. So a page is taken before the first chunk, and
//! freed and taken again at each wait.
//!
//! Owns that page, one for each context with a pool and, from the first capture
//! on, for every other context too. It counts towards the limit, since the
//! device has lost it, but not in the counters and statistics of an arena: the
//! program never had it. Below a small limit there is none. It goes with its
//! context. Invariant: one thread at a time has it, and puts back what there is
//! of it, whatever happens; it counts for the bytes that there are. While a wait
//! has freed it, the pools of its context do not ask the driver for memory: one
//! of them would get it, and no later wait would have any. Cost: 2 MiB
//! for each such context; two driver calls when it is taken, three at each
//! wait.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spin::mutex::SpinMutex;
use vramalloc_core::driver::{PAGE, told};
use vramalloc_core::patience::{Brief, Patience, wait_within};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Address, Bytes, Code};

use crate::driver::context::Context;
use crate::driver::devices;
use crate::real;
use crate::types::{CUdevice, CUdeviceptr, CudaResult};

/// Less than a page: the driver may have room for it and not for a page.
const LITTLE: Bytes = Bytes::new(512);

/// Below this limit no page is kept back. Then the limit is short and not the
/// device, which has a page for a wait.
const LEAST_LIMIT: Bytes = Bytes::mib(32);

/// Whether the process has a pool, so that waits may be needed.
// Relaxed: it guards no other memory.
static POOLED: AtomicBool = AtomicBool::new(false);

/// Memory that counts towards the limit by its size.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Kept {
    address: Address,
    size: Bytes,
}

/// What a reserve holds.
#[derive(Copy, Clone, PartialEq, Eq)]
enum State {
    Nothing,
    Memory(Kept),
    /// A thread has taken it out.
    TakenOut,
    /// It went with its context.
    Gone,
}

/// The memory that a context keeps back.
pub(crate) struct Reserve {
    state: SpinMutex<State, Brief>,
    /// The quota of the context's device, once that is known.
    quota: OnceLock<Arc<Quota>>,
    /// Whether it is free in the driver, to be taken again.
    is_lent: AtomicBool,
    /// Threads that ask the driver for memory of the context.
    asking: AtomicUsize,
}

/// A driver that is asked for memory answers sooner than that.
const ANSWER: Duration = Duration::from_secs(1);

/// What is kept back is free in the driver while this lives.
struct Lent<'a>(&'a AtomicBool);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The driver is asked for memory while this lives.
struct Asking<'a>(&'a AtomicUsize);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Reserve {
    pub(crate) const fn new() -> Reserve {
        Reserve {
            state: SpinMutex::new(State::Nothing),
            quota: OnceLock::new(),
            is_lent: AtomicBool::new(false),
            asking: AtomicUsize::new(0),
        }
    }

    /// Before it is freed: once all who ask the driver have their answer.
    fn lend(&self) -> Lent<'_> {
        // SeqCst here and in `asks`: of one who lends and one who asks, at least
        // one sees the other.
        self.is_lent.store(true, Ordering::SeqCst);
        let lent = Lent(&self.is_lent);
        wait_within(ANSWER, || self.asking.load(Ordering::SeqCst) == 0);
        lent
    }

    /// Before the driver is asked for memory; `None` while it has none but what is
    /// lent.
    fn asks(&self) -> Option<Asking<'_>> {
        self.asking.fetch_add(1, Ordering::SeqCst);
        let asking = Asking(&self.asking);
        (!self.is_lent.load(Ordering::SeqCst)).then_some(asking)
    }

    /// The quota of the context's device.
    fn quota(&self, context: &Context) -> Option<&Arc<Quota>> {
        if self.quota.get().is_none() {
            let mut device: CUdevice = 0;
            // SAFETY: writes the answer to a local.
            let told = context.call_now(|| unsafe { real::cuCtxGetDevice(&raw mut device) });
            told.ok()?;
            // Another thread may have been faster, with the same quota.
            let _ = self.quota.set(devices::quota_of(device));
        }
        self.quota.get()
    }

    /// Takes out what there is until the result is dropped; waits while another
    /// thread has it.
    fn take_out(&self) -> Held<'_> {
        let mut patience = Patience::new();
        loop {
            match self.try_take_out() {
                Some(held) => return held,
                None => patience.pause(),
            }
        }
    }

    /// Takes it out for a wait for the device. Refuses, instead of waiting for another
    /// thread, where the driver takes no calls from this one.
    ///
    /// # Errors
    /// What the driver answers there.
    fn take_out_to_wait(&self) -> Result<Held<'_>, Code> {
        if let Some(held) = self.try_take_out() {
            return Ok(held);
        }
        // The thread that has it waits for the device. In a host function the device
        // waits for this one, so neither would go on.
        Code::check(ask_driver())?;
        Ok(self.take_out())
    }

    /// As `take_out`; `None` while another thread has it.
    fn try_take_out(&self) -> Option<Held<'_>> {
        let mut state = self.state.lock();
        let memory = match *state {
            State::Nothing | State::Gone => None,
            State::Memory(kept) => Some(kept),
            State::TakenOut => return None,
        };
        if *state != State::Gone {
            *state = State::TakenOut;
        }
        Some(Held {
            reserve: self,
            memory,
        })
    }

    /// Forgets what a context kept back: it is gone with the context.
    pub(crate) fn forget(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Gone);
        if let State::Memory(kept) = before {
            self.uncount(kept.size);
        }
    }

    fn uncount(&self, size: Bytes) {
        if let Some(quota) = self.quota.get() {
            quota.put_back(size);
        }
    }
}

/// The memory in the hands of one thread.
struct Held<'a> {
    reserve: &'a Reserve,
    memory: Option<Kept>,
}

impl Held<'_> {
    /// Takes a page of the current context, or [`LITTLE`] if the driver has no
    /// page. The quota has counted `counted` bytes for it already.
    fn refill(&mut self, counted: Bytes) {
        self.memory = any().ok();
        self.recount(counted);
    }

    /// Replaces `counted` bytes in the quota by the true size.
    fn recount(&self, counted: Bytes) {
        let size = self.memory.map_or(Bytes::ZERO, |kept| kept.size);
        if let Some(quota) = self.reserve.quota.get() {
            quota.take_anyway(size);
            quota.put_back(counted);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.reserve.state.lock();
        if *state != State::Gone {
            *state = self.memory.map_or(State::Nothing, State::Memory);
            return;
        }
        drop(state);
        if let Some(kept) = self.memory {
            self.reserve.uncount(kept.size);
        }
    }
}

/// Asks the driver for memory by `ask`, for the pools of a context; `None`, without
/// asking, while the driver has none but what is lent.
pub(super) fn asking<R>(context: &Context, ask: impl FnOnce() -> R) -> Option<R> {
    let _asking = context.reserve().asks()?;
    Some(ask())
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

/// Frees in a context.
pub(crate) fn free(context: &Context, address: Address) -> Result<(), Code> {
    // SAFETY: a number that the driver checks.
    context.call(|| unsafe { real::cuMemFree_v2(address.get()) })
}

fn bytes(size: Bytes) -> Result<usize, Code> {
    usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)
}

/// Allocates in the current context.
fn take(size: Bytes) -> Result<Address, Code> {
    let size = bytes(size)?;
    let mut address: CUdeviceptr = 0;
    told::alloc(|| {
        // SAFETY: writes the answer to a local.
        Code::check(unsafe { real::cuMemAlloc_v2(&raw mut address, size) })
    })?;
    Ok(Address::new(address))
}

/// Frees in the current context.
fn give(address: Address) -> Result<(), Code> {
    // SAFETY: a number that the driver checks.
    told::free(|| Code::check(unsafe { real::cuMemFree_v2(address.get()) }))
}

fn any() -> Result<Kept, Code> {
    let take = |size| take(size).map(|address| Kept { address, size });
    match take(PAGE) {
        Err(Code::OUT_OF_MEMORY) => take(LITTLE),
        taken => taken,
    }
}

/// Asks whether the driver takes calls from this thread: it takes none from a host function.
pub(super) fn ask_driver() -> CudaResult {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: writes both answers to locals.
    unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) }
}

/// Keeps a page back in a context, in which a pool is about to be made.
pub(crate) fn prepare_pool(context: &Context) {
    POOLED.store(true, Ordering::Relaxed);
    keep_back(context);
}

/// Keeps a page back in every context without one, since a capture is about to
/// begin: except those that may be ending.
pub(crate) fn prepare_capture(contexts: impl FnOnce() -> Vec<Arc<Context>>) {
    if POOLED.load(Ordering::Relaxed) {
        contexts().iter().for_each(|context| keep_back(context));
    }
}

fn keep_back(context: &Context) {
    let reserve = context.reserve();
    if *reserve.state.lock() != State::Nothing {
        return;
    }
    let has_room = |quota: &Arc<Quota>| {
        quota.limit().is_none_or(|limit| limit >= LEAST_LIMIT) && quota.take(PAGE)
    };
    if !reserve.quota(context).is_some_and(has_room) {
        // A wait has to do without a reserve.
        return;
    }
    let mut held = reserve.take_out();
    if held.memory.is_some() {
        // Another thread was faster.
        reserve.uncount(PAGE);
        return;
    }
    // If this fails, a wait tries again.
    let _ = context.within_now(|| any().map(|kept| held.memory = Some(kept)));
    held.recount(PAGE);
}

/// A page that counts towards a quota while this lives. It goes back to that
/// quota: the device of a reserve may become known only after a wait began
/// without it.
struct Charge<'a>(&'a Quota);

impl Charge<'_> {
    /// Returns `None` if no page is left.
    fn of_page(quota: &Quota) -> Option<Charge<'_>> {
        quota.take(PAGE).then(|| Charge(quota))
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.0.put_back(PAGE);
    }
}

/// Waits by allocating memory and freeing it again.
fn wait_with(size: Bytes) -> Result<(), Code> {
    give(take(size)?)
}

/// Whether a wait may exceed the limit for a moment, if neither the limit nor
/// the reserve has a page for it.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// There is no other way to wait.
    Allowed,
    /// There is another way.
    Refused,
}

/// Waits for the context by the driver's own free.
///
/// # Errors
/// What the driver returns; [`Code::NOT_READY`] if the context may be ending,
/// [`Code::OUT_OF_MEMORY`] if there is nothing to wait with.
pub(crate) fn wait_by_free(context: &Context, beyond: Beyond) -> Result<(), Code> {
    let reserve = context.reserve();
    let quota = reserve.quota(context);
    // In one stay: the context cannot begin to end before all is given back.
    context.within_now(|| {
        let mut held = reserve.take_out_to_wait()?;
        let charge = quota.map(|quota| Charge::of_page(quota));
        let below = charge.as_ref().is_none_or(Option::is_some);
        if !below && held.memory.is_none() && beyond == Beyond::Refused {
            return Err(Code::OUT_OF_MEMORY);
        }
        // Without a reserve, a page beyond the limit is better than no wait.
        if below || held.memory.is_none() {
            let waited = wait_with(PAGE);
            drop(charge);
            if waited != Err(Code::OUT_OF_MEMORY) {
                return waited;
            }
        }
        let Some(kept) = held.memory.take() else {
            return wait_with(LITTLE);
        };
        let _lent = reserve.lend();
        give(kept.address)?;
        held.refill(kept.size);
        Ok(())
    })
}

/// Waits for a context that has nothing to wait with, on a device that has nothing either,
/// by what another context of that device keeps back.
///
/// # Errors
/// As [`wait_by_free`]; [`Code::OUT_OF_MEMORY`] too if the other one keeps nothing back.
pub(crate) fn wait_by_that_of(other: &Context, context: &Context) -> Result<(), Code> {
    let reserve = other.reserve();
    let [own, others] = [context, other].map(|of| of.reserve().quota(of));
    if !own
        .zip(others)
        .is_some_and(|(own, others)| Arc::ptr_eq(own, others))
    {
        return Err(Code::OUT_OF_MEMORY);
    }
    let mut waited = Ok(());
    other.within_now(|| {
        let mut held = reserve.take_out_to_wait()?;
        let kept = held.memory.take().ok_or(Code::OUT_OF_MEMORY)?;
        let _lent = reserve.lend();
        give(kept.address)?;
        waited = context.within_now(|| wait_with(kept.size));
        held.refill(kept.size);
        Ok(())
    })?;
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_refused_is_not_put_back() {
        let quota = Quota::new(Bytes::mib(3));
        let first = Charge::of_page(&quota);
        assert!(first.is_some());
        assert!(Charge::of_page(&quota).is_none());
        assert_eq!(quota.reserved(), PAGE);
        drop(first);
        assert_eq!(quota.reserved(), Bytes::ZERO);
    }
}
