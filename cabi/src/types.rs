//! CUDA's type names, from one place.
//!
//! `cuda-driver-sys` dates from CUDA 10.2. Its functions must never be called
//! from here: they would bind to our own exports and recurse. Its result type
//! is not used either: it is a Rust enum, for which an unknown code is
//! undefined behaviour, so results are plain integers here. Its pointer and
//! integer types are stable ABI; their sizes are asserted below.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) use cuda_driver_sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUipcMemHandle, CUstream,
};

/// What a driver or runtime function returns; 0 is success.
pub(crate) type CudaResult = u32;

/// `CUstreamCaptureMode` and `CUstreamCaptureStatus`: integers, so that values
/// newer than this project stay harmless.
pub(crate) type CaptureMode = c_int;
pub(crate) type CaptureStatus = c_int;

/// The mode in which a thread's calls disturb no capture.
pub(crate) const CAPTURE_MODE_RELAXED: CaptureMode = 2;
/// The stream captures nothing.
pub(crate) const CAPTURE_STATUS_NONE: CaptureStatus = 0;
/// An event without a time stamp: cheaper to record.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// Ask `cuGetProcAddress` for the twin that works on the per-thread stream.
pub(crate) const PROC_PER_THREAD_STREAM: u64 = 2;

/// A C string that belongs to the caller.
pub(crate) type Text = *const c_char;

/// `CUmemoryPool`, `CUarray`, `CUmipmappedArray`, `CUgraphExec`,
/// `CUexternalMemory`: handles that nobody but the driver looks behind.
pub(crate) type CUmemoryPool = *mut c_void;
pub(crate) type CUarray = *mut c_void;
pub(crate) type CUgraphExec = *mut c_void;

/// `CUmemGenericAllocationHandle`.
pub(crate) type MemHandle = u64;

/// `CUmemLocation`: which memory is meant.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct Location {
    /// `CUmemLocationType`.
    pub(crate) kind: c_int,
    /// The ordinal of a device, for the kind of that name. Of a part of a device
    /// the first byte is the device's.
    pub(crate) id: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    const DEVICE: c_int = 1;
    /// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`.
    const PART: c_int = 6;

    fn of_device(device: CUdevice) -> Location {
        Location {
            kind: Location::DEVICE,
            id: device,
        }
    }

    /// The device, if it is one or a part of one.
    pub(crate) fn device(self) -> Option<CUdevice> {
        match self.kind {
            Location::DEVICE => Some(self.id),
            Location::PART => Some(CUdevice::from(self.id.to_ne_bytes()[0])),
            _ => None,
        }
    }
}

/// The first fields of `CUmemAllocationProp` and of `CUmemPoolProps`, which
/// begin alike.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct MemProperties {
    pub(crate) kind: c_int,
    pub(crate) handle_kinds: c_int,
    pub(crate) location: Location,
}

impl MemProperties {
    /// Memory of a device as `cuMemCreate` takes it, pinned to its place.
    pub(crate) fn of_device(device: CUdevice) -> MemProperties {
        const PINNED: c_int = 1;
        MemProperties {
            kind: PINNED,
            handle_kinds: 0,
            location: Location::of_device(device),
        }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct UnitProperties {
    pub(crate) begin: MemProperties,
    pub(crate) security: *mut c_void,
    pub(crate) compression: u8,
    /// Whether other hardware may read and write it (`gpuDirectRDMACapable`).
    pub(crate) for_rdma: u8,
    pub(crate) usage: u16,
    pub(crate) rest: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct AccessOf {
    location: Location,
    /// `CUmemAccess_flags`.
    flags: c_int,
}

impl AccessOf {
    /// A device may read and write.
    pub(crate) fn all_of(device: CUdevice) -> AccessOf {
        const READ_WRITE: c_int = 3;
        AccessOf {
            location: Location::of_device(device),
            flags: READ_WRITE,
        }
    }
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct FlatDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ArrayDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// The first fields of `CUDA_MEM_ALLOC_NODE_PARAMS`, up to the size.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct MemNode {
    pub(crate) properties: PoolProperties,
    /// `accessDescs` and `accessDescCount`.
    pub(crate) access: *const c_void,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: CUdeviceptr,
}

/// `CUmemPoolProps`, which is padded for fields to come.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct PoolProperties {
    pub(crate) begin: MemProperties,
    pub(crate) security: *mut c_void,
    pub(crate) most: usize,
    pub(crate) rest: [u8; 56],
}

/// The first fields of `CUgraphNodeParams`, and what the node of an allocation
/// has behind them.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct NodeParameters {
    /// `CUgraphNodeType`.
    pub(crate) kind: c_int,
    pub(crate) reserved: [c_int; 3],
    pub(crate) memory: MemNode,
}

impl NodeParameters {
    /// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
    const MEM_ALLOC: c_int = 10;

    /// What an allocation's node asks for; null for other nodes.
    ///
    /// # Safety
    /// `node` is null, or a node's parameters can be read there.
    pub(crate) unsafe fn memory(node: *const NodeParameters) -> *const MemNode {
        // SAFETY: the caller's promise. A node has 256 bytes, whatever its kind.
        unsafe {
            if node.is_null() || (*node).kind != NodeParameters::MEM_ALLOC {
                return std::ptr::null();
            }
            &raw const (*node).memory
        }
    }
}

/// The first fields of `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`, up to the size.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ExternalMemory {
    pub(crate) kind: c_int,
    pub(crate) handle: [*const c_void; 2],
    pub(crate) size: u64,
}

/// Writes `value` to `place`, unless that is null.
///
/// # Safety
/// `place` is null or may be written to.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *place = value };
    }
}

const _: () = {
    assert!(size_of::<MemProperties>() == 16);
    assert!(size_of::<UnitProperties>() == 32);
    assert!(size_of::<AccessOf>() == 12);
    assert!(size_of::<PoolProperties>() == 88);
    assert!(std::mem::offset_of!(MemNode, bytes) == 104);
    assert!(std::mem::offset_of!(ArrayDescription, flags) == 32);
    assert!(size_of::<CUcontext>() == size_of::<usize>());
    assert!(size_of::<CUstream>() == size_of::<usize>());
    assert!(size_of::<CUevent>() == size_of::<usize>());
    assert!(size_of::<CUgraph>() == size_of::<usize>());
    assert!(size_of::<CUgraphNode>() == size_of::<usize>());
    assert!(size_of::<CUdeviceptr>() == 8);
    assert!(size_of::<CUdevice>() == 4);
    assert!(size_of::<CUipcMemHandle>() == 64);
    assert!(size_of::<usize>() == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds of a location up to CUDA 13: none, a device, the host and its
    /// NUMA nodes; and one to come.
    #[test]
    fn only_memory_of_a_device_counts() {
        let counts = |kind| Location { kind, id: 3 }.device();
        assert_eq!(counts(1), Some(3));
        for kind in [0, 2, 3, 4, 0x7fff_ffff] {
            assert_eq!(counts(kind), None, "{kind}");
        }
    }
}
