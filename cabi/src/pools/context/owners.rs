//! Whose an address is, and what is behind the number of an arena.
//!
//! Owns nothing. Cost: see [`PAGES`](super::PAGES) and [`HOMES`](super::HOMES).

use std::sync::Arc;

use vramalloc_core::Address;
use vramalloc_core::page_map::{ArenaId, Owner};

use super::{Arena, HOMES, Home, PAGES};
use crate::driver::marker::Marker;
use crate::driver::whose;
use crate::types::CUdeviceptr;

/// Whose an address is.
pub(crate) fn owner(address: CUdeviceptr) -> Owner {
    whose::owner(Address::new(address), || in_map(address), marker_of)
}

/// The same as far as the page map knows.
pub(crate) fn in_map(address: CUdeviceptr) -> Owner {
    PAGES
        .get()
        .map_or(Owner::Foreign, |pages| pages.owner(Address::new(address)))
}

/// The marker of the context that the page map gives an address to.
pub(crate) fn marker_at(address: Address) -> Option<&'static Arc<Marker>> {
    marker_of(in_map(address.get()))
}

fn marker_of(owner: Owner) -> Option<&'static Arc<Marker>> {
    let Owner::Arena(id) = owner else {
        return None;
    };
    Some(home_with(id)?.marker())
}

/// The arena with this number.
pub(crate) fn arena(id: ArenaId) -> Option<&'static Arena> {
    home_with(id).map(|home| &*home.arena)
}

/// The home of the arena with this number.
pub(crate) fn home_with(id: ArenaId) -> Option<&'static Home> {
    HOMES.get(id.0)
}

/// The homes that serve, or may do so again after an end that is under way.
pub(crate) fn serving_homes() -> Vec<&'static Home> {
    super::SERVING.read().clone()
}
