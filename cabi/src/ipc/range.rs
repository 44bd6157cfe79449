//! What a program is told of the allocation around an address.
//!
//! Programs that share a part of an allocation ask the driver where the
//! allocation begins and send the distance along with the handle, which CUDA
//! makes for the whole of it; some ask for the handle at the address itself,
//! some at the beginning. Our handles stand for blocks, so to them a block is
//! the allocation: anything else would put the distance from the chunk's
//! beginning on top of the block's own. And what was freed has no range, though
//! the driver has it still.

use vramalloc_core::Address;
use vramalloc_core::page_map::Owner;

use crate::ipc::mappings;
use crate::pools::device;
use crate::pools::host_memory;
use crate::process::guard::{Service, service};
use crate::types::CUdeviceptr;

/// An address where nobody has memory: what the driver answers there is right
/// for what was freed.
pub(crate) const NOWHERE: CUdeviceptr = 1;

/// A block that is not all of its allocation, as start and size.
pub(crate) enum Around {
    /// None: the driver's answer is right.
    Nothing,
    /// This one, of device memory.
    Block(u64, u64),
    /// This one, of page-locked host memory.
    HostBlock(u64, u64),
    /// None, in memory of ours: nothing is there for the program.
    Freed,
    /// Ours, but our books cannot be trusted any more.
    Unsure,
}

impl Around {
    /// Where the driver is asked.
    pub(crate) fn asked(&self, address: CUdeviceptr) -> CUdeviceptr {
        match self {
            Around::Freed => NOWHERE,
            _ => address,
        }
    }
}

/// What is around an address.
pub(crate) fn around(address: u64) -> Around {
    let Owner::Arena(id) = device::owner(address) else {
        return around_others(address);
    };
    if service() != Service::Full {
        return Around::Unsure;
    }
    let located = device::arena(id).and_then(|arena| arena.locate(Address::new(address)));
    match located {
        None => Around::Freed,
        Some(found) if found.is_whole() => Around::Nothing,
        Some(found) => Around::Block(found.block.get(), found.size.get()),
    }
}

/// Around what is no memory of ours on a device.
fn around_others(address: u64) -> Around {
    if let Some((start, size)) = mappings::around(address) {
        return Around::Block(start, size);
    }
    if !host_memory::owns(address) {
        return Around::Nothing;
    }
    if service() != Service::Full {
        return Around::Unsure;
    }
    match host_memory::around(address) {
        Some((start, size)) => Around::HostBlock(start, size),
        None if host_memory::is_live(address) => Around::Nothing,
        None => Around::Freed,
    }
}
