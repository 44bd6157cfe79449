//! Batches that are closed without the arena, and seats.

use super::cache::seat_of;
use super::kept::PARCEL;
use super::*;
use crate::page_map::PageMap;
use proptest::prelude::*;

const ARENA: ArenaId = ArenaId(0);
const SIZE: Bytes = Bytes::new(512);

/// A cache and blocks that it may keep.
struct Fixture {
    map: PageMap,
    kept: Kept,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::keeping(Bytes::mib(1))
    }

    /// It may keep so much.
    fn keeping(most: Bytes) -> Fixture {
        let map = PageMap::new();
        assert!(map.hold_chunk(ARENA, Address::new(0), Bytes::mib(2)));
        let mut kept = Kept::default();
        kept.open(1, SlotWord::of_owner(ARENA), most, false);
        let mut cache = Fixture { map, kept };
        // Its thread takes as much as it frees.
        (100..108).for_each(|number| _ = cache.free(number));
        cache.kept.close_batch(0);
        cache.kept.refresh(1);
        while cache.take().is_some() {}
        cache
    }

    /// The program frees a block of its own.
    fn free(&mut self, number: u64) -> Address {
        self.free_of(SIZE, number)
    }

    /// The same of another size.
    #[allow(clippy::unwrap_used, reason = "a test's own")]
    fn free_of(&mut self, size: Bytes, number: u64) -> Address {
        let address = Address::new(number * size.get());
        let word = SlotWord::cacheable(ARENA, 0, size, size, LibraryId::UNKNOWN);
        self.map.set_block(address, word.unwrap());
        let slot = self.map.cacheable(address).unwrap();
        self.kept.prepare(slot, address);
        assert!(self.kept.put(slot, address).is_some());
        address
    }

    fn take(&mut self) -> Option<Address> {
        self.kept.take_near(SIZE, LibraryId::UNKNOWN)
    }

    /// Addresses and epochs of what is called back, and which the device is done with.
    fn recall(&mut self, ended: u64) -> Vec<(Address, Option<u64>, bool)> {
        let mut all = Vec::new();
        self.kept.recall(ended, |block| {
            all.push((block.address, block.epoch, block.is_reclaimable));
        });
        assert_eq!(self.kept.bytes(), 0);
        all
    }
}

#[test]
fn a_full_cache_gives_back_less_of_what_takes_no_room() {
    const LARGE: Bytes = Bytes::kib(64);
    let gone = |most: Bytes, small: u64, large: u64| {
        let mut cache = Fixture::keeping(most);
        (200..200 + small).for_each(|number| _ = cache.free(number));
        for number in 16..16 + large {
            if cache.kept.is_worth_a_fence() {
                cache.kept.close_batch(1);
            }
            cache.free_of(LARGE, number);
        }
        let mut gone = Vec::new();
        cache.kept.shed(1, |block| gone.push(block.address));
        let (small, large): (Vec<Address>, Vec<Address>) = gone
            .into_iter()
            .partition(|block| *block < Address::new(16 * LARGE.get()));
        (small.len(), large.len())
    };
    let much = Bytes::mib(16);
    assert_eq!(gone(much, 100, 14), (6, 4));
    // Where there is nothing else; one at the least.
    assert_eq!(gone(much, 100, 0), (25, 0));
    assert_eq!(gone(much, 1, 0), (1, 0));
    // Where little may be kept.
    assert_eq!(gone(Bytes::mib(1), 100, 14), (25, 4));
}

/// What others may have is looked for after each batch, or after each few where many sizes
/// are to be looked at, and never less often.
#[test]
fn many_sizes_are_looked_at_after_each_few_batches() {
    let looks = |sizes: u64| {
        let mut cache = Fixture::keeping(Bytes::mib(16));
        (1..=sizes).for_each(|slots| _ = cache.free_of(Bytes::new(512 * slots), 9));
        let batches = (0..60).filter(|batch| {
            cache.free(2000 + batch);
            cache.kept.close_batch(1 + batch);
            cache.kept.is_worth_a_look()
        });
        batches.count()
    };
    assert_eq!([1, 31, 32, 64, 128].map(looks), [60, 60, 30, 20, 12]);
}

