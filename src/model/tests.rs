//! The model's own behaviour: time, order, memory, captures, strictness.

use crate::{Call, Gpu, Model, Nanos, Settings, StreamId, Touch, Violation, Work};
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::driver::mapping::{Mapping, RESERVED_AT};
use vramalloc_core::driver::{Driver, Whose};
use vramalloc_core::error::Code;

const MS: Nanos = 1_000_000;

fn gpu() -> Gpu {
    Gpu::new(Settings::default())
}

fn model() -> (Model<u32>, StreamId, StreamId, StreamId) {
    let mut m = Model::new(Settings {
        call_ns: 0,
        races: true,
        ..Settings::default()
    });
    let context = m.create_context(0).unwrap();
    let legacy = m.legacy(context).unwrap();
    let blocking = m.create_stream(context, true).unwrap();
    let free = m.create_stream(context, false).unwrap();
    (m, legacy, blocking, free)
}

#[test]
fn free_waits_for_the_work_of_the_context() {
    let gpu = gpu();
    let driver = gpu.driver(0).unwrap();
    let stream = gpu.stream(driver.context(), false).unwrap();
    let block = driver.alloc(Bytes::mib(4)).unwrap();
    let ends = gpu
        .launch(stream, 200 * MS, &[(block, Bytes::mib(4))])
        .unwrap();
    assert!(gpu.in_use(block, Bytes::new(1)));
    assert!(!gpu.in_use(Address::new(block.get() + (4 << 20)), Bytes::mib(1)));
    assert!(gpu.now() < ends);
    driver.free(block).unwrap();
    assert!(gpu.now() >= ends);
    assert!(!gpu.in_use(block, Bytes::mib(4)));
    assert_eq!(gpu.violations(), []);
}

#[test]
fn a_fence_is_reached_when_all_streams_are_even_a_destroyed_one() {
    let gpu = gpu();
    let driver = gpu.driver(0).unwrap();
    let slow = gpu.stream(driver.context(), false).unwrap();
    gpu.launch(slow, 5 * MS, &[]).unwrap();
    gpu.destroy_stream(slow);
    let legacy = gpu.legacy(driver.context()).unwrap();
    gpu.launch(legacy, MS, &[]).unwrap();
    gpu.synchronize(legacy);
    let fence = driver.fence().unwrap();
    assert_eq!(driver.reached(&fence), Ok(false));
    gpu.launch(legacy, 50 * MS, &[]).unwrap();
    driver.wait(&fence, Whose::All).unwrap();
    assert_eq!(driver.reached(&fence), Ok(true));
    assert!(gpu.now() < 50 * MS, "later work does not count");
}

#[test]
fn the_legacy_stream_orders_with_blocking_streams_only() {
    let (mut m, legacy, blocking, free) = model();
    assert_eq!(m.submit(blocking, Work::lasting(100)), Ok(100));
    assert_eq!(m.submit(legacy, Work::lasting(10)), Ok(110));
    assert_eq!(m.submit(free, Work::lasting(5)), Ok(5));
    assert_eq!(m.submit(blocking, Work::lasting(1)), Ok(111));
    assert_eq!(m.submit(free, Work::lasting(300)), Ok(305));
    assert_eq!(m.stream_tail(legacy), 111);
    m.hold(legacy, &m.stream_mark(free));
    assert_eq!(m.submit(blocking, Work::lasting(1)), Ok(306));
}

#[test]
fn effects_come_at_the_end_of_their_work_and_in_order() {
    let (mut m, _, a, b) = model();
    let effect = |duration, n| Work {
        effect: Some(n),
        ..Work::lasting(duration)
    };
    m.submit(a, effect(100, 1)).unwrap();
    m.submit(a, effect(0, 2)).unwrap();
    m.submit(b, effect(50, 3)).unwrap();
    m.advance_to(99);
    assert_eq!(m.take_effects(), [3]);
    m.advance_to(100);
    assert_eq!(m.take_effects(), [1, 2]);
    assert_eq!(m.pending(), 0);
}

#[test]
fn work_on_memory_that_is_not_allocated_is_a_violation() {
    let gpu = gpu();
    let driver = gpu.driver(0).unwrap();
    let legacy = gpu.legacy(driver.context()).unwrap();
    let block = driver.alloc(Bytes::new(1000)).unwrap();
    gpu.launch(legacy, 1, &[(block, Bytes::new(1000))]).unwrap();
    assert_eq!(gpu.violations(), []);
    gpu.launch(legacy, 1, &[(block, Bytes::new(1001))]).unwrap();
    driver.free(block).unwrap();
    gpu.launch(legacy, 1, &[(block, Bytes::new(1))]).unwrap();
    assert_eq!(gpu.violations().len(), 2);
}

