//! Risk: a block that one stream still uses in the hands of another; memory of
//! a graph in anybody's; memory that one stream keeps from another when it is
//! short.

use serde_json::Value;

use crate::Comes;
use vramalloc_tests::stage::{Kind, Outcome, STRATEGIES};

/// The device has so much, so that memory runs short soon.
const MEMORY: &str = "256M";

fn run(comes: Comes, kind: Kind, strategy: &str) -> Outcome {
    comes
        .run("api_streams", kind)
        .env("VRAMALLOC_STRATEGY", strategy)
        .env("SIM_CUDA_MEMORY", MEMORY)
        .env("SIM_CUDA_STRICT", "1")
        .go()
}

/// What the program says where lanes pool memory.
fn expected(comes: Comes) -> Vec<&'static str> {
    let front = comes == Comes::First;
    let of = |front: bool, line: &'static str| front.then_some(line);
    [
        Some("its own block at once: 1, the other stream too: 0"),
        Some("while the other uses it: 0, after that: 1"),
        of(
            front,
            "freed in the other's order, at once: 0, in its own: 1",
        ),
        of(
            front,
            "freed in the thread's order, at once: 0, in its own: 1",
        ),
        of(front, "of work that outlives its stream: 0 0"),
        Some("in a capture at once: 1, outside of it: 0, kept: 1"),
        Some("released with its graph: some"),
        Some("threads are done"),
        Some("told of streams: 0, its own block at once: 0"),
        Some("told of streams: 1, its own block at once: 1"),
        of(front, "told as free: 1"),
        // CUDA's own answer, which knows nothing of our pools.
        of(!front, "told as free: 0"),
        of(front, "contexts that ended: 3"),
        of(front, "after a reset: 1"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn a_stream_keeps_to_itself_what_it_uses() {
    for kind in Kind::each() {
        for comes in Comes::ALL {
            let outcome = run(comes, kind, "auto_growth");
            outcome.quiet(0).no_violations();
            let lines: Vec<&str> = outcome.stdout.lines().collect();
            assert_eq!(lines, expected(comes), "{}", outcome.what);
            let stats = outcome.stats();
            let totals = &stats["totals"];
            let count = |key: &str| totals[key].as_u64().unwrap();
            // Of the contexts that ended and the one that was reset one each.
            let left = if comes == Comes::First { 4 } else { 0 };
            assert_eq!(
                count("allocations"),
                count("frees") + left,
                "{}",
                outcome.what
            );
        }
    }
}

/// The strategy of lanes is their own; without pools each call is the driver's,
/// but for memory of captures.
#[test]
fn every_strategy_serves_streams() {
    for strategy in STRATEGIES {
        for comes in Comes::ALL {
            let outcome = run(comes, Kind::Dynamic, strategy);
            outcome.quiet(0).no_violations();
            let stats = outcome.stats();
            let lanes: Vec<&Value> = (stats["arenas"].as_array().unwrap().iter())
                .filter(|arena| arena["lane"] == true)
                .collect();
            let served = lanes
                .iter()
                .map(|lane| lane["allocations"].as_u64().unwrap());
            let served: u64 = served.sum();
            let all = stats["totals"]["allocations"].as_u64().unwrap();
            if strategy == "passthrough" {
                assert_eq!(served, 2, "{}", outcome.what);
                assert_eq!(stats["lanes"], "off: strategy:passthrough");
            } else {
                let told = "on since the program says which streams use a block";
                assert_eq!(stats["lanes"], told);
                assert!(lanes.len() > 4 && served > all / 10 * 9, "{}", outcome.what);
            }
        }
    }
}

/// Where nothing is heard of captures, too.
#[test]
fn blocks_are_filled_beside_captures() {
    for comes in Comes::ALL {
        let program = comes.run("api_streams", Kind::Driver);
        let program = program.env("VRAMALLOC_ALLOC_FILL_VALUE", "171");
        let program = program.env("VRAMALLOC_SYNC_AFTER_ALLOC", "1");
        let outcome = program.env("SIM_CUDA_MEMORY", MEMORY).go();
        outcome.quiet(0).no_violations();
        let filled = outcome.report()["calls"]["cuMemsetD8_v2"].as_u64();
        assert!(filled > Some(2), "{filled:?}: {}", outcome.what);
    }
}

#[test]
fn a_use_that_is_not_told_is_seen() {
    for comes in Comes::ALL {
        let program = comes.run("api_streams", Kind::Dynamic).arg("forget");
        let outcome = program.env("SIM_CUDA_STRICT", "1").go();
        let found = outcome.violations();
        assert!(!found.is_empty(), "{}", outcome.what);
    }
}

/// What the other device does may end only by what this thread does next.
#[test]
fn a_context_ends_beside_a_device_that_uses_its_block() {
    let program = Comes::First.run("api_streams", Kind::Dynamic).arg("apart");
    let outcome = program.env("SIM_CUDA_STRICT", "1").go();
    outcome.quiet(0).no_violations();
    let lines = "it ended within 8 s: 1\ndevice 1 was still at work: 1\n";
    assert_eq!(outcome.stdout, lines, "{}", outcome.what);
}

/// The driver ends the context only after the other thread's stream is gone.
#[test]
fn a_stream_goes_beside_the_end_of_another_context() {
    let program = Comes::First.run("api_streams", Kind::Driver).arg("gone");
    let outcome = program.env("SIM_CUDA_SLOW", "cuStreamGetId:20000000").go();
    outcome.quiet(0).no_violations();
    let line = "the stream is gone, and so is the context\n";
    assert_eq!(outcome.stdout, line, "{}", outcome.what);
}
