//! What pools of CUDA's have beyond a limit for a while, and what waits for it.
//!
//! A request that made its pool pass the limit is freed in the order of its stream; until
//! the stream gets there, the memory is missing for everybody else. Nothing else is to be
//! served from it, as it would stay then: a request that is, is made again.
//!
//! Owns what each pool has beyond the limit, and the streams that were waited for in vain.
//! Invariant: no lock spans a driver call. Cost: a short lock for a request to a pool that
//! the limit leaves too little; a few driver calls each millisecond of a wait.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use spin::mutex::SpinMutex;
use vramalloc_core::Bytes;
use vramalloc_core::patience::{Brief, wait_within};

use super::{Pool, pools};
use crate::driver::capture;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUdevice, CUdeviceptr, CUstream, CudaResult};

/// What a pool took beyond the limit and gave back in the order of a stream.
#[derive(Copy, Clone)]
pub(super) struct Excess {
    /// Which of all [`give_back`]s it was.
    number: u64,
    stream: usize,
    /// What was reserved before: with that it is back.
    before: Bytes,
    /// Where it lies, if what is new is handed out from its beginning.
    from: CUdeviceptr,
    to: CUdeviceptr,
}

/// The streams on which a wait for what is beyond the limit was in vain: not again, as what
/// they do may go on for ever.
static STUCK: SpinMutex<Vec<usize>, Brief> = SpinMutex::new(Vec::new());

thread_local! {
    /// The [`give_back`] of the request that the thread makes, which does not wait for it: it
    /// would come to the same again.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

impl Pool {
    /// Whether what it had beyond the limit is back.
    pub(super) fn is_within_limit(&self) -> bool {
        let Some(excess) = *self.excess.lock() else {
            return true;
        };
        // What the program told it to keep has to wait for the end of captures.
        let reserved = if capture::any() {
            self.read()
        } else {
            self.trim(Bytes::ZERO);
            self.reserved.bytes()
        };
        if reserved > excess.before && self.device.quota.is_beyond_limit() {
            return false;
        }
        STUCK.lock().retain(|stream| *stream != excess.stream);
        // Not where there is more by now.
        let mut place = self.excess.lock();
        if place.is_some_and(|now| now.number == excess.number) {
            *place = None;
        }
        place.is_none()
    }

    /// Whether it has something beyond the limit that is worth a wait.
    pub(super) fn is_awaited(&self) -> bool {
        let excess = *self.excess.lock();
        excess.is_some_and(|excess| {
            excess.number != OWN.get() && !STUCK.lock().contains(&excess.stream)
        })
    }

    /// Whether this may lie in what it has beyond the limit, which would stay then.
    pub(super) fn is_in_excess(&self, address: CUdeviceptr) -> bool {
        let lies_in = |excess: Excess| (excess.from..excess.to).contains(&address);
        (*self.excess.lock()).is_some_and(lies_in)
    }
}

/// The calling thread's request is over.
pub(super) fn request_is_over() {
    OWN.set(0);
}

/// Waits, for so long at the most, until the pools of a device have back what they took
/// beyond the limit: streams have yet to get there.
pub(in crate::families) fn await_back(device: CUdevice, most: Duration) {
    const PAUSE: Duration = Duration::from_millis(1);
    let mut late: Vec<Weak<Pool>> = Vec::new();
    let awaited = pools(|on| on == device).into_iter();
    late.extend((awaited.filter(|pool| pool.is_awaited())).map(|pool| Arc::downgrade(&pool)));
    if late.is_empty() || most.is_zero() {
        return;
    }
    let mut next = Instant::now();
    let is_late = |pool: &Pool| pool.is_awaited() && !pool.is_within_limit();
    let are_back = wait_within(most, || {
        if Instant::now() >= next {
            late.retain(|pool| pool.upgrade().is_some_and(|pool| is_late(&pool)));
            next = Instant::now() + PAUSE;
        }
        late.is_empty() || capture::any()
    });
    if !are_back {
        let late = late.iter().filter_map(Weak::upgrade);
        let excess = late.filter_map(|pool| *pool.excess.lock());
        let streams: Vec<usize> = excess.map(|excess| excess.stream).collect();
        STUCK.lock().extend(streams);
    }
}

/// Makes a request, and again as long as it is served from what its pool has beyond the
/// limit, which would stay then; what it got there goes back.
pub(super) fn outside_excess(
    pool: &Pool,
    stream: CUstream,
    call: &mut dyn FnMut() -> CudaResult,
    made: &dyn Fn() -> CUdeviceptr,
) -> CudaResult {
    const MOST: usize = 32;
    let mut inside = Vec::new();
    let mut result = call();
    while result == 0 && inside.len() < MOST && pool.is_in_excess(made()) {
        inside.push(made());
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

/// Gives memory back in the order of its stream that a pool has taken beyond the
/// limit, by which it has grown.
pub(super) fn give_back(
    pool: &Pool,
    address: CUdeviceptr,
    stream: CUstream,
    (before, growth): (Bytes, Bytes),
    was_beyond: bool,
) {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let new = Excess {
        number: MADE.fetch_add(1, Ordering::Relaxed) + 1,
        stream: stream.addr(),
        before,
        from: address,
        to: address.saturating_add(growth.get()),
    };
    {
        let mut place = pool.excess.lock();
        // What a stream with nothing to do took beside that is back at once.
        let excess = place.filter(|_| was_beyond).unwrap_or(new);
        *place = Some(excess);
        OWN.set(excess.number);
    }
    free_unseen(address, stream);
    pool.is_within_limit();
}
