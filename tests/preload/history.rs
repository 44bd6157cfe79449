//! Risk: what is told of blocks and of their past is wrong, or cannot be
//! read by the tools that it is written for.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use vramalloc_tests::stage::{self, Kind, Outcome, Run, STRATEGIES, fresh_folder};

/// Everything that happens in one pass of the traces here.
pub(crate) const ALL: &str = "trace:100000";

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `vramalloc report --snapshot` on these statistics, in a folder of its own.
struct Made {
    folder: PathBuf,
    output: Output,
}

impl Made {
    fn of(statistics: &str) -> Made {
        let folder = fresh_folder();
        fs::write(folder.join("s.json"), statistics).unwrap();
        let both = [
            "--snapshot=out.pickle",
            "--snapshot-json=out.json",
            "s.json",
        ];
        let output = report(&folder, &both);
        Made { folder, output }
    }

    /// What the checker found in it, which must be nothing wrong.
    #[track_caller]
    fn checked(&self) -> Value {
        assert!(
            self.output.status.success(),
            "{}",
            text(&self.output.stderr)
        );
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/preload/snapshot.py");
        let output = Command::new("python3")
            .arg(script)
            .arg(self.folder.join("out.pickle"))
            .output()
            .unwrap();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{:?}: {errors}", self.folder);
        serde_json::from_str(&out).unwrap()
    }

    /// The line that says how much was written.
    fn said(&self) -> String {
        text(&self.output.stdout)
    }
}

