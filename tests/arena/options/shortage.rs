//! What happens when memory is short: `throw_on_cudamalloc_oom`,
//! `gpu_allocator_retry_time`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use vramalloc_core::Driver as _;
use vramalloc_core::address::Bytes;
use vramalloc_core::arena::{Arena, live_at};
use vramalloc_core::config::{Config, DeviceShare, StrategyKind};
use vramalloc_core::error::{AllocError, Code, FreeError};
use vramalloc_core::library::LibraryId;
use vramalloc_core::page_map::ArenaId;
use vramalloc_core::quota::Quota;
use vramalloc_model::{Call, SimDriver};

use crate::rig::{MS, Rig, plain};

const DEVICE: Bytes = Bytes::mib(200);
const STRATEGIES: [StrategyKind; 3] = [
    StrategyKind::NaiveBestFit,
    StrategyKind::AutoGrowth,
    StrategyKind::Passthrough,
];

fn limited(fail_at_limit: bool) -> Config {
    Config {
        limit: Some(DeviceShare::Bytes(Bytes::mib(100))),
        fail_at_limit,
        ..plain(StrategyKind::AutoGrowth)
    }
}

#[test]
fn at_the_limit_a_request_fails_with_the_cache_as_it_is() {
    for fail_at_limit in [false, true] {
        let rig = Rig::new(&limited(fail_at_limit), DEVICE);
        let cached = rig.get(Bytes::mib(60));
        rig.arena.free(cached).unwrap();
        let calls = rig.gpu.calls(Call::Alloc);
        let result = rig.arena.allocate(Bytes::mib(80));
        let stats = rig.arena.stats();
        if fail_at_limit {
            assert_eq!(result, Err(AllocError::Limit));
            assert_eq!(rig.gpu.calls(Call::Alloc), calls);
            assert_eq!(stats.reserved.current, Bytes::mib(60));
            assert_eq!((stats.ooms, stats.limit_ooms), (1, 1));
            assert_eq!(stats.memory.num_oom_rejections, 1);
            assert_eq!(stats.memory.num_alloc_retries, 0);
            assert_eq!(rig.get(Bytes::mib(60)), cached, "from the cache");
            rig.arena.free(cached).unwrap();
        } else {
            assert_eq!(stats.reserved.current, Bytes::mib(80));
            assert_eq!(stats.memory.num_oom_rejections, 0);
            rig.arena.free(result.unwrap()).unwrap();
        }
        rig.ends_clean();
    }
}

/// What the program has freed is not in its way, though the device is at it
/// still: the free itself would have waited.
#[test]
fn at_the_limit_freed_memory_is_waited_for() {
    for strategy in STRATEGIES {
        let config = Config {
            strategy,
            initial_chunk: Some(Bytes::mib(100)),
            reallocate_chunk: Some(Bytes::mib(100)),
            ..limited(true)
        };
        let rig = Rig::new(&config, DEVICE);
        let block = rig.get(Bytes::mib(90));
        rig.launch(block, Bytes::mib(90), 100 * MS);
        rig.arena.free(block).unwrap();
        let again = rig.get(Bytes::mib(90));
        assert!(!rig.gpu.in_use(again, Bytes::mib(90)));
        assert_eq!(
            rig.arena.allocate(Bytes::mib(90)),
            Err(AllocError::Limit),
            "{strategy:?}"
        );
        assert_eq!(rig.arena.stats().memory.num_oom_rejections, 1);
        rig.arena.free(again).unwrap();
        rig.ends_clean();
    }
}

/// Nor where it is the driver's to give back: a capture does not hold that up.
#[test]
fn at_the_limit_freed_allocations_are_given_back() {
    let config = Config {
        strategy: StrategyKind::Passthrough,
        ..limited(true)
    };
    let rig = Rig::new(&config, DEVICE);
    let block = rig.get(Bytes::mib(90));
    rig.gpu.begin_capture(rig.stream);
    rig.arena.free(block).unwrap();
    assert_eq!(rig.gpu.used(0), Bytes::ZERO);
    let again = rig.get(Bytes::mib(80));
    assert!(rig.gpu.end_capture(rig.stream));
    rig.arena.free(again).unwrap();
    rig.ends_clean();
}

