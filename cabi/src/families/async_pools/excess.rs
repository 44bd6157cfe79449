//! Requests to pools of CUDA's that may pass a limit, and what they have beyond it for a while.
//!
//! Such a request is made on a stream of ours that has nothing to do: what passes the limit
//! goes back at once, and what does not is the program's, in any order, as soon as that
//! stream is done. Only while streams have yet to get to frees, whose memory some of them
//! can have before, the request is made on the program's stream. If it passes the limit
//! then, it is freed in the order of that stream; until that gets there, the memory is
//! missing for everybody else, and no other request to the pool is made so. Others are not
//! to lie in the rest of the piece, as it would stay then: what may lie there goes back.
//!
//! Owns what each pool has beyond the limit.
//! Invariant: no lock spans a driver call. Cost: a short lock and three calls to the driver
//! more for a request to a pool that the limit leaves too little; a few each millisecond of
//! a wait.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vramalloc_core::Bytes;
use vramalloc_core::patience::wait_within;

use super::{Pool, RESERVED, frees, pools};
use crate::driver::capture;
use crate::driver::context::Context;
use crate::driver::own_stream::OwnStream;
use crate::process::ending;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUdevice, CUdeviceptr, CUstream, CudaResult};

/// What a pool took beyond the limit and gave back in the order of a stream.
#[derive(Copy, Clone)]
pub(super) struct Excess {
    /// Which of all [`give_back`]s it was.
    number: u64,
    /// What was reserved before: with that it is back.
    before: Bytes,
    /// It was waited for in vain: not again, as what its stream does may go on for ever.
    is_stuck: bool,
    /// Around the block that made the pool grow, as far as what is new may reach: new memory
    /// may begin before the block and end behind it.
    from: CUdeviceptr,
    to: CUdeviceptr,
}

/// Where a block of a pool lies.
pub(super) type Block = (CUdeviceptr, Bytes);

