//! Memory by its address: allocated from an arena, and freed wherever it lies.
//!
//! A free finds the arena by the page map and asks, in this order, whether the
//! calling thread may free (`check`), whether a scope or a group holds the
//! block, and the arena itself. Before each free a listener is called
//! ([`when_freed`]), which knows the blocks that other processes use.

use std::sync::OnceLock;

use vramalloc_core::page_map::{ArenaId, Owner};
use vramalloc_core::{Address, AllocError, Bytes, Code, FreeError};

use crate::driver::{devices, reserve};
use crate::owners;
use crate::pools::device::shortage::Refuser;
use crate::pools::device::{self, DeviceArena, DevicePool, shortage};
use crate::pools::{holdings, host_memory, pageable};
use crate::process::guard::{Service, own_call, service};
use crate::process::shortcut;
use crate::types::{CUdeviceptr, CudaResult};

/// Why a request was not served.
pub(crate) enum Refusal {
    /// It would exceed the option `limit`.
    Limit,
    /// The memory that it would be part of is paused.
    Paused,
    /// The real function failed too, with this result.
    Real(CudaResult),
}

/// Allocates from the arena. If the driver has none left for it, calls `last`,
/// the real function, so that the failure is CUDA's own.
pub(crate) fn allocate(
    arena: &DeviceArena,
    size: Bytes,
    last: impl FnOnce() -> (CudaResult, CUdeviceptr),
) -> Result<Address, Refusal> {
    let library = owners::current();
    let served = match arena.allocate_for(size, library) {
        Err(AllocError::Driver(_)) => arena.take_past(size, library, || {
            let pool = || device::pool_with(arena.id());
            let device = || devices::find(pool()?.device());
            let (result, address) = reserve::asking(device, || own_call(last));
            Code::check(result).map(|()| Address::new(address))
        }),
        served => served,
    };
    served.map_err(|error| match error {
        AllocError::Limit => {
            shortage::out_of_memory(arena, size, Refuser::Limit);
            Refusal::Limit
        }
        AllocError::Paused => {
            shortage::out_of_memory(arena, size, Refuser::Pause);
            Refusal::Paused
        }
        AllocError::Driver(code) => {
            if code == Code::OUT_OF_MEMORY {
                shortage::out_of_memory(arena, size, Refuser::Driver);
            }
            Refusal::Real(code.get())
        }
    })
}

/// What became of an address that was to be freed.
pub(crate) enum Freed {
    /// It is not ours: the real function frees it.
    Foreign,
    /// It is freed.
    Done,
    /// It is ours, and this is the answer; the real function is never called.
    Refused(Code),
}

impl Freed {
    /// What a door of the driver answers; `None` to call the real function.
    pub(crate) fn answer(self) -> Option<CudaResult> {
        match self {
            Freed::Foreign => None,
            Freed::Done => Some(0),
            Freed::Refused(code) => Some(code.get()),
        }
    }

    /// What the C API is told; `None` if it is not ours.
    fn told(self) -> Option<Result<(), FreeError>> {
        match self {
            Freed::Foreign => None,
            Freed::Done => Some(Ok(())),
            Freed::Refused(Code::INVALID_VALUE) => Some(Err(FreeError::NotLive)),
            Freed::Refused(code) => Some(Err(FreeError::Driver(code))),
        }
    }

    /// What becomes of an address with this owner, if `check` lets it; `free`
    /// frees it in the arena of this number, if there is one.
    pub(crate) fn at(
        owner: Owner,
        check: impl FnOnce() -> Result<(), Code>,
        free: impl FnOnce(ArenaId) -> Option<Freed>,
    ) -> Freed {
        let Owner::Arena(id) = owner else {
            return Freed::Foreign;
        };
        if service() != Service::Full {
            return Freed::Done;
        }
        match check() {
            Ok(()) => free(id).unwrap_or(Freed::Refused(Code::INVALID_VALUE)),
            Err(code) => Freed::Refused(code),
        }
    }

    /// The outcome of a free by an arena, in a context with this lasting error.
    pub(crate) fn by(result: Result<(), FreeError>, error: impl FnOnce() -> Option<Code>) -> Freed {
        match result {
            Ok(()) => error().map_or(Freed::Done, Freed::Refused),
            Err(FreeError::NotLive) => Freed::Refused(Code::INVALID_VALUE),
            Err(FreeError::Driver(code)) => Freed::Refused(code),
        }
    }
}

