//! Measures the host memory that the allocator itself takes: per live block,
//! and whether a steady state takes more. It is a program of its own, since
//! every host allocation is counted here. One JSON line per figure.
//!
//! The share of the page map is what remains when the arena is gone; the rest
//! is the arena's records. The driver below takes nothing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a tool that may fail loudly"
)]

use std::sync::Arc;

use peak_alloc::PeakAlloc;
use serde_json::json;
use vramalloc_core::config::StrategyKind;
use vramalloc_core::page_map::PageMap;

use vramalloc_benches::driver::{Costless, arena_over};
use vramalloc_benches::workload::{ALL_SIZES, Draws, Live, Random, SMALL_SIZES, get, put};

#[global_allocator]
static HOST: PeakAlloc = PeakAlloc;

/// Powers of ten, and numbers just above a power of two, where tables that
/// double are half empty.
const COUNTS: [usize; 8] = [
    1000, 1100, 10_000, 17_000, 100_000, 135_000, 600_000, 1_000_000,
];

/// Measures the host bytes for `count` live blocks, and the peak on the way
/// there.
fn blocks(count: usize) {
    let mut draws = Draws::new(1, count, SMALL_SIZES);
    let mut live = Vec::with_capacity(count);
    let before = HOST.current_usage();
    HOST.reset_peak_usage();
    let map = Arc::new(PageMap::new());
    let arena = arena_over(Costless::new(0, 0), 0, StrategyKind::default(), &map);
    for _ in 0..count {
        live.push(get(&arena, draws.draw().size));
    }
    let whole = HOST.current_usage() - before;
    let peak = HOST.peak_usage() - before;
    live.into_iter().for_each(|block| put(&arena, block));
    arena.trim();
    drop(arena);
    let page_map = HOST.current_usage() - before;
    println!(
        "{}",
        json!({"blocks": count, "host": whole, "host_peak": peak, "page_map": page_map})
    );
}

/// Blocks that are live in a steady state.
const LIVE: usize = 4000;

/// Replacements per pass.
const PASS: usize = 65_536;

/// Passes. At first free blocks lie differently after each pass; only after
/// some hundred passes does a repeating program touch no new place.
const PASSES: usize = 256;

/// The state after a number of passes.
struct Steady {
    books: usize,
    page_map: usize,
    reserved: u64,
    /// The bytes that the driver gave in all.
    given: u64,
}

impl Steady {
    /// Runs equal passes: `LIVE` blocks are allocated, one is replaced `PASS`
    /// times, and all are freed. If not `repeats`, runs one long pass of ever
    /// new replacements.
    fn after(passes: usize, repeats: bool) -> Steady {
        let mut draws = Draws::new(1, LIVE, ALL_SIZES);
        let mut random = Random(9);
        let before = HOST.current_usage();
        let map = Arc::new(PageMap::new());
        let arena = arena_over(Costless::new(0, 0), 0, StrategyKind::default(), &map);
        let mut live = Live::new(&arena, LIVE, &mut draws);
        for _ in 0..passes {
            if repeats {
                drop(live);
                draws.rewind();
                live = Live::new(&arena, LIVE, &mut draws);
            }
            for _ in 0..PASS {
                let mut draw = draws.draw();
                if !repeats {
                    // Another slot in each round, so no step is like an earlier
                    // one.
                    draw.slot = random.below(LIVE);
                }
                live.replace(draw);
            }
        }
        let own = LIVE * size_of::<vramalloc_core::Address>();
        let whole = HOST.current_usage() - before - own;
        let reserved = arena.stats().reserved.current.get();
        let given = arena.driver().given();
        drop(live);
        arena.trim();
        drop(arena);
        let page_map = HOST.current_usage() - before;
        Steady {
            books: whole - page_map,
            page_map,
            reserved,
            given,
        }
    }
}

/// Measures what the second half of the passes adds to the first.
fn steady() {
    for (name, repeats) in [("repeating", true), ("random", false)] {
        let early = Steady::after(PASSES / 2, repeats);
        let late = Steady::after(PASSES, repeats);
        let growth = |late: usize, early: usize| late as i64 - early as i64;
        println!(
            "{}",
            json!({
                "steady": name, "replacements": PASSES * PASS,
                "books": late.books, "books_growth": growth(late.books, early.books),
                "page_map": late.page_map, "page_map_growth": growth(late.page_map, early.page_map),
                "reserved": late.reserved,
                "reserved_growth": late.reserved as i64 - early.reserved as i64,
                "given": late.given,
            })
        );
    }
}

fn main() {
    let quick = std::env::args().any(|word| word == "quick");
    let most = if quick { 100_000 } else { usize::MAX };
    for count in COUNTS.into_iter().filter(|&count| count <= most) {
        blocks(count);
    }
    steady();
}
