//! Risk: a program computes or prints something else than without us.

use vramalloc_tests::stage::{Kind, Outcome, Run, STRATEGIES};

/// Bare and preloaded runs, in all kinds and strategies, print the same and
/// end the same; `each` looks further into a preloaded one.
fn same_as_bare(program: &'static str, each: impl Fn(&Outcome, &str)) {
    for kind in Kind::each() {
        let bare = Run::bare(program, kind).go();
        bare.quiet(0);
        for strategy in STRATEGIES {
            let run = Run::preloaded(program, kind).conf(&format!("strategy:{strategy}"));
            let outcome = run.go();
            outcome.quiet(0);
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            outcome.no_more_violations(&bare);
            each(&outcome, strategy);
        }
    }
}

#[test]
fn daily_work_is_the_same() {
    same_as_bare("basics", |outcome, strategy| {
        let stats = outcome.stats();
        assert_eq!(stats["options"]["strategy"]["value"], strategy);
        assert_eq!(stats["totals"]["allocations"], stats["totals"]["frees"]);
        assert_eq!(stats["totals"]["bad_frees"], 0, "{}", outcome.what);
        outcome.no_violations();
        assert_eq!(stats["arenas"].as_array().unwrap().len(), 2);
    });
}

#[test]
fn wrong_frees_are_refused_as_by_the_driver_and_harm_nothing() {
    same_as_bare("misuse", |outcome, _| {
        outcome.stats();
    });
}

/// A question of ours that the driver does not answer fails no call of the
/// program's.
#[test]
fn a_question_of_ours_may_fail() {
    for conf in ["strategy:passthrough", "strategy:auto_growth"] {
        let run = |n: u64| {
            Run::preloaded("misuse", Kind::Driver)
                .conf(conf)
                .env("SIM_CUDA_FAULT", &format!("cuCtxGetCurrent:{n}:999"))
        };
        let plain = run(0).go();
        let asked = plain.driver_calls("cuCtxGetCurrent");
        assert!(asked > 10, "{asked}: {}", plain.what);
        for n in 1..=asked {
            let outcome = run(n).go();
            outcome.quiet(0);
            assert_eq!(outcome.stdout, plain.stdout, "{}", outcome.what);
        }
    }
}

/// The bytes, the count and the next free are as bare.
#[test]
fn a_free_that_the_driver_refuses_changes_nothing() {
    for kind in Kind::each() {
        let with = |run: Run| {
            run.arg("refused")
                .env("SIM_CUDA_FAULT", "cuMemFree_v2:1:999,cuMemFreeAsync:1:999")
        };
        let bare = with(Run::bare("misuse", kind)).go();
        let outcome = with(Run::preloaded("misuse", kind))
            .env("VRAMALLOC_STRATEGY", "passthrough")
            .env("VRAMALLOC_CONF", "alloc_fill_value:171")
            .go();
        assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
        let totals = &outcome.stats()["totals"];
        assert_eq!(totals["allocations"], 2, "{}", outcome.what);
        assert_eq!(totals["frees"], 2, "{}", outcome.what);
    }
}

#[test]
fn a_first_allocation_in_a_constructor_is_the_same() {
    same_as_bare("constructor", |outcome, _| {
        assert_eq!(outcome.stats()["totals"]["allocations"], 2);
    });
}

/// A process that never touches CUDA does not notice the library.
#[test]
fn a_program_without_cuda_calls_is_left_alone() {
    for kind in Kind::each() {
        let bare = Run::bare("nothing", kind).go();
        let outcome = Run::preloaded("nothing", kind).go();
        outcome.quiet(0);
        assert_eq!(outcome.stdout, bare.stdout);
        assert!(outcome.written.is_empty(), "{}", outcome.what);
        assert!(!outcome.has_report(), "{}: loads a driver", outcome.what);
    }
}

