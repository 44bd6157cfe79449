//! The arena over a model GPU, compiled with this crate.
//!
//! Generic code is compiled where it is used, and that is in the tests, without
//! optimisation. In debug builds a crate takes what another one below it has compiled
//! already; so the functions that whole traces go through are named here, where they
//! are optimised a little, with every assertion.

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::error::{AllocError, FreeError};
use vramalloc_core::library::LibraryId;
use vramalloc_core::stats::ArenaStats;

use crate::gpu::SimDriver;

type Model = Arena<SimDriver>;

/// The functions, which call most of the others.
struct Compiled {
    _allocate: fn(&Model, Bytes) -> Result<Address, AllocError>,
    _allocate_for: fn(&Model, Bytes, LibraryId) -> Result<Address, AllocError>,
    _free: fn(&Model, Address) -> Result<(), FreeError>,
    _trim: fn(&Model) -> Bytes,
    _stats: fn(&Model) -> ArenaStats,
    _retire: fn(&Model),
}

#[used]
static COMPILED: Compiled = Compiled {
    _allocate: Arena::allocate,
    _allocate_for: Arena::allocate_for,
    _free: Arena::free,
    _trim: Arena::trim,
    _stats: Arena::stats,
    _retire: Arena::retire,
};
