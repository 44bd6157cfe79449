//! What each way of holding addresses promises.

use super::*;

const A: ArenaId = ArenaId(0);
const B: ArenaId = ArenaId(1);
const CHUNK: Address = Address::new(0x7f00_0000_0000);

#[test]
fn every_address_of_a_chunk_is_ours() {
    let map = PageMap::new();
    assert!(map.hold_chunk(A, CHUNK, Bytes::mib(2)));
    for offset in [0, 1, 511, 4096, (2 << 20) - 1] {
        assert_eq!(
            map.owner(Address::new(CHUNK.get() + offset)),
            Owner::Arena(A)
        );
    }
    assert_eq!(
        map.owner(Address::new(CHUNK.get() + (2 << 20))),
        Owner::Foreign
    );
    assert_eq!(map.owner(Address::new(CHUNK.get() - 1)), Owner::Foreign);
    map.release_chunk(CHUNK, Bytes::mib(2));
    assert_eq!(map.owner(CHUNK), Owner::Foreign);
}

/// The page tells of few blocks itself, and has a table from the first one on
/// that it has no room for. By whatever way a block goes, it is found no more.
#[test]
fn a_page_finds_the_blocks_that_start_in_it() {
    let map = PageMap::new();
    assert!(map.hold_chunk(A, CHUNK, Bytes::mib(2)));
    let at = |number: u32| Address::new(CHUNK.get() + u64::from(number) * (300 << 10));
    let page = map.page(CHUNK).unwrap();
    let found = || {
        (0..6).filter(|&number| map.live(A, at(number)).and_then(SlotWord::number) == Some(number))
    };
    for number in 0..4 {
        map.set_block(at(number), SlotWord::in_chunk(number));
    }
    assert_eq!(found().count(), 4);
    map.clear_block(at(1));
    map.spot(at(2)).unwrap().clear();
    map.clear_block(at(2));
    assert!(found().eq([0, 3]));
    assert!(map.spot(at(1)).is_none());
    for number in [5, 4] {
        map.set_block(at(number), SlotWord::in_chunk(number));
    }
    assert!(found().eq([0, 3, 4, 5]));
    assert!(page.subpages.get().is_none());
    map.set_block(at(1), SlotWord::in_chunk(1));
    assert!(found().eq([0, 1, 3, 4, 5]));
    assert!(page.subpages.get().is_some() && page.inline.all().count() == 0);
    for number in [5, 3, 0, 4, 1] {
        assert!(page.starts.load(Ordering::Relaxed) > 0);
        map.clear_block(at(number));
        map.clear_block(at(number));
    }
    assert_eq!(
        (found().count(), page.starts.load(Ordering::Relaxed)),
        (0, 0)
    );
    map.set_block(at(0), SlotWord::in_chunk(0));
    assert!(found().eq([0]));
}

#[test]
fn of_a_direct_allocation_only_the_start_is_ours() {
    let map = PageMap::new();
    assert!(map.hold_direct(A, CHUNK, 7));
    assert_eq!(map.owner(CHUNK), Owner::Arena(A));
    assert_eq!(map.live(A, CHUNK).and_then(SlotWord::number), Some(7));
    assert_eq!(map.owner(Address::new(CHUNK.get() + 1)), Owner::Foreign);
    assert_eq!(map.owner(Address::new(CHUNK.get() + 512)), Owner::Foreign);
}

#[test]
fn arenas_share_a_subpage_and_each_has_its_own_blocks() {
    let map = PageMap::new();
    let second = Address::new(CHUNK.get() + 512);
    assert!(map.hold_direct(A, CHUNK, 1));
    assert!(map.hold_direct(B, second, 2));
    assert_eq!(map.owner(CHUNK), Owner::Arena(A));
    assert_eq!(map.owner(second), Owner::Arena(B));
    assert_eq!(
        [A, B].map(|arena| map.live(arena, CHUNK).and_then(SlotWord::number)),
        [Some(1), None]
    );
    assert_eq!(
        [A, B].map(|arena| map.live(arena, second).and_then(SlotWord::number)),
        [None, Some(2)]
    );
    assert!(!map.hold_direct(B, CHUNK, 3), "A's block starts there");
    assert_eq!(map.owner(CHUNK), Owner::Arena(A));
    map.release_direct(CHUNK);
    assert_eq!(map.owner(CHUNK), Owner::Foreign);
    assert_eq!(map.owner(second), Owner::Arena(B));
}

