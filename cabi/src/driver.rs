//! Contexts of the driver, and marks in their work.

pub(crate) mod capture;
pub(crate) mod fence;
pub(crate) mod green;
pub(crate) mod marker;
pub(crate) mod peers;
pub(crate) mod real_driver;
pub(crate) mod reserve;
pub(crate) mod streams;
