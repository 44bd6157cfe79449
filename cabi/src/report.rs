//! What is reported of the process.

pub(crate) mod control;
pub(crate) mod dump;
pub(crate) mod marks;
pub(crate) mod orders;
pub(crate) mod snapshots;
