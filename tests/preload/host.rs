//! Risk: page-locked host memory is handed out while a copy still uses it, or
//! is something else to the program than the driver's own.

use crate::stage::{Kind, Outcome, Run, STRATEGIES};

/// Strategies, and what the driver lacks, so that work is marked otherwise.
const WAYS: [(&str, &str); 4] = [
    ("naive_best_fit", ""),
    ("auto_growth", ""),
    ("auto_growth", "cuCtxRecordEvent"),
    ("passthrough", ""),
];

const HOWS: [&str; 7] = [
    "apart",
    "blocking",
    "default",
    "thread",
    "peer",
    "destroyed",
    "capture",
];

/// The bare run, and a preloaded one under each strategy, which must print and
/// violate the same.
fn same_as_bare(
    program: &'static str,
    argument: &str,
    change: impl Fn(Run) -> Run,
    each: impl Fn(&Outcome, &Outcome, &str),
) {
    let with_argument = |run: Run| match argument {
        "" => run,
        argument => run.arg(argument),
    };
    for kind in Kind::ALL {
        let bare = change(with_argument(Run::bare(program, kind))).go();
        bare.quiet(0);
        for strategy in STRATEGIES {
            let run = change(with_argument(Run::preloaded(program, kind)));
            let outcome = run.conf(&format!("strategy:{strategy}")).go();
            outcome.quiet(0);
            assert_eq!(texts(&outcome), texts(&bare), "{}", outcome.what);
            outcome.no_more_violations(&bare);
            each(&bare, &outcome, strategy);
        }
    }
}

fn same(program: &'static str, argument: &str) {
    same_as_bare(program, argument, |run| run, |_, _, _| {});
}

/// Without the lines that hold amounts.
fn texts(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stdout.lines();
    lines.filter(|line| !line.starts_with("info ")).collect()
}

/// Calls to the driver that take page-locked memory, and that give it back.
fn calls(outcome: &Outcome) -> (u64, u64) {
    let taken = outcome.driver_calls("cuMemHostAlloc") + outcome.driver_calls("cuMemAllocHost_v2");
    (taken, outcome.driver_calls("cuMemFreeHost"))
}

fn locked(outcome: &Outcome) -> u64 {
    outcome.report()["host"]["peak_bytes"].as_u64().unwrap()
}

#[test]
fn pinned_memory_is_what_the_driver_gives() {
    same("host_memory", "");
}

/// Also where the driver's own is aligned as the pool wants it.
#[test]
fn pinned_memory_may_be_aligned_better() {
    let aligned = |run: Run| run.env("SIM_CUDA_HOST_ALIGN", "2M");
    same_as_bare("host_memory", "", aligned, |_, _, _| {});
}

/// The same blocks over and over: the pool asks the driver for a few chunks,
/// bare each request is a call.
#[test]
fn a_program_that_repeats_does_without_the_driver() {
    let few = |_: &Outcome, outcome: &Outcome, strategy: &str| {
        let (taken, given) = calls(outcome);
        if strategy == "passthrough" {
            assert_eq!((taken, given), (1440, 1440), "{}", outcome.what);
        } else {
            assert!(taken <= 20 && given <= 20, "{}", outcome.what);
        }
    };
    same_as_bare("host_memory", "30", |run| run, few);
}

#[test]
fn pinned_memory_freed_under_a_copy_waits_for_it() {
    for (how, kind) in HOWS.into_iter().zip(Kind::ALL.into_iter().cycle()) {
        Run::bare("host_in_flight", kind).arg(how).go().quiet(0);
        for (strategy, lacks) in WAYS {
            for free_sync in ["deferred", "strict"] {
                let run = Run::preloaded("host_in_flight", kind).arg(how);
                let run = run.env("SIM_CUDA_LACKS", lacks);
                let conf = format!("strategy:{strategy},free_sync:{free_sync}");
                run.conf(&conf).go().quiet(0).no_violations();
            }
        }
    }
}

/// So the test above can fail.
#[test]
fn without_the_fence_the_copy_reads_what_came_later() {
    for how in HOWS {
        let run = Run::preloaded("host_in_flight", Kind::Driver).arg(how);
        let outcome = run.conf("free_sync:immediate").go();
        assert_eq!(outcome.code(), 3, "{}", outcome.what);
    }
}

#[test]
fn pinned_memory_goes_with_its_context() {
    same("host_life", "contexts");
}

#[test]
fn pinned_memory_belongs_to_no_thread() {
    same("host_life", "threads");
}

#[test]
fn a_forked_child_has_no_pinned_memory() {
    same("host_life", "fork");
}

#[test]
fn a_capture_minds_no_pinned_memory() {
    let clean = |bare: &Outcome, outcome: &Outcome, _: &str| {
        bare.no_violations();
        outcome.no_violations();
    };
    same_as_bare("host_life", "captures", |run| run, clean);
}

#[test]
fn pinned_memory_is_freed_late() {
    same("host_life", "atexit");
    same("host_life", "destructor");
}

/// The program gets as much as bare, but for what little a pool needs, and all
/// of it again in another shape.
#[test]
fn a_host_that_is_short_gives_as_much_as_bare() {
    let short = |run: Run| run.env("SIM_CUDA_HOST_MEMORY", "256M");
    let as_much = |bare: &Outcome, outcome: &Outcome, _: &str| {
        let got = |outcome: &Outcome| -> Vec<u64> {
            let lines = outcome.stdout.lines();
            let amounts = lines.filter_map(|line| line.strip_prefix("info got="));
            amounts.map(|amount| amount.parse().unwrap()).collect()
        };
        for (bare, with) in got(bare).into_iter().zip(got(outcome)) {
            assert!(with + 4 >= bare, "{with} of {bare}: {}", outcome.what);
        }
    };
    same_as_bare("host_life", "short", short, as_much);
}

/// Beyond the cap the driver serves, and nothing fails.
#[test]
fn beyond_the_cap_the_driver_serves() {
    let capped = |run: Run| {
        let run = run.env("SIM_CUDA_HOST_MEMORY", "256M");
        run.env("FLAGS_fraction_of_cuda_pinned_memory_to_use", "0.001")
    };
    same_as_bare("host_life", "short", capped, |_, _, _| {});
}

#[test]
fn a_little_pinned_memory_locks_little() {
    for kind in Kind::ALL {
        let outcome = Run::preloaded("host_life", kind).arg("little").go();
        outcome.quiet(0).no_violations();
        let bytes = locked(&outcome);
        assert!(bytes <= 512 << 10, "{bytes}: {}", outcome.what);
    }
}
