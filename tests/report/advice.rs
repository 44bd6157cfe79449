//! Advice is worth nothing unless it helps: a program that was given it runs
//! again as it says.

use serde_json::Value;

use crate::report_of;
use vramalloc_tests::stage::{Kind, Outcome, Run, fresh_folder, trace};

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
            "limit:5376M",
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

/// A trace of our own, once, without a word; its kernels take so long.
fn replay_own(lines: &str, slow: &str, kernel_ns: &str, conf: &str) -> Outcome {
    let run = Run::preloaded("replay", Kind::Dynamic).args([&own(lines), "1", kernel_ns]);
    let run = run.env("SIM_CUDA_MEMORY", "80G").env("SIM_CUDA_SLOW", slow);
    let outcome = run.conf(conf).go();
    outcome.quiet(0).no_violations();
    outcome
}

/// Lines that allocate, and that free.
fn gets(ids: impl Iterator<Item = u64>, size: u64) -> String {
    ids.map(|id| format!("a,{id},{size},0\n")).collect()
}

fn frees(ids: impl Iterator<Item = u64>) -> String {
    ids.map(|id| format!("f,{id},0,0\n")).collect()
}

const MIB: u64 = 1 << 20;

/// Blocks between others that live long do not fit sizes that are a little
/// larger, unless they are rounded alike.
#[test]
fn what_is_advised_for_sizes_that_differ_a_little_makes_them_fit() {
    let (size, larger) = (MIB * 555 / 100, MIB * 590 / 100);
    let others = || (1..=100).step_by(2);
    let lines = gets(0..1, 606 * MIB) + &frees(0..1) + &gets(1..101, size) + &frees(others());
    let lines = lines + &gets(others().map(|id| id + 100), larger);
    let apart = replay_own(&lines, "", "0", AS_IT_COMES);
    assert_eq!(advice(&apart.stats()), ["roundup_power2_divisions:8"]);
    let conf = format!("{AS_IT_COMES},roundup_power2_divisions:8");
    let alike = replay_own(&lines, "", "0", &conf);
    assert!(reserved(&alike) * 4 < reserved(&apart) * 3);
    assert_eq!(advice(&alike.stats()), [""; 0]);
}

/// Sizes just above a bound are rounded up to the next.
#[test]
fn what_is_advised_for_rounding_halves_it() {
    let lines = gets(0..100, MIB * 41 / 10);
    let rounding = |outcome: &Outcome| {
        let stats = outcome.stats();
        let peak = |metric: &str| {
            let key = format!("{metric}.all.peak");
            let peak = &stats["arenas"][0]["memory_stats"][key];
            peak.as_u64().unwrap()
        };
        peak("active_bytes") - peak("requested_bytes")
    };
    let coarse = replay_own(&lines, "", "0", "roundup_power2_divisions:2");
    assert_eq!(advice(&coarse.stats()), ["roundup_power2_divisions:4"]);
    let finer = replay_own(&lines, "", "0", "roundup_power2_divisions:4");
    assert!(rounding(&finer) * 2 <= rounding(&coarse));
    assert!(reserved(&finer) < reserved(&coarse));
}

/// A block is freed and asked for again while the device lags far behind.
#[test]
fn what_is_advised_for_much_in_limbo_saves_what_it_held() {
    let pair = gets(0..1, 32 * MIB) + &frees(0..1);
    let run = |conf: &str| replay_own(&pair.repeat(200), "", "100000000", conf);
    let large = run("limbo_budget:4G");
    let advice = advice(&large.stats());
    assert_eq!(advice.len(), 1, "{advice:?}");
    assert!(advice[0].starts_with("limbo_budget:"), "{advice:?}");
    assert!(reserved(&run(&advice[0])) * 2 < reserved(&large));
}

