//! The throughput of several threads that allocate at the same time.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

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

/// Pairs between two looks at the clock.
const ROUND: usize = 1000;

/// Measures 1, 2 and 4 threads that each replace their own blocks: pairs per
/// second, all threads together.
pub(crate) fn run(arguments: &Arguments) {
    let doublings = arguments.doublings();
    for threads in THREADS {
        let arena = arguments.arena();
        measure(arguments, threads, |thread, timed| {
            let mut draws = Draws::new(thread + 1, LIVE, doublings);
            let mut live = Live::new(&arena, LIVE, &mut draws);
            timed(&mut || (0..ROUND).for_each(|_| live.replace(draws.draw())))
        });
    }
}

/// Measures the same of a loop that shares no memory with other threads: what more
/// threads can be worth on this machine.
pub(crate) fn alone(arguments: &Arguments) {
    for threads in THREADS {
        measure(arguments, threads, |thread, timed| {
            let mut random = Random(thread + 1);
            let mut numbers = [0_u64; LIVE];
            let rate = timed(&mut || {
                for _ in 0..ROUND {
                    let number = random.number();
                    numbers[random.below(LIVE)] ^= number;
                }
            });
            black_box(&numbers);
            rate
        });
    }
}

/// What a thread does over and over while it is timed.
type Round<'a> = &'a mut dyn FnMut();

/// Prints how many pairs so many threads do together: what each does in a second is
/// added up. Each works for some time before the others are ready, and then for so long
/// that it is no matter which of them is woken first.
fn measure(
    arguments: &Arguments,
    threads: usize,
    work: impl Fn(u64, &dyn Fn(Round) -> f64) -> f64 + Sync,
) {
    let ready = Barrier::new(threads);
    let time = Duration::from_millis(arguments.number("milliseconds", 100));
    let timed = |round: Round| {
        rate(time / 4, round);
        ready.wait();
        rate(time, round)
    };
    let rates: Vec<f64> = thread::scope(|scope| {
        let (work, timed) = (&work, &timed);
        let start = |thread| scope.spawn(move || work(thread as u64, timed));
        let started: Vec<_> = (0..threads).map(start).collect();
        let ended = started.into_iter().map(|thread| thread.join().unwrap());
        ended.collect()
    });
    let (rate, count) = rates
        .iter()
        .fold((0.0, 0.0), |(sum, n), rate| (sum + rate, n + 1.0));
    println!(
        "{}",
        json!({
            "threads": threads,
            "pairs_per_s": rate,
            "ns": count * 1e9 / rate,
        })
    );
}

/// How many pairs a second rounds do that take so long.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn rate(time: Duration, round: Round) -> f64 {
    let (start, mut rounds) = (Instant::now(), 0_usize);
    loop {
        round();
        rounds += 1;
        let passed = start.elapsed();
        if passed >= time {
            return (rounds * ROUND) as f64 / passed.as_secs_f64();
        }
    }
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
