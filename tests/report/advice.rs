//! Advice is worth nothing unless it helps: a program that was given it runs
//! again as it says.

use serde_json::Value;

use crate::report_of;
use crate::stage::{Kind, Outcome, Run, fresh_folder, trace};

/// Ends the rules by which chunks are packed where no option says how they are
/// taken or waited for, and does nothing else: here no kernels run.
const AS_IT_COMES: &str = "limbo_budget:1G";

/// A trace, twice over, on a device on which it is never short of memory, by a
/// program whose chunks are not packed.
fn replay_as_it_comes(name: &str, conf: &str) -> Outcome {
    replay(name, &format!("{AS_IT_COMES},{conf}"))
}

/// A trace, twice over, on a device on which it is never short of memory.
fn replay(name: &str, conf: &str) -> Outcome {
    Run::preloaded("replay", Kind::Dynamic)
        .args([&trace(name).to_string_lossy(), "2"])
        .env("SIM_CUDA_MEMORY", "80G")
        .conf(conf)
        .go()
}

/// What the report of a run advises, as options.
fn advice(stats: &Value) -> Vec<String> {
    let report = report_of(&stats.to_string());
    (report.lines())
        .skip_while(|line| *line != "what would have helped")
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .filter_map(|line| line.strip_prefix("  - "))
        .filter_map(|line| Some(line.split_once(". ")?.0.to_owned()))
        .filter(|option| option.contains(':') && !option.contains(' '))
        .collect()
}

fn reserved(outcome: &Outcome) -> u64 {
    let peak = &outcome.stats()["arenas"][0]["reserved_bytes"]["peak"];
    peak.as_u64().unwrap()
}

/// A limit at which the trace fails because large blocks were cut up for
/// smaller ones.
#[test]
fn what_is_advised_after_a_fragmented_shortage_lets_the_program_pass() {
    let tight = "limit:7200M";
    let failed = replay_as_it_comes("gpt_train", tight);
    assert_ne!(failed.code(), 0, "{}", failed.stderr);
    let advice = advice(&failed.stats());
    assert_eq!(advice, ["max_split_size_mb:64"]);
    let helped = replay_as_it_comes("gpt_train", &format!("{tight},{}", advice[0]));
    helped.quiet(0).no_violations();
    assert_eq!(helped.stats()["totals"]["ooms"], 0);
}

/// A chunk in advance of most of the device.
#[test]
fn what_is_advised_for_a_chunk_in_advance_is_enough_and_less() {
    let large = replay("gpt_train", "strategy:naive_best_fit");
    let advice = advice(&large.stats());
    assert_eq!(advice.len(), 1, "{advice:?}");
    assert!(advice[0].starts_with("fraction_of_gpu_memory_to_use:0."));
    let helped = replay(
        "gpt_train",
        &format!("strategy:naive_best_fit,{}", advice[0]),
    );
    helped.quiet(0).no_violations();
    assert!(reserved(&helped) * 4 < reserved(&large));
    assert_eq!(self::advice(&helped.stats()), [""; 0]);
}

/// Other lengths at every step: chunks that fitted the last step lie idle
/// while this one takes its own.
#[test]
fn what_is_advised_for_idle_chunks_saves_what_they_held() {
    let grown = replay_as_it_comes("varlen_train", "");
    let advice = advice(&grown.stats());
    assert_eq!(advice, ["free_when_no_cache_hit:True"]);
    let helped = replay_as_it_comes("varlen_train", &advice[0]);
    helped.quiet(0).no_violations();
    let stats = helped.stats();
    let live = stats["arenas"][0]["live_bytes"]["peak"].as_u64().unwrap();
    assert!(reserved(&grown) > live + live / 4);
    assert!(reserved(&helped) < live + live / 20);
    assert_eq!(self::advice(&stats), [""; 0]);
}

