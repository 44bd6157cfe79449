//! Memory that the driver has back only when streams get to its free, below a limit: pools
//! that are destroyed and whose last memory is freed, and allocations of the driver's for
//! one block that are freed in the order of a stream.
//!
//! Owns what counts for them still. Invariant: nothing counts no longer before all work is
//! done that may come before its free, or is known to run no more, but for what has no mark
//! of its own where a driver marks no work of all streams; no driver call is made under the
//! lock, and none waits. Cost: an event for each, or where [`MOST`] of them stand unreached a
//! fence for all the others, made when somebody looks; a question each for who looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spin::mutex::SpinMutex;
use vramalloc_core::families::LastRead;
use vramalloc_core::patience::{Brief, wait_within};
use vramalloc_core::{Bytes, Code};

use super::{async_pools, relief};
use crate::driver::capture::{self, this_thread};
use crate::driver::context::Context;
use crate::driver::contexts;
use crate::driver::devices::{self, Device};
use crate::driver::fence::{Fence, runs_nothing};
use crate::process::ending;
use crate::types::{CUdevice, CUstream};

/// How many have events of their own: a stream's queue is bounded.
const MOST: usize = 32;

/// What counts of a device.
enum Counted {
    /// What a pool had reserved.
    Pool(LastRead),
    Block(Bytes),
}

struct Departed {
    number: usize,
    device: &'static Device,
    counted: Counted,
    /// Where a fence over all work is made.
    context: Arc<Context>,
    /// After all work that may come before the free; none where they have yet to be made.
    fences: Option<Vec<Fence>>,
    /// The threads that waited for it in vain: not again, as what comes before it may go on
    /// for ever.
    in_vain: Vec<usize>,
}

static DEPARTED: SpinMutex<Vec<Departed>, Brief> = SpinMutex::new(Vec::new());
/// How many there are, with those that a thread looks at; how many there were; and how many
/// are over. Relaxed: whoever waits reads them again.
static LEFT: AtomicUsize = AtomicUsize::new(0);
static CAME: AtomicUsize = AtomicUsize::new(0);
static OVER: AtomicUsize = AtomicUsize::new(0);

impl Counted {
    fn count_no_more(&self, device: &Device) {
        match self {
            Counted::Pool(reserved) => async_pools::count_nothing(device, reserved),
            Counted::Block(bytes) => device.quota.put_back(*bytes),
        }
        device.quota.landed();
    }
}

impl Departed {
    /// Whether the device is done with it, as far as that can be found out now.
    fn is_over(&mut self) -> bool {
        capture::outside(|| self.is_reached()) == Some(Ok(true))
    }

    fn is_reached(&mut self) -> Result<bool, Code> {
        let has_ended = self.context.has_ended();
        let made = match self.fences.take() {
            Some(fences) => Ok(fences),
            None => Fence::of_all_at_once(&self.context).map(|fence| vec![fence]),
        };
        let fences = match made {
            // A driver that marks no work of all streams is not waited for.
            Err(Code::NOT_SUPPORTED) => return Ok(true),
            Err(code) if has_ended || runs_nothing(code) => return Ok(true),
            made => made?,
        };
        for fence in &fences {
            match fence.is_reached() {
                Ok(true) => {}
                Err(code) if runs_nothing(code) => {}
                Ok(false) => {
                    self.fences = Some(fences);
                    return Ok(false);
                }
                // A mark that became part of a capture, say, marks nothing.
                Err(code) => return Err(code),
            }
        }
        Ok(true)
    }
}

/// A pool is gone, with nothing of it in use. What it had counts, if there is a limit, until
/// the streams have got to `frees`, or where these are not all known until the device is
/// done with what it was given so far.
pub(super) fn pool(device: &'static Device, reserved: LastRead, frees: Option<Vec<Fence>>) {
    let is_counted = device.quota.limit().is_some() && !reserved.bytes().is_zero();
    let counted = Counted::Pool(reserved);
    match contexts::current().filter(|_| is_counted) {
        Some(context) => depart(device, counted, context, || frees),
        None => counted.count_no_more(device),
    }
}

/// A block of this context was freed in the order of a stream, and counts for so many bytes
/// until that gets there.
pub(crate) fn block(handle: CUdevice, bytes: Bytes, context: &Arc<Context>, stream: CUstream) {
    let device = devices::device(handle);
    if bytes.is_zero() || device.quota.limit().is_none() {
        device.quota.put_back(bytes);
        return;
    }
    relief::join();
    let mark = || Some(vec![async_pools::mark_on(stream)?]);
    depart(device, Counted::Block(bytes), Arc::clone(context), mark);
}

fn depart(
    device: &'static Device,
    counted: Counted,
    context: Arc<Context>,
    mark: impl FnOnce() -> Option<Vec<Fence>>,
) {
    let are_few = DEPARTED.lock().len() < MOST;
    let mut departed = Departed {
        number: CAME.fetch_add(1, Ordering::Relaxed),
        device,
        counted,
        context,
        fences: are_few.then(mark).flatten(),
        in_vain: Vec::new(),
    };
    if departed.fences.is_some() && departed.is_over() {
        departed.counted.count_no_more(device);
        return;
    }
    let mut all = DEPARTED.lock();
    // They get one fence.
    if let Some(last) = all.last_mut()
        && last.fences.is_none()
        && departed.fences.is_none()
        && last.in_vain.is_empty()
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
        if departed.is_over() {
            departed.counted.count_no_more(departed.device);
            LEFT.fetch_sub(1, Ordering::Relaxed);
            OVER.fetch_add(1, Ordering::Relaxed);
        } else {
            DEPARTED.lock().push(departed);
        }
    }
}

/// Waits, for so long at the most, until something of what is left counts no longer, if
/// there is some of this device. Returns whether it does.
pub(super) fn await_some(device: CUdevice, most: Duration) -> bool {
    let (before, newest) = (OVER.load(Ordering::Relaxed), CAME.load(Ordering::Relaxed));
    let thread = this_thread();
    let of_device = |its: &Departed| its.device.handle == device && !its.in_vain.contains(&thread);
    let are_awaited = || {
        let all = DEPARTED.lock();
        // Another thread looks at some.
        all.len() < LEFT.load(Ordering::Relaxed) || all.iter().any(of_device)
    };
    let has_come = || OVER.load(Ordering::Relaxed) != before;
    if !are_awaited() {
        return false;
    }
    let is_over = wait_within(most, || {
        ending::let_it_end();
        look();
        has_come() || !are_awaited() || capture::any()
    });
    if !is_over {
        let mut all = DEPARTED.lock();
        let awaited = all.iter_mut().filter(|its| of_device(its));
        for departed in awaited.filter(|its| its.number < newest) {
            departed.in_vain.push(thread);
        }
    }
    has_come()
}
