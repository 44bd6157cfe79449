//! The throughput of several threads that allocate at the same time.

use std::sync::Barrier;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use serde_json::json;
use vramalloc_core::address::{Address, Bytes};

use crate::arguments::Arguments;
use vramalloc_benches::workload::{Draws, Live, get, put};

/// Blocks that each thread has live.
const LIVE: usize = 64;

/// The blocks that change hands at a time, so that the channel is not what is
/// measured, and the number of batches under way.
const BATCH: usize = 64;
const UNDER_WAY: usize = 16;

/// Measures 1, 2 and 4 threads that each replace their own blocks: pairs per
/// second, all threads together.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
pub(crate) fn run(arguments: &Arguments) {
    let pairs = arguments.count("pairs", 200_000);
    let doublings = arguments.doublings();
    for threads in [1, 2, 4] {
        let arena = arguments.arena();
        let ready = Barrier::new(threads);
        let work = |thread: usize| {
            let mut draws = Draws::new(thread as u64 + 1, LIVE, doublings);
            let mut live = Live::new(&arena, LIVE, &mut draws);
            let mut replace_all = || (0..pairs).for_each(|_| live.replace(draws.draw()));
            replace_all();
            ready.wait();
            let start = Instant::now();
            replace_all();
            (start, Instant::now())
        };
        let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
            let work = &work;
            let start = |thread| scope.spawn(move || work(thread));
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
        let all = (threads * pairs) as f64;
        println!(
            "{}",
            json!({
                "threads": threads,
                "pairs_per_s": all / seconds,
                "ns": seconds * 1e9 / pairs as f64,
            })
        );
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
