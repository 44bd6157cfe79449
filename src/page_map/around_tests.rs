//! The start below an address, against a map of all starts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const BASE: Address = Address::new(0x7f00_0000_0000);
const ARENAS: [ArenaId; 2] = [ArenaId(0), ArenaId(1)];

fn at(subpages: u64, slots: u64) -> Address {
    Address::new(BASE.get() + (subpages << SUBPAGE_SHIFT) + (slots << SLOT_SHIFT))
}

/// A chunk: whose it is, and its first and last byte.
type Chunk = (ArenaId, u64, u64);

/// What a search that looks at everything finds.
fn naive(chunks: &[Chunk], starts: &BTreeMap<u64, u32>, asked: (ArenaId, u64)) -> Option<u64> {
    let (arena, address) = asked;
    let inside =
        |&&(owner, first, last): &&Chunk| owner == arena && (first..=last).contains(&address);
    let &(_, first, _) = chunks.iter().find(inside)?;
    starts
        .range(first..=address)
        .next_back()
        .map(|(&start, _)| start)
}

/// Chunks of some subpages each, one after the other: whose, how many subpages
/// are left out before it, and its subpages.
fn chunks() -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    let subpages = prop_oneof![1..4_u64, 28..36_u64, Just(32), Just(64), 90..140_u64];
    prop::collection::vec(
        (0..2_usize, prop_oneof![Just(0), 0..40_u64], subpages),
        1..6,
    )
}

proptest! {
    #[test]
    fn the_start_below_is_what_a_naive_search_finds(
        laid in chunks(),
        enters in prop::collection::vec((any::<prop::sample::Index>(), 0..1_000_000_u64, any::<bool>()), 0..60),
        asked in prop::collection::vec((any::<prop::sample::Index>(), 0..100_000_000_u64), 40),
    ) {
        let map = PageMap::new();
        let mut held: Vec<Chunk> = Vec::new();
        let mut subpage = 0;
        for &(owner, gap, subpages) in &laid {
            subpage += gap;
            let (start, size) = (at(subpage, 0), Bytes::new(subpages << SUBPAGE_SHIFT));
            prop_assert!(map.hold_chunk(ARENAS[owner], start, size));
            held.push((ARENAS[owner], start.get(), start.get() + size.get() - 1));
            subpage += subpages;
        }
        // Not in a chunk, and of another arena: never an answer.
        let direct = at(subpage + 1, 3);
        prop_assert!(map.hold_direct(ARENAS[0], direct, 9));
        let mut starts = BTreeMap::new();
        for (which, slot, leaves) in enters {
            let (_, first, last) = *which.get(&held);
            let slots = (last + 1 - first) >> SLOT_SHIFT;
            let start = Address::new(first + ((slot % slots) << SLOT_SHIFT));
            if starts.insert(start.get(), 1).is_none() {
                map.set_block(start, SlotWord::in_chunk(1));
            }
            if leaves {
                let (&gone, _) = starts.iter().next().unwrap();
                map.clear_block(Address::new(gone));
                starts.remove(&gone);
            }
        }
        let ends = held.iter().flat_map(|&(_, first, last)| [first, last, last + 1, first - 1]);
        let near = starts.keys().flat_map(|&start| [start - 1, start, start + 1, start + 511]);
        let random = asked.iter().map(|(which, offset)| {
            let (_, first, last) = *which.get(&held);
            first + offset % (last + 1 - first)
        });
        for address in ends.chain(near).chain(random).chain([direct.get()]) {
            for arena in ARENAS {
                let found = map.start_below(arena, Address::new(address)).map(Address::get);
                prop_assert_eq!(found, naive(&held, &starts, (arena, address)), "{:x}", address);
            }
        }
        // Pages that change hands carry no count with them.
        for &start in starts.keys() {
            map.clear_block(Address::new(start));
        }
        for &(_, first, last) in &held {
            map.release_chunk(Address::new(first), Bytes::new(last + 1 - first));
            let page = map.page(Address::new(first)).unwrap();
            prop_assert_eq!(page.starts.load(Ordering::Relaxed), 0);
        }
    }
}
