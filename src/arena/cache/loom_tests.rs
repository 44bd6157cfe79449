//! A block between its program, a cache and the arena, under every
//! interleaving.
//!
//! (That a thread sees a call for room, or the books hear of its step, is a
//! matter of store and load to different places, which the checker orders less
//! strictly than the processors do: see `Gate::call_for_room`.)

use super::*;
use crate::page_map::{ArenaId, PageMap};
use crate::sync::Lock;
use loom::thread;

const BLOCK: Address = Address::new(0);

fn gate() -> Caches {
    Caches {
        gate: Arc::new(Gate::new()),
        key: 0,
        most: Bytes::mib(1),
        batch_part: Bytes::ZERO,
        at_once: false,
    }
}

/// A map with one live block.
fn map() -> (PageMap, Entry) {
    let map = PageMap::new();
    let live = Entry::live(3, Bytes::new(512), Bytes::new(512));
    assert!(map.hold_direct(ArenaId(0), BLOCK, 3));
    map.set_block(BLOCK, live);
    (map, live)
}

/// Of a free by one thread, a free by another and the arena's recall, a block
/// goes one way at a time: two frees never both count, and what is called back
/// was kept.
#[test]
fn loom_a_block_has_one_holder() {
    loom::model(|| {
        let (map, live) = map();
        let map = Arc::new(map);
        let freeing = [(); 2].map(|()| {
            let map = Arc::clone(&map);
            thread::spawn(move || map.spot(BLOCK).unwrap().exchange(live, live.kept()))
        });
        let entry = map.entry(BLOCK);
        let recalled = entry.is_kept() && map.spot(BLOCK).unwrap().take(entry);
        let freed = freeing.map(|thread| thread.join().unwrap());
        assert_ne!(freed[0], freed[1]);
        assert_eq!(map.entry(BLOCK).is_kept(), !recalled);
    });
}

/// The reuse rule: if a free took its block for one of the epoch that was
/// closed, the fence of that epoch covers all that the thread had given the
/// device to do.
#[test]
fn loom_a_fence_covers_what_was_freed_in_its_epoch() {
    loom::model(|| {
        let (map, live) = map();
        let shared = Arc::new((map, gate(), Lock::new(false)));
        let freeing = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (map, caches, device) = &*shared;
                *device.lock() = true;
                assert!(map.spot(BLOCK).unwrap().exchange(live, live.kept()));
                caches.open()
            })
        };
        let (_, caches, device) = &*shared;
        caches.closed(0);
        let covered = *device.lock();
        caches.ended(0);
        let epoch = freeing.join().unwrap();
        assert!(covered || !caches.is_over(epoch));
    });
}

/// A thread that takes a block which was called back, went to another thread
/// and was freed there, notices: it must not hand out the block by the epoch
/// of its own free.
#[test]
fn loom_who_takes_anothers_block_sees_the_recall() {
    loom::model(|| {
        let (map, live) = map();
        assert!(map.spot(BLOCK).unwrap().exchange(live, live.kept()));
        let shared = Arc::new((map, gate()));
        let before = shared.1.calls();
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (map, caches) = &*shared;
                caches.announce_recall();
                if map.spot(BLOCK).unwrap().take(live.kept()) {
                    // Handed out again, and freed by another thread.
                    map.set_block(BLOCK, live);
                    assert!(map.spot(BLOCK).unwrap().exchange(live, live.kept()));
                    return true;
                }
                false
            })
        };
        let (map, caches) = &*shared;
        let taken = map.spot(BLOCK).unwrap().exchange(live.kept(), live);
        let seen = caches.calls() != before;
        let was_anothers = other.join().unwrap();
        assert!(taken || was_anothers);
        assert!(!(taken && was_anothers) || seen);
    });
}
