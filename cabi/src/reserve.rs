//! A page of driver memory that each context keeps back, to wait with while a
//! stream captures a graph.
//!
//! The only call that waits for a device and that a capture allows is the
//! driver's own free, and a free needs memory to give back. When memory is
//! short there is none to be had for it; so a page is taken before the first
//! chunk, and given back and taken again at each wait.
//!
//! Owns that page, one for each context with a pool and, from the first
//! capture on, for every other context too. It is in no books, no quota and no
//! statistics: the program never had it. It goes with its context. Invariant:
//! one thread at a time has it, and puts back what there is of it, whatever
//! happens. Cost: 2 MiB for each such context; one driver call when it is
//! taken, three at each wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

use core_arena::driver::PAGE;
use core_arena::{Address, Bytes, Code};
use spin::mutex::SpinMutex;
use spin::relax::Yield;

use crate::marker::Marker;
use crate::symbols::real;
use crate::types::CUdeviceptr;

/// Less than a page: the driver may have room for it where it has no page.
const LITTLE: Bytes = Bytes::new(512);

/// Whether the process has a pool, so that waits may be needed.
// Relaxed: it stands for itself.
static POOLED: AtomicBool = AtomicBool::new(false);

/// What is kept back.
#[derive(Copy, Clone, PartialEq, Eq)]
enum State {
    Nothing,
    Memory(Address),
    /// It is in the hands of a thread.
    TakenOut,
}

/// The memory that a context keeps back.
pub(crate) struct Reserve(SpinMutex<State, Yield>);

impl Reserve {
    pub(crate) const fn new() -> Reserve {
        Reserve(SpinMutex::new(State::Nothing))
    }

    /// Takes out what there is, for as long as the result lives; waits while
    /// another thread has it.
    fn take_out(&self) -> Held<'_> {
        loop {
            let before = std::mem::replace(&mut *self.0.lock(), State::TakenOut);
            let memory = match before {
                State::Nothing => None,
                State::Memory(address) => Some(address),
                State::TakenOut => {
                    yield_now();
                    continue;
                }
            };
            return Held {
                reserve: self,
                memory,
            };
        }
    }
}

/// The memory in the hands of one thread.
struct Held<'a> {
    reserve: &'a Reserve,
    memory: Option<Address>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.reserve.0.lock() = self.memory.map_or(State::Nothing, State::Memory);
    }
}

/// Memory of the marker's context.
pub(crate) fn alloc(marker: &Marker, size: Bytes) -> Result<Address, Code> {
    let size = usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)?;
    let mut address: CUdeviceptr = 0;
    // SAFETY: a place for the answer.
    marker.call(|| unsafe { real::cuMemAlloc_v2(&raw mut address, size) })?;
    Ok(Address::new(address))
}

/// Gives it back.
pub(crate) fn free(marker: &Marker, address: Address) -> Result<(), Code> {
    // SAFETY: a number that the driver checks.
    marker.call(|| unsafe { real::cuMemFree_v2(address.get()) })
}

fn any(marker: &Marker) -> Result<Address, Code> {
    match alloc(marker, PAGE) {
        Err(Code::OUT_OF_MEMORY) => alloc(marker, LITTLE),
        taken => taken,
    }
}

/// A pool is going to be made in the marker's context.
pub(crate) fn prepare_pool(marker: &Marker) {
    POOLED.store(true, Ordering::Relaxed);
    keep_back(marker);
}

/// A capture is going to begin, and contexts without a reserve may need one.
pub(crate) fn prepare_capture(contexts: impl FnOnce() -> Vec<Arc<Marker>>) {
    if POOLED.load(Ordering::Relaxed) {
        contexts().iter().for_each(|marker| keep_back(marker));
    }
}

fn keep_back(marker: &Marker) {
    let reserve = marker.reserve();
    if *reserve.0.lock() != State::Nothing {
        return;
    }
    let mut held = reserve.take_out();
    if held.memory.is_none() {
        // Without it a wait tries again.
        held.memory = any(marker).ok();
    }
}

/// Waits for the marker's context by the driver's own free.
pub(crate) fn settle(marker: &Marker) -> Result<(), Code> {
    let mut held = marker.reserve().take_out();
    match alloc(marker, PAGE) {
        Ok(page) => return free(marker, page),
        Err(Code::OUT_OF_MEMORY) => {}
        Err(code) => return Err(code),
    }
    let Some(kept) = held.memory.take() else {
        return free(marker, alloc(marker, LITTLE)?);
    };
    free(marker, kept)?;
    held.memory = any(marker).ok();
    Ok(())
}
