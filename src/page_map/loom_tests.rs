//! Races for one frame, under every interleaving.

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
        .and_then(|page| page.frame_made(FIRST))
        .and_then(|frame| frame.slot_made(FIRST))
        .unwrap();
    Arc::new(map)
}

/// Two arenas race for one frame: exactly one gets it, and a reader sees
/// nothing or the winner, never a mixture.
#[test]
fn loom_one_arena_wins_a_frame() {
    loom::model(|| {
        let map = made();
        let racers: Vec<_> = [(ArenaId(0), FIRST), (ArenaId(1), SECOND)]
            .map(|(arena, address)| {
                let map = Arc::clone(&map);
                thread::spawn(move || map.hold_direct(arena, address, 3))
            })
            .into_iter()
            .collect();
        let seen = map.owner(FIRST);
        let won: Vec<bool> = racers
            .into_iter()
            .map(|racer| racer.join().unwrap())
            .collect();
        assert_eq!(won.iter().filter(|&&won| won).count(), 1);
        assert!(seen == Owner::Foreign || won[0] && seen == Owner::Arena(ArenaId(0)));
        assert_eq!(map.owner(FIRST) == Owner::Arena(ArenaId(0)), won[0]);
        assert_eq!(map.owner(SECOND) == Owner::Arena(ArenaId(1)), won[1]);
    });
}

/// A frame that changes hands carries no block of the former holder.
#[test]
fn loom_a_frame_changes_hands_empty() {
    loom::model(|| {
        let map = made();
        assert!(map.hold_direct(ArenaId(0), FIRST, 1));
        let giver = {
            let map = Arc::clone(&map);
            thread::spawn(move || map.release_direct(FIRST))
        };
        let taken = map.hold_direct(ArenaId(1), SECOND, 2);
        giver.join().unwrap();
        if taken {
            assert_eq!(map.owner(FIRST), Owner::Foreign);
            assert_eq!(map.owner(SECOND), Owner::Arena(ArenaId(1)));
        }
    });
}