/// What the driver refuses to take back is on the device still, and counts
/// until its context ends.
#[test]
fn what_the_driver_does_not_take_back_counts() {
    let rig = Rig::new(&limited(false), DEVICE);
    let idle = rig.get(Bytes::mib(60));
    rig.arena.free(idle).unwrap();
    rig.gpu.fail_nth(Call::Free, 1, Code::UNKNOWN);
    let refused = rig.arena.allocate(Bytes::mib(90));
    assert_eq!(refused, Err(AllocError::Limit));
    rig.get(Bytes::mib(40));
    assert_eq!(rig.gpu.used(0), Bytes::mib(100));
    rig.arena.retire();
    assert_eq!(rig.arena.mem_info().unwrap().free, Bytes::mib(100));
}

/// A second free of its first block, for which the driver was asked meanwhile.
#[test]
fn what_somebody_else_gave_back_does_not_count() {
    let rig = Rig::new(&limited(false), DEVICE);
    let idle = rig.get(Bytes::mib(60));
    rig.arena.free(idle).unwrap();
    rig.gpu.fail_nth(Call::Free, 1, Code::INVALID_VALUE);
    let block = rig.get(Bytes::mib(90));
    rig.arena.free(block).unwrap();
    rig.get(Bytes::mib(95));
}

#[test]
fn what_the_driver_is_not_asked_to_take_back_waits() {
    let rig = Rig::new(&plain(StrategyKind::Passthrough), DEVICE);
    let block = rig.get(Bytes::mib(60));
    // Its context may be ending.
    rig.gpu.fail_nth(Call::Free, 1, Code::NOT_READY);
    assert_eq!(rig.arena.free(block), Ok(()));
    assert_eq!(rig.arena.free(block), Err(FreeError::NotLive));
    assert_eq!(rig.arena.live(), Bytes::ZERO);
    assert_eq!(rig.gpu.used(0), Bytes::mib(60));
    let larger = rig.get(Bytes::mib(190));
    rig.arena.free(larger).unwrap();
    rig.ends_clean();
}

#[test]
fn a_full_device_is_no_limit() {
    let config = Config {
        limit: None,
        ..limited(true)
    };
    let rig = Rig::new(&config, DEVICE);
    let cached = rig.get(Bytes::mib(120));
    rig.arena.free(cached).unwrap();
    let block = rig.get(Bytes::mib(150));
    rig.arena.free(block).unwrap();
    rig.ends_clean();
}

fn patient(strategy: StrategyKind, retry_time: Duration) -> Config {
    Config {
        retry_time,
        initial_chunk: Some(DEVICE),
        ..plain(strategy)
    }
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_request_waits_for_what_another_thread_frees() {
    for strategy in STRATEGIES {
        let rig = Rig::new(&patient(strategy, LONG), DEVICE);
        let [first, second] = [rig.get(Bytes::mib(90)), rig.get(Bytes::mib(90))];
        thread::scope(|scope| {
            let waiting = scope.spawn(|| rig.get(Bytes::mib(160)));
            thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished(), "nothing was freed");
            // Others are served meanwhile.
            let small = rig.get(Bytes::mib(1));
            rig.arena.free(small).unwrap();
            rig.arena.free(first).unwrap();
            thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished(), "that was not enough");
            rig.arena.free(second).unwrap();
            let block = waiting.join().unwrap();
            rig.arena.free(block).unwrap();
        });
        assert_eq!(rig.arena.stats().ooms, 0);
        rig.ends_clean();
    }
}

#[test]
fn it_does_not_wait_for_ever() {
    let moment = Duration::from_millis(50);
    for strategy in STRATEGIES {
        let rig = Rig::new(&patient(strategy, moment), DEVICE);
        let block = rig.get(Bytes::mib(190));
        let start = Instant::now();
        let shortage = Err(AllocError::Driver(Code::OUT_OF_MEMORY));
        assert_eq!(rig.arena.allocate(Bytes::mib(100)), shortage);
        assert!(start.elapsed() >= moment);
        assert_eq!(rig.arena.stats().ooms, 1, "one request failed");
        rig.arena.free(block).unwrap();
        rig.ends_clean();
    }
}

