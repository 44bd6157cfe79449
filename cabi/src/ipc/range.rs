//! What a program is told of the allocation around an address.
//!
//! Programs that share a part of an allocation ask the driver where the
//! allocation begins and send the distance along with the handle, which CUDA
//! makes for the whole of it; some ask for the handle at the address itself,
//! some at the beginning. Our handles stand for blocks, so to these programs a
//! block is the allocation: otherwise the distance from the chunk's beginning
//! would be added to the block's own. And freed memory has no range, though the
//! driver still has it.

use vramalloc_core::page_map::Owner;
use vramalloc_core::{Address, Bytes};

use crate::ipc::mappings;
use crate::pools::device::DeviceArena;
use crate::pools::{device, host_memory};
use crate::process::guard::{Service, service};
use crate::process::say::{Once, warn_once};
use crate::types::{CUcontext, CUdeviceptr, CudaResult};

/// An address without memory: the driver's answer is right for freed memory.
pub(crate) const NOWHERE: CUdeviceptr = 1;

/// The block around an address, if it is not all of its allocation.
pub(crate) enum Around {
    /// None: the driver's answer is right.
    Nothing,
    /// A block of device memory, as start and size.
    Block(u64, u64),
    /// A block of page-locked host memory, as start and size.
    HostBlock(u64, u64),
    /// None, in memory of ours: to the program, nothing is there.
    Freed,
    /// It is ours, but after a failure of our code nothing certain is known.
    Unsure,
}

impl Around {
    /// The address to ask the driver about.
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

/// The page of most hosts.
const HOST_PAGE: Bytes = Bytes::kib(4);

/// Gives a range of memory to others: `ask` asks the driver for a handle of what is
/// behind these addresses. Nothing of it is paused meanwhile, and none is had of what is
/// being paused or resumed.
pub(crate) fn give_out(
    address: CUdeviceptr,
    size: u64,
    ask: impl FnOnce(CUdeviceptr) -> CudaResult,
) -> CudaResult {
    let around = around(address);
    let (Around::Block(..), Some(arena)) = (&around, arena_of(address)) else {
        return ask(around.asked(address));
    };
    let start = Address::new(address);
    if !arena.begin_export(start) {
        return ask(NOWHERE);
    }
    let result = ask(address);
    arena.end_export(start, Bytes::new(if result == 0 { size } else { 0 }));
    if result != 0 && !start.is_aligned(HOST_PAGE) {
        warn_once(
            Once::Unaligned,
            "CUDA gives other hardware whole pages of the host alone, and refused a block of the \
             pool that does not start at one; dedicated_min:1M gives requests from 1 MiB on \
             allocations of their own, which do",
        );
    }
    result
}

/// The context of the live block around an address, if its memory is mapped: then the
/// driver names none.
pub(crate) fn mapped_context(address: CUdeviceptr) -> Option<CUcontext> {
    let arena = arena_of(address)?;
    let found = arena.locate(Address::new(address))?;
    (found.is_mapped).then(|| arena.driver().context().handle())
}

fn arena_of(address: CUdeviceptr) -> Option<&'static DeviceArena> {
    match device::owner(address) {
        Owner::Arena(id) if service() == Service::Full => device::arena(id),
        _ => None,
    }
}

/// What is around an address that is not device memory of ours.
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
        None if host_memory::kind_of_live(address).is_some() => Around::Nothing,
        None => Around::Freed,
    }
}
