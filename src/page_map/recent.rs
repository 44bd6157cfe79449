//! The subpages that one thread looked at last, and so the shortest way to a slot.
//!
//! Invariant: a subpage that has a table of slots has it for as long as its map
//! lives, so what is remembered here stays so. Cost: 32 KiB.

use crate::address::Address;
use crate::page_map::{
    CacheableSlot, PageMap, SLOT_SHIFT, SLOTS, SUBPAGE_SHIFT, Slot, index, round_down,
};

#[cfg(not(loom))]
const RECENT: usize = 2048;
#[cfg(loom)]
const RECENT: usize = 1;

/// Beyond all addresses that a map can hold.
const NONE: Address = Address::new(1 << 63);

#[derive(Copy, Clone)]
struct Recent {
    /// Where the subpage begins.
    start: Address,
    slots: &'static [Slot; SLOTS],
}

impl Recent {
    /// The slot of an address, if it is the start of one in this subpage.
    #[inline]
    fn slot(&self, address: Address) -> Option<&'static Slot> {
        // What lies below the slot's start, or below the subpage, makes a number that
        // no slot has.
        let ahead = address.get().wrapping_sub(self.start.get());
        let number = usize::try_from(ahead.rotate_right(SLOT_SHIFT)).ok()?;
        self.slots.get(number)
    }
}

/// Always of the same map. They are made where they stay: a thread's stack may have
/// no place for so much.
pub(crate) struct RecentSubpages(Box<[Recent; RECENT]>);

impl RecentSubpages {
    /// None are remembered yet; there are always some.
    pub(crate) fn new() -> Option<RecentSubpages> {
        let none = Recent {
            start: NONE,
            slots: empty_slots(),
        };
        let all = vec![none; RECENT].into_boxed_slice();
        all.try_into().ok().map(RecentSubpages)
    }

    /// As [`PageMap::cacheable`], of the subpages that are remembered.
    #[inline]
    pub(crate) fn cacheable(&self, address: Address) -> Option<CacheableSlot> {
        let recent = &self.0[index(address, SUBPAGE_SHIFT, RECENT)];
        recent.slot(address).map(CacheableSlot::new)
    }

    /// The same of any subpage, which is remembered from now on.
    #[inline(never)]
    pub(crate) fn look(&mut self, map: &PageMap, address: Address) -> Option<CacheableSlot> {
        let slots = map.slots_around(address)?;
        let recent = &mut self.0[index(address, SUBPAGE_SHIFT, RECENT)];
        let start = round_down(address, SUBPAGE_SHIFT);
        *recent = Recent { start, slots };
        recent.slot(address).map(CacheableSlot::new)
    }
}

/// What stands where nothing is remembered yet.
#[cfg(not(loom))]
fn empty_slots() -> &'static [Slot; SLOTS] {
    static EMPTY: [Slot; SLOTS] = [const { Slot::new(0) }; SLOTS];
    &EMPTY
}

/// The checker's atomics belong to one execution.
#[cfg(loom)]
fn empty_slots() -> &'static [Slot; SLOTS] {
    Box::leak(Box::new(std::array::from_fn(|_| Slot::new(0))))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::Bytes;
    use crate::library::LibraryId;
    use crate::page_map::{ArenaId, SlotWord};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_what_the_map_finds(
            starts in prop::collection::vec(0..4096_u64, 1..40),
            looks in prop::collection::vec(0..4096_u64 * 512, 0..200),
        ) {
            // Subpages that share a place.
            let far = |number: u64| number % 128 * 512 + number / 128 * (RECENT as u64) * 0x1_0000;
            let (arena, map) = (ArenaId(0), PageMap::new());
            assert!(map.hold_chunk(arena, Address::new(0), Bytes::gib(1)));
            for (number, &start) in (0..).zip(&starts) {
                let (size, request) = (Bytes::new(512), Bytes::new(1));
                let word = SlotWord::cacheable(arena, number, size, request, LibraryId::UNKNOWN);
                let address = Address::new(far(start));
                if map.live(arena, address).is_none() {
                    map.set_block(address, word.unwrap());
                }
            }
            let mut recent = RecentSubpages::new().unwrap();
            for look in looks {
                let inside = if look % 3 == 0 { look % 512 } else { 0 };
                let address = Address::new(far(look / 512) + inside);
                let expected = map.cacheable(address).map(CacheableSlot::word);
                let found = recent.cacheable(address).map(CacheableSlot::word);
                prop_assert!(found.is_none() || found == expected);
                let looked = recent.look(&map, address).map(CacheableSlot::word);
                let found = recent.cacheable(address).map(CacheableSlot::word);
                prop_assert_eq!((looked, found), (expected, expected));
            }
        }
    }
}
