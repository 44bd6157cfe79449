//! The arenas of contexts, of their streams and of the host.

pub(crate) mod background;
pub(crate) mod device;
pub(crate) mod holdings;
pub(crate) mod host_memory;
pub(crate) mod lanes;
pub(crate) mod memory;
pub(crate) mod pageable;
pub(crate) mod pause;
pub(crate) mod places;
pub(crate) mod regions;
pub(crate) mod registry;
