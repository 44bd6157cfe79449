//! Risk: contents that a pause loses, memory that it keeps, a graph or another device
//! that does not find it again.

use std::time::Duration;

use serde_json::Value;
use vramalloc_tests::stage::{self, Kind, Outcome, Run};

fn run(kind: Kind, how: &[&str]) -> Outcome {
    let mut run = Run::preloaded("api_pause", kind)
        .patience(Duration::from_secs(400))
        .env("SIM_CUDA_STRICT", "1")
        .env("SIM_CUDA_MEMORY", "1G")
        .conf("strategy:mapped");
    for argument in how {
        run = run.arg(argument);
    }
    run.go()
}

/// What of a key all arenas have together.
fn sum(stats: &Value, key: &str) -> u64 {
    let arenas = stats["arenas"].as_array().unwrap();
    arenas
        .iter()
        .map(|arena| arena["pause"][key].as_u64().unwrap())
        .sum()
}

#[test]
fn many_cycles_lose_and_leave_nothing() {
    // The program looks at everything in every fiftieth.
    let count = if stage::is_whole() { "1000" } else { "100" };
    for (kind, count) in Kind::each().zip([count, "60", "60", "60"]) {
        let outcome = run(kind, &["cycles", count]);
        outcome.quiet(0).no_violations();
        let expected = [
            "before: 1".to_owned(),
            format!("good cycles: {count}, stayed: 0, missing while paused: 0"),
            "missing in the end: 0".to_owned(),
        ];
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        assert_eq!(lines, expected, "{}", outcome.what);
        let stats = outcome.stats();
        let count: u64 = count.parse().unwrap();
        assert_eq!(sum(&stats, "pauses"), count, "{}", outcome.what);
        assert_eq!(sum(&stats, "resumes"), count, "{}", outcome.what);
        for key in ["failures", "paused_bytes", "backup_bytes"] {
            assert_eq!(sum(&stats, key), 0, "{key}: {}", outcome.what);
        }
    }
}

/// The host memory that contents are saved in is kept: what a first pause takes long for
/// is not done again, and a resume takes what its copies and mappings take.
#[test]
fn only_the_first_cycle_takes_memory_of_the_host() {
    for kind in Kind::each() {
        // Four cycles, with three arenas of which the contents are kept.
        let outcome = run(kind, &["together"]);
        outcome.quiet(0).no_violations();
        let calls = |function| outcome.driver_calls(function);
        assert_eq!(calls("cuMemHostAlloc"), 3, "{}", outcome.what);
        for function in ["cuMemFreeHost", "cuMemAllocHost_v2", "cuMemHostRegister_v2"] {
            assert_eq!(calls(function), 0, "{function}: {}", outcome.what);
        }
        assert_eq!(sum(&outcome.stats(), "resumes"), 16, "{}", outcome.what);
    }
}