/// The same under a limit: the whole cache is emptied when it is reached.
#[test]
fn what_is_advised_for_an_emptied_cache_keeps_it_from_that() {
    let limit = "limit:34G";
    let retries = |stats: &Value| {
        stats["arenas"][0]["memory_stats"]["num_alloc_retries"]
            .as_u64()
            .unwrap()
    };
    let emptied = replay_as_it_comes("varlen_train", limit).stats();
    assert!(retries(&emptied) > 0);
    let advice = advice(&emptied);
    assert_eq!(advice, ["garbage_collection_threshold:0.8"]);
    let helped = replay_as_it_comes("varlen_train", &format!("{limit},{}", advice[0]));
    helped.quiet(0).no_violations();
    assert_eq!(retries(&helped.stats()), 0);
    assert_eq!(self::advice(&helped.stats()), [""; 0]);
}

/// A trace of these lines.
fn own(lines: &str) -> String {
    let folder = fresh_folder();
    let path = folder.join("own.csv");
    std::fs::write(&path, lines).unwrap();
    path.to_string_lossy().into_owned()
}

/// Requests that failed are served with what is advised.
#[test]
fn what_is_advised_for_failures_serves_the_requests() {
    for (lines, conf, advised) in [
        (
            "a,1,3221225472,0\na,2,2147483648,0\n",
            "limit:4G",
            "limit:5G",
        ),
        (
            "a,1,3221225472,0\nf,1,3221225472,0\na,2,4294967296,0\n",
            "limit:5G,throw_on_cudamalloc_oom:True",
            "throw_on_cudamalloc_oom:False",
        ),
    ] {
        let lines = own(lines);
        let run = |conf: &str| {
            let run = Run::preloaded("replay", Kind::Dynamic).args([&lines, "1"]);
            run.env("SIM_CUDA_MEMORY", "16G").conf(conf).go()
        };
        let failed = run(conf);
        assert_ne!(failed.code(), 0, "{}", failed.stderr);
        assert_eq!(advice(&failed.stats()), [advised]);
        let helped = run(&format!("{conf},{advised}"));
        helped.quiet(0).no_violations();
        assert_eq!(advice(&helped.stats()), [""; 0]);
    }
}

/// What took long takes less with what is advised.
#[test]
fn what_is_advised_for_time_saves_it() {
    for (conf, slow, advised, kinds) in [
        (
            "strategy:passthrough",
            "cuMemAlloc_v2:100000,cuMemFree_v2:100000",
            "strategy:auto_growth",
            ["alloc", "free"],
        ),
        (
            "dedicated_min:1M",
            "cuMemAlloc_v2:100000,cuMemFree_v2:100000",
            "dedicated_min:none",
            ["alloc", "free"],
        ),
        (
            "free_sync:strict",
            "cuEventSynchronize:100000",
            "free_sync:deferred",
            ["wait", "fence"],
        ),
    ] {
        let run = |conf: &str| {
            let trace = trace("gpt_train");
            let run = Run::preloaded("replay", Kind::Dynamic).args([&trace.to_string_lossy(), "1"]);
            let run = run.env("SIM_CUDA_MEMORY", "80G").env("SIM_CUDA_SLOW", slow);
            run.conf(conf).go()
        };
        let ns = |stats: &Value| -> u64 {
            let calls = &stats["arenas"][0]["driver_calls"];
            kinds
                .map(|kind| calls[kind]["total_ns"].as_u64().unwrap())
                .iter()
                .sum()
        };
        let slow = run(conf).stats();
        let given = advice(&slow);
        assert!(given.contains(&advised.to_owned()), "{conf}: {given:?}");
        let helped = run(&format!("{conf},{advised}"));
        helped.quiet(0).no_violations();
        let (before, after) = (ns(&slow), ns(&helped.stats()));
        assert!(after * 4 < before, "{conf}: {before} and {after}");
    }
}

/// Nothing is advised where nothing is wrong: nor is it where chunks are packed
/// and are as short of memory as above.
#[test]
fn a_run_that_went_well_is_left_alone() {
    for (name, conf) in [
        ("gpt_train", ""),
        ("gpt_train", "limit:7200M"),
        ("varlen_train", ""),
        ("varlen_train", "limit:34G"),
    ] {
        let outcome = replay(name, conf);
        outcome.quiet(0).no_violations();
        assert_eq!(advice(&outcome.stats()), [""; 0], "{name} {conf}");
    }
}
