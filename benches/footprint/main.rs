//! Measures the host memory that the allocator itself takes: per live block,
//! and whether a steady state takes more. A program of its own, since every
//! host allocation is counted here. One JSON line a figure.
//!
//! What the page map takes is known when the arena is gone and the map is
//! still there; the books are the rest. The driver below takes nothing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a tool that may fail loudly"
)]

#[path = "../arena/driver.rs"]
mod driver;
#[path = "../arena/workload.rs"]
mod workload;

use std::sync::Arc;

use peak_alloc::PeakAlloc;
use serde_json::json;
use vramalloc::config::StrategyKind;
use vramalloc::page_map::PageMap;

use driver::{Costless, arena_over};
use workload::{ALL_SIZES, Draws, Live, SMALL_SIZES, get, put};

#[global_allocator]
static HOST: PeakAlloc = PeakAlloc;

/// Powers of ten, and numbers just above a power of two, where tables that
/// double are half empty.
const COUNTS: [usize; 8] = [
    1000, 1100, 10_000, 17_000, 100_000, 135_000, 600_000, 1_000_000,
];

/// Host bytes for so many live blocks, and at the worst on the way there.
fn blocks(count: usize) {
    let mut draws = Draws::new(1, count, SMALL_SIZES);
    let mut live = Vec::with_capacity(count);
    let before = HOST.current_usage();
    HOST.reset_peak_usage();
    let map = Arc::new(PageMap::new());
    let arena = arena_over(Costless::new(0, 0), 0, StrategyKind::default(), &map);
    for _ in 0..count {
        live.push(get(&arena, draws.next().size));
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

/// What there is after so many replacements of 4000 live blocks.
struct Steady {
    books: usize,
    page_map: usize,
    reserved: u64,
}

impl Steady {
    /// Replacements of sizes and slots that repeat, or of ever new ones.
    fn after(replacements: usize, repeats: bool) -> Steady {
        const LIVE: usize = 4000;
        let mut draws = Draws::new(1, LIVE, ALL_SIZES);
        let mut random = workload::Random(9);
        let before = HOST.current_usage();
        let map = Arc::new(PageMap::new());
        let arena = arena_over(Costless::new(0, 0), 0, StrategyKind::default(), &map);
        let mut live = Live::new(&arena, LIVE, &mut draws);
        let own = LIVE * size_of::<vramalloc::Address>();
        for _ in 0..replacements {
            let mut draw = draws.next();
            if !repeats {
                // Another slot each time round, so no step is like one before.
                draw.slot = random.below(LIVE);
            }
            live.replace(draw);
        }
        let whole = HOST.current_usage() - before - own;
        let reserved = arena.stats().reserved.current.get();
        drop(live);
        arena.trim();
        drop(arena);
        let page_map = HOST.current_usage() - before;
        Steady {
            books: whole - page_map,
            page_map,
            reserved,
        }
    }
}

/// What so many replacements add to what a quarter of them leave.
fn steady(replacements: usize) {
    for (name, repeats) in [("repeating", true), ("random", false)] {
        let early = Steady::after(replacements / 4, repeats);
        let late = Steady::after(replacements, repeats);
        let growth = |late: usize, early: usize| late as i64 - early as i64;
        println!(
            "{}",
            json!({
                "steady": name, "replacements": replacements,
                "books": late.books, "books_growth": growth(late.books, early.books),
                "page_map": late.page_map, "page_map_growth": growth(late.page_map, early.page_map),
                "reserved": late.reserved,
                "reserved_growth": late.reserved as i64 - early.reserved as i64,
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
    steady(if quick { 400_000 } else { 4_000_000 });
}
