//! Contexts of the driver, and events in their work.

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod contexts;
pub(crate) mod devices;
pub(crate) mod fence;
pub(crate) mod green;
pub(crate) mod in_step;
pub(crate) mod leavings;
pub(crate) mod mapping;
pub(crate) mod own_stream;
pub(crate) mod partition;
pub(crate) mod primary;
pub(crate) mod real_driver;
pub(crate) mod reserve;
pub(crate) mod reserved;
pub(crate) mod streams;
pub(crate) mod users;
pub(crate) mod whose;