fn report(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(stage::command())
        .arg("report")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[track_caller]
pub(crate) fn snapshot(outcome: &Outcome) -> Value {
    outcome.quiet(0);
    let made = Made::of(outcome.statistics());
    assert!(!made.said().contains("left out"), "{}", made.said());
    made.checked()
}

/// What a trace does, counted without the library.
#[derive(Default)]
struct Count {
    allocations: u64,
    frees: u64,
    bytes: u64,
    live_bytes: u64,
    live: u64,
}

fn count(trace: &Path) -> Count {
    let mut count = Count::default();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for line in fs::read_to_string(trace).unwrap().lines() {
        let fields: Vec<&str> = line.split(',').collect();
        let (id, size) = (fields[1].parse().unwrap(), fields[2].parse().unwrap());
        if fields[0] == "a" {
            count.allocations += 1;
            count.bytes += size;
            live.insert(id, size);
        } else {
            count.frees += 1;
            live.remove(&id);
        }
    }
    count.live = live.len() as u64;
    count.live_bytes = live.values().sum();
    count
}

fn replay(trace: &Path, kind: Kind) -> Run {
    let path = trace.to_string_lossy();
    Run::preloaded("replay", kind).args([&path, "1", "keep"])
}

#[test]
fn a_training_run_is_told_event_by_event() {
    let trace = stage::trace("gpt_train");
    let count = count(&trace);
    let kinds = Kind::ALL.map(|kind| (kind, "auto_growth"));
    let strategies = STRATEGIES.map(|strategy| (Kind::Driver, strategy));
    for (kind, strategy) in kinds.into_iter().chain(strategies) {
        let run = replay(&trace, kind).conf(&format!("strategy:{strategy},{ALL}"));
        let outcome = run.go();
        outcome.no_violations();
        let found = snapshot(&outcome);
        let stats = outcome.stats();
        let reserved = &stats["arenas"][0]["reserved_bytes"]["current"];
        assert_eq!(found["reserved"], *reserved, "{}", outcome.what);
        assert_eq!(found["states"]["active_allocated"], count.live);
        assert_eq!(found["live_requested"], count.live_bytes);
        let actions = &found["actions"][0];
        assert_eq!(actions["alloc"], count.allocations, "{}", outcome.what);
        assert_eq!(actions["free_requested"], count.frees);
        assert_eq!(found["alloc_bytes"][0], count.bytes);
        let pending = found["states"]["active_pending_free"].as_u64().unwrap_or(0);
        assert_eq!(actions["free_completed"], count.frees - pending);
        assert_eq!(found["before"][0]["segments"], 0, "all is undone");
    }
}

#[test]
fn without_a_trace_there_are_the_blocks() {
    let trace = stage::trace("gpt_train");
    let found = snapshot(&replay(&trace, Kind::Static).go());
    assert_eq!(found["states"]["active_allocated"], count(&trace).live);
    assert_eq!(found["actions"], serde_json::json!([{}]));
}

/// A ring that has lost the beginning leads back to where it begins.
#[test]
fn the_newest_events_fit_the_blocks() {
    let trace = stage::trace("gpt_train");
    for (events, kind) in [1, 300, 2000, 5000].into_iter().zip(Kind::ALL) {
        let outcome = replay(&trace, kind).conf(&format!("trace:{events}")).go();
        let found = snapshot(&outcome);
        let actions = found["actions"][0].as_object().unwrap();
        let kept: u64 = actions.values().filter_map(Value::as_u64).sum();
        assert_eq!(kept, events, "{}", outcome.what);
        let arena = &outcome.stats()["snapshot"]["arenas"][0];
        assert!(arena["events_lost"].as_u64() > Some(0));
        assert_ne!(
            found["before"][0]["segments"], 0,
            "something was there before"
        );
    }
}

/// Contexts that come and go on two devices, at the same addresses.
#[test]
fn the_contexts_of_a_device_have_one_history() {
    for (program, devices) in [("reset", 1), ("contexts", 2)] {
        for kind in Kind::each() {
            for strategy in STRATEGIES {
                let run = Run::preloaded(program, kind);
                let outcome = run.conf(&format!("strategy:{strategy},{ALL}")).go();
                let found = snapshot(&outcome);
                let actions = found["actions"].as_array().unwrap();
                assert_eq!(actions.len(), devices, "{}", outcome.what);
                for (device, actions) in actions.iter().enumerate() {
                    assert!(actions["alloc"].as_u64() > Some(0), "{}", outcome.what);
                    assert_eq!(found["before"][device]["segments"], 0, "{}", outcome.what);
                }
            }
        }
    }
}

/// The program runs as without the option where there is no memory for it.
#[test]
fn a_history_that_the_host_cannot_hold_is_none() {
    let run = Run::preloaded("basics", Kind::Driver).conf("trace:16777216");
    // The events need 640 MiB, the rest of the program far less.
    let limited = run.data(512 << 20).go();
    assert_eq!(limited.code(), 0, "{}", limited.stderr);
    let said = "vramalloc: trace: no host memory for so many events; none are kept";
    assert_eq!(limited.said(), [said]);
    let arenas = &limited.stats()["snapshot"]["arenas"];
    assert_eq!(arenas[0]["events"], Value::Array(Vec::new()));
}

/// What is kept fits twice beside the program, its text of 33 MB does not.
#[test]
fn a_long_history_is_written_bit_by_bit() {
    let trace = stage::trace("gpt_train");
    let run = Run::preloaded("replay", Kind::Driver)
        .args([&trace.to_string_lossy(), "20"])
        .env("SIM_CUDA_MEMORY", "80G")
        .conf("trace:300000");
    let outcome = run.data(48 << 20).go();
    outcome.quiet(0);
    let text = outcome.statistics();
    assert!(text.len() > 32 << 20);
    assert_eq!(text.matches("{ \"action\": ").count(), 300_000);
    assert!(text.ends_with("}\n"));
}

/// PyTorch's form: the divisions by the MiB from which on they hold.
#[test]
fn the_divisions_in_force_are_in_the_settings() {
    let run = Run::preloaded("basics", Kind::Driver);
    let below = |bound: u64, small: u64, large: u64| {
        (0..16)
            .map(move |slot| (1 << slot) < bound)
            .map(move |is| if is { small } else { large })
    };
    for (option, expected) in [
        ("trace:9", below(1, 0, 0)),
        ("roundup_power2_divisions:8", below(1, 8, 8)),
        ("roundup_power2_divisions:[256:1,>:4]", below(512, 1, 4)),
    ] {
        let made = Made::of(run.clone().conf(option).go().statistics());
        made.checked();
        let written = fs::read(made.folder.join("out.json")).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        let divisions = &written["allocator_settings"]["roundup_power2_divisions"];
        let expected: Value = (0..16)
            .zip(expected)
            .map(|(slot, divisions)| ((1u64 << slot).to_string(), divisions.into()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        assert_eq!(*divisions, expected, "{option}");
    }
}

#[test]
fn what_cannot_be_written_is_said_and_changes_nothing() {
    let statistics = Run::preloaded("basics", Kind::Driver)
        .go()
        .statistics()
        .to_owned();
    let made = Made::of(&statistics);
    let (folder, whole) = (
        &made.folder,
        fs::read(made.folder.join("out.pickle")).unwrap(),
    );
    fs::copy(folder.join("s.json"), folder.join("t.json")).unwrap();
    for (arguments, complaint) in [
        (
            ["--snapshot", "s.json", "s.json"],
            "s.json: would be overwritten",
        ),
        (
            ["--snapshot-json", "./s.json", "s.json"],
            "s.json: would be overwritten",
        ),
        (["--snapshot", "none/x.pickle", "s.json"], "none/x.pickle: "),
        (["--snapshot", "out.pickle", "none.json"], "none.json: "),
        (
            ["--snapshot=x.pickle", "s.json", "t.json"],
            "a snapshot is made of one file",
        ),
    ] {
        let output = report(folder, &arguments);
        let errors = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}");
        assert!(
            errors.starts_with(&format!("vramalloc: {complaint}")),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert_eq!(text(&output.stdout), "");
    }
    let both = ["--snapshot=x", "--snapshot-json=x", "s.json"];
    let errors = text(&report(folder, &both).stderr);
    assert!(errors.starts_with("vramalloc: x: would be"), "{errors}");
    assert_eq!(
        fs::read(folder.join("s.json")).unwrap(),
        statistics.as_bytes()
    );
    assert_eq!(fs::read(folder.join("out.pickle")).unwrap(), whole);
    let names: Vec<_> = (fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["s.json", "t.json", "out.pickle", "out.json"].contains(&name.as_str()))
        .collect();
    assert_eq!(names, [""; 0], "nothing is left behind");
}

/// Statistics that do not add up give a snapshot that does, or one line.
#[test]
fn what_does_not_fit_is_left_out() {
    let trace = stage::trace("gpt_train");
    let outcome = replay(&trace, Kind::Driver).conf(ALL).go();
    let whole: Value = serde_json::from_str(outcome.statistics()).unwrap();
    let made = |change: &dyn Fn(&mut Value)| {
        let mut value = whole.clone();
        change(&mut value["snapshot"]);
        Made::of(&value.to_string())
    };
    // Without a segment its blocks' events cannot have been.
    let cut = made(&|snapshot| {
        let segments = snapshot["arenas"][0]["segments"].as_array_mut().unwrap();
        segments.remove(3);
    });
    assert!(cut.said().contains("left out"), "{}", cut.said());
    cut.checked();
    // Every third event is missing.
    let cut = made(&|snapshot| {
        let events = snapshot["arenas"][0]["events"].as_array_mut().unwrap();
        let mut n = 0;
        events.retain(|_| {
            n += 1;
            n % 3 != 0
        });
    });
    assert!(cut.said().contains("left out"), "{}", cut.said());
    cut.checked();
    // The same arena twice.
    let twice = made(&|snapshot| {
        let arenas = snapshot["arenas"].as_array_mut().unwrap();
        arenas.push(arenas[0].clone());
    });
    assert!(twice.said().contains("left out"), "{}", twice.said());
    twice.checked();

    for (change, complaint) in [
        (("/left_out", Value::Bool(true)), "it holds no snapshot"),
        (("/blocks", Value::Null), "it holds no snapshot"),
        (
            ("/arenas/0/device", 70_000.into()),
            "there is no device 70000",
        ),
        (
            ("/arenas/0/segments/0/size", 512.into()),
            "the blocks of the segment at ",
        ),
        (
            ("/arenas/0/segments/0/size", (1u64 << 60).into()),
            "snapshot.arenas[0].segments[0].size: ",
        ),
        (
            ("/arenas/0/segments/0/blocks/0/address", 512.into()),
            "the block at 512 ",
        ),
        (
            ("/arenas/0/events/0/action", "leave".into()),
            "snapshot.arenas[0].events[0].action: ",
        ),
        (
            ("/stacks", serde_json::json!([{"stack": 0, "frames": [0]}])),
            "call stack 0 names frames ",
        ),
    ] {
        let made = made(&|snapshot| *snapshot.pointer_mut(change.0).unwrap() = change.1.clone());
        let errors = text(&made.output.stderr);
        let expected = format!("vramalloc: s.json: {complaint}");
        assert!(errors.starts_with(&expected), "{}: {errors}", change.0);
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(!made.folder.join("out.pickle").exists());
    }
}

/// The obvious name for the snapshot of a file is free, and nothing is written
/// that was not asked for.
#[test]
fn a_snapshot_is_written_under_the_names_that_were_given() {
    let run = Run::preloaded("basics", Kind::Driver).go();
    let folder = fresh_folder();
    fs::write(folder.join("run.json"), run.statistics()).unwrap();
    for (arguments, files) in [
        (&["--snapshot", "run.pickle"][..], 2),
        (&["--snapshot-json", "run.snapshot.json"], 3),
        (&["--snapshot", "a", "--snapshot-json", "b"], 5),
    ] {
        let arguments = [arguments, &["run.json"]].concat();
        let output = report(&folder, &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let named = text(&output.stdout);
        assert!(
            arguments
                .iter()
                .skip(1)
                .step_by(2)
                .all(|name| { name == &"run.json" || named.contains(name) })
        );
        assert_eq!(fs::read_dir(&folder).unwrap().count(), files);
    }
    let same = |one: &str, other: &str| {
        assert_eq!(
            fs::read(folder.join(one)).unwrap(),
            fs::read(folder.join(other)).unwrap()
        );
    };
    same("run.pickle", "a");
    same("run.snapshot.json", "b");
    assert_eq!(
        fs::read_to_string(folder.join("run.json")).unwrap(),
        run.statistics()
    );
}
