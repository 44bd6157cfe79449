//! Risk: a process that ends, in whatever way, ends differently with us.

use crate::stage::{Kind, Run};

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

#[test]
fn every_way_to_end_is_the_same() {
    let ways = [
        ("return", 0),
        ("exit", 3),
        ("_exit", 4),
        ("abort", -SIGABRT),
        ("atexit", 0),
        ("destructor", 5),
        ("fork", 0),
    ];
    for kind in Kind::ALL {
        for (way, code) in ways {
            let bare = Run::bare("exit_paths", kind).arg(way).go();
            bare.quiet(code);
            let outcome = Run::preloaded("exit_paths", kind).arg(way).go();
            outcome.quiet(code);
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            if bare.has_report() {
                outcome.no_more_violations(&bare);
            }
        }
    }
}

/// An ordinary end leaves the statistics of the one process that allocated.
#[test]
fn an_ordinary_end_leaves_statistics() {
    for kind in Kind::ALL {
        for way in ["return", "exit", "atexit", "destructor", "fork"] {
            let outcome = Run::preloaded("exit_paths", kind).arg(way).go();
            let totals = &outcome.stats()["totals"];
            assert_eq!(totals["allocations"], 16, "{}", outcome.what);
        }
    }
}

/// Where no handler runs, what was written in between stays.
#[test]
fn a_killed_process_leaves_what_was_written_in_between() {
    let killed = |interval| {
        let run = Run::preloaded("exit_paths", Kind::Driver).arg("killed");
        let outcome = run.conf(&format!("stats_interval_s:{interval}")).go();
        outcome.quiet(-SIGKILL);
        outcome
    };
    let stats = killed(1).stats();
    assert_eq!(stats["final"], false);
    assert_eq!(stats["totals"]["allocations"], 16);
    assert!(killed(0).written.is_empty());

    let run = Run::preloaded("exit_paths", Kind::Driver).arg("return");
    assert_eq!(run.conf("stats_interval_s:1").go().stats()["final"], true);
}

/// Threads that are still allocating when the process ends.
#[test]
fn racing_threads_do_not_hang_or_crash_the_end() {
    for kind in Kind::ALL {
        for _ in 0..5 {
            let outcome = Run::preloaded("exit_paths", kind).arg("racing").go();
            outcome.quiet(0);
            outcome.stats();
        }
    }
}

/// Nothing is called once the driver is shutting down.
#[test]
fn the_end_makes_no_driver_call() {
    for kind in Kind::ALL {
        for way in ["return", "exit"] {
            let outcome = Run::preloaded("exit_paths", kind).arg(way).go();
            outcome.no_violations();
        }
    }
}
