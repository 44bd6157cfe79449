//! Room that is in no cache: a thread whose cache lacks some takes it from here, without
//! the arena's lock, and one that has far more leaves some here when a batch of it ends.
//!
//! Invariant: who moves room between a cache and here holds that cache. So who holds all
//! caches finds all the room there is. Cost: a look at one line; two atomic operations on
//! it for a move.

use crate::page_map::SLOT;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::thread_cache::room::{Headroom, PackedRoom};

/// Which part of it a cache takes that lacks room.
const PART: u64 = 4;

/// A cache leaves some where it has more than so many times what is here.
const MUCH: u64 = 2;

/// See the module. On a line of its own.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct CommonRoom {
    /// Blocks and slots: see `PackedRoom`.
    packed: AtomicU64,
    asked: AtomicU64,
    /// Whether there are several caches.
    is_shared: AtomicBool,
}

// Relaxed throughout: the locks of the caches order the moves for who counts.
impl CommonRoom {
    /// Whether there is more than one cache that room may be left for.
    pub(crate) fn tell_shared(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Bytes of what there is.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        PackedRoom::from_word(self.packed.load(Ordering::Relaxed)).slots() * SLOT.get()
    }

    /// What there is.
    pub(crate) fn get(&self) -> Headroom {
        let packed = PackedRoom::from_word(self.packed.load(Ordering::Relaxed));
        Headroom {
            blocks: packed.blocks(),
            bytes: packed.slots() * SLOT.get(),
            asked: self.asked.load(Ordering::Relaxed),
        }
    }

    /// There is so much more.
    pub(crate) fn add(&self, room: Headroom) {
        let packed = PackedRoom::of(room.blocks, room.bytes / SLOT.get());
        self.packed.fetch_add(packed.word(), Ordering::Relaxed);
        self.asked.fetch_add(room.asked, Ordering::Relaxed);
    }

    /// Takes all of it.
    pub(crate) fn take(&self) -> Headroom {
        self.take_one_in(1)
    }

    /// Takes a part of it, for a cache.
    pub(super) fn take_part(&self) -> Headroom {
        self.take_one_in(PART)
    }

    fn take_one_in(&self, part: u64) -> Headroom {
        if self.get().is_none() {
            return Headroom::default();
        }
        let one_in = |word| {
            let packed = PackedRoom::from_word(word);
            PackedRoom::of(
                packed.blocks().div_ceil(part),
                packed.slots().div_ceil(part),
            )
        };
        let less = |word| PackedRoom::from_word(word).without(one_in(word)).word();
        let packed = update(&self.packed, less);
        let asked = update(&self.asked, |asked| asked - asked.div_ceil(part));
        let taken = one_in(packed);
        Headroom {
            blocks: taken.blocks(),
            bytes: taken.slots() * SLOT.get(),
            asked: asked.div_ceil(part),
        }
    }

    /// How much a cache with this room leaves here.
    pub(super) fn surplus(&self, own: Headroom) -> Headroom {
        let here = self.get();
        let of = |own: u64, here: u64| match own > MUCH * here {
            true => (own - here) / 2,
            false => 0,
        };
        Headroom {
            blocks: of(own.blocks, here.blocks),
            bytes: of(own.bytes / SLOT.get(), here.bytes / SLOT.get()) * SLOT.get(),
            asked: of(own.asked, here.asked),
        }
    }
}

/// Changes a word, and returns what it was.
fn update(word: &AtomicU64, change: impl Fn(u64) -> u64) -> u64 {
    let mut before = word.load(Ordering::Relaxed);
    loop {
        let after = change(before);
        match word.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return before,
            Err(other) => before = other,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn room(blocks: u64, slots: u64, asked: u64) -> Headroom {
        Headroom {
            blocks,
            bytes: slots * SLOT.get(),
            asked,
        }
    }

    #[test]
    fn a_cache_takes_a_part_and_the_arena_takes_all() {
        let common = CommonRoom::default();
        assert_eq!(common.take_part(), Headroom::default());
        common.add(room(1, 100, 7));
        common.add(room(4, 10, 0));
        assert_eq!(common.take_part(), room(2, 28, 2));
        assert_eq!(common.get(), room(3, 82, 5));
        assert_eq!(common.take(), room(3, 82, 5));
        assert_eq!(common.get(), Headroom::default());
    }

    #[test]
    fn who_has_far_more_leaves_half_of_the_difference() {
        let common = CommonRoom::default();
        assert_eq!(common.surplus(room(1, 64, 9)), room(0, 32, 4));
        common.add(room(8, 20, 3));
        assert_eq!(common.surplus(room(16, 41, 3)), room(0, 10, 0));
        assert_eq!(common.surplus(Headroom::default()), Headroom::default());
    }
}
