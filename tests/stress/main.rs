//! Many threads at once: blocks that are freed in other threads than they
//! were allocated in, threads that come and go, captures all the while.
//!
//! What can go wrong between two atomic operations is for the model checker
//! (`ci/loom`). Here the whole library runs, in its debug build, which
//! compares its books after every step, under programs that check their data,
//! over a device that looks for unordered work. The windows between threads
//! are moved: by driver calls that sleep (`SIM_CUDA_SLOW`), and by all threads
//! on one processor, where each is interrupted at other places.
//!
//! Tried besides: valgrind's helgrind and drd know nothing of the atomics that
//! spin locks and the standard library's locks are made of, and report every
//! access that these guard (100 000 for a run of a second, as many bare as
//! preloaded). gcc's thread sanitizer does not see Rust code. Rust's own is not
//! in the stable toolchain and does not see into the standard library; run by
//! hand over the arena's thread tests, with the model GPU's lock made a spin
//! lock, it reported the standard library's own hand-overs and nothing of ours.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot set its stage has failed"
)]

use vramalloc_tests::stage::{Kind, Outcome, Run, STRATEGIES};

/// Calls that the library makes, and for how many nanoseconds they sleep.
const SLOW: &str = "cuMemHostAlloc:50000,cuMemFreeHost:50000,cuMemAlloc_v2:20000,cuMemFree_v2:20000,cuCtxRecordEvent:50000,\
     cuEventQuery:20000,cuEventSynchronize:20000,cuStreamBeginCapture_v2:100000,\
     cuThreadExchangeStreamCaptureMode:5000";

/// How the threads are disturbed: slow driver calls, one processor.
const DISTURBANCES: [(&str, &str); 4] = [("", ""), (SLOW, ""), ("", "one"), (SLOW, "one")];

/// On a device that `naive_best_fit` fills at once: what is freed during a
/// capture is waited for with what is kept back for it.
fn exchange(kind: Kind, seed: u32) -> Run {
    Run::bare("exchange", kind)
        .args([&seed.to_string(), "3", "400"])
        .env("SIM_CUDA_SEED", &seed.to_string())
        .env("SIM_CUDA_MEMORY", "64M")
        .env("SIM_CUDA_STRICT", "1")
}

/// At the end nothing is live, and every allocation was freed once.
#[track_caller]
fn balances(outcome: &Outcome) {
    let stats = outcome.stats();
    let totals = &stats["totals"];
    assert_eq!(totals["allocations"], totals["frees"], "{}", outcome.what);
    assert_eq!(totals["bad_frees"], 0, "{}", outcome.what);
    assert_eq!(totals["ooms"], 0, "{}", outcome.what);
    for arena in stats["arenas"].as_array().unwrap() {
        assert_eq!(arena["live_bytes"]["current"], 0, "{}", outcome.what);
    }
    for arena in stats["host_arenas"].as_array().unwrap() {
        assert_eq!(arena["allocations"], arena["frees"], "{}", outcome.what);
        assert_eq!(arena["live_bytes"]["current"], 0, "{}", outcome.what);
        assert_eq!(arena["bad_frees"], 0, "{}", outcome.what);
    }
}

fn rounds() -> u32 {
    std::env::var("STRESS").map_or(1, |n| n.parse().unwrap())
}

#[test]
#[ignore = "a step of its own: ci/stress"]
fn blocks_pass_between_threads() {
    let mut seed = 0;
    for round in 0..rounds() {
        for kind in Kind::ALL {
            seed += 1;
            println!("round {round}: {kind:?}, seed {seed}");
            let bare = exchange(kind, seed).go();
            bare.quiet(0).no_violations();
            for strategy in STRATEGIES {
                for (slow, one) in DISTURBANCES {
                    let run = exchange(kind, seed)
                        .preload_debug()
                        .env("SIM_CUDA_SLOW", slow);
                    let run = run.conf(&format!("strategy:{strategy}"));
                    let outcome = if one.is_empty() { run } else { run.arg(one) }.go();
                    outcome.quiet(0).no_violations();
                    assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
                    balances(&outcome);
                }
            }
        }
    }
}

/// The same with memory so short that threads wait for each other's frees,
/// and on a driver without a mark for a whole context.
#[test]
#[ignore = "a step of its own: ci/stress"]
fn blocks_pass_between_threads_when_memory_is_short() {
    for (kind, strategy) in Kind::ALL.into_iter().zip(STRATEGIES.into_iter().cycle()) {
        for conf in ["limit:32M", "free_sync:strict", "limbo_budget:1M"] {
            for lacks in ["", "cuCtxRecordEvent"] {
                let run = exchange(kind, 1).preload_debug().env("SIM_CUDA_SLOW", SLOW);
                let outcome = run
                    .conf(&format!("strategy:{strategy},{conf}"))
                    .env("SIM_CUDA_LACKS", lacks)
                    .go();
                outcome.quiet(0);
                outcome.no_violations();
                balances(&outcome);
            }
        }
    }
}

/// Thousands of threads that allocate and free once or a few times each: neither the
/// process nor the device has to have more for them than without the library, and
/// each is counted.
#[test]
#[ignore = "a step of its own: ci/stress"]
fn threads_that_come_and_go_leave_nothing() {
    // What a thread may cost is told from what is loaded late and once.
    const KIB_ONCE: i64 = 512;
    let (threads, allocations) = match rounds() {
        1 => ("8000", 13_000),
        _ => ("100000", 162_500),
    };
    let more = |outcome: &Outcome| {
        outcome.quiet(0).no_violations();
        let after = |what: &str| {
            let (_, rest) = outcome.stdout.split_once(what).unwrap();
            rest.split_whitespace().next().unwrap().parse().unwrap()
        };
        let told: [i64; 3] = ["device: ", "process: ", "allocations: "].map(after);
        assert_eq!((told[0], told[2]), (0, allocations), "{}", outcome.what);
        told[1]
    };
    for kind in [Kind::Dynamic, Kind::Driver] {
        let bare = more(&Run::bare("thread_life", kind).args(["brief", threads]).go());
        let outcome = Run::preloaded("thread_life", kind)
            .args(["brief", threads])
            .go();
        let with = more(&outcome);
        assert!(
            with <= bare + KIB_ONCE,
            "{with}, {bare} without: {}",
            outcome.what
        );
        balances(&outcome);
        assert_eq!(outcome.stats()["totals"]["allocations"], allocations);
        let seen = &outcome.report()["devices"][0]["peak_bytes"];
        assert!(
            seen.as_u64().unwrap() <= 32 << 20,
            "{seen}: {}",
            outcome.what
        );
    }
}

/// So the first tests can fail.
#[test]
#[ignore = "a step of its own: ci/stress"]
fn blocks_that_pass_too_early_are_seen() {
    for kind in Kind::ALL {
        let run = exchange(kind, 1).preload_debug();
        let outcome = run.conf("strategy:auto_growth,free_sync:immediate").go();
        let seen = outcome.code() == 3 || !outcome.violations().is_empty();
        assert!(seen, "{}", outcome.what);
    }
}