/// Also where the program frees, while it captures, many times what the device
/// has. (A chunk taken in advance always holds something live, so it cannot
/// go back meanwhile, and nothing may be asked about its freed blocks: there
/// the program has to do with what the chunk has.)
#[test]
fn a_capture_comes_out_whole() {
    for kind in Kind::each() {
        for strategy in STRATEGIES {
            let rounds = if strategy == "naive_best_fit" {
                "3"
            } else {
                "64"
            };
            let change = |run: Run| run.arg(rounds).env("SIM_CUDA_MEMORY", "2G");
            let bare = change(Run::bare("capture", kind)).go();
            bare.quiet(0).no_violations();
            let run = Run::preloaded("capture", kind).conf(&format!("strategy:{strategy}"));
            let outcome = change(run).go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            outcome.stats();
        }
    }
}

#[test]
fn a_device_that_was_reset_is_a_new_one() {
    same_as_bare("reset", |outcome, _| {
        outcome.stats();
    });
}

/// Also where a runtime makes a device's context current only when it needs it.
#[test]
fn memory_lies_on_the_device_that_is_set() {
    // Enough for the thread to have blocks that it hands out again.
    let frees: String = (0..300).map(|block| format!("-{block} ")).collect();
    let steps = format!("{}{frees}+4K +4K +4K d1 +4K d0 +4K", "+4K ".repeat(300));
    for kind in Kind::each() {
        for late in ["0", "1"] {
            let run = |run: Run| {
                let run = run.env("SIM_CUDA_SETS_LATE", late);
                steps.split(' ').fold(run, Run::arg).go()
            };
            let bare = run(Run::bare("steps", kind));
            let outcome = run(Run::preloaded("steps", kind));
            outcome.quiet(0);
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            let stats = outcome.stats();
            let hits = stats["arenas"][0]["thread_hits"].as_u64();
            assert!(hits > Some(0), "{}", outcome.what);
            let arenas = stats["arenas"].as_array().unwrap().iter();
            let on = |arena: &serde_json::Value| {
                ["device", "allocations"].map(|key| arena[key].as_u64().unwrap())
            };
            let counted: Vec<_> = arenas.map(on).collect();
            assert_eq!(counted, [[0, 304], [1, 1]], "{}", outcome.what);
        }
    }
}

/// A free that waits as CUDA's does is the cure for a program that reads on the
/// host what a copy brings, and has only freed before; also while a capture allows no fence,
/// where making one or waiting for it fails, and beside another context, at rest or at work.
/// Without it such a program reads too early: were that to change, the pages that say so
/// would be wrong.
#[test]
fn a_result_is_there_after_a_strict_free() {
    for kind in Kind::each() {
        let with = |run: Run, words: &str| {
            let run = run.env("SIM_CUDA_DEVICES", "2");
            words.split_whitespace().fold(run, Run::arg)
        };
        let strict = || Run::preloaded("read_after_free", kind).conf("free_sync:strict");
        for words in [
            "",
            "captured",
            "touched",
            "touched captured",
            "busy",
            "busy captured",
        ] {
            let bare = with(Run::bare("read_after_free", kind), words).go();
            bare.quiet(0);
            assert!(bare.stdout.starts_with("after a free: 2\n"));
            let strict = |fault| strict().env("SIM_CUDA_FAULT", fault);
            let passthrough = Run::preloaded("read_after_free", kind).conf("strategy:passthrough");
            for run in [
                strict("none"),
                strict("cuEventRecord:1:2,cuCtxRecordEvent:1:2"),
                strict("cuEventSynchronize:1:2"),
                strict("none").conf("free_sync:strict,dedicated_min:1K"),
                passthrough,
            ] {
                let outcome = with(run, words).go();
                outcome.quiet(0).no_violations();
                assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            }
        }
        let early = Run::preloaded("read_after_free", kind).go();
        early.quiet(0).no_violations();
        assert!(
            early.stdout.starts_with("after a free: 1\n"),
            "{}",
            early.stdout
        );
    }
}
