//! How lanes stand, and what lies idle in them.

use std::sync::Arc;
use std::time::Duration;

use crate::address::Bytes;
use crate::arena::Arena;
use crate::stats::Glance;

use super::{Lanes, Streams};

impl<D: Streams> Lanes<D> {
    /// Waits for blocks that other streams used, and gives what no block lies
    /// in back to the driver, except memory of captures. How many bytes that
    /// were.
    pub fn trim(&self) -> Bytes {
        self.uses.wait_for_all();
        let trimmed = self.idle_arenas().into_iter().map(|arena| arena.trim());
        trimmed.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Gives back what no block lies in, as [`Arena::give_room`] does, except
    /// memory of captures; `left` says how long that may still take.
    pub fn give_room(&self, left: impl Fn() -> Duration) -> Bytes {
        self.uses.look_at_all();
        let arenas = self.idle_arenas().into_iter();
        let gave = arenas.map(|arena| arena.give_room(left()));
        gave.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Bytes that `trim` would give back if it had nothing to wait for.
    #[must_use]
    pub fn idle(&self) -> Bytes {
        let idle = self.idle_arenas().into_iter().map(|arena| arena.idle());
        idle.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The arenas of all but the lanes of captures.
    #[must_use]
    pub fn idle_arenas(&self) -> Vec<Arc<Arena<D>>> {
        let books = self.books.lock();
        books
            .for_streams()
            .chain(books.ended.arenas())
            .cloned()
            .collect()
    }

    /// How all of them stand together.
    #[must_use]
    pub fn glance(&self) -> Glance {
        let arenas: Vec<Arc<Arena<D>>> = {
            let books = self.books.lock();
            let serving = books.serving.values().map(|lane| &lane.arena);
            serving.chain(books.ended.arenas()).cloned().collect()
        };
        let glances = arenas.iter().map(|arena| arena.glance());
        glances.reduce(Glance::and).unwrap_or_default()
    }
}
