//! The cost of an allocation and a free without a pool, on the model device.

use std::sync::Arc;

use serde_json::json;
use vramalloc_core::Driver;
use vramalloc_core::address::Bytes;
use vramalloc_core::config::StrategyKind;
use vramalloc_core::page_map::PageMap;
use vramalloc_model::{Gpu, Settings, SimDriver};

use crate::arguments::Arguments;
use crate::clock::mean;
use crate::latency::best_of;
use vramalloc_benches::driver::arena_over;

const SIZES: [u64; 3] = [4 << 10, 1 << 20, 16 << 20];

fn device() -> SimDriver {
    Gpu::new(Settings::default()).driver(0).unwrap()
}

/// Measures the model device alone, and through the arena with `passthrough`
/// and with the default strategy.
pub(crate) fn run(arguments: &Arguments) {
    let (rounds, pairs) = (
        arguments.count("rounds", 7),
        arguments.count("pairs", 100_000),
    );
    for size in SIZES.map(Bytes::new) {
        let driver = device();
        let round = |_| {
            mean(pairs, || {
                driver.free(driver.alloc(size).unwrap()).unwrap();
            })
        };
        let bare = (0..rounds).map(round).fold(f64::INFINITY, f64::min);
        println!(
            "{}",
            json!({"size": size.get(), "through": "bare", "ns": bare})
        );
        for (name, strategy) in [
            ("passthrough", StrategyKind::Passthrough),
            ("auto_growth", StrategyKind::AutoGrowth),
        ] {
            let map = Arc::new(PageMap::new());
            let arena = arena_over(device(), 0, strategy, &map);
            let ns = best_of(&arena, size, rounds, pairs);
            println!("{}", json!({"size": size.get(), "through": name, "ns": ns}));
        }
    }
}
