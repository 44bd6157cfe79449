//! The doors of arrays.

use std::ffi::c_uint;

use crate::families::arrays;
use crate::real;
use crate::types::{ArrayDescription, CUarray, CudaResult, FlatDescription};

/// Makes an array by `call`.
///
/// # Safety
/// `description` is null or can be read; `array` is null, or `call` writes a
/// handle there when it succeeds.
unsafe fn make(
    array: *mut CUarray,
    description: Option<ArrayDescription>,
    is_mipmap: bool,
    call: impl FnMut() -> CudaResult,
) -> Option<CudaResult> {
    if array.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; read after `call` has written there.
    let made = || unsafe { *array }.addr() as u64;
    Some(arrays::make(&description?, is_mipmap, call, made))
}

pub(crate) unsafe fn cuArrayCreate_v2(
    array: *mut CUarray,
    description: *const FlatDescription,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments, here and below.
    unsafe {
        let whole = description.as_ref().map(|flat| ArrayDescription {
            width: flat.width,
            height: flat.height,
            depth: 0,
            format: flat.format,
            channels: flat.channels,
            flags: 0,
        });
        make(array, whole, false, || {
            real::cuArrayCreate_v2(array, description)
        })
    }
}

pub(crate) unsafe fn cuArray3DCreate_v2(
    array: *mut CUarray,
    description: *const ArrayDescription,
) -> Option<CudaResult> {
    // SAFETY: as above.
    unsafe {
        make(array, description.as_ref().copied(), false, || {
            real::cuArray3DCreate_v2(array, description)
        })
    }
}

pub(crate) unsafe fn cuMipmappedArrayCreate(
    array: *mut CUarray,
    description: *const ArrayDescription,
    levels: c_uint,
) -> Option<CudaResult> {
    // SAFETY: as above.
    unsafe {
        make(array, description.as_ref().copied(), levels > 1, || {
            real::cuMipmappedArrayCreate(array, description, levels)
        })
    }
}

pub(crate) unsafe fn cuArrayDestroy(array: CUarray) -> Option<CudaResult> {
    // SAFETY: as above.
    let call = || unsafe { real::cuArrayDestroy(array) };
    arrays::destroy(array.addr() as u64, call)
}

pub(crate) unsafe fn cuMipmappedArrayDestroy(array: CUarray) -> Option<CudaResult> {
    // SAFETY: as above.
    let call = || unsafe { real::cuMipmappedArrayDestroy(array) };
    arrays::destroy(array.addr() as u64, call)
}
