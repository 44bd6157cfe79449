//! Slabs for some of the threads.

use std::collections::BTreeSet;

use super::*;

const BLOCK: Bytes = Bytes::kib(4);
const LARGE: Bytes = Bytes::gib(8);

/// How often a slab is taken for a bank at the most.
const MOST: u64 = 32;

fn of(config: Config, memory: Bytes) -> Rig {
    Rig::new(&config, memory)
}

fn chunks(rig: &Rig, blocks: &[Address]) -> BTreeSet<u64> {
    let chunks = blocks.iter().map(|&block| rig.allocation(block).get());
    chunks.collect()
}

/// What another thread does that keeps blocks.
fn on_thread<T: Send>(rig: &Rig, work: impl FnOnce() -> T + Send) -> T {
    let keeping = || {
        warm(rig, BLOCK);
        work()
    };
    thread::scope(|scope| scope.spawn(keeping).join().unwrap())
}

fn get_many(rig: &Rig, count: usize) -> Vec<Address> {
    (0..count).map(|_| rig.get(BLOCK)).collect()
}

#[test]
fn threads_cut_small_blocks_from_different_slabs() {
    let rig = of(plain(StrategyKind::AutoGrowth), LARGE);
    warm(&rig, BLOCK);
    let first = get_many(&rig, 50);
    let (other, second) = on_thread(&rig, || (rig.get(BLOCK), get_many(&rig, 200)));
    let more = get_many(&rig, 200);
    let own = chunks(&rig, &[first.clone(), more.clone()].concat());
    assert_eq!((own.len(), chunks(&rig, &second).len()), (1, 1));
    assert!(own.is_disjoint(&chunks(&rig, &second)));
    // The first chunk, and the other thread's.
    assert_eq!(rig.arena.stats().reserved.current, Bytes::mib(4));
    free_all(&rig, [first, second, more, vec![other]].concat());
    rig.ends_clean();
}

/// What two threads need that do `work` by turns, and `then` is done: the most reserved,
/// and calls of the driver for memory.
fn costs(
    config: &Config,
    memory: Bytes,
    work: impl Fn(&Rig) + Sync,
    then: impl Fn(&Rig),
) -> (Bytes, u64) {
    let rig = of(config.clone(), memory);
    warm(&rig, BLOCK);
    // So some slab is always in use.
    let held = rig.get(BLOCK);
    for _ in 0..200 {
        work(&rig);
        on_thread(&rig, || work(&rig));
        then(&rig);
    }
    let calls = rig.gpu.calls(Call::Alloc) + rig.gpu.calls(Call::Free);
    let reserved = rig.arena.stats().reserved.peak;
    rig.arena.free(held).unwrap();
    rig.gpu.pass(1 << 40);
    rig.ends_clean();
    (reserved, calls)
}

/// What banks cost of that: a smaller device has none.
fn banks_cost(work: impl Fn(&Rig) + Sync, then: impl Fn(&Rig)) -> (Bytes, u64) {
    let config = plain(StrategyKind::AutoGrowth);
    let without = costs(&config, Bytes::mib(4094), &work, &then);
    let with = costs(&config, Bytes::mib(4096), &work, &then);
    (
        with.0.saturating_sub(without.0),
        with.1.saturating_sub(without.1),
    )
}

fn nothing(_: &Rig) {}

fn get_and_free(rig: &Rig, count: usize) {
    let blocks = get_many(rig, count);
    free_all(rig, blocks);
}

#[test]
fn what_banks_cost_comes_to_an_end() {
    // All goes back each time, and is taken again.
    let trim = |rig: &Rig| _ = rig.arena.trim();
    let (bytes, calls) = banks_cost(|rig| get_and_free(rig, 300), trim);
    let is_bounded = |calls: u64| (1..=2 * MOST).contains(&calls);
    assert!(
        bytes <= Bytes::mib(8) && is_bounded(calls),
        "{bytes}, {calls}"
    );
    let (bytes, calls) = banks_cost(|rig| get_and_free(rig, 3000), nothing);
    assert!(
        bytes <= Bytes::mib(2 * MOST) && is_bounded(calls),
        "{bytes}, {calls}"
    );
}

/// A device that lags behind has what was freed wait, up to the budget; what waits is no
/// reason for a slab beyond that.
#[test]
fn what_waits_for_the_device_is_bounded_as_before() {
    let lags = |rig: &Rig| {
        let blocks = get_many(rig, 500);
        for &block in &blocks {
            rig.launch(block, BLOCK, MS);
        }
        free_all(rig, blocks);
    };
    let (bytes, _) = banks_cost(lags, nothing);
    assert!(bytes <= Bytes::mib(16), "{bytes}");
}