/// The driver can call the program back while the fence is made.
#[test]
fn what_is_freed_while_the_fence_is_made_waits() {
    let mut cache = Fixture::new();
    let before = cache.free(0);
    let name = cache.kept.close_alone(1).unwrap();
    let meanwhile = cache.free(1);
    assert_eq!(cache.take(), None);
    cache.kept.closed_alone(name, true);
    assert_eq!(cache.take(), Some(before));
    assert_eq!(cache.take(), None);
    assert_eq!(cache.recall(1), [(meanwhile, None, false)]);
    assert_eq!(cache.kept.activity().epochs, 1);
}

/// Nothing else is in the next batch.
#[test]
fn a_batch_whose_fence_is_not_reached_is_the_arenas() {
    let mut cache = Fixture::new();
    let block = cache.free(0);
    let name = cache.kept.close_alone(1).unwrap();
    cache.kept.closed_alone(name, false);
    assert_eq!(cache.take(), None);
    cache.kept.close_batch(7);
    assert!(cache.kept.close_alone(7).is_none());
    assert_eq!(cache.take(), None);
    cache.kept.refresh(8);
    assert_eq!(cache.take(), Some(block));
    let other = cache.free(1);
    cache.kept.close_batch(9);
    assert_eq!(cache.recall(9), [(other, Some(9), false)]);
}

#[test]
fn what_is_called_back_while_the_fence_is_made_has_none() {
    let mut cache = Fixture::new();
    let block = cache.free(0);
    cache.kept.close_alone(1).unwrap();
    assert_eq!(cache.recall(5), [(block, None, false)]);
}

/// The driver calls back into a call that closes a batch with the arena.
#[test]
fn a_batch_that_was_closed_meanwhile_waits_for_its_own_fence() {
    let mut cache = Fixture::new();
    let block = cache.free(0);
    let name = cache.kept.close_alone(1).unwrap();
    assert!(cache.kept.close_alone(1).is_none());
    let later = cache.free(1);
    cache.kept.close_batch(3);
    cache.kept.closed_alone(name, true);
    assert_eq!(cache.take(), Some(block));
    assert_eq!(cache.take(), None);
    assert_eq!(cache.recall(3), [(later, Some(3), false)]);
}

/// What happens in a cache.
#[derive(Clone, Debug)]
enum Step {
    Free,
    Take,
    /// The arena closes the open batch.
    Close,
    /// The device is done with so many epochs more.
    Ends(u64),
    /// The thread closes the open batch.
    CloseAlone,
    /// It knows whether the device is done with the one that it closed last.
    IsOver(bool),
    /// So few numbers are left.
    Numbers(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Free),
        4 => Just(Step::Take),
        2 => Just(Step::Close),
        2 => (0..3_u64).prop_map(Step::Ends),
        2 => Just(Step::CloseAlone),
        2 => any::<bool>().prop_map(Step::IsOver),
        1 => (0..4_u64).prop_map(Step::Numbers),
    ]
}

