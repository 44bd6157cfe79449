//! Who owns an address, and which pool has an arena's number. Cost: see
//! [`PAGES`](super::PAGES) and [`POOLS`](super::POOLS).

use std::sync::Arc;

use vramalloc_core::Address;
use vramalloc_core::page_map::{ArenaId, Owner};

use super::{DeviceArena, DevicePool, PAGES, POOLS};
use crate::driver::context::Context;
use crate::driver::whose;
use crate::types::CUdeviceptr;

/// Who owns an address.
pub(crate) fn owner(address: CUdeviceptr) -> Owner {
    whose::owner(Address::new(address), || in_map(address), context_of)
}

/// Who owns an address as far as the page map knows.
pub(crate) fn in_map(address: CUdeviceptr) -> Owner {
    PAGES
        .get()
        .map_or(Owner::Foreign, |pages| pages.owner(Address::new(address)))
}

/// The context that the page map names for an address.
pub(crate) fn context_at(address: Address) -> Option<&'static Arc<Context>> {
    context_of(in_map(address.get()))
}

fn context_of(owner: Owner) -> Option<&'static Arc<Context>> {
    let Owner::Arena(id) = owner else {
        return None;
    };
    Some(pool_with(id)?.context())
}

/// The arena with this number.
pub(crate) fn arena(id: ArenaId) -> Option<&'static DeviceArena> {
    pool_with(id).map(|pool| &*pool.arena)
}

/// The pool of the arena with this number.
pub(crate) fn pool_with(id: ArenaId) -> Option<&'static DevicePool> {
    POOLS.get(id.0)
}

/// The pools that serve, or may again after an end that is under way.
pub(crate) fn serving_pools() -> Vec<&'static DevicePool> {
    super::SERVING.read().clone()
}