/// The device comes after in the end: what is freed until then need not be
/// waited for.
#[test]
fn what_is_advised_for_waits_for_the_budget_ends_them() {
    let blocks = 0..4;
    let burst = gets(blocks.clone(), 32 * MIB) + &frees(blocks);
    let lines = (burst.repeat(2) + "s,0,0,0\n").repeat(20);
    let run = |conf: &str| replay_own(&lines, "cuEventSynchronize:10000000", "100000000", conf);
    let waits = |stats: &Value| {
        let arena = &stats["arenas"][0];
        arena["budget_waits"].as_u64().unwrap()
    };
    let small = run("limbo_budget:64M").stats();
    let advice = advice(&small);
    assert_eq!(advice.len(), 1, "{advice:?}");
    assert!(advice[0].starts_with("limbo_budget:"), "{advice:?}");
    let larger = run(&advice[0]).stats();
    assert!(waits(&larger) * 4 < waits(&small), "{}", waits(&larger));
    assert_eq!(self::advice(&larger), [""; 0]);
}

/// Memory rests for longer than ten seconds, as far as the one report knows,
/// and in truth in the other run: the driver's calls take that long.
#[test]
fn what_is_advised_for_memory_at_rest_gives_it_back() {
    let chunks = |from: u64| gets(from..from + 12, MIB);
    let lines = gets(0..1, 1024 * MIB) + &frees(0..1) + &chunks(1);
    let held = |stats: &Value| {
        let reserved = &stats["arenas"][0]["reserved_bytes"]["current"];
        reserved.as_u64().unwrap()
    };
    let mut kept = replay_own(&lines, "", "0", AS_IT_COMES).stats();
    assert_eq!(advice(&kept), [""; 0]);
    let started = kept["started_unix_ms"].as_u64().unwrap();
    kept["started_unix_ms"] = (started - 120_000).into();
    assert_eq!(advice(&kept), ["decay_ms:10000"]);
    assert!(held(&kept) >= 1024 * MIB);
    let conf = format!("{AS_IT_COMES},decay_ms:10000");
    let slow = replay_own(&lines, "cuMemAlloc_v2:2500000000", "0", &conf);
    assert!(held(&slow.stats()) < 64 * MIB);
}

/// Many requests, each a step of its own.
#[test]
fn what_is_advised_for_many_steps_makes_them_few() {
    let lines = gets(0..200, 3 * MIB);
    // Long beside what a call waits for a processor.
    let run = |conf: &str| replay_own(&lines, "cuMemAlloc_v2:10000000", "0", conf).stats();
    let calls = |stats: &Value| {
        let calls = &stats["arenas"][0]["driver_calls"]["alloc"];
        ["calls", "total_ns"].map(|key| calls[key].as_u64().unwrap())
    };
    let many = run(AS_IT_COMES);
    assert_eq!(advice(&many), ["auto_growth_chunk_size_in_mb:64"]);
    let few = run(&format!("{AS_IT_COMES},auto_growth_chunk_size_in_mb:64"));
    let (many, few) = (calls(&many), calls(&few));
    assert!(few[0] * 4 < many[0] && few[1] * 4 < many[1], "{few:?}");
}

/// The same in advance, by a size.
#[test]
fn what_is_advised_for_an_initial_size_is_enough_and_less() {
    let conf = |option: &str| format!("strategy:naive_best_fit,{option}");
    let large = replay("gpt_train", &conf("initial_gpu_memory_in_mb:70000"));
    let advice = advice(&large.stats());
    assert_eq!(advice.len(), 1, "{advice:?}");
    assert!(advice[0].starts_with("initial_gpu_memory_in_mb:"));
    let helped = replay("gpt_train", &conf(&advice[0]));
    helped.quiet(0).no_violations();
    assert!(reserved(&helped) * 4 < reserved(&large));
    assert_eq!(helped.stats()["arenas"][0]["misses"], 1);
    assert_eq!(self::advice(&helped.stats()), [""; 0]);
}

/// Nothing is advised where nothing is wrong: nor is it where chunks are packed
/// and are as short of memory as above. The replay does nothing between its
/// requests, so how much of a run the driver took is decided by the machine's
/// other work: the run is told to be as long as it would be with a device.
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
        let mut stats = outcome.stats();
        let started = stats["started_unix_ms"].as_u64().unwrap();
        stats["started_unix_ms"] = (started - 20_000).into();
        assert_eq!(advice(&stats), [""; 0], "{name} {conf}");
    }
}
