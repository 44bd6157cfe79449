//! Races for a kept block, under every interleaving.

use super::*;
use crate::page_map::PageMap;
use crate::sync::Lock;
use loom::sync::Arc;
use loom::thread;

const ARENA: ArenaId = ArenaId(0);
const BLOCK: Address = Address::new(0);
const SIZE: Bytes = Bytes::new(512);

/// A map in which a block is live that threads may keep.
fn map() -> std::sync::Arc<PageMap> {
    let map = PageMap::new();
    assert!(map.hold_chunk(ARENA, BLOCK, Bytes::new(1024)));
    let word = SlotWord::cacheable(ARENA, 0, SIZE, SIZE, LibraryId::UNKNOWN);
    map.set_block(BLOCK, word.unwrap());
    std::sync::Arc::new(map)
}

fn word(map: &PageMap) -> SlotWord {
    map.cacheable(BLOCK).unwrap().word()
}

/// A cache in which nothing has to wait for a fence.
fn opened() -> Kept {
    let mut kept = Kept::default();
    kept.open(1, SlotWord::of_owner(ARENA), Bytes::mib(1), false);
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
            word.is_live_of(SlotWord::of_owner(ARENA)) && slot.keep(word).is_some()
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
                    kept.put(slot, BLOCK);
                }
                let Some(mut kept) = cache.try_lock() else {
                    return;
                };
                kept.pass(1);
                let taken = kept.take_near(SIZE, LibraryId::UNKNOWN);
                assert!(taken.is_none_or(|block| block == BLOCK));
            })
        };
        let mut recalled = 0;
        {
            let mut kept = cache.lock();
            kept.recall(0, |block| {
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

/// A cache of a hub that is open for a thread, which has freed the block into it.
fn with_block_kept(hub: &CacheHub, caches: &mut Caches) -> OwnCache {
    let own = caches.open(hub, Bytes::mib(1), false, true);
    assert!(hub.keep_prepared(own, BLOCK));
    own
}

/// A thread closes its batch, under the arena's lock, and makes the fence while the
/// arena recalls: whoever finds an epoch for the block, or that it has ended, finds it
/// after that fence or before it is made, and what is freed later has none.
#[test]
fn loom_a_recalled_block_waits_for_a_fence_after_its_free() {
    loom::model(|| {
        let hub = Arc::new(CacheHub::new(map(), ARENA));
        let mut caches = Caches::default();
        let own = with_block_kept(&hub, &mut caches);
        let state = Arc::new(Lock::new(()));
        let fence = Arc::new(AtomicU64::new(0));
        let owner = {
            let (hub, state, fence) = (Arc::clone(&hub), Arc::clone(&state), Arc::clone(&fence));
            thread::spawn(move || {
                {
                    let _state = state.lock();
                    own.seal(7);
                }
                fence.store(1, Ordering::Relaxed);
                let _state = state.lock();
                hub.ends(7);
            })
        };
        let mut recalled = Vec::new();
        {
            let _state = state.lock();
            let held = caches.hold();
            for mut kept in caches.close_some(held, |_| true).0 {
                kept.recall(hub.ended(), |block| {
                    recalled.push((block.epoch, block.is_reclaimable))
                });
            }
        }
        let made = fence.load(Ordering::Relaxed) == 1;
        let (epoch, is_reclaimable) = recalled[0];
        assert!(epoch.is_none_or(|epoch| epoch == 7) || is_reclaimable);
        assert!(made || !is_reclaimable);
        // What is freed into it later waits for a fence of its own.
        let map = &hub.map;
        map.cacheable(BLOCK)
            .unwrap()
            .hand_out(SIZE, LibraryId::UNKNOWN);
        let next = with_block_kept(&hub, &mut caches);
        owner.join().unwrap();
        let lacking = hub.take_refreshed(next, SIZE, LibraryId::UNKNOWN);
        assert_eq!(lacking, Err(Lacks::Blocks));
    });
}

/// A cache passes from one thread to another: the first one, which may still look
/// at it, gets nothing out and puts nothing in.
#[test]
fn loom_who_had_a_cache_has_it_no_more() {
    loom::model(|| {
        let hub = Arc::new(CacheHub::new(map(), ARENA));
        let mut caches = Caches::default();
        let before = caches.open(&hub, Bytes::mib(1), false, true);
        let held = caches.hold();
        for mut kept in caches.close_some(held, |_| true).0 {
            kept.recall(hub.ended(), |_| unreachable!());
        }
        let late = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                let taken = |mut kept: Held| kept.take_near(SIZE, LibraryId::UNKNOWN);
                assert_eq!(before.hold().and_then(taken), None);
                assert!(!hub.keep_prepared(before, BLOCK));
            })
        };
        let own = caches.open(&hub, Bytes::mib(1), false, true);
        // The first one may have it for the moment of its look.
        let kept = hub.keep_prepared(own, BLOCK);
        assert_eq!(word(&hub.map).is_kept(), kept);
        late.join().unwrap();
        assert!(own.is_open() && !before.is_open());
    });
}

/// Somebody takes the room of a cache away while its thread frees and allocates:
/// what the arena counts, less the room, is always what the program holds.
#[test]
fn loom_a_figure_less_the_room_is_what_is_held() {
    loom::model(|| {
        let map = map();
        let cache = Arc::new(Lock::new(opened()));
        let owner = {
            let (map, cache) = (std::sync::Arc::clone(&map), Arc::clone(&cache));
            thread::spawn(move || {
                let slot = map.cacheable(BLOCK).unwrap();
                if let Some(mut kept) = cache.try_lock() {
                    kept.prepare(slot, BLOCK);
                    kept.put(slot, BLOCK);
                    kept.pass(1);
                }
                if let Some(mut kept) = cache.try_lock() {
                    kept.take_near(SIZE, LibraryId::UNKNOWN);
                }
            })
        };
        // One block is live, and counted.
        let mut figure = 1;
        for _ in 0..2 {
            let mut kept = cache.lock();
            figure -= kept.take_room().blocks;
            assert_eq!(figure, u64::from(!word(&map).is_kept()));
        }
        owner.join().unwrap();
        let held = u64::from(!word(&map).is_kept());
        assert_eq!(figure - cache.lock().room().blocks, held);
    });
}

/// A thread leaves room and takes some while the arena takes all there is, which it does
/// after it holds the cache: what it finds, and what the program holds, is what is counted.
#[test]
fn loom_who_holds_a_cache_finds_all_room() {
    loom::model(|| {
        let hub = Arc::new(CacheHub::new(map(), ARENA));
        let mut caches = Caches::default();
        let own = with_block_kept(&hub, &mut caches);
        hub.common.tell_shared(true);
        let all = hub.asked(own, |kept| kept.room()).unwrap();
        let room = |count: u64| Headroom {
            blocks: 7 * count,
            bytes: 7 * count * SIZE.get(),
            asked: 0,
        };
        hub.asked(own, |kept| kept.grant(room(1)));
        let owner = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                hub.leave_room(own);
                hub.asked(own, |kept| kept.take_common(&hub.common));
            })
        };
        let held = caches.hold();
        let found = held[0].room().and(hub.common.take());
        assert_eq!(found, all.and(room(1)));
        drop(held);
        owner.join().unwrap();
    });
}
