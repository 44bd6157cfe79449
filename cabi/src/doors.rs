//! The exported functions of CUDA, which programs call.

/// Doors that leave their call to a function of the module, by its name: it is given what
/// stands in brackets, and the call of the real function with the program's arguments.
macro_rules! doors {
    ($($by:ident($($given:expr),*) $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            pub(crate) unsafe fn $name($($argument: $type),*) -> Option<CudaResult> {
                // SAFETY: the caller's own arguments.
                unsafe { $by($($given,)* || real::$name($($argument),*)) }
            }
        )*
    };
}

pub(crate) mod arrays;
pub(crate) mod async_pools;
pub(crate) mod capture;
pub(crate) mod contexts;
pub(crate) mod devices;
pub(crate) mod dlsym;
pub(crate) mod graphs;
pub(crate) mod green;
pub(crate) mod host;
pub(crate) mod imports;
pub(crate) mod ipc;
pub(crate) mod lifecycle;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod nvml;
pub(crate) mod proc_address;
pub(crate) mod ranges;
pub(crate) mod room;
pub(crate) mod runtime;
pub(crate) mod shortcut;
pub(crate) mod streams;
pub(crate) mod table;
pub(crate) mod virtual_memory;
