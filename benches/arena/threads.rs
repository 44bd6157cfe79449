//! The throughput of several threads that allocate at the same time.

use std::hint::{black_box, spin_loop};
use std::sync::mpsc::sync_channel;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use vramalloc_core::address::{Address, Bytes};

use crate::arguments::Arguments;
use vramalloc_benches::workload::{Draws, Live, Random, get, put};

/// Blocks that each thread has live, where nothing else is said (`live`).
const LIVE: usize = 64;

/// Numbers of threads, and how often each is measured.
const THREADS: [usize; 3] = [1, 2, MOST_THREADS];
const MOST_THREADS: usize = 4;
const TURNS: usize = 9;

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
    let blocks = arguments.count("live", LIVE as u64);
    let arena = arguments.arena();
    measure(arguments, |thread, timed| {
        let mut draws = Draws::new(thread + 1, blocks, doublings);
        let mut live = Live::new(&arena, blocks, &mut draws);
        timed(&mut || (0..ROUND).for_each(|_| live.replace(draws.draw())))
    });
}

/// Measures the same of a loop that shares no memory with other threads: what more
/// threads can be worth on this machine.
pub(crate) fn alone(arguments: &Arguments) {
    measure(arguments, |thread, timed| {
        let mut random = Random(thread + 1);
        let mut numbers = [0_u64; LIVE];
        let rates = timed(&mut || {
            for _ in 0..ROUND {
                let number = random.number();
                numbers[random.below(LIVE)] ^= number;
            }
        });
        black_box(&numbers);
        rates
    });
}

/// What a thread does over and over while it is timed.
type Round<'a> = &'a mut dyn FnMut();

/// Pairs a second of one thread, by turn and by number of threads at work.
type Rates = [[f64; THREADS.len()]; TURNS];

/// Prints how many pairs so many threads do together, and how many times as many as one
/// does. One, two and four are measured in turn, several times, since what else the
/// machine does changes from second to second; and a processor that has no thread of
/// theirs spins, so that all run at one clock and threads stay where they are.
#[allow(clippy::cast_precision_loss, reason = "a number of threads")]
fn measure(arguments: &Arguments, work: impl Fn(u64, &dyn Fn(Round) -> Rates) -> Rates + Sync) {
    let time = Duration::from_millis(arguments.number("milliseconds", 20));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let start = Start::new();
    let timed = |thread: usize, round: Round| {
        rate(Instant::now(), time, round);
        let mut rates = Rates::default();
        for turn in &mut rates {
            for (mine, count) in turn.iter_mut().zip(THREADS) {
                let start = start.wait();
                if thread < count {
                    *mine = rate(start, time, round);
                } else if thread < processors {
                    while start.elapsed() < time {
                        spin_loop();
                    }
                }
            }
        }
        rates
    };
    let rates: Vec<Rates> = thread::scope(|scope| {
        let (work, timed) = (&work, &timed);
        let start =
            |thread| scope.spawn(move || work(thread as u64, &|round: Round| timed(thread, round)));
        let started: Vec<_> = (0..MOST_THREADS).map(start).collect();
        let ended = started.into_iter().map(|thread| thread.join().unwrap());
        ended.collect()
    });
    let together = |turn: usize, at: usize| rates.iter().map(|of| of[turn][at]).sum::<f64>();
    let middle = |of: &dyn Fn(usize) -> f64| {
        let mut all: Vec<f64> = (0..TURNS).map(of).collect();
        all.sort_by(f64::total_cmp);
        all[TURNS / 2]
    };
    for (at, threads) in THREADS.into_iter().enumerate() {
        let all = middle(&|turn| together(turn, at));
        println!(
            "{}",
            json!({
                "threads": threads,
                "pairs_per_s": all,
                "ns": threads as f64 * 1e9 / all,
                "over_one": middle(&|turn| together(turn, at) / together(turn, 0)),
            })
        );
    }
}

/// Where all threads begin at once: time runs from then on also for one that is woken
/// late.
struct Start {
    ready: Barrier,
    at: Mutex<Instant>,
}

impl Start {
    fn new() -> Start {
        Start {
            ready: Barrier::new(MOST_THREADS),
            at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for all; when they began.
    fn wait(&self) -> Instant {
        if self.ready.wait().is_leader() {
            *self.at.lock().unwrap() = Instant::now();
        }
        self.ready.wait();
        *self.at.lock().unwrap()
    }
}

/// How many pairs a second rounds do, for so long from a start on.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn rate(start: Instant, time: Duration, round: Round) -> f64 {
    let mut rounds = 0_usize;
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
