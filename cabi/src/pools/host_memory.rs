//! Page-locked host memory.
//!
//! The reuse rule is that of device memory: copies on any stream of any
//! context may be reading or writing a block when it is freed, so it is handed
//! out again only after a fence later than the free was reached everywhere.
//!
//! `pools` has one arena for each context and kind of request; `source` is
//! where their chunks come from, `registered` the part of those that is the
//! system's memory; `watcher` is a thread that some options ask for.

mod pools;
mod registered;
mod source;
mod watcher;

use std::ffi::c_void;

use vramalloc_core::page_map::{ArenaId, Owner};
use vramalloc_core::{Address, AllocError, Bytes, Code, Driver};

use crate::pools::device::{self, Asking, DevicePool};
use crate::pools::holdings;
use crate::pools::memory::{Freed, OwnBlock};
use crate::process::guard::{is_called_back, own_call};
use crate::types::CudaResult;

use pools::HostArena;
pub(crate) use pools::in_map;
pub(crate) use pools::{PoolOwner, Pools, reports};
pub(crate) use registered::{Leftovers, stand_in};
use source::CHUNK_ALIGN;
pub(crate) use source::Kind;

/// Allocates in the current context's pool. If that has no memory left, the
/// real function is called: beyond the cap it serves, and a failure is its own.
///
/// # Safety
/// `to` is null or may be written to.
pub(crate) unsafe fn allocate(to: *mut *mut c_void, size: usize, kind: Kind) -> Option<CudaResult> {
    if to.is_null() || size == 0 {
        return None;
    }
    let arena = device::current_pool(Asking::Door)?.pinned().arena(kind)?;
    let request = Bytes::new(size as u64);
    // The real free would not know registered memory.
    let allocated = if arena.driver().registers() {
        arena.allocate(request)
    } else {
        arena.allocate_or_leave(request)
    };
    let error = match allocated {
        Ok(address) => {
            let address = usize::try_from(address.get()).ok()?;
            // SAFETY: the caller's place for the answer.
            unsafe { *to = std::ptr::with_exposed_provenance_mut(address) };
            return Some(0);
        }
        Err(error) => error,
    };
    let mut result = 0;
    let asked = arena.ask_past(|| {
        // SAFETY: the caller's own arguments.
        result = own_call(|| unsafe { kind.take(to, size) });
        Code::check(result)
    });
    settle(arena, request, error, asked);
    if asked.is_ok() {
        // SAFETY: the real function has just written there.
        let address = Address::new(unsafe { *to }.addr() as u64);
        // If not adopted it stays the driver's, and its free goes there.
        let _adopted: bool = arena.adopt(address, request);
    }
    Some(result)
}

/// Notes a shortage of the arena that the driver could not help with either.
fn settle<T>(arena: &HostArena, request: Bytes, error: AllocError, asked: Result<T, Code>) {
    let code = asked.err();
    if error != AllocError::Limit {
        arena.settle_refused(request, code.map(AllocError::Driver));
    } else if code == Some(Code::OUT_OF_MEMORY) {
        arena.note_refusal(request);
    }
}

/// Allocates memory for every context, in the pool of this one: for the C API.
///
/// # Errors
/// What CUDA returns.
pub(crate) fn allocate_portable(pool: &DevicePool, size: Bytes) -> Result<Address, Code> {
    let arena = pool.pinned().arena(Kind::PORTABLE);
    let arena = arena.ok_or(Code::OUT_OF_MEMORY)?;
    let error = match arena.allocate(size) {
        Ok(address) => return Ok(address),
        Err(error) => error,
    };
    let taken = arena.ask_past(|| arena.driver().alloc(size));
    settle(arena, size, error, taken);
    let address = taken?;
    if arena.adopt(address, size) {
        return Ok(address);
    }
    // It would not be known when it is freed. Memory that is aligned as chunks
    // are can be entered.
    arena.return_past(|| arena.driver().free(address))?;
    let whole = size.round_up(CHUNK_ALIGN).ok_or(Code::OUT_OF_MEMORY)?;
    let address = arena.ask_past(|| arena.driver().alloc_chunk(whole))?;
    if arena.adopt(address, size) {
        return Ok(address);
    }
    arena.return_past(|| arena.driver().free(address))?;
    Err(Code::OUT_OF_MEMORY)
}

/// Frees an address, whatever context is current.
pub(crate) fn free(address: u64) -> Freed {
    free_if(address, || Ok(()))
}

/// Frees an address if `check`, asked for addresses of ours alone, allows it.
pub(crate) fn free_if(address: u64, check: impl FnOnce() -> Result<(), Code>) -> Freed {
    let address = Address::new(address);
    free_owned(pools::owner(address), address, check)
}

/// Frees an address if this arena has it.
pub(crate) fn free_in(id: ArenaId, address: Address) -> Freed {
    match pools::owner(address) {
        owner if owner == Owner::Arena(id) => free_owned(owner, address, || Ok(())),
        _ => Freed::Foreign,
    }
}

fn free_owned(owner: Owner, address: Address, check: impl FnOnce() -> Result<(), Code>) -> Freed {
    Freed::at(owner, check, |id| {
        let arena = pools::arena(id)?;
        let block = OwnBlock::of_host(id, address);
        let freed = holdings::free_by(block, || arena.free(address));
        let freed = Freed::by(freed, || arena.driver().lasting_error());
        watcher::notice();
        Some(freed)
    })
}

/// Gives back all memory that is not in use; returns how many bytes that was.
pub(crate) fn trim() -> Bytes {
    let released = pools::all().map(|arena| arena.trim());
    released.fold(Bytes::ZERO, Bytes::saturating_add)
}

/// Makes a call that takes page-locked memory of the host, and again if there was none and
/// some came back.
pub(crate) fn with_room(call: impl Fn() -> CudaResult) -> CudaResult {
    let result = own_call(&call);
    if result == Code::OUT_OF_MEMORY.get() && !is_called_back() && pools::give_back(pools::all()) {
        return own_call(call);
    }
    result
}

/// Whether the address lies in memory of ours.
pub(crate) fn owns(address: u64) -> bool {
    pools::owner(Address::new(address)) != Owner::Foreign
}

/// The kind of the live block of ours that holds an address.
pub(crate) fn kind_of_live(address: u64) -> Option<Kind> {
    let address = Address::new(address);
    let Owner::Arena(id) = pools::owner(address) else {
        return None;
    };
    let arena = pools::arena(id)?;
    arena.locate(address).map(|_| arena.driver().kind())
}

/// Start and size of the block around an address; `None` if it is all that the
/// driver has given there. What is registered the driver has not given.
pub(crate) fn around(address: u64) -> Option<(u64, u64)> {
    let address = Address::new(address);
    let Owner::Arena(id) = pools::owner(address) else {
        return None;
    };
    let arena = pools::arena(id)?;
    let found = arena.locate(address)?;
    let is_given = !registered::holds(address) && !arena.driver().has_cut(found.allocation);
    let is_all = found.is_whole() && is_given;
    (!is_all).then_some((found.block.get(), found.size.get()))
}