#[test]
fn unordered_writes_are_a_race_and_ordered_ones_are_not() {
    let (mut m, _, a, b) = model();
    let context = m.context_of(a).unwrap();
    let block = m.allocate(context, Bytes::mib(1)).unwrap();
    let touching = |touch| Work {
        touches: vec![touch],
        ..Work::lasting(10)
    };
    let all = Bytes::mib(1);
    m.submit(a, touching(Touch::read(block, all))).unwrap();
    m.submit(b, touching(Touch::read(block, all))).unwrap();
    m.hold(b, &m.stream_mark(a));
    m.submit(b, touching(Touch::write(block, all))).unwrap();
    assert_eq!(m.violations(), []);
    m.submit(a, touching(Touch::read(block, Bytes::new(1))))
        .unwrap();
    assert!(matches!(m.violations(), [Violation::Race { .. }]));
}

#[test]
fn work_that_ended_is_unordered_until_somebody_learns_of_it() {
    let (mut m, legacy, a, b) = model();
    let context = m.context_of(a).unwrap();
    let block = m.allocate(context, Bytes::mib(1)).unwrap();
    let writing = || Work {
        touches: vec![Touch::write(block, Bytes::mib(1))],
        ..Work::lasting(10)
    };
    let mark_after = |m: &mut Model<u32>, stream| {
        m.submit(stream, writing()).unwrap();
        m.stream_mark(stream)
    };
    let first = mark_after(&mut m, a);
    m.advance_to(1000);
    assert!(m.has_reached(&first), "the host asks, and knows");
    mark_after(&mut m, b);
    let both = m.context_mark(context);
    m.wait(&both);
    mark_after(&mut m, legacy);
    mark_after(&mut m, a);
    let third = m.stream_mark(legacy);
    m.hold(b, &third);
    mark_after(&mut m, b);
    assert_eq!(m.violations(), [], "the legacy stream orders a before b");

    m.advance_to(5000);
    mark_after(&mut m, a);
    assert_eq!(m.violations().len(), 1, "nobody asked");
    m.release(block).unwrap();
    let again = m.allocate(context, Bytes::mib(1)).unwrap();
    assert_eq!(again, block);
    m.advance_to(9000);
    mark_after(&mut m, b);
    assert_eq!(m.violations().len(), 2, "given back under running work");
}

#[test]
fn giving_memory_back_under_running_work_is_a_violation() {
    let (mut m, _, a, _) = model();
    let context = m.context_of(a).unwrap();
    let block = m.allocate(context, Bytes::mib(4)).unwrap();
    let work = Work {
        touches: vec![Touch::read(block, Bytes::mib(4))],
        ..Work::lasting(10)
    };
    m.submit(a, work).unwrap();
    m.release(block).unwrap();
    let (start, until) = (block, 10);
    assert_eq!(m.violations(), [Violation::FreedInUse { start, until }]);
}

#[test]
fn a_fence_during_a_capture_spoils_it_and_growth_does_not() {
    let gpu = gpu();
    let driver = gpu.driver(0).unwrap();
    let stream = gpu.stream(driver.context(), false).unwrap();
    let fence = driver.fence().unwrap();
    gpu.begin_capture(stream);
    assert!(!driver.may_fence());
    let block = driver.alloc(Bytes::mib(2)).unwrap();
    driver.free(block).unwrap();
    driver.mem_info().unwrap();
    assert!(gpu.end_capture(stream));
    assert!(driver.may_fence());

    gpu.begin_capture(stream);
    assert_eq!(driver.fence(), Err(Code::CAPTURE_UNSUPPORTED));
    assert_eq!(driver.reached(&fence), Err(Code::CAPTURE_UNSUPPORTED));
    assert_eq!(
        driver.wait(&fence, Whose::All),
        Err(Code::CAPTURE_UNSUPPORTED)
    );
    assert!(!gpu.end_capture(stream));
    assert_eq!(gpu.violations().len(), 3);
}

#[test]
fn calls_after_the_end_are_violations() {
    let gpu = gpu();
    let driver = gpu.driver(0).unwrap();
    let other = gpu.driver(0).unwrap();
    let block = other.alloc(Bytes::gib(1)).unwrap();
    assert_eq!(
        driver.free(Address::new(block.get() + 512)),
        Err(Code::INVALID_VALUE)
    );
    gpu.destroy_context(other.context());
    assert_eq!(gpu.used(0), Bytes::ZERO);
    assert_eq!(other.alloc(Bytes::new(1)), Err(Code::INVALID_CONTEXT));
    gpu.shut_down();
    assert_eq!(driver.alloc(Bytes::new(1)), Err(Code::DEINITIALIZED));
    assert_eq!(
        gpu.violations(),
        [
            Violation::UnknownFree(Address::new(block.get() + 512)),
            Violation::DeadContext("alloc".to_owned()),
            Violation::AfterShutdown("alloc".to_owned()),
        ]
    );
}

