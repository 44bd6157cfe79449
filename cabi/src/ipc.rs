//! Handles to memory for other processes.
//!
//! A handle names a whole driver allocation: for an address inside one the
//! driver gives the handle of its base, and the other process would read the
//! wrong bytes without any error. So a block of ours gets a handle only where
//! it starts a driver allocation, and a clear failure elsewhere. Cost: one
//! driver call more per handle of ours.

use core_arena::Code;
use core_arena::page_map::Owner;

use crate::guard::own_call;
use crate::symbols::real;
use crate::types::{CUdeviceptr, CUipcMemHandle, CudaResult};
use crate::{context, life};

#[allow(non_snake_case, reason = "CUDA's names")]
pub(crate) unsafe fn cuIpcGetMemHandle(
    _handle: *mut CUipcMemHandle,
    address: CUdeviceptr,
) -> Option<CudaResult> {
    if context::owner(address) == Owner::Foreign {
        return None;
    }
    let mut base: CUdeviceptr = 0;
    let mut size = 0;
    // SAFETY: places for both answers.
    let result = own_call(|| unsafe {
        real::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address)
    });
    if result != 0 || base == address {
        return None;
    }
    life::warn_once(
        life::Once::IpcInside,
        "a memory handle for another process was asked for inside a larger allocation and \
         refused; option dedicated_min gives large requests an allocation of their own",
    );
    Some(Code::INVALID_VALUE.get())
}