proptest! {
    /// One cache comes to the last number again and again, the other never.
    #[test]
    fn batches_are_numbered_anew_and_nothing_else_changes(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut caches = [Fixture::new(), Fixture::new()];
        let (mut ended, mut epoch, mut number) = (1, 1, 200);
        let mut names = [None; 2];
        for step in steps {
            match step {
                Step::Free => number += 1,
                Step::Close => epoch += 1,
                Step::Ends(more) => ended = epoch.min(ended + more),
                _ => {}
            }
            let each = |(at, cache): (usize, &mut Fixture)| match step {
                Step::Free => Some(cache.free(number)),
                Step::Take => cache.take(),
                Step::Close => {
                    cache.kept.close_batch(epoch - 1);
                    None
                }
                Step::Ends(_) => {
                    cache.kept.refresh(ended);
                    None
                }
                Step::CloseAlone => {
                    names[at] = cache.kept.close_alone(ended).or(names[at]);
                    names[at].map(|_| Address::new(0))
                }
                Step::IsOver(is_over) => {
                    let name = names[at].take();
                    name.map(|name| cache.kept.closed_alone(name, is_over))
                        .map(|()| Address::new(0))
                }
                Step::Numbers(left) => {
                    if at == 1 {
                        cache.kept.leave_numbers(left);
                    }
                    None
                }
            };
            let found: Vec<Option<Address>> = caches.iter_mut().enumerate().map(each).collect();
            prop_assert_eq!(found[0], found[1]);
        }
        let [one, other] = caches.each_mut().map(|cache| cache.recall(ended));
        prop_assert_eq!(one, other);
    }
}

#[test]
fn a_thread_that_only_frees_leaves_its_batches_to_the_arena() {
    let mut cache = Fixture::new();
    for number in 0..20 {
        cache.free(number);
    }
    assert!(cache.kept.close_alone(1).is_none());
    cache.kept.close_batch(1);
    cache.kept.refresh(2);
    for _ in 0..20 {
        cache.take().unwrap();
    }
    for number in 20..40 {
        cache.free(number);
    }
    assert!(cache.kept.close_alone(2).is_some());
}

#[test]
fn a_thread_gets_a_seat_that_the_fewest_have() {
    let hub = CacheHub::new(Arc::new(PageMap::new()), ARENA);
    let mut caches = Caches::default();
    let seat = |caches: &mut Caches, has| caches.open(&hub, SIZE, false, has).seat();
    let seats = [true, false, true, true, true, true].map(|has| seat(&mut caches, has));
    assert_eq!(
        seats,
        [0, 9, 1, 2, 3, 0].map(|seat| (seat < 9).then_some(seat))
    );
    // Who has the third one goes.
    let held = caches.hold();
    let (closed, open) = caches.close_some(held, |kept| seat_of(kept.opening()) == Some(2));
    drop(open);
    closed
        .into_iter()
        .for_each(|mut kept| kept.recall(0, |_| {}));
    assert_eq!(seat(&mut caches, true), Some(2));
    caches.forget();
}

#[test]
fn a_thread_uses_its_cache_that_only_frees_or_only_takes() {
    let mut cache = Fixture::new();
    let mut used = |change: fn(&mut Fixture)| {
        change(&mut cache);
        (cache.kept.take_used(), cache.kept.take_used())
    };
    assert_eq!(used(|_| ()), (true, false));
    assert_eq!(used(|cache| _ = cache.free(0)), (true, false));
    let takes = |cache: &mut Fixture| {
        cache.kept.close_batch(3);
        cache.kept.refresh(4);
        assert!(cache.take().is_some());
    };
    assert_eq!(used(takes), (true, false));
    assert_eq!(used(|_| ()), (false, false));
}

#[test]
fn a_thread_that_got_no_cache_asks_again_after_many_requests() {
    let own = OwnCaches::new();
    let requests = |own: &OwnCaches| (1..).find(|_| own.asks_much());
    assert_eq!(requests(&own), Some(64));
    assert_eq!(requests(&own), Some(64));
    own.waits();
    assert_eq!(requests(&own), Some(4096));
    assert_eq!(requests(&own), Some(64));
}

/// It may use fewer later, or those may end.
#[test]
fn a_thread_that_used_too_many_arenas_gets_a_cache_again() {
    let (mut caches, own) = (Caches::default(), OwnCaches::new());
    let hubs: Vec<CacheHub> = (0..9)
        .map(|_| CacheHub::new(Arc::new(PageMap::new()), ARENA))
        .collect();
    assert!((1..=4).any(|_| own.frees_much()));
    for _ in 0..2 {
        for hub in &hubs {
            own.remember(caches.open(hub, SIZE, false, false));
        }
    }
    assert!(own.frees_much());
    for hub in &hubs {
        own.remember(caches.open(hub, SIZE, false, false));
    }
    assert!(!own.frees_much());
    assert_eq!((1..).find(|_| own.frees_much()), Some(4095));
    assert!(own.frees_much());
    caches.forget();
}