#[test]
fn scripted_faults_hit_the_call_they_name() {
    let gpu = gpu();
    let driver = gpu.driver(0).unwrap();
    driver.alloc(Bytes::new(1)).unwrap();
    gpu.fail_nth(Call::Alloc, 2, Code::UNKNOWN);
    driver.alloc(Bytes::new(1)).unwrap();
    driver.fence().unwrap();
    assert_eq!(driver.alloc(Bytes::new(1)), Err(Code::UNKNOWN));
    driver.alloc(Bytes::new(1)).unwrap();
    assert_eq!(gpu.calls(Call::Alloc), 4);
    gpu.fail_randomly(Call::Alloc, 1000, Code::OUT_OF_MEMORY);
    assert_eq!(driver.alloc(Bytes::new(1)), Err(Code::OUT_OF_MEMORY));
    assert_eq!(gpu.live_count(), 3);
}

#[test]
fn memory_falls_by_pages_and_pressure_takes_its_share() {
    let gpu = gpu();
    let driver = gpu.driver(0).unwrap();
    let free = || driver.mem_info().unwrap().free;
    assert_eq!(free(), Bytes::gib(16));
    let small = driver.alloc(Bytes::new(1)).unwrap();
    assert_eq!(Bytes::gib(16).saturating_sub(free()), Bytes::mib(2));
    driver.alloc(Bytes::mib(3)).unwrap();
    assert_eq!(Bytes::gib(16).saturating_sub(free()), Bytes::mib(6));
    driver.free(small).unwrap();
    assert_eq!(gpu.used(0), Bytes::mib(4));
    assert_eq!(gpu.peak(0), Bytes::mib(6));
    gpu.occupy(0, Bytes::gib(15));
    assert_eq!(driver.alloc(Bytes::gib(1)), Err(Code::OUT_OF_MEMORY));
    gpu.occupy(0, Bytes::ZERO);
    driver.alloc(Bytes::gib(1)).unwrap();
    assert_eq!(driver.alloc(Bytes::ZERO), Err(Code::INVALID_VALUE));
}

/// One random run: its answers, and the time at its end.
fn random_run(seed: u64) -> (Vec<u64>, Nanos) {
    let gpu = Gpu::new(Settings {
        seed,
        memory: Bytes::mib(256),
        ..Settings::default()
    });
    let driver = gpu.driver(0).unwrap();
    gpu.fail_randomly(Call::Alloc, 100, Code::OUT_OF_MEMORY);
    let stream = gpu.stream(driver.context(), false).unwrap();
    let mut random = crate::random::Random(seed);
    let mut live: Vec<(Address, Bytes)> = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..2000 {
        if random.below(2) == 0 {
            let size = Bytes::new(1 + random.below(4 << 20));
            if let Ok(block) = driver.alloc(size) {
                assert!(block.is_aligned(Bytes::new(512)));
                for &(start, length) in &live {
                    let apart = block.get() + size.get() <= start.get()
                        || start.get() + length.get() <= block.get();
                    assert!(apart, "seed {seed}: {block:?} overlaps {start:?}");
                }
                gpu.launch(stream, random.below(5_000), &[(block, size)])
                    .unwrap();
                live.push((block, size));
                seen.push(block.get());
            }
        } else if !live.is_empty() {
            let at = usize::try_from(random.below(live.len() as u64)).unwrap();
            let (block, size) = live.swap_remove(at);
            driver.free(block).unwrap();
            assert!(!gpu.in_use(block, size), "seed {seed}");
        }
    }
    for (block, _) in live {
        driver.free(block).unwrap();
    }
    assert_eq!(gpu.used(0), Bytes::ZERO, "seed {seed}");
    assert_eq!(gpu.violations(), [], "seed {seed}");
    (seen, gpu.now())
}

#[test]
fn the_same_seed_gives_the_same_run_and_live_memory_never_overlaps() {
    for seed in 0..8 {
        assert_eq!(random_run(seed), random_run(seed));
    }
    assert_ne!(random_run(1), random_run(2));
}

/// Where the units of a range lie follows from its addresses.
#[test]
fn addresses_are_reserved_at_multiples_of_the_largest_unit() {
    let gpu = Gpu::new(Settings::default());
    let driver = gpu.driver(0).unwrap();
    driver.alloc(Bytes::mib(2)).unwrap();
    for _ in 0..3 {
        let at = driver.reserve(Bytes::mib(6)).unwrap();
        assert!(at.is_aligned(RESERVED_AT), "{at:?}");
    }
    assert_eq!(gpu.violations(), []);
}