/// Frees an address, whatever context is current. Its functions are its own, so that
/// the compiler puts the whole way into each door.
#[inline]
pub(crate) fn free(address: CUdeviceptr) -> Freed {
    free_by(address, || Ok(()), |pool, address| pool.free(address))
}

/// Frees an address by `free` if `check`, asked for addresses of ours alone, allows
/// it.
#[inline]
pub(crate) fn free_by(
    address: CUdeviceptr,
    check: impl FnOnce() -> Result<(), Code>,
    free: impl FnOnce(&DevicePool, Address) -> Result<(), FreeError>,
) -> Freed {
    free_owned(device::owner(address), address, check, free)
}

/// Frees an address of which the owner was looked for just now.
#[inline]
pub(crate) fn free_of(owner: Owner, address: CUdeviceptr) -> Freed {
    free_owned(
        owner,
        address,
        || Ok(()),
        |pool, address| pool.free(address),
    )
}

#[inline]
fn free_owned(
    owner: Owner,
    address: CUdeviceptr,
    check: impl FnOnce() -> Result<(), Code>,
    free: impl FnOnce(&DevicePool, Address) -> Result<(), FreeError>,
) -> Freed {
    Freed::at(owner, check, |id| {
        let pool = device::pool_with(id)?;
        let block = OwnBlock::of_device(id, address);
        let address = Address::new(address);
        let freed = holdings::free_by(block, || {
            // A block that others know of is part of a chunk: no driver refuses it.
            if let Some(then) = WHEN_FREED.get() {
                then(address.get());
            }
            free(pool, address)
        });
        Some(Freed::by(freed, || pool.arena().driver().lasting_error()))
    })
}

/// Called before each block of a device is freed.
static WHEN_FREED: OnceLock<fn(u64)> = OnceLock::new();

/// Registers the one listener that is called with the address of each block of
/// a device before it is freed.
pub(crate) fn when_freed(then: fn(u64)) {
    shortcut::close();
    if WHEN_FREED.set(then).is_err() {
        shortcut::open();
    }
}

/// Frees the block that begins at an address, on a device or on the host. It
/// leaves its scope; a block of a group stays.
///
/// # Errors
/// [`FreeError::NotLive`] if no block of ours begins there, or a group has it;
/// or what CUDA returns.
pub(crate) fn free_anywhere(address: usize) -> Result<(), FreeError> {
    for free in [free, host_memory::free] {
        if let Some(told) = free(address as u64).told() {
            return told;
        }
    }
    free_pageable(Address::new(address as u64))
}

fn free_pageable(address: Address) -> Result<(), FreeError> {
    let freed = || pageable::free(address).unwrap_or(Err(FreeError::NotLive));
    holdings::free_by(OwnBlock(Home::Pageable, address), freed)
}

/// Where a block lies.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Home {
    Device(ArenaId),
    Host(ArenaId),
    Pageable,
}

/// A block of ours. When its context is gone, its address may become that of another one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OwnBlock(Home, Address);

impl OwnBlock {
    pub(crate) fn of_device(id: ArenaId, address: CUdeviceptr) -> OwnBlock {
        OwnBlock(Home::Device(id), Address::new(address))
    }

    pub(crate) fn of_host(id: ArenaId, address: Address) -> OwnBlock {
        OwnBlock(Home::Host(id), address)
    }

    /// The one that lies at an address, if it is there still.
    pub(crate) fn at(address: Address) -> Option<OwnBlock> {
        let home = match (device::in_map(address.get()), host_memory::in_map(address)) {
            (Owner::Arena(id), _) => Home::Device(id),
            (_, Owner::Arena(id)) => Home::Host(id),
            _ => pageable::owns(address).then_some(Home::Pageable)?,
        };
        Some(OwnBlock(home, address))
    }

    /// Whether its arena has its memory still.
    pub(crate) fn is_known(self) -> bool {
        OwnBlock::at(self.1) == Some(self)
    }
}

/// Frees a block of ours.
///
/// # Errors
/// As [`free_anywhere`]; also where the address has become another block's.
pub(crate) fn free_block(OwnBlock(home, address): OwnBlock) -> Result<(), FreeError> {
    let freed = match home {
        Home::Device(id) => match device::owner(address.get()) {
            // Functions of its own, as in `free`.
            owner if owner == Owner::Arena(id) => free_owned(
                owner,
                address.get(),
                || Ok(()),
                |pool, address| pool.free(address),
            ),
            _ => Freed::Foreign,
        },
        Home::Host(id) => host_memory::free_in(id, address),
        Home::Pageable => return free_pageable(address),
    };
    freed.told().unwrap_or(Err(FreeError::NotLive))
}
