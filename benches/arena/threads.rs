//! The throughput of several threads that allocate at the same time.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use serde_json::json;
use vramalloc_core::address::{Address, Bytes};

use crate::arguments::Arguments;
use vramalloc_benches::workload::{Draws, Live, Random, get, put};

/// Blocks that each thread has live.
const LIVE: usize = 64;

/// Numbers of threads.
const THREADS: [usize; 3] = [1, 2, 4];

/// The blocks that change hands at a time, so that the channel is not what is
/// measured, and the number of batches under way.
const BATCH: usize = 64;
const UNDER_WAY: usize = 16;

/// Measures 1, 2 and 4 threads that each replace their own blocks: pairs per
/// second, all threads together.
pub(crate) fn run(arguments: &Arguments) {
    let pairs = arguments.count("pairs", 200_000);
    let doublings = arguments.doublings();
    for threads in THREADS {
        let arena = arguments.arena();
        measure(threads, pairs, |thread, ready| {
            let mut draws = Draws::new(thread + 1, LIVE, doublings);
            let mut live = Live::new(&arena, LIVE, &mut draws);
            timed_twice(ready, || {
                (0..pairs).for_each(|_| live.replace(draws.draw()))
            })
        });
    }
}

/// Measures the same of a loop that shares no memory with other threads: what more
/// threads can be worth on this machine.
pub(crate) fn alone(arguments: &Arguments) {
    let steps = arguments.count("steps", 20_000_000);
    for threads in THREADS {
        measure(threads, steps, |thread, ready| {
            let mut random = Random(thread + 1);
            let mut numbers = [0_u64; LIVE];
            timed_twice(ready, || {
                for _ in 0..steps {
                    let number = random.number();
                    numbers[random.below(LIVE)] ^= number;
                }
                black_box(&numbers);
            })
        });
    }
}

/// Does the work once to warm up, and once while all threads do: from when to when.
fn timed_twice(ready: &Barrier, mut work: impl FnMut()) -> (Instant, Instant) {
    work();
    ready.wait();
    let start = Instant::now();
    work();
    (start, Instant::now())
}

/// Prints how many pairs so many threads do together.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn measure(
    threads: usize,
    pairs: usize,
    work: impl Fn(u64, &Barrier) -> (Instant, Instant) + Sync,
) {
    let ready = Barrier::new(threads);
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let (work, ready) = (&work, &ready);
        let start = |thread| scope.spawn(move || work(thread as u64, ready));
        let started: Vec<_> = (0..threads).map(start).collect();
        started
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    // From the first thread's beginning to the last thread's end.
    let start = times.iter().map(|&(start, _)| start).min().unwrap();
    let end = times.iter().map(|&(_, end)| end).max().unwrap();
    let seconds = (end - start).as_secs_f64();
    println!(
        "{}",
        json!({
            "threads": threads,
            "pairs_per_s": (threads * pairs) as f64 / seconds,
            "ns": seconds * 1e9 / pairs as f64,
        })
    );
}

/// Measures one thread that allocates and another that frees.
#[allow(clippy::cast_precision_loss, reason = "a mean")]
pub(crate) fn exchange(arguments: &Arguments) {
    let batches = arguments.count("pairs", 200_000) / BATCH;
    for size in [4 << 10, 1 << 20] {
        let arena = arguments.arena();
        let (full, to_free) = sync_channel::<Vec<Address>>(UNDER_WAY);
        let (empty, to_fill) = sync_channel::<Vec<Address>>(UNDER_WAY + 2);
        for _ in 0..UNDER_WAY + 1 {
            empty.send(Vec::with_capacity(BATCH)).unwrap();
        }
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                for mut batch in to_free {
                    batch.drain(..).for_each(|block| put(&arena, block));
                    // The producer may have ended.
                    let _ = empty.send(batch);
                }
            });
            for _ in 0..batches {
                let mut batch = to_fill.recv().unwrap();
                batch.extend((0..BATCH).map(|_| get(&arena, Bytes::new(size))));
                full.send(batch).unwrap();
            }
            drop(full);
        });
        let ns = start.elapsed().as_secs_f64() * 1e9 / (batches * BATCH) as f64;
        println!("{}", json!({"size": size, "ns": ns}));
    }
}
