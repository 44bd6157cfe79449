//! Risk: a recording of a program does not lead to itself, so that no advice is had of it.

use std::fs;
use std::process::Command;

use serde_json::Value;
use vramalloc_tests::stage::{Kind, Run, STRATEGIES, command, fresh_folder};

/// What the command says of the replay of a run's recording.
fn replayed(run: Run, options: &str) -> Value {
    let file = fresh_folder().join("run.rec");
    let conf = format!("{options},record:{}", file.display());
    run.env("SIM_CUDA_MEMORY", "2G").conf(&conf).go().quiet(0);
    let output = (Command::new(command()).args(["replay", "--json"]))
        .arg(&file)
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let _gone = fs::remove_file(file);
    serde_json::from_str(&told).unwrap_or_else(|_| panic!("{options}: {told}"))
}

#[track_caller]
fn leads_to_itself(run: &dyn Fn() -> Run, options: &str) {
    let told = replayed(run(), options);
    assert_eq!(
        told["reproduced"],
        true,
        "{} under {options}: {told}",
        run()
    );
}

/// Each refusal is followed by one that no request of the arena got.
#[test]
fn a_device_that_is_full() {
    for strategy in STRATEGIES {
        let oom = || Run::preloaded("oom", Kind::Dynamic);
        leads_to_itself(&oom, &format!("strategy:{strategy}"));
        leads_to_itself(&oom, &format!("strategy:{strategy},limit:500M"));
    }
}

/// What is waited for without a fence is an epoch that never gets one.
#[test]
fn captures() {
    for strategy in STRATEGIES {
        let options = format!("strategy:{strategy}");
        leads_to_itself(&|| Run::preloaded("capture_modes", Kind::Dynamic), &options);
    }
}

/// A context that is short has the other one on its device give.
#[test]
fn contexts_that_share_a_device() {
    let turns = || Run::preloaded("neighbours", Kind::Dynamic).arg("turns");
    for options in ["strategy:auto_growth", "strategy:mapped", "limit:500M"] {
        leads_to_itself(&turns, options);
    }
}

/// A wait for what one device's own work is may leave another's.
#[test]
fn a_wait_that_does_not_empty_limbo() {
    let apart = || Run::preloaded("apart", Kind::Dynamic).arg("reuse");
    leads_to_itself(&apart, "strategy:auto_growth");
}

/// A region has an arena of its own in the context, and no page of its own; it shares
/// the device with no other context.
#[test]
fn regions() {
    for strategy in STRATEGIES {
        let regions = || Run::preloaded("api_pause", Kind::Dynamic).arg("regions");
        // Each region takes a chunk in advance.
        let options = format!("strategy:{strategy},initial_gpu_memory_in_mb:64");
        leads_to_itself(&regions, &options);
    }
}

#[test]
fn limits_of_devices_that_the_program_sets() {
    let control = || Run::preloaded("api_control", Kind::Dynamic);
    leads_to_itself(&control, "strategy:auto_growth");
}

/// What one thread is answered in a call is no answer to another in the midst of one.
#[test]
fn threads_that_call_in_turns() {
    let crossing = || Run::preloaded("crossing", Kind::Dynamic).args(["streams", "20"]);
    leads_to_itself(&crossing, "strategy:auto_growth");
}

/// The event that is named is the line of the recording's text.
#[test]
fn what_differs_is_found_in_the_recording() {
    let file = fresh_folder().join("run.rec");
    let conf = format!("record:{}", file.display());
    (Run::preloaded("api_streams", Kind::Dynamic).arg("front"))
        .conf(&conf)
        .go();
    let ask = |words: &[&str]| {
        let mut asked = Command::new(command());
        let output = asked.args(words).arg(&file).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let told: Value = serde_json::from_str(&ask(&["replay", "--json"])).unwrap();
    assert_eq!(told["reproduced"], false);
    let event = told["differs"]["event"].as_u64().unwrap();
    let lines = ask(&["recording", "--json-lines"]);
    let lines: Vec<Value> = (lines.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let lane = (lines.iter())
        .find(|line| line["is"]["lane"] == true)
        .map(|line| &line["arena"]);
    let first = lines
        .iter()
        .position(|line| Some(&line["arena"]) == lane && line["event"] == "segment_alloc");
    assert_eq!(first.map(|at| at as u64 + 1), Some(event), "{told}");
}
