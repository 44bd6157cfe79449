//! Physical memory that the program maps by itself, and its mappings.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use crate::ffi::Handle;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// The kinds of locations.
pub(crate) const ON_DEVICE: u32 = 1;
pub(crate) const ON_HOST: u32 = 2;
pub(crate) const ON_HOST_NODE: u32 = 3;
/// A part of a device; here each has one, which is the whole.
pub(crate) const IN_DEVICE: u32 = 6;

/// The kind of allocations that do not move.
pub(crate) const PINNED: u32 = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct AllocationProps {
    pub(crate) kind: u32,
    pub(crate) handles: u32,
    pub(crate) location: Location,
    pub(crate) security: u64,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// Physical memory. It is there as long as it has a reference or a mapping.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) size: u64,
    pub(crate) props: AllocationProps,
    /// The device that it lies on; `None`: on the host.
    pub(crate) device: Option<u32>,
    /// The file that has the bytes, and where they are in it.
    pub(crate) file: RawFd,
    pub(crate) offset: u64,
    /// The start of the pages of a device of this process; `None`: the file is
    /// its own, or another process's.
    pub(crate) span: Option<u64>,
    pub(crate) references: u32,
    pub(crate) mappings: u32,
}

/// A range of reserved addresses with memory behind it.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) size: u64,
    pub(crate) memory: Handle,
    /// The access of each device, as flags.
    pub(crate) access: BTreeMap<u32, u32>,
    pub(crate) host_access: u32,
}
