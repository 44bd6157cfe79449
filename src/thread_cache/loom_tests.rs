//! Races for a kept block, under every interleaving.

use super::*;
use crate::page_map::PageMap;
use loom::sync::Arc;
use loom::thread;

const ARENA: ArenaId = ArenaId(0);
const BLOCK: Address = Address::new(0);
const SIZE: Bytes = Bytes::new(512);

/// A map in which a block is live that threads may keep.
fn map() -> std::sync::Arc<PageMap> {
    let map = PageMap::new();
    assert!(map.hold_chunk(ARENA, BLOCK, Bytes::new(1024)));
    map.set_block(BLOCK, SlotWord::cacheable(ARENA, 0, SIZE, SIZE).unwrap());
    std::sync::Arc::new(map)
}

fn word(map: &PageMap) -> SlotWord {
    map.cacheable(BLOCK).unwrap().word()
}

/// A cache in which nothing has to wait for a fence.
fn opened() -> Kept {
    let mut kept = Kept::default();
    kept.open(1, Bytes::mib(1));
    kept
}

/// Of two threads that free a block at once, one keeps it.
#[test]
fn loom_one_of_two_frees_succeeds() {
    loom::model(|| {
        let map = Arc::new(map());
        let free = |map: &PageMap| {
            let slot = map.cacheable(BLOCK).unwrap();
            let word = slot.word();
            word.is_live_of(SlotWord::of_owner(ARENA)) && slot.keep(word)
        };
        let other = {
            let map = Arc::clone(&map);
            thread::spawn(move || free(&map))
        };
        let own = free(&map);
        assert_ne!(own, other.join().unwrap());
        assert!(word(&map).is_kept());
    });
}

/// The owner frees and allocates while the arena recalls: the block is the
/// program's or was recalled, once, and nothing is left in the cache.
#[test]
fn loom_a_recall_takes_what_the_owner_leaves() {
    loom::model(|| {
        let map = map();
        let cache = Arc::new(Lock::new(opened()));
        let owner = {
            let (map, cache) = (std::sync::Arc::clone(&map), Arc::clone(&cache));
            thread::spawn(move || {
                if let Some(mut kept) = cache.try_lock()
                    && kept.opening() == 1
                {
                    let slot = map.cacheable(BLOCK).unwrap();
                    kept.prepare(slot, BLOCK);
                    kept.put(SlotWord::of_owner(ARENA), slot, BLOCK);
                }
                let Some(mut kept) = cache.try_lock() else {
                    return;
                };
                kept.pass(1);
                let taken = kept.take_near(SIZE);
                assert!(taken.is_none_or(|block| block == BLOCK));
            })
        };
        let mut recalled = 0;
        {
            let hub = CacheHub::new(std::sync::Arc::clone(&map), ARENA);
            let mut kept = cache.lock();
            kept.recall(&hub, |block| {
                assert_eq!(block.address, BLOCK);
                assert!(word(&map).is_kept());
                recalled += 1;
            });
        }
        owner.join().unwrap();
        let is_kept = word(&map).is_kept();
        // What was recalled is the arena's: its thread does not have it again.
        assert_eq!(is_kept, recalled == 1);
        assert_eq!(cache.lock().bytes(), 0);
    });
}
