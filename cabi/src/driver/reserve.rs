//! A page of driver memory that each context keeps back, to wait with while a
//! stream captures a graph.
//!
//! The only call that waits for a device and that a capture allows is the
//! driver's own free, and a free needs memory to give back. When memory is
//! short there is none to be had for it; so a page is taken before the first
//! chunk, and given back and taken again at each wait.
//!
//! Owns that page, one for each context with a pool and, from the first
//! capture on, for every other context too. It counts towards the limit, since
//! the device has lost it, but is in no books and no statistics of an arena: the
//! program never had it. Below a small limit there is none. It goes with its
//! context. Invariant: one thread at a time has it, and puts back what there is
//! of it, whatever happens; what it counts for is what there is. Cost: 2 MiB for
//! each such context; two driver calls when it is taken, three at each wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use vramalloc_core::driver::{PAGE, told};
use vramalloc_core::patience::{Brief, Patience};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Address, Bytes, Code};

use crate::driver::context::Context;
use crate::driver::devices;
use crate::real;
use crate::types::{CUdevice, CUdeviceptr};

/// Less than a page: the driver may have room for it where it has no page.
const LITTLE: Bytes = Bytes::new(512);

/// A limit below this has no page to spare. It is then the limit that is short
/// and not the device, which has a page for a wait.
const LEAST_LIMIT: Bytes = Bytes::mib(32);

/// Whether the process has a pool, so that waits may be needed.
// Relaxed: it stands for itself.
static POOLED: AtomicBool = AtomicBool::new(false);

/// Memory that counts towards the limit with its size.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Kept {
    address: Address,
    size: Bytes,
}

/// What is kept back.
#[derive(Copy, Clone, PartialEq, Eq)]
enum State {
    Nothing,
    Memory(Kept),
    /// It is in the hands of a thread.
    TakenOut,
    /// It went with its context.
    Gone,
}

/// The memory that a context keeps back.
pub(crate) struct Reserve {
    state: SpinMutex<State, Brief>,
    /// That of the context's device; none where the driver does not name it.
    quota: OnceLock<Option<Arc<Quota>>>,
}

impl Reserve {
    pub(crate) const fn new() -> Reserve {
        Reserve {
            state: SpinMutex::new(State::Nothing),
            quota: OnceLock::new(),
        }
    }

    /// The quota of the context's device.
    fn quota(&self, context: &Context) -> Option<&Arc<Quota>> {
        if self.quota.get().is_none() {
            let mut device: CUdevice = 0;
            // SAFETY: a place for the answer.
            let told = context.call_now(|| unsafe { real::cuCtxGetDevice(&raw mut device) });
            if told == Err(Code::NOT_READY) {
                return None;
            }
            // Another thread may have been faster, with the same.
            let _ = (self.quota).set(told.is_ok().then(|| devices::quota_of(device)));
        }
        self.quota.get()?.as_ref()
    }

    /// Takes out what there is, for as long as the result lives; waits while
    /// another thread has it.
    fn take_out(&self) -> Held<'_> {
        let mut patience = Patience::new();
        loop {
            let mut state = self.state.lock();
            let memory = match *state {
                State::Nothing | State::Gone => None,
                State::Memory(kept) => Some(kept),
                State::TakenOut => {
                    drop(state);
                    patience.pause();
                    continue;
                }
            };
            if *state != State::Gone {
                *state = State::TakenOut;
            }
            return Held {
                reserve: self,
                memory,
            };
        }
    }

    /// The context is gone, and what it kept back with it.
    pub(crate) fn forget(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Gone);
        if let State::Memory(kept) = before {
            self.uncount(kept.size);
        }
    }

    fn uncount(&self, size: Bytes) {
        if let Some(Some(quota)) = self.quota.get() {
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
    /// Takes a page of the current context, or where the driver has none, a
    /// little. It counts for `counted` bytes already.
    fn refill(&mut self, counted: Bytes) {
        self.memory = any().ok();
        self.recount(counted);
    }

    /// What counts for `counted` bytes is to count for what it is.
    fn recount(&self, counted: Bytes) {
        let size = self.memory.map_or(Bytes::ZERO, |kept| kept.size);
        if let Some(Some(quota)) = self.reserve.quota.get() {
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

/// Memory of the context.
pub(crate) fn alloc(context: &Context, size: Bytes) -> Result<Address, Code> {
    let size = bytes(size)?;
    let mut address: CUdeviceptr = 0;
    // SAFETY: a place for the answer.
    context.call(|| unsafe { real::cuMemAlloc_v2(&raw mut address, size) })?;
    Ok(Address::new(address))
}

/// Gives it back.
pub(crate) fn free(context: &Context, address: Address) -> Result<(), Code> {
    // SAFETY: a number that the driver checks.
    context.call(|| unsafe { real::cuMemFree_v2(address.get()) })
}

fn bytes(size: Bytes) -> Result<usize, Code> {
    usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)
}

/// Memory of the current context.
fn take(size: Bytes) -> Result<Address, Code> {
    let size = bytes(size)?;
    let mut address: CUdeviceptr = 0;
    told::alloc(|| {
        // SAFETY: a place for the answer.
        Code::check(unsafe { real::cuMemAlloc_v2(&raw mut address, size) })
    })?;
    Ok(Address::new(address))
}

/// Gives it back.
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

/// A pool is going to be made in the context.
pub(crate) fn prepare_pool(context: &Context) {
    POOLED.store(true, Ordering::Relaxed);
    keep_back(context);
}

/// A capture is going to begin, and contexts without a reserve may need one. Not
/// those that may be ending.
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
        // A wait has to do without.
        return;
    }
    let mut held = reserve.take_out();
    if held.memory.is_some() {
        // Another thread was faster.
        reserve.uncount(PAGE);
        return;
    }
    // Without it a wait tries again.
    let _ = context.within_now(|| any().map(|kept| held.memory = Some(kept)));
    held.recount(PAGE);
}

/// A page that counts towards a quota for as long as this lives. It goes back
/// to where it came from: of which device a reserve is may become known only
/// after a wait began without that.
struct Charge<'a>(&'a Quota);

impl Charge<'_> {
    /// None where no page is left.
    fn of_page(quota: &Quota) -> Option<Charge<'_>> {
        quota.take(PAGE).then_some(Charge(quota))
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.0.put_back(PAGE);
    }
}

/// Waits by the free of memory that is taken for it.
fn wait_with(size: Bytes) -> Result<(), Code> {
    give(take(size)?)
}

/// Whether a wait may pass the limit for a moment, where neither that nor what
/// is kept back has a page for it.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// There is no other way to wait.
    Allowed,
    /// There is.
    Refused,
}

/// Waits for the context by the driver's own free.
///
/// # Errors
/// What the driver answers; [`Code::NOT_READY`] where the context may be
/// ending, [`Code::OUT_OF_MEMORY`] where there is nothing to wait with.
pub(crate) fn wait_by_free(context: &Context, beyond: Beyond) -> Result<(), Code> {
    let reserve = context.reserve();
    let mut held = reserve.take_out();
    let quota = reserve.quota(context);
    // In one go: it cannot begin to end before all is given back.
    context.within_now(|| {
        let charge = quota.map(|quota| Charge::of_page(quota));
        let below = charge.as_ref().is_none_or(Option::is_some);
        if !below && held.memory.is_none() && beyond == Beyond::Refused {
            return Err(Code::OUT_OF_MEMORY);
        }
        // Where nothing is kept back, a page beyond the limit for a moment is
        // better than no wait.
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
        give(kept.address)?;
        held.refill(kept.size);
        Ok(())
    })
}