thread_local! {
    /// The [`give_back`] of the request that the thread makes, which does not wait for it: it
    /// would come to the same again.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// Where a request is made that may make its pool pass the limit.
pub(super) enum OnStream {
    /// In the order of its own stream.
    OfRequest,
    /// On a stream with nothing to do.
    Ours(Beside),
}

/// A stream of ours, as long as a request needs it.
pub(super) struct Beside {
    context: Arc<Context>,
    stream: ManuallyDrop<OwnStream>,
}

impl Excess {
    fn is_awaited(&self) -> bool {
        !self.is_stuck && self.number != OWN.get()
    }
}

impl Pool {
    /// Whether what it had beyond the limit is back.
    pub(super) fn is_within_limit(&self) -> bool {
        let Some(excess) = *self.excess.lock() else {
            return true;
        };
        self.trim(Bytes::ZERO);
        if self.reserved.bytes() > excess.before && self.device.quota.is_beyond_limit() {
            return false;
        }
        // Not where there is more by now.
        let mut place = self.excess.lock();
        if place.is_some_and(|now| now.number == excess.number) {
            *place = None;
        }
        place.is_none()
    }

    /// Whether it has something beyond the limit that is worth a wait.
    pub(super) fn is_awaited(&self) -> bool {
        (*self.excess.lock()).is_some_and(|excess| excess.is_awaited())
    }

    /// Whether a block may lie in what it has beyond the limit.
    pub(super) fn is_in_excess(&self, (address, size): Block) -> bool {
        let end = address.saturating_add(size.get());
        let meets = |excess: Excess| address < excess.to && excess.from < end;
        (*self.excess.lock()).is_some_and(meets)
    }

    /// Whether what one stream has freed serves others.
    fn passes_on(&self) -> bool {
        const REUSE_ALLOW_OPPORTUNISTIC: c_int = 2;
        self.attribute(REUSE_ALLOW_OPPORTUNISTIC) != Some(Bytes::ZERO)
    }

    /// Where a request for the memory of a stream is made that may pass the limit; `None` if
    /// it is not to be made.
    pub(super) fn stream_for(&self, stream: CUstream) -> Option<OnStream> {
        let is_within = self.is_within_limit();
        let may_be_served =
            || frees::are_left(self.device.handle) || (!self.passes_on() && is_idle(stream));
        if is_within && may_be_served() {
            return Some(OnStream::OfRequest);
        }
        match Beside::of(stream) {
            Some(beside) => Some(OnStream::Ours(beside)),
            None => is_within.then_some(OnStream::OfRequest),
        }
    }
}

/// Whether a stream has nothing to do. While another one captures, nobody may
/// ask.
fn is_idle(stream: CUstream) -> bool {
    // SAFETY: the caller's own stream.
    let ask = || own_call(|| unsafe { real::cuStreamQuery(stream) });
    capture::outside(ask) == Some(0)
}

impl Beside {
    /// One in the context of another stream; `None` where that cannot be, as during a capture.
    fn of(stream: CUstream) -> Option<Beside> {
        let context = frees::context_of(stream)?;
        let mut own = None;
        let take = || {
            context.within_now(|| {
                own = Some(context.own_stream().take()?);
                Ok(())
            })
        };
        capture::outside(take)?.ok()?;
        let stream = ManuallyDrop::new(own?);
        Some(Beside { context, stream })
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let stream = unsafe { ManuallyDrop::take(&mut self.stream) };
        self.context.own_stream().keep(stream);
        if self.context.has_ended() {
            self.context.own_stream().forget();
        }
    }
}

impl OnStream {
    /// The stream, for a request of that one.
    pub(super) fn stream(&self, own: CUstream) -> CUstream {
        match self {
            OnStream::OfRequest => own,
            OnStream::Ours(beside) => beside.stream.handle(),
        }
    }

    /// Whether what was just made there can count as done: by all, if the stream is ours.
    pub(super) fn is_ready(&self) -> bool {
        /// As a rule the stream has got there at once. If the driver made it wait for
        /// another one, the program can wait for that as well.
        const MOST: Duration = Duration::from_millis(1);
        let OnStream::Ours(beside) = self else {
            return true;
        };
        let is_done = || beside.stream.is_done() != Ok(false);
        capture::outside(|| wait_within(MOST, is_done)) == Some(true)
    }
}

/// The calling thread's request is over.
pub(super) fn request_is_over() {
    OWN.set(0);
}

/// The numbers of what pools of a device have beyond the limit that is worth a wait.
fn awaited(device: CUdevice) -> Vec<u64> {
    let mut numbers = Vec::new();
    for pool in pools(|on| on == device) {
        pool.is_within_limit();
        let excess = (*pool.excess.lock()).filter(Excess::is_awaited);
        numbers.extend(excess.map(|excess| excess.number));
    }
    numbers
}

/// Waits, for so long at the most, until the pools of a device have back what they took
/// beyond the limit: streams have yet to get there.
pub(in crate::families) fn await_back(device: CUdevice, most: Duration) {
    const PAUSE: Duration = Duration::from_millis(1);
    if most.is_zero() {
        return;
    }
    let mut late = awaited(device);
    let mut next = Instant::now() + PAUSE;
    let are_back = wait_within(most, || {
        if Instant::now() >= next {
            ending::let_it_end();
            // New ones are for others to wait for.
            let left = awaited(device);
            late.retain(|number| left.contains(number));
            next = Instant::now() + PAUSE;
        }
        late.is_empty() || capture::any()
    });
    if !are_back {
        for pool in pools(|on| on == device) {
            if let Some(excess) = pool.excess.lock().as_mut() {
                excess.is_stuck |= late.contains(&excess.number);
            }
        }
    }
}

/// Makes a request of such a size, and again as long as it is served near what its pool has
/// beyond the limit and the pool does not grow; what it got there goes back.
pub(super) fn outside_excess(
    pool: &Pool,
    stream: CUstream,
    call: &mut dyn FnMut() -> CudaResult,
    made: &dyn Fn() -> Block,
) -> CudaResult {
    const MOST: usize = 32;
    let before = pool.attribute(RESERVED);
    let mut inside = Vec::new();
    let mut result = call();
    while result == 0
        && inside.len() < MOST
        && pool.is_in_excess(made())
        && pool.attribute(RESERVED) <= before
    {
        inside.push(made().0);
        result = call();
    }
    for address in inside {
        free_unseen(address, stream);
    }
    result
}

/// Frees what the program does not know of, in the order of the stream that it was taken for.
pub(super) fn free_unseen(address: CUdeviceptr, stream: CUstream) {
    // SAFETY: memory of ours, as above.
    own_call(|| unsafe { real::cuMemFreeAsync(address, stream) });
}

/// Gives memory back by which a pool has passed the limit. `before`: what it had reserved
/// before, and by how much it has grown.
pub(super) fn give_back(
    pool: &Pool,
    (address, size): Block,
    (on, own): (&OnStream, CUstream),
    (before, growth): (Bytes, Bytes),
) {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let new = Excess {
        number: MADE.fetch_add(1, Ordering::Relaxed) + 1,
        before,
        is_stuck: false,
        from: address.saturating_sub(growth.get()),
        to: address.saturating_add(size.saturating_add(growth).get()),
    };
    {
        let mut place = pool.excess.lock();
        // Beside what there is already, it goes back at once.
        if place.is_none() {
            *place = Some(new);
            OWN.set(new.number);
        }
    }
    free_unseen(address, on.stream(own));
    on.is_ready();
    pool.is_within_limit();
}
