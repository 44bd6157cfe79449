//! The latency of an allocation and a free.

use std::time::Instant;

use serde_json::json;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::stats::DriverCalls;
use vramalloc_core::{Arena, Driver};

use crate::arguments::Arguments;
use crate::clock::{mean, spread};
use vramalloc_benches::driver::Costless;
use vramalloc_benches::workload::{Draws, Live, Random, SMALL_SIZES, get, put};

/// Sizes of the hit loop.
const SIZES: [u64; 8] = [
    512,
    4 << 10,
    64 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

/// Numbers of live blocks of the steady loop.
const LIVE: [usize; 4] = [16, 256, 1000, 4000];

/// A request that the cache serves, and its free.
fn pair<D: Driver>(arena: &Arena<D>, size: Bytes) {
    put(arena, get(arena, size));
}

/// The best mean of several rounds of pairs.
pub(crate) fn best_of<D: Driver>(
    arena: &Arena<D>,
    size: Bytes,
    rounds: usize,
    pairs: usize,
) -> f64 {
    let round = |_| mean(pairs, || pair(arena, size));
    (0..rounds).map(round).fold(f64::INFINITY, f64::min)
}

/// Driver calls about fences, and the time spent in them.
fn fence_work(calls: &DriverCalls) -> (u64, u64) {
    let all = [calls.fence, calls.reached, calls.wait];
    (
        all.iter().map(|call| call.calls).sum(),
        all.iter().map(|call| call.ns).sum(),
    )
}

/// Measures requests of one size.
pub(crate) fn hit(arguments: &Arguments) {
    let (rounds, pairs) = (
        arguments.count("rounds", 7),
        arguments.count("pairs", 100_000),
    );
    for size in SIZES {
        let arena = arguments.arena();
        let ns = best_of(&arena, Bytes::new(size), rounds, pairs);
        print_with_fences(
            &arena,
            rounds * pairs,
            |fences| json!({"size": size, "ns": ns, "fences_per_free": fences.0, "fence_ns_per_free": fences.1}),
        );
    }
}

#[allow(clippy::cast_precision_loss, reason = "a mean")]
fn print_with_fences(
    arena: &Arena<Costless>,
    frees: usize,
    line: impl FnOnce((f64, f64)) -> serde_json::Value,
) {
    let (calls, ns) = fence_work(&arena.driver_calls());
    let per_free = |n: u64| n as f64 / frees as f64;
    println!("{}", line((per_free(calls), per_free(ns))));
}

/// Measures random replacement among a fixed number of live blocks.
pub(crate) fn steady(arguments: &Arguments) {
    let pairs = arguments.count("pairs", 200_000);
    let doublings = arguments.doublings();
    for count in LIVE {
        let arena = arguments.arena();
        let mut draws = Draws::new(1, count, doublings);
        let mut live = Live::new(&arena, count, &mut draws);
        let mut step = || live.replace(draws.draw());
        // Warms up until the cache has what is asked for.
        mean(pairs, &mut step);
        let mean = mean(pairs, &mut step);
        let each = spread(pairs, &mut step);
        print_with_fences(&arena, 3 * pairs, |fences| {
            json!({
                "live": count, "ns": mean, "p50": each.p50, "p99": each.p99, "p999": each.p999,
                "fences_per_free": fences.0, "fence_ns_per_free": fences.1,
            })
        });
    }
}

/// RMM's benchmark `random_allocations`: 73 of 100 steps allocate, up to a
/// fixed number of blocks in all and 16 000 MiB at a time; the others free one
/// by swap-remove; sizes are uniform up to a bound.
struct RmmRandom {
    random: Random,
    live: Vec<(Address, u64)>,
    bytes: u64,
    left: usize,
}

const ALLOCATES: u64 = 73;
const MOST_BYTES: u64 = 16_000 << 20;

impl RmmRandom {
    /// One step; false when there is nothing left to do.
    fn step(&mut self, arena: &Arena<Costless>, largest: u64) -> bool {
        let size = 1 + self.random.number() % largest;
        let allocate = self.left > 0
            && (self.live.is_empty()
                || (self.random.number() % 100 < ALLOCATES && self.bytes + size <= MOST_BYTES));
        if allocate {
            self.left -= 1;
            self.bytes += size;
            self.live.push((get(arena, Bytes::new(size)), size));
        } else if self.live.is_empty() {
            return false;
        } else {
            let at = self.random.below(self.live.len());
            let (block, size) = self.live.swap_remove(at);
            self.bytes -= size;
            put(arena, block);
        }
        true
    }
}

/// Measures RMM's random allocations, for three bounds of the sizes.
#[allow(clippy::cast_precision_loss, reason = "a mean")]
pub(crate) fn random(arguments: &Arguments) {
    let blocks = arguments.count("blocks", 100_000);
    for mib in [1, 4, 64] {
        let arena = arguments.arena();
        // A first run fills the cache.
        let ns = [1, 2].map(|_| {
            let mut run = RmmRandom {
                random: Random(7),
                live: Vec::with_capacity(blocks),
                bytes: 0,
                left: blocks,
            };
            let start = Instant::now();
            while run.step(&arena, mib << 20) {}
            start.elapsed().as_secs_f64() * 1e9 / (2 * blocks) as f64
        });
        println!(
            "{}",
            json!({"largest_mib": mib, "first_ns": ns[0], "ns": ns[1]})
        );
    }
}

/// Runs a number of pairs and nothing else, for counting instructions: pairs of
/// one size or, with `live`, replacements among that many blocks of drawn
/// sizes, small ones unless `doublings` says otherwise.
pub(crate) fn count(arguments: &Arguments) {
    let arena = arguments.arena();
    let pairs = arguments.count("pairs", 0);
    let live = arguments.count("live", 0);
    if live > 0 {
        let mut draws = Draws::new(1, live, arguments.doublings_or(SMALL_SIZES));
        let mut live = Live::new(&arena, live, &mut draws);
        for _ in 0..pairs {
            live.replace(draws.draw());
        }
        // Blocks that are live at the end are not freed: they belong to no
        // pair.
        std::process::exit(0);
    }
    let size = Bytes::new(arguments.number("size", 4096));
    for _ in 0..pairs {
        pair(&arena, size);
    }
}