#[test]
fn tags_are_paused_apart() {
    for kind in Kind::each() {
        let outcome = run(kind, &["tags"]);
        outcome.no_violations();
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        let expected = [
            "cache: copied 0, others hold: 16",
            "weights: copied some: 1, others hold: 8",
            "refused: 2",
            "untagged: copied some: 1, weights hold: 8",
            "all hold: 16",
            "it is not paused",
            "unheard: 0",
        ];
        assert_eq!(lines, expected, "{}: {:?}", outcome.what, outcome.said());
        let stats = outcome.stats();
        let mut regions: Vec<&str> = (stats["arenas"].as_array().unwrap().iter())
            .map(|arena| arena["region"].as_str().unwrap_or(""))
            .collect();
        regions.sort_unstable();
        assert_eq!(regions, ["", "cache", "weights"], "{}", outcome.what);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for kind in Kind::each() {
        let outcome = run(kind, &["refusals"]);
        outcome.no_violations();
        let expected = "refused: 2, hold: 22\n";
        assert_eq!(
            outcome.stdout,
            expected,
            "{}: {:?}",
            outcome.what,
            outcome.said()
        );
        let said = (outcome.stderr).contains("300 B asked for and the memory is paused");
        assert!(said, "{}: {}", outcome.what, outcome.stderr);
    }
}

#[test]
fn a_device_is_reset_while_its_memory_is_paused() {
    for kind in Kind::each() {
        let outcome = run(kind, &["reset"]);
        outcome.quiet(0).no_violations();
        let expected = "hold: 24\nmissing in the end: 0\n";
        assert_eq!(outcome.stdout, expected, "{}", outcome.what);
    }
}

/// What a program of several tags says of its pauses while one call of CUDA fails.
fn together(call: &str, n: u32) -> (bool, String) {
    let outcome = Run::preloaded("api_pause", Kind::ALL[n as usize % Kind::ALL.len()])
        .arg("together")
        .env("SIM_CUDA_STRICT", "1")
        .env("SIM_CUDA_FAULT", &format!("{call}:{n}:999"))
        .conf("strategy:mapped")
        .go();
    outcome.no_violations();
    assert_eq!(outcome.code(), 0, "{}: {}", outcome.what, outcome.stderr);
    let failed = !outcome.stdout.starts_with("failed: 0,");
    let rest = outcome.stdout.split_once(", ").unwrap().1.to_owned();
    (failed, format!("{call} {n}: {rest}"))
}

#[test]
fn where_one_arena_fails_all_run_or_all_are_paused() {
    // The first of each are the trial's.
    for (call, last) in [
        ("cuMemcpyDtoH_v2", 20),
        ("cuMemcpyHtoD_v2", 40),
        ("cuMemUnmap", 16),
        ("cuMemCreate", 40),
        ("cuMemMap", 40),
        ("cuMemSetAccess", 24),
    ] {
        let mut fails = 0;
        for n in (3..=last).step_by(3) {
            let (failed, said) = together(call, n);
            assert_eq!(said, format!("{call} {n}: torn: 0, lost: 0\n"));
            fails += u32::from(failed);
        }
        assert!(fails > 1, "{call} never failed in a pause");
    }
}

#[test]
fn captures_that_begin_meanwhile_leave_nothing_half_done() {
    for kind in Kind::each() {
        let outcome = Run::preloaded("api_pause", kind)
            .arg("captures")
            .env("SIM_CUDA_STRICT", "1")
            .env(
                "SIM_CUDA_SLOW",
                "cuMemUnmap:1000000,cuMemcpyDtoH_v2:1000000",
            )
            .conf("strategy:mapped")
            .go();
        outcome.quiet(0).no_violations();
        assert_eq!(outcome.stdout, "torn: 0, hold: 24\n", "{}", outcome.what);
    }
}

#[test]
fn a_device_that_was_never_used_gets_no_context() {
    for kind in Kind::each() {
        let outcome = Run::preloaded("api_pause", kind)
            .arg("unused")
            .env("SIM_CUDA_CONTEXT_SIZE", "64M")
            .conf("strategy:mapped")
            .go();
        outcome.quiet(0).no_violations();
        assert_eq!(outcome.stdout, "moved: 0, paused: 0\n", "{}", outcome.what);
        let report = outcome.report();
        let context = |device: usize| &report["devices"][device]["families"]["context"];
        assert_ne!(context(0)["peak_bytes"], 0, "{}", outcome.what);
        assert_eq!(context(1)["peak_bytes"], 0, "{}", outcome.what);
    }
}

#[test]
fn a_program_may_end_while_its_memory_is_paused() {
    for kind in Kind::each() {
        let outcome = run(kind, &["left", "true"]);
        outcome.quiet(0).no_violations();
        let stats = outcome.stats();
        let arenas = stats["arenas"].as_array().unwrap();
        assert_eq!(arenas.len(), 2, "{}", outcome.what);
        for arena in arenas {
            let (pause, is_dropped) = (&arena["pause"], arena["region"] == "cache");
            assert_eq!(pause["is_paused"], true, "{pause}");
            assert_eq!(pause["last"]["given_bytes"], 2 << 20, "{pause}");
            assert_eq!(pause["last"]["copied_bytes"] == 0, is_dropped, "{pause}");
            assert_eq!(arena["reserved_bytes"]["current"], 0, "{arena}");
        }
        // The program has freed the other block meanwhile.
        assert_eq!(sum(&stats, "paused_bytes"), 2 << 20, "{}", outcome.what);
    }
}

#[test]
fn the_status_tells_what_is_paused() {
    let folder = stage::fresh_folder();
    let asked = format!("{} status $PPID --json", stage::command());
    let outcome = Run::preloaded("api_pause", Kind::ALL[0])
        .args(["left", &asked])
        .env("VRAMALLOC_IPC_DIR", folder.to_str().unwrap())
        .conf("strategy:mapped")
        .go();
    outcome.quiet(0);
    let told: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let device = &told[0]["devices"][0];
    assert_eq!(device["paused_bytes"], 4 << 20, "{told}");
    assert_eq!(device["reserved_bytes"]["current"], 0, "{told}");
}

#[test]
fn without_mapped_memory_there_is_nothing_to_pause() {
    let outcome = Run::preloaded("api_pause", Kind::ALL[0])
        .arg("tags")
        .conf("strategy:auto_growth")
        .go();
    assert_eq!(outcome.code(), 1, "{}", outcome.what);
    let said = outcome.stderr.lines().any(|line| line.contains("801"));
    assert!(said, "{}: {}", outcome.what, outcome.stderr);
}
