//! Races for one subpage, under every interleaving.

use super::*;
use loom::sync::Arc;
use loom::thread;

const FIRST: Address = Address::new(0);
const SECOND: Address = Address::new(512);

/// A map whose cells exist: the checker does not see `OnceLock` order
/// their creation before their use.
fn made() -> Arc<PageMap> {
    let map = PageMap::new();
    map.page_made(FIRST)
        .unwrap()
        .subpage_made(FIRST)
        .slot_made(FIRST);
    Arc::new(map)
}

/// Two arenas enter direct allocations in one subpage: each gets its own, and a
/// reader sees nothing or the one that is there.
#[test]
fn loom_arenas_share_a_subpage() {
    loom::model(|| {
        let map = made();
        let racers = [(ArenaId(0), FIRST), (ArenaId(1), SECOND)].map(|(arena, address)| {
            let map = Arc::clone(&map);
            thread::spawn(move || map.hold_direct(arena, address, 3))
        });
        let seen = map.owner(FIRST);
        assert!(seen == Owner::Foreign || seen == Owner::Arena(ArenaId(0)));
        for racer in racers {
            assert!(racer.join().unwrap());
        }
        assert_eq!(map.owner(FIRST), Owner::Arena(ArenaId(0)));
        assert_eq!(map.owner(SECOND), Owner::Arena(ArenaId(1)));
    });
}

/// A chunk and a direct allocation, or two chunks, race for the same
/// addresses, as no sane driver lets them: exactly one gets them, and what it
/// has stays its own.
#[test]
fn loom_one_arena_wins_where_a_chunk_is_held() {
    for size in [SUBPAGE, PAGE] {
        loom::model(move || {
            let map = made();
            let direct = {
                let map = Arc::clone(&map);
                thread::spawn(move || map.hold_direct(ArenaId(1), SECOND, 3))
            };
            let chunk = map.hold_chunk(ArenaId(0), FIRST, size);
            assert_ne!(chunk, direct.join().unwrap());
            let winner = ArenaId(u32::from(!chunk));
            assert_eq!(map.owner(SECOND), Owner::Arena(winner));
        });
    }
}

/// A subpage that passes from direct allocations to a chunk carries no block of
/// theirs.
#[test]
fn loom_a_subpage_changes_hands_empty() {
    loom::model(|| {
        let map = made();
        assert!(map.hold_direct(ArenaId(0), FIRST, 1));
        let giver = {
            let map = Arc::clone(&map);
            thread::spawn(move || map.release_direct(FIRST))
        };
        let held = map.hold_chunk(ArenaId(1), FIRST, SUBPAGE);
        if held {
            assert_eq!(map.live(ArenaId(1), FIRST).and_then(SlotWord::number), None);
            assert_eq!(map.owner(FIRST), Owner::Arena(ArenaId(1)));
        }
        giver.join().unwrap();
    });
}

/// A place in a page's record passes from one block to another while somebody looks
/// for the first: he finds it, or nothing, or the number of the other, whose address
/// the arena then compares.
#[test]
fn loom_a_place_changes_hands() {
    loom::model(|| {
        let map = PageMap::new();
        assert!(map.hold_chunk(ArenaId(0), FIRST, PAGE));
        map.set_block(FIRST, SlotWord::in_chunk(1));
        let map = Arc::new(map);
        let looker = {
            let map = Arc::clone(&map);
            thread::spawn(move || map.live(ArenaId(0), FIRST).and_then(SlotWord::number))
        };
        map.clear_block(FIRST);
        map.set_block(SECOND, SlotWord::in_chunk(2));
        let seen = looker.join().unwrap();
        assert!([None, Some(1), Some(2)].contains(&seen));
        let number = |address| map.live(ArenaId(0), address).and_then(SlotWord::number);
        assert_eq!((number(FIRST), number(SECOND)), (None, Some(2)));
    });
}
