//! How the cost of each operation grows with live blocks, with chunks and with
//! devices.

use std::hint::black_box;
use std::sync::Arc;

use serde_json::json;
use vramalloc_core::Arena;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::StrategyKind;
use vramalloc_core::page_map::PageMap;

use crate::arguments::{Arguments, costless_arena};
use crate::clock::{mean, spread};
use vramalloc_benches::driver::{Costless, arena_over};
use vramalloc_benches::workload::{ALL_SIZES, Draws, Live, SMALL_SIZES, get, put};

/// Blocks of the working set when chunks or devices are counted.
const WORKING_SET: usize = 16;

/// Calls of a rare operation.
const FEW: usize = 64;

/// Measures the operations of an arena, one line each.
fn operations(
    arena: &Arena<Costless>,
    live: &mut Live<'_, Costless>,
    draws: &mut Draws,
    arguments: &Arguments,
    about: (&str, usize),
) {
    let pairs = arguments.count("pairs", 200_000);
    let print = |operation: &str, ns: f64| {
        println!(
            "{}",
            json!({"by": about.0, "count": about.1, "operation": operation, "ns": ns})
        );
    };
    let mut step = || live.replace(draws.draw());
    mean(pairs, &mut step);
    print("pair, mean", mean(pairs, &mut step));
    let each = spread(pairs, &mut step);
    print("pair, p99", each.p99);
    print("pair, p99.9", each.p999);
    let kept = get(arena, Bytes::mib(3));
    let inside = Address::new(kept.get() + 4096);
    let found = |address| {
        mean(FEW, || {
            black_box(arena.locate(address));
        })
    };
    print("locate a block's start", found(kept));
    print("locate an inner address", found(inside));
    let memory = mean(FEW, || {
        black_box(arena.mem_info().unwrap());
    });
    print("free and total memory", memory);
    put(arena, kept);
    // Each request is larger than everything that is cached.
    let mut size = Bytes::mib(128);
    let miss = mean(FEW, || {
        size = size.saturating_add(Bytes::mib(2));
        put(arena, get(arena, size));
    });
    print("miss", miss);
}

/// Powers of ten from `first` up to the argument `most`.
fn tens(first: usize, most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(first), |n| Some(n * 10)).take_while(move |&n| n <= most)
}

fn by_blocks(arguments: &Arguments) {
    for count in tens(10, arguments.count("blocks", 1_000_000)) {
        let arena = costless_arena(0);
        let mut draws = Draws::new(1, count, SMALL_SIZES);
        let mut live = Live::new(&arena, count, &mut draws);
        operations(
            &arena,
            &mut live,
            &mut draws,
            arguments,
            ("live blocks", count),
        );
    }
}

/// Each chunk has a block of 3 MiB that stays and 1 MiB that is free.
fn by_chunks(arguments: &Arguments) {
    for count in tens(1, arguments.count("chunks", 10_000)) {
        let arena = costless_arena(0);
        for _ in 0..count {
            get(&arena, Bytes::mib(3));
        }
        let mut draws = Draws::new(1, WORKING_SET, ALL_SIZES);
        let mut live = Live::new(&arena, WORKING_SET, &mut draws);
        operations(&arena, &mut live, &mut draws, arguments, ("chunks", count));
    }
}

/// One thread that uses its devices in turn.
fn by_devices(arguments: &Arguments) {
    let pairs = arguments.count("pairs", 200_000);
    for count in [1, 2, 4, 8] {
        let map = Arc::new(PageMap::new());
        let arenas: Vec<_> = (0..count)
            .map(|n| arena_over(Costless::new(n, 0), n, StrategyKind::default(), &map))
            .collect();
        let mut draws = Draws::new(1, WORKING_SET, ALL_SIZES);
        let mut live: Vec<_> = (arenas.iter())
            .map(|arena| Live::new(arena, WORKING_SET, &mut draws))
            .collect();
        let mut at = 0;
        let mut step = || {
            at = (at + 1) % live.len();
            live[at].replace(draws.draw());
        };
        mean(pairs, &mut step);
        let ns = mean(pairs, &mut step);
        println!(
            "{}",
            json!({"by": "devices", "count": count, "operation": "pair, mean", "ns": ns})
        );
    }
}

/// Measures all three.
pub(crate) fn run(arguments: &Arguments) {
    by_blocks(arguments);
    by_chunks(arguments);
    by_devices(arguments);
}