/// What is served past the arena, as after a free in another thread, has not failed.
#[test]
fn a_request_has_failed_when_nothing_past_the_arena_serves_it() {
    const SIZE: Bytes = Bytes::mib(150);
    let config = plain(StrategyKind::Passthrough);
    let rig = Rig::new(&config, DEVICE);
    let (driver, map) = (rig.gpu.driver(0).unwrap(), Arc::clone(&rig.map));
    let quota = Arc::new(Quota::new(Bytes::MAX));
    let arena = Arena::new(ArenaId(1), driver, &config, map, quota).asked_past();
    let take_past = |gives| {
        arena.take_past(SIZE, LibraryId::UNKNOWN, || match gives {
            true => rig.gpu.driver(0).unwrap().alloc(SIZE),
            false => Err(Code::OUT_OF_MEMORY),
        })
    };
    let shortage = Err(AllocError::Driver(Code::OUT_OF_MEMORY));
    let block = arena.allocate(SIZE).unwrap();
    assert_eq!(arena.allocate(SIZE), shortage);
    arena.free(block).unwrap();
    let block = take_past(true).unwrap();
    assert_eq!(arena.stats().ooms, 0);
    for failed in [1, 2] {
        assert_eq!(arena.allocate(SIZE), shortage);
        assert_eq!(take_past(false), shortage);
        assert_eq!(arena.stats().ooms, failed);
    }
    arena.free(block).unwrap();
}

/// Where the memory is in another context of the device, its frees are heard
/// too, and it is given back there.
#[test]
fn a_request_waits_for_what_is_freed_in_another_context() {
    let patience = Duration::from_secs(5);
    let config = patient(StrategyKind::AutoGrowth, patience);
    let rig = Rig::new(&config, DEVICE);
    let quota = Arc::new(Quota::new(Bytes::MAX));
    let arena = |number| {
        let driver = rig.gpu.driver(0).unwrap();
        let (map, quota) = (Arc::clone(&rig.map), Arc::clone(&quota));
        Arena::new(ArenaId(number), driver, &config, map, quota)
    };
    let other = Arc::new(arena(1));
    let (idle, live) = (Arc::clone(&other), Arc::clone(&other));
    let own = arena(2).relieved_by(move || !idle.trim().is_zero(), move || Some(live.live()));
    let block = other.allocate(Bytes::mib(150)).unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| own.allocate(Bytes::mib(100)));
        thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished(), "nothing was freed");
        other.free(block).unwrap();
        let served = waiting.join().unwrap();
        assert!(served.is_ok(), "{served:?}");
    });
    assert!(start.elapsed() < patience);
}

