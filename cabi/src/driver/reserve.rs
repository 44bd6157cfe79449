//! A page of driver memory that each context keeps back, to wait with while a
//! stream captures a graph.
//!
//! The driver's own free is the only call that waits for a device and that a
//! capture allows, and it needs memory to free. When memory is short there is
//! none to be had for that. So a page is taken with the first chunk, after it unless chunks
//! take shares of the device, or after a later one, when much more is left: two halves, which
//! the driver puts into one page of the context's. A wait frees the one and takes it again;
//! the other one keeps the page meanwhile, so that nobody else can get it. (That the free of a small block waits, in a
//! capture too, was seen on a GPU: docs/gpu, `free_waits` and `capture_free_waits`.)
//!
//! A context that keeps none waits with a few bytes that it takes and frees. Where there is
//! no page for them, that of another context is freed and taken again for it, and in between
//! nobody in the process asks the driver for memory of the device, for a while ([`loans`]).
//!
//! Owns that page, one for each context with chunks. It counts towards the limit, since the
//! device has lost it, but not in the counters and statistics of an arena: the program never
//! had it. Below a small limit there is none. It goes with its context. Invariant: one thread
//! at a time has it, and puts back what there is of it, whatever happens; what there is lies
//! in one page, and counts as that. Cost: 2 MiB for each such context; two driver calls when
//! it is taken, two at each wait.

mod loans;
mod waits;

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spin::mutex::SpinMutex;
use vramalloc_core::driver::{PAGE, told};
use vramalloc_core::patience::{Brief, Patience, wait_within};
use vramalloc_core::{Address, Bytes, Code};

use crate::driver::context::Context;
use crate::driver::devices::{self, Device};
use crate::real;
use crate::types::{CUdevice, CUdeviceptr, CudaResult};

pub(crate) use self::loans::{PATIENCE, asking};
pub(super) use self::loans::{alloc, asking_in};
pub(crate) use self::waits::{Beyond, wait_by_free, wait_by_that_of};

/// Two of them fill a page, since blocks of up to so much share pages (docs/gpu,
/// `amount.each.1048576`). What is left of a page would be the program's.
const HALF: Bytes = Bytes::mib(1);

/// The least that the driver gives.
const LITTLE: Bytes = Bytes::new(512);

/// Below this limit no page is kept back. Then the limit is short and not the
/// device, which has a page for a wait.
const LEAST_LIMIT: Bytes = Bytes::mib(32);

/// Memory is ample where, besides the page, this part of the device is free, and of the limit;
/// [`MOST_SLACK`] is enough in any case.
const SLACK_PART: u64 = 16;

const MOST_SLACK: Bytes = Bytes::mib(64);

/// Two halves of a page, or what is left of them. They count as a page.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Kept {
    /// It is freed and taken again.
    spare: Address,
    /// It keeps the page.
    rest: Option<Address>,
}

impl Kept {
    fn parts(self) -> [Option<Address>; 2] {
        [Some(self.spare), self.rest]
    }
}

/// What a reserve holds.
#[derive(Copy, Clone, PartialEq, Eq)]
enum State {
    Nothing,
    Memory(Kept),
    /// A thread has taken it out, to wait for this context.
    TakenOut,
    /// The same for the work of another one.
    Lent,
    /// The driver did not take it back: nobody has it, and it counts.
    Lost,
    /// It went with its context.
    Gone,
}

/// The memory that a context keeps back.
pub(crate) struct Reserve {
    state: SpinMutex<State, Brief>,
    /// The context's device, once that is known.
    device: OnceLock<&'static Device>,
}

impl Reserve {
    pub(crate) const fn new() -> Reserve {
        Reserve {
            state: SpinMutex::new(State::Nothing),
            device: OnceLock::new(),
        }
    }

