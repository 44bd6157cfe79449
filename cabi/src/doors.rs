//! The functions by which programs come.

pub(crate) mod capture;
pub(crate) mod contexts;
pub(crate) mod dlsym;
pub(crate) mod driver_api;
pub(crate) mod green;
pub(crate) mod lifecycle;
pub(crate) mod proc_address;
pub(crate) mod runtime;
pub(crate) mod streams;
pub(crate) mod symbols;
