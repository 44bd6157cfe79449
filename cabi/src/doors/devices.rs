//! The doors that ask about a device.

use crate::driver::devices;
use crate::families::graphs;
use crate::process::guard::own_call;
use crate::real;
use crate::types::{CUdevice, CudaResult};

pub(crate) unsafe fn cuDeviceTotalMem_v2(
    bytes: *mut usize,
    device: CUdevice,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments, here and below.
    let result = own_call(|| unsafe { real::cuDeviceTotalMem_v2(bytes, device) });
    if result == 0 {
        // SAFETY: the real function has just written there.
        unsafe { *bytes = within_limit(*bytes, device) };
    }
    Some(result)
}

/// The first interface, with 32-bit sizes.
pub(crate) unsafe fn cuDeviceTotalMem(bytes: *mut u32, device: CUdevice) -> Option<CudaResult> {
    // SAFETY: as above.
    let result = own_call(|| unsafe { real::cuDeviceTotalMem(bytes, device) });
    if result == 0 {
        // SAFETY: as above.
        unsafe { *bytes = within_limit(*bytes, device) };
    }
    Some(result)
}

/// A device is no larger than its limit.
fn within_limit<T: Copy + Ord + TryFrom<u64>>(bytes: T, device: CUdevice) -> T {
    let limit = devices::limit_for(device).and_then(|limit| T::try_from(limit.get()).ok());
    limit.map_or(bytes, |limit| bytes.min(limit))
}

pub(crate) unsafe fn cuDeviceGraphMemTrim(device: CUdevice) -> Option<CudaResult> {
    // SAFETY: as above.
    graphs::run(|| unsafe { real::cuDeviceGraphMemTrim(device) })
}