#[test]
fn no_chunk_is_held_where_a_direct_allocation_starts() {
    let map = PageMap::new();
    let subpage = Bytes::kib(64);
    let second = Address::new(CHUNK.get() + 512);
    assert!(map.hold_direct(A, CHUNK, 1));
    assert!(map.hold_direct(B, second, 1));
    for direct in [CHUNK, second] {
        assert!(!map.hold_chunk(B, CHUNK, Bytes::mib(2)));
        assert!(!map.hold_chunk(B, CHUNK, subpage));
        map.release_direct(direct);
    }
    assert!(map.hold_chunk(B, CHUNK, subpage));
    assert!(!map.hold_direct(A, second, 1), "it lies in B's chunk");
    assert!(!map.hold_chunk(A, CHUNK, Bytes::mib(2)));
    map.release_chunk(CHUNK, subpage);
    assert!(map.hold_chunk(A, CHUNK, Bytes::mib(2)));
    assert!(!map.hold_direct(B, second, 1), "it lies in A's chunk");
    assert!(!map.hold_chunk(B, CHUNK, subpage));
    map.release_chunk(CHUNK, Bytes::mib(2));
    assert!(map.hold_direct(B, second, 1));
}

#[test]
fn a_failed_hold_changes_nothing() {
    let map = PageMap::new();
    let later = Address::new(CHUNK.get() + (1 << 20));
    assert!(map.hold_direct(B, later, 1));
    assert!(!map.hold_chunk(A, CHUNK, Bytes::mib(2)));
    assert_eq!(map.owner(CHUNK), Owner::Foreign);
    assert_eq!(map.owner(later), Owner::Arena(B));
}

#[test]
fn a_chunk_that_does_not_fill_its_subpages_is_not_held() {
    let map = PageMap::new();
    let odd = Address::new(CHUNK.get() + 512);
    assert!(!map.hold_chunk(A, odd, Bytes::mib(2)));
    assert!(!map.hold_chunk(A, CHUNK, Bytes::new((2 << 20) + 512)));
    assert_eq!(map.owner(odd), Owner::Foreign);
}

#[test]
fn a_chunk_may_begin_and_end_inside_pages() {
    let map = PageMap::new();
    let start = Address::new(CHUNK.get() + (1 << 16));
    let before = Address::new(CHUNK.get() + 512);
    assert!(map.hold_direct(B, before, 1));
    assert!(map.hold_chunk(A, start, Bytes::mib(6)));
    let end = start.checked_add(Bytes::mib(6)).unwrap();
    for inside in [start.get(), start.get() + (3 << 20), end.get() - 1] {
        assert_eq!(map.owner(Address::new(inside)), Owner::Arena(A));
    }
    assert_eq!(map.owner(before), Owner::Arena(B));
    assert_eq!(map.owner(Address::new(start.get() - 1)), Owner::Foreign);
    assert_eq!(map.owner(end), Owner::Foreign);
    assert!(!map.hold_chunk(B, end, Bytes::mib(0).saturating_add(Bytes::kib(32))));
    assert!(
        map.hold_chunk(B, end, Bytes::mib(2)),
        "the rest of the page is free"
    );
    map.release_chunk(start, Bytes::mib(6));
    assert_eq!(map.owner(start), Owner::Foreign);
    assert_eq!(map.owner(end), Owner::Arena(B));
}

#[test]
fn addresses_beyond_the_map_are_foreign() {
    let map = PageMap::new();
    let high = Address::new(1 << 48);
    assert!(!map.hold_direct(A, high, 1));
    assert!(!map.hold_chunk(A, Address::new(u64::MAX - 4096), Bytes::mib(2)));
    assert_eq!(map.owner(Address::new(u64::MAX)), Owner::Foreign);
    assert!(
        !map.hold_direct(A, Address::new(CHUNK.get() + 256), 1),
        "not a slot"
    );
}