/// Arenas of two contexts of the device, of which the first asks the second.
/// What is done at each sum of what the program holds: `before` it, and
/// `meanwhile`.
fn neighbours(
    relieve: impl Fn(&Arena<SimDriver>) -> bool + Send + Sync + 'static,
    before: impl Fn(&Arena<SimDriver>, &Arena<SimDriver>) + Send + Sync + 'static,
    meanwhile: impl Fn(&Arena<SimDriver>, &Arena<SimDriver>) + Send + Sync + 'static,
) -> [Arc<Arena<SimDriver>>; 2] {
    // Chunks are not packed: idle ones would go back before anybody is asked.
    let config = Config {
        auto_growth_chunk: Bytes::mib(4),
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::new(&config, DEVICE);
    let quota = Arc::new(Quota::new(Bytes::MAX));
    let arena = |number| {
        let driver = rig.gpu.driver(0).unwrap();
        let (map, quota) = (Arc::clone(&rig.map), Arc::clone(&quota));
        Arena::new(ArenaId(number), driver, &config, map, quota)
    };
    let other = Arc::new(arena(1));
    let [idle, held] = [(); 2].map(|()| Arc::clone(&other));
    let own = Arc::new_cyclic(|own: &Weak<Arena<SimDriver>>| {
        let own = Weak::clone(own);
        let live = move || {
            let own = own.upgrade()?;
            before(&own, &held);
            live_at(&[&held], || {
                meanwhile(&own, &held);
                Some(())
            })
        };
        arena(2).relieved_by(move || relieve(&idle), live)
    });
    [own, other]
}

/// What another thread moves from one context to another, while the sum is
/// made of what the program holds, is there once.
#[test]
fn what_moves_between_contexts_is_counted_once() {
    const SIZE: Bytes = Bytes::mib(60);
    let block = Arc::new(Mutex::new(None));
    let moves = Arc::new(AtomicU32::new(0));
    let shift = {
        let (block, moves) = (Arc::clone(&block), Arc::clone(&moves));
        move |from: &Arena<SimDriver>, to: &Arena<SimDriver>| {
            let mut block = block.lock().unwrap();
            if let Some(there) = block.take_if(|block| from.locate(*block).is_some()) {
                from.free(there).unwrap();
                *block = Some(to.allocate(SIZE).unwrap());
                moves.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let (back, forth) = (shift.clone(), shift);
    let relieve = |idle: &Arena<SimDriver>| !idle.trim().is_zero();
    let [own, other] = neighbours(
        relieve,
        move |own, other| back(own, other),
        move |own, other| forth(other, own),
    );
    let cached = own.allocate(SIZE).unwrap();
    *block.lock().unwrap() = Some(other.allocate(SIZE).unwrap());
    own.free(cached).unwrap();
    own.flush();
    let served = own.allocate(Bytes::mib(100));
    assert!(moves.load(Ordering::Relaxed) > 0, "nothing moved");
    assert!(served.is_ok(), "{served:?}");
}

/// What neighbours gave back, another thread took first, and left more of its
/// own idle: bare, there is room at every moment.
#[test]
fn neighbours_are_asked_again_while_memory_moves() {
    let rounds = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&rounds);
    let relieve = move |idle: &Arena<SimDriver>| {
        let gave = !idle.trim().is_zero();
        if counted.fetch_add(1, Ordering::Relaxed) < 8 {
            let taken = idle.allocate(Bytes::mib(120)).unwrap();
            idle.free(taken).unwrap();
        }
        gave
    };
    let [own, other] = neighbours(relieve, |_, _| {}, |_, _| {});
    let idle = other.allocate(Bytes::mib(120)).unwrap();
    other.free(idle).unwrap();
    let served = own.allocate(Bytes::mib(150));
    assert!(served.is_ok(), "{served:?}");
    assert!(rounds.load(Ordering::Relaxed) > 8);
}

/// Nobody tells when another process gives memory back.
#[test]
fn when_the_time_is_over_it_asks_once_more() {
    let rig = Rig::new(
        &patient(StrategyKind::AutoGrowth, Duration::from_millis(300)),
        DEVICE,
    );
    rig.gpu.occupy(0, Bytes::mib(150));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.get(Bytes::mib(100)));
        thread::sleep(Duration::from_millis(50));
        rig.gpu.occupy(0, Bytes::ZERO);
        rig.arena.free(waiting.join().unwrap()).unwrap();
    });
    rig.ends_clean();
}

#[test]
fn what_fails_at_once_does_not_wait() {
    let config = Config {
        retry_time: LONG,
        ..limited(true)
    };
    let rig = Rig::new(&config, DEVICE);
    let start = Instant::now();
    assert_eq!(rig.arena.allocate(Bytes::mib(150)), Err(AllocError::Limit));
    assert!(start.elapsed() < LONG / 2);
    rig.ends_clean();
}

#[test]
fn who_waits_hears_of_the_end_of_the_context() {
    let rig = Rig::new(&patient(StrategyKind::AutoGrowth, LONG), DEVICE);
    rig.get(Bytes::mib(150));
    let start = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.arena.allocate(Bytes::mib(100)));
        thread::sleep(Duration::from_millis(30));
        rig.gpu.destroy_context(rig.arena.driver().context());
        rig.arena.retire();
        assert!(waiting.join().unwrap().is_err());
    });
    assert!(start.elapsed() < LONG / 2);
}

/// An allocation of its own that is freed in the order of a stream is the device's until the
/// stream gets there, which the caller knows.
#[test]
fn what_a_stream_has_yet_to_free_counts() {
    let config = Config {
        dedicated_min: Some(Bytes::mib(32)),
        ..limited(true)
    };
    let rig = Rig::new(&config, DEVICE);
    let block = rig.get(Bytes::mib(64));
    let driver = rig.arena.driver();
    let freed = rig.arena.free_in_order(block, || driver.free(block));
    assert_eq!(freed, Ok(Bytes::mib(64)));
    assert_eq!(rig.arena.stats().reserved.current, Bytes::ZERO);
    let limit = Err(AllocError::Limit);
    assert_eq!(rig.arena.allocate(Bytes::mib(64)), limit);
    rig.ends_clean();
}
