//! `trait Driver` over the real libcuda, for one context.
//!
//! Owns nothing but its [`Marker`]. Invariant: a fence covers the context and
//! every other that was given access to its memory ([`peers`]): all who can
//! still be using a block. Cost: a mark for each of them per fence.

use std::sync::Arc;

use core_arena::{Address, Bytes, Code, Driver, MemInfo};

use crate::marker::{Mark, Marker};
use crate::symbols::real;
use crate::types::{CUcontext, CUdeviceptr, CudaResult};
use crate::{capture, peers};

/// One context of the real driver.
pub(crate) struct RealDriver {
    own: Arc<Marker>,
}

/// Marks in the work of all contexts that can use a context's memory; those
/// that were waited for when the fence was made have none.
#[derive(Clone)]
pub(crate) struct Fence(Arc<[Mark]>);

impl RealDriver {
    pub(crate) fn new(context: CUcontext) -> RealDriver {
        RealDriver {
            own: Marker::new(context),
        }
    }

    fn call(&self, call: impl FnOnce() -> CudaResult) -> Result<(), Code> {
        self.own.call(call)
    }

    fn make_fence(&self) -> Result<Fence, Code> {
        let mut marks = Vec::new();
        marks.extend(self.own.mark()?);
        for peer in peers::of(self.own.context()) {
            marks.extend(peer.mark()?);
        }
        Ok(Fence(marks.into()))
    }
}

impl Driver for RealDriver {
    type Fence = Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let size = usize::try_from(size.get()).map_err(|_| Code::OUT_OF_MEMORY)?;
        let mut address: CUdeviceptr = 0;
        // SAFETY: a place for the answer.
        self.call(|| unsafe { real::cuMemAlloc_v2(&raw mut address, size) })?;
        Ok(Address::new(address))
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        // SAFETY: a number that the driver checks.
        self.call(|| unsafe { real::cuMemFree_v2(address.get()) })
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
        fence.0.iter().try_for_each(Mark::wait)
    }
}
