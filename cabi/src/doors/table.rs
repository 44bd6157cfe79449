//! The table of the doors.
//!
//! The exported doors, the names that `dlsym` swaps and the addresses that
//! `cuGetProcAddress` swaps are made from the list of intercepted symbols
//! (`real/intercepted.rs`). To intercept one more symbol, add its line there,
//! in alphabetical order, and a function of its name to the module that the
//! line names. That function returns `Some(result)`, or `None` to have the real
//! function called with the same arguments.
//!
//! Invariant: sorted by name (tested), each name the exact ABI name. Cost: a
//! binary search per look-up; no lock, no allocation.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::doors::{
    arrays, async_pools, capture, contexts, devices, graphs, green, host, imports, ipc, lifecycle,
    managed, memory, proc_address, ranges, room, runtime, shortcut, streams, virtual_memory,
};
use crate::linker::resolve::Library;
use crate::owners;
use crate::process::cancel;
use crate::process::guard::{self, Entry};
use crate::real::{self, intercepted, passed};
use crate::types::{
    ArrayDescription, CUarray, CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphExec,
    CUgraphNode, CUipcMemHandle, CUmemoryPool, CUstream, CaptureMode, CudaResult, ExternalMemory,
    FlatDescription, MemHandle, MemNode, MemProperties, NodeParameters, Text,
};

/// The address of a door.
#[derive(Copy, Clone)]
pub(crate) struct Door(*const ());

// SAFETY: the address of a function; nothing is read or written through it.
unsafe impl Sync for Door {}

impl Door {
    /// The address as a number.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }
}

/// One intercepted symbol.
pub(crate) struct Symbol {
    /// The exact ABI name.
    pub(crate) name: &'static str,
    /// Which library it belongs to.
    pub(crate) library: Library,
    /// The CUDA version at which `cuGetProcAddress` gives this ABI; 0: never.
    pub(crate) since: c_int,
    /// Our function.
    pub(crate) door: Door,
}

/// The shortcut of a door, if it has one. Inside `unsafe`.
macro_rules! shortcut {
    (cuMemAlloc_v2($($argument:ident),*)) => { shortcut::cuMemAlloc_v2($($argument),*) };
    (cuMemFree_v2($($argument:ident),*)) => { shortcut::cuMemFree_v2($($argument),*) };
    (cudaFree($($argument:ident),*)) => { shortcut::cudaFree($($argument),*) };
    (cudaMalloc($($argument:ident),*)) => { shortcut::cudaMalloc($($argument),*) };
    ($other:ident($($argument:ident),*)) => { None };
}

