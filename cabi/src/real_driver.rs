//! `trait Driver` over the real libcuda, for one context.
//!
//! Owns nothing. Invariant: a fence covers every context of the process
//! ([`peers`]): all who can still be using a block. Cost: a mark for each of
//! them per fence.

use std::sync::Arc;

use core_arena::driver::PAGE;
use core_arena::{Address, Bytes, Code, Driver, MemInfo};

use crate::marker::{Mark, Marker};
use crate::symbols::real;
use crate::types::{CUdeviceptr, CudaResult};
use crate::{capture, peers, streams};

/// Less than a page: the driver may have room for it where it has no page.
const LITTLE: Bytes = Bytes::new(512);

/// One context of the real driver.
pub(crate) struct RealDriver {
    own: Arc<Marker>,
}

/// Marks in the work of all contexts that can be using a context's memory;
/// those that were waited for when the fence was made have none.
#[derive(Clone)]
pub(crate) struct Fence(Arc<[Arc<Mark>]>);

impl RealDriver {
    /// The driver in the context of the marker.
    pub(crate) fn new(own: Arc<Marker>) -> RealDriver {
        RealDriver { own }
    }

    /// Makes calls in the context.
    pub(crate) fn marker(&self) -> &Arc<Marker> {
        &self.own
    }

    fn call(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        self.own.call(call)
    }

    fn make_fence(&self) -> Result<Fence, Code> {
        let mut marks = streams::mark(&self.own)?;
        for other in peers::others_than(self.own.context()) {
            match streams::mark(&other) {
                Ok(more) => marks.extend(more),
                Err(code) if runs_nothing(code) => {}
                Err(code) => return Err(code),
            }
        }
        Ok(Fence(marks.into()))
    }
}

/// Whether a context that answers so has no work any more: it is gone, or an
/// error that lasts has ended all of it.
fn runs_nothing(code: Code) -> bool {
    matches!(
        code.get(),
        4 | 201 | 214 | 700 | 702 | 709 | 710 | 714..=719
    )
}

/// Memory of the marker's context.
fn alloc(marker: &Marker, size: Bytes) -> Result<Address, Code> {
    let size = usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)?;
    let mut address: CUdeviceptr = 0;
    // SAFETY: a place for the answer.
    marker.call(|| unsafe { real::cuMemAlloc_v2(&raw mut address, size) })?;
    Ok(Address::new(address))
}

fn free(marker: &Marker, address: Address) -> Result<(), Code> {
    // SAFETY: a number that the driver checks.
    marker.call(|| unsafe { real::cuMemFree_v2(address.get()) })
}

/// Waits for a context by the driver's own free.
fn settle(marker: &Marker) -> Result<(), Code> {
    let taken = match alloc(marker, PAGE) {
        Err(Code::OUT_OF_MEMORY) => alloc(marker, LITTLE),
        taken => taken,
    };
    free(marker, taken?)
}

impl Driver for RealDriver {
    type Fence = Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        alloc(&self.own, size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        free(&self.own, address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: places for both answers.
        self.call(|| unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(MemInfo {
            free: Bytes::new(free as u64),
            total: Bytes::new(total as u64),
        })
    }

    fn may_fence(&self) -> bool {
        !capture::any()
    }

    fn fence(&self) -> Result<Fence, Code> {
        capture::outside(|| self.make_fence()).unwrap_or(Err(Code::CAPTURE_UNSUPPORTED))
    }

    fn reached(&self, fence: &Fence) -> Result<bool, Code> {
        for mark in fence.0.iter() {
            if !mark.reached()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn wait(&self, fence: &Fence) -> Result<(), Code> {
        fence.0.iter().try_for_each(|mark| mark.wait())
    }

    fn settle(&self) -> Result<(), Code> {
        settle(&self.own)?;
        for other in peers::others_than(self.own.context()) {
            match settle(&other) {
                Err(code) if !runs_nothing(code) => return Err(code),
                _ => {}
            }
        }
        Ok(())
    }
}
