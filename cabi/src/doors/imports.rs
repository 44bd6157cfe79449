//! The door by which memory of other interfaces comes in.

use std::ffi::c_void;

use vramalloc_core::Bytes;

use crate::families::{imports, relief};
use crate::real;
use crate::types::{CudaResult, ExternalMemory};

pub(crate) unsafe fn cuImportExternalMemory(
    memory: *mut *mut c_void,
    description: *const ExternalMemory,
) -> Option<CudaResult> {
    // SAFETY: the caller's own arguments.
    let mut call = || unsafe { real::cuImportExternalMemory(memory, description) };
    let result = relief::with_room(None, &mut call);
    if result == 0 {
        // SAFETY: the real function has read it.
        let size = unsafe { (*description).size };
        imports::note(imports::Way::External, Bytes::new(size));
    }
    Some(result)
}