/// The exported function of a door: the shortcut where there is one, or all the
/// rest. Where a door takes memory, its return address is passed on in the register
/// after those of its arguments, which says which library asks.
macro_rules! export {
    (cuArray3DCreate_v2($($rest:tt)*)) => { export! { @takes "rdx" cuArray3DCreate_v2($($rest)*) } };
    (cuArrayCreate_v2($($rest:tt)*)) => { export! { @takes "rdx" cuArrayCreate_v2($($rest)*) } };
    (cuMemAllocManaged($($rest:tt)*)) => { export! { @takes "rcx" cuMemAllocManaged($($rest)*) } };
    (cuMemAllocPitch_v2($($rest:tt)*)) => { export! { @takes "r9" cuMemAllocPitch_v2($($rest)*) } };
    (cuMemAlloc_v2($($rest:tt)*)) => { export! { @takes "rdx" cuMemAlloc_v2($($rest)*) } };
    (cuMemCreate($($rest:tt)*)) => { export! { @takes "r8" cuMemCreate($($rest)*) } };
    (cuMipmappedArrayCreate($($rest:tt)*)) => {
        export! { @takes "rcx" cuMipmappedArrayCreate($($rest)*) }
    };
    (cudaMalloc($($rest:tt)*)) => { export! { @takes "rdx" cudaMalloc($($rest)*) } };
    (@takes $register:literal $name:ident($($argument:ident: $type:ty),*)) => {
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> CudaResult {
            // The frame is as at any function's first instruction, which who walks the
            // stack from here is told.
            std::arch::naked_asm!(
                ".cfi_startproc",
                concat!("mov ", $register, ", [rsp]"),
                "jmp {called}",
                ".cfi_endproc",
                called = sym $name::called,
            )
        }

        #[cfg(not(target_arch = "x86_64"))]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> CudaResult {
            // SAFETY: the caller's promises.
            unsafe { $name::called($($argument,)* 0) }
        }

        mod $name {
            use super::*;

            /// The door itself. The call returns to the address `call`.
            pub(super) unsafe extern "C" fn called(
                $($argument: $type,)* call: usize,
            ) -> CudaResult {
                // SAFETY: the caller's promises about the arguments are handed on;
                // they are CUDA's own for this name.
                unsafe {
                    match shortcut!($name($($argument,)* call)) {
                        Some(result) => result,
                        None => {
                            owners::came_from(call);
                            guarded::$name($($argument),*)
                        }
                    }
                }
            }
        }
    };
    ($name:ident($($argument:ident: $type:ty),*)) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> CudaResult {
            // SAFETY: the caller's promises about the arguments are handed on; they
            // are CUDA's own for this name.
            unsafe {
                match shortcut!($name($($argument),*)) {
                    Some(result) => result,
                    None => guarded::$name($($argument),*),
                }
            }
        }
    };
}

macro_rules! doors {
    ($(
        $library:ident $entry:ident $module:ident $since:literal
        $name:ident($($argument:ident: $type:ty),* $(,)?);
    )*) => {
        /// The exported functions: the shortcut where there is one, or all the rest.
        #[allow(non_snake_case, reason = "CUDA's names")]
        mod exported {
            use super::*;
            $(export! { $name($($argument: $type),*) })*
        }

        /// What they do else: a guard, a call, a conversion.
        #[allow(non_snake_case, reason = "CUDA's names")]
        mod guarded {
            use super::*;
            $(
                #[inline(never)]
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> CudaResult {
                    guard::enter(Entry::$entry, &passed::$name, || {
                        // SAFETY: the caller's promises about the arguments
                        // are handed on; they are CUDA's own for this name.
                        unsafe { $module::$name($($argument),*) }
                    })
                    .unwrap_or_else(|| {
                        let _held = cancel::Held::back();
                        // SAFETY: as above.
                        unsafe { real::$name($($argument),*) }
                    })
                }
            )*
        }

        /// All doors, sorted by name.
        pub(crate) static TABLE: &[Symbol] = &[$(
            Symbol {
                name: stringify!($name),
                library: Library::$library,
                since: $since,
                door: Door(exported::$name as *const ()),
            },
        )*];
    };
}

intercepted! { doors }

/// The driver symbol of this name, if we intercept it.
pub(crate) fn driver_symbol(name: &[u8]) -> Option<&'static Symbol> {
    let index = TABLE
        .binary_search_by(|symbol| symbol.name.as_bytes().cmp(name))
        .ok()?;
    TABLE
        .get(index)
        .filter(|symbol| symbol.library == Library::Driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        for pair in TABLE.windows(2) {
            assert!(
                pair[0].name < pair[1].name,
                "{} before {}",
                pair[0].name,
                pair[1].name
            );
        }
    }

    #[test]
    fn each_driver_name_is_found_and_no_other() {
        for symbol in TABLE {
            let found = driver_symbol(symbol.name.as_bytes());
            assert_eq!(found.is_some(), symbol.library == Library::Driver);
        }
        for other in [
            "cu",
            "cuMemAlloc",
            "cuMemAlloc_v",
            "cuMemAlloc_v22",
            "cuInit",
            "",
        ] {
            assert!(driver_symbol(other.as_bytes()).is_none(), "{other}");
        }
    }
}
