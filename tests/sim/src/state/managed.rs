//! Managed memory: which pages lie where, and what was advised about them.

use std::collections::BTreeSet;

use crate::state::Location;

/// The numbers that stand for the host, and for no device.
pub(crate) const CPU: i32 = -1;
pub(crate) const NO_DEVICE: i32 = -2;

/// One page of a device's size.
#[derive(Clone, Default, Debug)]
pub(crate) struct ManagedPage {
    /// The device on which it lies; `None`: on the host.
    pub(crate) resident: Option<u32>,
    pub(crate) read_mostly: bool,
    pub(crate) preferred: Option<Location>,
    /// The devices that are to have it mapped; [`CPU`] for the host.
    pub(crate) accessed_by: BTreeSet<i32>,
    /// Where it was prefetched to last.
    pub(crate) prefetched: Option<Location>,
}

#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) pages: Vec<ManagedPage>,
    /// Whether a device's work has touched it.
    pub(crate) is_touched: bool,
}
