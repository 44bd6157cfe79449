//! Memory that the driver has back only when streams get to its free, below a limit: pools
//! that are destroyed and whose last memory is freed, and allocations of the driver's for
//! one block that are freed in the order of a stream.
//!
//! Owns what counts for them still. Invariant: no driver call is made under the lock. Cost:
//! an event for each, or where [`MOST`] of them stand unreached a fence for all the others,
//! made when somebody looks; a question each for who looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spin::mutex::SpinMutex;
use vramalloc_core::Bytes;
use vramalloc_core::families::LastRead;
use vramalloc_core::patience::{Brief, wait_within};

use super::relief;
use crate::driver::context::Context;
use crate::driver::devices::{self, Device};
use crate::driver::fence::Fence;
use crate::driver::{capture, contexts};
use crate::process::ending;
use crate::types::{CUdevice, CUstream};

/// How many have an event of their own: a stream's queue is bounded.
const MOST: usize = 32;

/// What counts of a device.
enum Counted {
    /// What a pool had reserved.
    Pool(LastRead),
    Block(Bytes),
}

struct Departed {
    device: &'static Device,
    counted: Counted,
    /// Where the fence is made.
    context: Arc<Context>,
    /// After all work that may come before the free; none where they have yet to be made.
    fences: Option<Vec<Fence>>,
    /// It was waited for in vain: not again, as what comes before it may go on for ever.
    is_stuck: bool,
}

static DEPARTED: SpinMutex<Vec<Departed>, Brief> = SpinMutex::new(Vec::new());
/// How many there are, with those that a thread looks at, and how many there were. Relaxed:
/// whoever waits reads them again.
static LEFT: AtomicUsize = AtomicUsize::new(0);
static OVER: AtomicUsize = AtomicUsize::new(0);

impl Counted {
    fn count_no_more(&self, device: &Device) {
        match self {
            Counted::Pool(reserved) => super::async_pools::count_nothing(device, reserved),
            Counted::Block(bytes) => device.quota.put_back(*bytes),
        }
    }
}

impl Departed {
    /// Whether the device is done with it, as far as that can be found out now.
    fn is_reached(&mut self) -> bool {
        let is_reached = || {
            if self.fences.is_none() {
                self.fences = of_all(&self.context);
            }
            // Of what says no more, nothing counts.
            let mut fences = self.fences.iter().flatten();
            fences.all(|fence| fence.is_reached() != Ok(false))
        };
        capture::outside(is_reached) == Some(true)
    }
}

fn of_all(context: &Arc<Context>) -> Option<Vec<Fence>> {
    Some(vec![Fence::of_all(context).ok()?])
}

/// A pool is gone, with nothing of it in use. What it had counts, if there is a limit, until
/// the device is done with what it was given so far, or with `frees` where all that may come
/// before these is known.
pub(super) fn pool(
    device: &'static Device,
    reserved: LastRead,
    frees: impl FnOnce() -> Option<Vec<Fence>>,
) {
    let is_counted = device.quota.limit().is_some() && !reserved.bytes().is_zero();
    let counted = Counted::Pool(reserved);
    match contexts::current().filter(|_| is_counted) {
        Some(context) => depart(device, counted, context, |context| {
            frees().or_else(|| of_all(context))
        }),
        None => counted.count_no_more(device),
    }
}

/// A block was freed in the order of a stream of this context, and counts for so many bytes
/// until that gets there.
pub(crate) fn block(handle: CUdevice, bytes: Bytes, context: &Arc<Context>, stream: CUstream) {
    let device = devices::device(handle);
    if bytes.is_zero() || device.quota.limit().is_none() {
        device.quota.put_back(bytes);
        return;
    }
    relief::join();
    let mark = |context: &Arc<Context>| Some(vec![Fence::of_stream(context, stream).ok()?]);
    depart(device, Counted::Block(bytes), Arc::clone(context), mark);
}

fn depart(
    device: &'static Device,
    counted: Counted,
    context: Arc<Context>,
    mark: impl FnOnce(&Arc<Context>) -> Option<Vec<Fence>>,
) {
    let are_few = DEPARTED.lock().len() < MOST;
    let fences = are_few.then(|| capture::outside(|| mark(&context)).flatten());
    let mut departed = Departed {
        device,
        counted,
        context,
        fences: fences.flatten(),
        is_stuck: false,
    };
    if departed.fences.is_some() && departed.is_reached() {
        departed.counted.count_no_more(device);
        return;
    }
    let mut all = DEPARTED.lock();
    // They get one fence.
    if let Some(last) = all.last_mut()
        && last.fences.is_none()
        && departed.fences.is_none()
        && Arc::ptr_eq(&last.context, &departed.context)
        && let (Counted::Block(sum), Counted::Block(bytes)) = (&mut last.counted, &departed.counted)
    {
        *sum = sum.saturating_add(*bytes);
        return;
    }
    LEFT.fetch_add(1, Ordering::Relaxed);
    all.push(departed);
}

pub(super) fn any() -> bool {
    LEFT.load(Ordering::Relaxed) > 0
}

/// Counts no longer what devices are done with.
pub(super) fn look() {
    let all = std::mem::take(&mut *DEPARTED.lock());
    for mut departed in all {
        if departed.is_reached() {
            departed.counted.count_no_more(departed.device);
            LEFT.fetch_sub(1, Ordering::Relaxed);
            OVER.fetch_add(1, Ordering::Relaxed);
        } else {
            DEPARTED.lock().push(departed);
        }
    }
}

/// Waits, for so long at the most, until something of what is left counts no longer, if
/// there is some of this device.
pub(super) fn await_some(device: CUdevice, most: Duration) {
    let is_awaited = |its: &Departed| its.device.handle == device && !its.is_stuck;
    let are_awaited = || {
        let all = DEPARTED.lock();
        // Another thread looks at some.
        all.len() < LEFT.load(Ordering::Relaxed) || all.iter().any(is_awaited)
    };
    let before = OVER.load(Ordering::Relaxed);
    if most.is_zero() || !are_awaited() {
        return;
    }
    let is_over = wait_within(most, || {
        ending::let_it_end();
        look();
        OVER.load(Ordering::Relaxed) != before || !are_awaited() || capture::any()
    });
    if !is_over {
        let mut all = DEPARTED.lock();
        let of_device = all.iter_mut().filter(|its| its.device.handle == device);
        of_device.for_each(|its| its.is_stuck = true);
    }
}