#[test]
fn no_slab_is_taken_where_memory_is_little_or_an_option_says_how() {
    let usual = plain(StrategyKind::AutoGrowth);
    let limited = Config {
        limit: Some(DeviceShare::Bytes(DEVICE)),
        ..usual.clone()
    };
    let gives_back = Config {
        free_when_no_cache_hit: true,
        ..usual.clone()
    };
    let without = costs(&usual, DEVICE, |rig| get_and_free(rig, 100), nothing);
    for config in [limited, gives_back] {
        let costs = costs(&config, LARGE, |rig| get_and_free(rig, 100), nothing);
        assert_eq!(costs, without, "{config:?}");
    }
    for strategy in [StrategyKind::NaiveBestFit, StrategyKind::Mapped] {
        let [small, large] = [DEVICE, LARGE].map(|memory| {
            costs(
                &plain(strategy),
                memory,
                |rig| get_and_free(rig, 100),
                nothing,
            )
            .1
        });
        assert_eq!(small, large, "{strategy:?}");
    }
}

/// Nothing is kept for a bank: what others have serves a thread whose bank has nothing, at
/// once.
#[test]
fn what_others_have_serves() {
    let rig = of(plain(StrategyKind::AutoGrowth), LARGE);
    warm(&rig, BLOCK);
    let blocks = get_many(&rig, (64 << 20) / 4096);
    let (stay, go): (Vec<_>, Vec<_>) = (0..).zip(blocks).partition(|(n, _)| n % 2 == 0);
    free_all(&rig, go.into_iter().map(|(_, block)| block));
    let before = rig.arena.stats().reserved.current;
    // The look called back what the first thread keeps, and its seat was free.
    warm(&rig, BLOCK);
    let second = on_thread(&rig, || get_many(&rig, (20 << 20) / 4096));
    assert_eq!(rig.arena.stats().reserved.current, before);
    let stay = stay.into_iter().map(|(_, block)| block);
    free_all(&rig, stay.chain(second));
    rig.ends_clean();
}

/// A slab of the thread's own bank that is idle is kept whole for as long as another bank
/// has a piece that serves: that needs no fence.
#[test]
fn an_idle_slab_hides_nothing() {
    let fences = |memory| {
        let rig = of(plain(StrategyKind::AutoGrowth), memory);
        let blocks: Vec<_> = (0..32).map(|_| rig.get(Bytes::kib(128))).collect();
        let (stay, go): (Vec<_>, Vec<_>) = (0..).zip(blocks).partition(|(n, _)| n % 2 == 0);
        free_all(&rig, go.into_iter().map(|(_, block)| block));
        let free_elsewhere = |blocks: Vec<Address>| {
            let rig = &rig;
            thread::scope(|scope| scope.spawn(move || free_all(rig, blocks)).join().unwrap());
        };
        free_elsewhere((0..16).map(|_| rig.get(Bytes::mib(4))).collect());
        warm(&rig, BLOCK);
        let work = || {
            // What the thread keeps is of the first one's slabs.
            get_and_free(&rig, 16);
            let before = rig.gpu.calls(Call::Fence);
            for _ in 0..500 {
                free_elsewhere(vec![rig.get(Bytes::kib(64)), rig.get(Bytes::mib(4))]);
            }
            rig.gpu.calls(Call::Fence) - before
        };
        let fences = thread::scope(|scope| scope.spawn(work).join().unwrap());
        free_all(&rig, stay.into_iter().map(|(_, block)| block));
        rig.ends_clean();
        fences
    };
    let (without, with) = (fences(Bytes::mib(4094)), fences(Bytes::mib(4096)));
    assert!(with <= without + 50, "{with}, {without} without banks");
}

/// What banks add is not what makes the slabs of a program sparse.
#[test]
fn threads_go_on_to_keep_blocks_beside_slabs_of_banks() {
    let thread_hits = |memory| {
        let rig = of(plain(StrategyKind::AutoGrowth), memory);
        warm(&rig, BLOCK);
        let mut held = get_many(&rig, 100);
        for _ in 0..30 {
            held.extend(on_thread(&rig, || {
                let blocks = get_many(&rig, 3000);
                let (stay, go): (Vec<_>, Vec<_>) =
                    (0..).zip(blocks).partition(|(n, _)| n % 200 == 0);
                free_all(&rig, go.into_iter().map(|(_, block)| block));
                stay.into_iter().map(|(_, block)| block).collect::<Vec<_>>()
            }));
        }
        let before = rig.arena.stats().thread_hits;
        warm(&rig, BLOCK);
        let hits = rig.arena.stats().thread_hits - before;
        free_all(&rig, held);
        rig.ends_clean();
        hits
    };
    let (without, with) = (thread_hits(Bytes::mib(4094)), thread_hits(Bytes::mib(4096)));
    assert!(with + 50 >= without, "{with}, {without} without banks");
}
