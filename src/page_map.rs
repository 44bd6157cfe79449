//! From an address to the arena that owns it (first sketch: a sorted map).

use std::collections::BTreeMap;

use crate::address::{Address, Bytes};
use crate::sync::Lock;

/// Names an arena in a process; the doors' registry gives them out.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(pub u32);

/// What an address is to us.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Nothing: the real function must deal with it.
    Foreign,
    /// It lies in memory of this arena, live block or not: it must never
    /// reach the real function.
    Arena(ArenaId),
}

/// The map of all arenas of a process.
pub struct PageMap {
    blocks: Lock<BTreeMap<u64, (ArenaId, Bytes)>>,
}

impl PageMap {
    /// An empty map.
    #[must_use]
    pub fn new() -> PageMap {
        PageMap {
            blocks: Lock::new(BTreeMap::new()),
        }
    }

    /// Whose the address is. Lock-free; two or three loads.
    #[must_use]
    pub fn owner(&self, address: Address) -> Owner {
        match self.blocks.lock().get(&address.get()) {
            Some(&(arena, _)) => Owner::Arena(arena),
            None => Owner::Foreign,
        }
    }

    pub(crate) fn insert(&self, arena: ArenaId, address: Address, size: Bytes) {
        self.blocks.lock().insert(address.get(), (arena, size));
    }

    pub(crate) fn remove(&self, address: Address) -> Option<Bytes> {
        self.blocks
            .lock()
            .remove(&address.get())
            .map(|(_, size)| size)
    }
}

impl Default for PageMap {
    fn default() -> PageMap {
        PageMap::new()
    }
}