    /// The context's device.
    fn device(&self, context: &Context) -> Option<&'static Device> {
        if self.device.get().is_none() {
            let mut device: CUdevice = 0;
            // SAFETY: writes the answer to a local.
            let told = context.call_now(|| unsafe { real::cuCtxGetDevice(&raw mut device) });
            told.ok()?;
            // Another thread may have been faster, with the same device.
            let _ = self.device.set(devices::device(device));
        }
        self.known_device()
    }

    /// The same without asking the driver.
    fn known_device(&self) -> Option<&'static Device> {
        self.device.get().copied()
    }

    /// Takes out what there is until the result is dropped, to wait for the context with it.
    /// Waits while another thread does that, and not for long while it is lent (`None`): what
    /// is waited for then is another context's work.
    fn take_out_to_wait(&self) -> Result<Option<InHand<'_>>, Code> {
        if let Some(held) = self.try_take_out() {
            return Ok(Some(held));
        }
        // The thread that has it waits for the device. In a host function the device
        // waits for this one, so neither would go on.
        Code::check(ask_driver())?;
        let mut patience = Patience::new();
        let mut lent = None;
        loop {
            if let Some(held) = self.try_take_out() {
                return Ok(Some(held));
            }
            if *self.state.lock() == State::Lent
                && lent.get_or_insert_with(Instant::now).elapsed() >= loans::PATIENCE
            {
                return Ok(None);
            }
            patience.pause();
        }
    }

    /// Takes out what there is to lend it. A thread that has it is waited for until then.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] where it has it still.
    fn take_out_to_lend(&self, until: Instant) -> Result<InHand<'_>, Code> {
        let mut held = None;
        wait_within(until.saturating_duration_since(Instant::now()), || {
            held = self.try_take_out();
            held.is_some()
        });
        held.ok_or(Code::OUT_OF_MEMORY)
    }

    /// The same; `None` while another thread has it.
    fn try_take_out(&self) -> Option<InHand<'_>> {
        let mut state = self.state.lock();
        let memory = match *state {
            State::Nothing | State::Lost | State::Gone => None,
            State::Memory(kept) => Some(kept),
            State::TakenOut | State::Lent => return None,
        };
        if !matches!(*state, State::Lost | State::Gone) {
            *state = State::TakenOut;
        }
        Some(InHand {
            reserve: self,
            memory,
        })
    }

    /// Forgets what a context kept back: it is gone with the context.
    pub(crate) fn forget(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Gone);
        if let State::Memory(_) | State::Lost = before {
            self.uncount();
        }
    }

    /// The page counts no longer.
    fn uncount(&self) {
        if let Some(device) = self.known_device() {
            device.quota.put_back(PAGE);
        }
    }
}

/// The memory in the hands of one thread.
struct InHand<'a> {
    reserve: &'a Reserve,
    memory: Option<Kept>,
}

impl InHand<'_> {
    /// It is for the work of another context.
    fn lend(&self) {
        let mut state = self.reserve.state.lock();
        if *state == State::TakenOut {
            *state = State::Lent;
        }
    }

    /// Waits for the current context by freeing a part and taking it again; none where
    /// there is nothing. What is missing afterwards is taken anew, if it can be had.
    fn wait(&mut self) -> Option<Result<(), Code>> {
        let mut parts = self.memory?.parts();
        let mut waited = Err(Code::OUT_OF_MEMORY);
        for part in &mut parts {
            let Some(address) = *part else { continue };
            waited = give(address);
            // Where the driver takes no call, the part is there still; else it is not
            // known to be.
            if waited != Err(Code::NOT_PERMITTED) {
                *part = None;
            }
            if matches!(waited, Ok(()) | Err(Code::NOT_PERMITTED)) {
                break;
            }
        }
        if waited.is_err() && parts == [None; 2] {
            self.lose();
        } else if waited != Err(Code::NOT_PERMITTED) {
            self.hold(filled(parts));
        }
        Some(waited)
    }

    /// The driver took none of it back, and may have all of it.
    fn lose(&mut self) {
        let mut state = self.reserve.state.lock();
        if *state == State::TakenOut {
            *state = State::Lost;
            self.memory = None;
        }
    }

    /// What there is now, where a page was counted.
    fn hold(&mut self, parts: [Option<Address>; 2]) {
        let mut there = parts.into_iter().flatten();
        self.memory = there.next().map(|spare| Kept {
            spare,
            rest: there.next(),
        });
        if self.memory.is_none() {
            self.reserve.uncount();
        }
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut state = self.reserve.state.lock();
        if !matches!(*state, State::Lost | State::Gone) {
            *state = self.memory.map_or(State::Nothing, State::Memory);
            return;
        }
        drop(state);
        if self.memory.is_some() {
            self.reserve.uncount();
        }
    }
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