/// Two threads' caches of one hub.
fn of_two(hub: &CacheHub, caches: &mut Caches) -> [OwnCache; 2] {
    [(); 2].map(|()| caches.open(hub, Bytes::mib(1), false, false))
}

#[test]
fn a_cache_that_lacks_room_takes_what_another_has_left() {
    let map = Arc::new(PageMap::new());
    assert!(map.hold_chunk(ARENA, Address::new(0), Bytes::mib(2)));
    let hub = CacheHub::new(Arc::clone(&map), ARENA);
    let mut caches = Caches::default();
    let [one, other] = of_two(&hub, &mut caches);
    let word = SlotWord::cacheable(ARENA, 0, SIZE, SIZE, LibraryId::UNKNOWN).unwrap();
    let free = |own, from: u64, count: u64| {
        for number in from..from + count {
            let block = Address::new(SIZE.get() * number);
            map.set_block(block, word);
            assert!(hub.keep_prepared(own, block));
        }
        hub.asked(own, |kept| kept.close_alone(1)).unwrap();
    };
    free(one, 0, 8);
    free(other, 8, 1);
    // What it has is taken away, so that it lacks some.
    let one_block = Headroom {
        blocks: 1,
        bytes: SIZE.get(),
        asked: SIZE.get(),
    };
    let taken = hub.asked(other, |kept| kept.take_room());
    assert_eq!(taken, Some(one_block));
    hub.ends(1);
    hub.asked(other, |kept| kept.close_batch(0)).unwrap();
    let lacking = hub.take_refreshed(other, SIZE, LibraryId::UNKNOWN);
    assert_eq!(lacking, Err(Lacks::Room));
    hub.leave_room(one);
    assert_eq!(hub.common.get(), Headroom::default());
    hub.common.tell_shared(true);
    hub.leave_room(one);
    let of_one = hub.asked(one, |kept| kept.room()).unwrap();
    let half = Headroom {
        blocks: 4,
        bytes: 4 * SIZE.get(),
        asked: 4 * SIZE.get(),
    };
    assert_eq!((of_one, hub.common.get()), (half, half));
    assert!(hub.take_refreshed(other, SIZE, LibraryId::UNKNOWN).is_ok());
    let left = half.less(hub.common.get());
    assert_eq!(left.blocks, 1);
    // Nothing more is left where there is about as much.
    hub.leave_room(one);
    assert_eq!(hub.asked(one, |kept| kept.room()), Some(half));
}

/// Nor one that says that it has nothing to give. The thread of one that is in use may
/// have been preempted, for long.
#[test]
fn a_cache_that_is_in_use_is_not_looked_at_for_another_thread() {
    let map = Arc::new(PageMap::new());
    assert!(map.hold_chunk(ARENA, Address::new(0), Bytes::mib(2)));
    let hub = CacheHub::new(Arc::clone(&map), ARENA);
    let mut caches = Caches::default();
    let [one, other] = of_two(&hub, &mut caches);
    let looked_at = |caches: &mut Caches| {
        let mut looks = 0;
        caches.look_at_others(Some(other), |_| {
            looks += 1;
            false
        });
        looks
    };
    let word = SlotWord::cacheable(ARENA, 0, SIZE, SIZE, LibraryId::UNKNOWN).unwrap();
    for number in 0..PARCEL {
        one.seal(number);
        assert_eq!(looked_at(&mut caches), 0);
        let block = Address::new(SIZE.get() * number);
        map.set_block(block, word);
        assert!(hub.keep_prepared(one, block));
    }
    one.seal(PARCEL);
    let in_use = one.hold();
    assert_eq!(looked_at(&mut caches), 0);
    drop(in_use);
    assert_eq!(looked_at(&mut caches), 1);
}
