//! The exported functions of CUDA, which programs call.

pub(crate) mod capture;
pub(crate) mod contexts;
pub(crate) mod dlsym;
pub(crate) mod green;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod lifecycle;
pub(crate) mod memory;
pub(crate) mod proc_address;
pub(crate) mod ranges;
pub(crate) mod runtime;
pub(crate) mod streams;
pub(crate) mod table;