/// Takes a half, or of a page in which another has taken some of it, a little.
fn take_part() -> Option<Address> {
    match take(HALF) {
        Err(Code::OUT_OF_MEMORY) => take(LITTLE).ok(),
        taken => taken.ok(),
    }
}

/// Asks whether the driver takes calls from this thread: it takes none from a host function.
pub(super) fn ask_driver() -> CudaResult {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: writes both answers to locals.
    unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) }
}

/// Whether a device and its limit have more left than the program may be about to ask for:
/// of a full device a page would be missing for what it has just freed.
fn is_ample(context: &Context, device: &Device) -> bool {
    let quota = &device.quota;
    let has_slack = |total: Bytes, free: Bytes| {
        let slack = Bytes::new(total.get() / SLACK_PART).min(MOST_SLACK);
        free >= PAGE.saturating_add(slack)
    };
    let fits = |limit: Bytes| has_slack(limit, limit.saturating_sub(quota.reserved()));
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: writes both answers to locals.
    let ask = || unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    quota.limit().is_none_or(fits)
        && context.call_now(ask).is_ok()
        && has_slack(Bytes::new(total as u64), Bytes::new(free as u64))
}

/// When a page is kept back.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum When {
    /// With the first chunk of a context that is alone.
    Alone,
    /// With the first chunk of one that is not.
    Beside,
    /// Later.
    Later,
}

/// Keeps a page back in a context, if it can be had: of a lone one in any case, of others where
/// memory is ample, and later where the program was not told that the page is free.
pub(crate) fn keep_back(context: &Context, when: When) {
    let reserve = context.reserve();
    if *reserve.state.lock() != State::Nothing {
        return;
    }
    let has_room = |device: &&Device| {
        let limit = device.quota.limit();
        limit.is_none_or(|limit| limit >= LEAST_LIMIT)
            // Relaxed: it stands for itself.
            && !(when == When::Later && device.has_told_free.load(Ordering::Relaxed))
            && (when == When::Alone || is_ample(context, device))
            && device.quota.take(PAGE)
    };
    if reserve.device(context).filter(has_room).is_none() {
        // A wait has to do without a reserve.
        return;
    }
    let Some(mut held) = reserve.try_take_out() else {
        // Another thread is faster.
        return reserve.uncount();
    };
    let kept = held.memory.is_none().then(|| {
        let mut parts = [None; 2];
        let take = || {
            let _ = context.within_now(|| {
                parts = filled(parts);
                Ok(())
            });
        };
        asking_in(context, take);
        parts
    });
    match kept {
        Some(parts) => held.hold(parts),
        // Another thread was faster.
        None => reserve.uncount(),
    }
}

/// Takes what is missing of two parts in the current context, in the page of the other one;
/// elsewhere it would be a page more than is counted.
fn filled(parts: [Option<Address>; 2]) -> [Option<Address>; 2] {
    let mut there = parts.into_iter().flatten();
    let Some(first) = there.next().or_else(take_part) else {
        return [None; 2];
    };
    let page = |address: Address| address.get() / PAGE.get();
    let second = there.next().or_else(take_part).filter(|&second| {
        let shares = page(first) == page(second);
        if !shares {
            // What the driver does not take back is lost.
            let _ = give(second);
        }
        shares
    });
    [Some(first), second]
}
