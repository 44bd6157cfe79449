//! Managed memory: `cuMemAllocManaged`.
//!
//! The driver moves it between the host and the devices as it is touched, and
//! lets a program have more of it than a device has. It counts in whole on the
//! device that was current when it was made, where the program expects it to
//! be; `managed:uncounted` leaves all of it out. Cost: see
//! [`owned`](super::owned).

use vramalloc_core::Bytes;
use vramalloc_core::stats::Family;

use super::{PAGE, current_device, owned};
use crate::process;
use crate::process::guard::own_call;
use crate::types::{CUdeviceptr, CudaResult};

const HALF: Bytes = Bytes::mib(1);

/// Makes the call of a request; its answer is at `made`.
pub(crate) fn allocate(
    size: usize,
    call: impl FnMut() -> CudaResult,
    made: impl FnOnce() -> CUdeviceptr,
) -> CudaResult {
    let is_counted = process::options(|loaded| loaded.settings.families.managed);
    let device = if is_counted { current_device() } else { None };
    let size = Bytes::new(size as u64);
    // From half a page on it takes whole ones; less shares them.
    let pages = || size.round_up(PAGE).unwrap_or(Bytes::MAX);
    let size = if size < HALF { size } else { pages() };
    match device {
        Some(device) => owned::make(device, Family::Managed, size, call, made),
        None => own_call(call),
    }
}
