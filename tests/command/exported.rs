//! `vramalloc export`: the forms, and what it refuses.

use std::fs;

use serde_json::{Value, json};
use vramalloc_tests::recorded::{RecordedFile, Step};

use crate::fixture::{Fixture, statistics};

fn fixture(test: &str) -> Fixture {
    let fixture = Fixture::new(test);
    let stacks = fixture.call_stacks(&[
        (
            &[
                "DeviceCachingAllocator",
                "empty_cuda",
                "train.py:41 forward",
                "train.py:80 main",
            ],
            64,
        ),
        (&["empty_cuda", "outer"], 30),
        (&["outer", "train.py:41 forward", "train.py:80 main"], 6),
    ]);
    fixture.tool(&["strip", "--strip-debug", "libx.so"]);
    let mut whole = statistics();
    whole["call_stacks"] = stacks;
    let event = |action: &str, address: u64, mib: u64, time_us: u64| json!({"action": action, "address": address, "size": mib << 20, "time_us": time_us});
    let (chunk, mib) = (1u64 << 30, 1u64 << 20);
    whole["snapshot"] = json!({
        "blocks": 2,
        "arenas": [{
            "device": 0, "made_us": 1,
            "segments": [{"address": chunk, "size": 20 * mib, "kind": "large", "blocks": [
                {"address": chunk, "size": 8 * mib, "requested": 8 * mib, "state": "active_allocated",
                 "stack": 0},
                {"address": chunk + 8 * mib, "size": 12 * mib, "requested": 0, "state": "inactive"},
            ]}],
            "events": [
                event("segment_alloc", chunk, 20, 1_000_000_100),
                event("alloc", chunk, 8, 1_000_000_101),
                event("alloc", chunk + 8 * mib, 4, 1_000_000_200),
                event("oom", 0, 64, 1_000_000_250),
                event("free_requested", chunk + 8 * mib, 4, 1_000_000_300),
                event("free_completed", chunk + 8 * mib, 4, 1_000_000_400),
            ],
        }],
    });
    fixture.write_whole("s.json", &whole);
    fixture
}

/// A recording of two devices, with page-locked memory beside them.
fn recorded() -> RecordedFile {
    const MIB: u64 = 1 << 20;
    const CHUNK: u64 = 1 << 30;
    const LINES: &[(&str, u64, &str)] =
        &[("/u/train.py", 41, "forward"), ("/u/train.py", 80, "main")];
    const LOAD: &[(&str, u64, &str)] = &[("/u/data.py", 7, "load")];
    let steps = [
        Step::Thread(1),
        Step::Arena(0),
        Step::IsArena(
            0,
            r#"{"place":"device","device":0,"device_name":"Model H200"}"#,
        ),
        Step::IsStack(0, LINES),
        Step::IsStack(5, LOAD),
        Step::Segment(CHUNK, 20 * MIB),
        Step::Alloc(CHUNK, 8 * MIB, Some(0)),
        Step::Alloc(CHUNK + 8 * MIB, 4 * MIB, Some(5)),
        Step::Alloc(CHUNK + 12 * MIB, MIB, None),
        Step::Oom(64 * MIB, Some(5)),
        Step::Free(CHUNK + 8 * MIB, 4 * MIB),
        Step::Completed(CHUNK + 8 * MIB, 4 * MIB),
        Step::Arena(1),
        Step::IsArena(1, r#"{"place":"pinned","device":0}"#),
        Step::Segment(9 * CHUNK, 90 * MIB),
        Step::Alloc(9 * CHUNK, 90 * MIB, None),
        Step::Arena(2),
        Step::IsArena(2, r#"{"place":"device","device":1}"#),
        Step::Segment(2 * CHUNK, 2 * MIB),
        Step::Alloc(2 * CHUNK, 2 * MIB, Some(0)),
        Step::Free(2 * CHUNK, 2 * MIB),
    ];
    let begun = RecordedFile::new(r#"{"program":"train","pid":42,"host":"node7","rank":"0"}"#);
    steps
        .into_iter()
        .fold(begun, |file, step| file.after(100, step))
}

/// Its device memory was largest after the third allocation.
#[test]
fn a_recording_gives_folded_stacks() {
    let fixture = fixture("recorded_folded");
    fs::write(fixture.folder.join("r.rec"), recorded().bytes()).unwrap();
    let folded = |at: &str| {
        let answer = fixture.ask(&["export", "r.rec", "--format", "folded", "--at", at]);
        assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
        answer.out
    };
    let line = |lines: &str, mib: u64| format!("{lines} {}\n", mib << 20);
    let (train, load, none) = (
        "train.py:80 main;train.py:41 forward",
        "data.py:7 load",
        "(no call stack)",
    );
    let peak = [line(none, 1), line(load, 4), line(train, 8)].concat();
    assert_eq!(folded("peak"), peak);
    assert_eq!(folded("now"), line(none, 1) + &line(train, 8));
    assert_eq!(folded("failed"), line(load, 64));
}

#[test]
fn a_dash_is_standard_output() {
    let fixture = fixture("exported_to_dash");
    fs::write(fixture.folder.join("r.rec"), recorded().bytes()).unwrap();
    let perfetto = ["export", "r.rec", "--format", "perfetto", "-o", "-"];
    let snapshot = "recording r.rec --snapshot s.pickle --snapshot-json -";
    for words in [perfetto.to_vec(), snapshot.split(' ').collect()] {
        let answer = fixture.ask(&words);
        assert_eq!(answer.code, Some(0), "{words:?}: {}", answer.errors);
        serde_json::from_str::<Value>(&answer.out).unwrap();
        assert!(!fixture.folder.join("-").exists(), "{words:?}");
    }
}

#[test]
fn a_recording_gives_a_chrome_trace() {
    let fixture = fixture("recorded_perfetto");
    fs::write(fixture.folder.join("r.rec"), recorded().bytes()).unwrap();
    let answer = fixture.ask(&["export", "r.rec", "--format", "perfetto"]);
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    let trace: Value = serde_json::from_str(&answer.out).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events[0]["args"]["name"], "train (42)");
    let told = |device: &str| {
        let of_device = events.iter().filter(|event| event["name"] == device);
        let mib = |event: &Value, part: &str| event["args"][part].as_u64().unwrap() >> 20;
        of_device
            .map(|event| {
                let parts = ["live", "limbo", "cached"].map(|part| mib(event, part));
                (event["ts"].as_u64().unwrap(), parts)
            })
            .collect::<Vec<_>>()
    };
    // The first step of all is the mark of the arena.
    let first = [
        (300, [0, 0, 20]),
        (400, [8, 0, 12]),
        (500, [12, 0, 8]),
        (600, [13, 0, 7]),
        (800, [9, 4, 7]),
        (900, [9, 0, 11]),
    ];
    assert_eq!(told("device 0"), first);
    let second = [(1400, [0, 0, 2]), (1500, [2, 0, 0]), (1600, [0, 2, 0])];
    assert_eq!(told("device 1"), second);
    let marks: Vec<_> = events.iter().filter(|event| event["ph"] == "i").collect();
    assert_eq!(marks.len(), 1);
    assert_eq!(marks[0]["name"], "out of memory on device 0: 64.0 MiB");
    assert_eq!(marks[0]["ts"], 700);
}

#[test]
fn a_recording_gives_the_snapshot_of_vramalloc_recording() {
    let fixture = fixture("recorded_snapshot");
    fs::write(fixture.folder.join("r.rec"), recorded().bytes()).unwrap();
    let words = [
        "export",
        "r.rec",
        "--format",
        "memory_viz",
        "-o",
        "e.pickle",
    ];
    let answer = fixture.ask(&words);
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    let words = ["recording", "r.rec", "--snapshot", "r.pickle"];
    assert_eq!(fixture.ask(&words).code, Some(0));
    let read = |name: &str| fs::read(fixture.folder.join(name)).unwrap();
    assert_eq!(read("e.pickle"), read("r.pickle"));
    assert!(read("e.pickle").windows(7).any(|part| part == b"forward"));
    // It is not written over what it is made of.
    let answer = fixture.ask(&["recording", "r.rec", "--snapshot", "r.rec"]);
    assert_eq!(answer.code, Some(2));
    assert!(answer.errors.contains("r.rec: would be overwritten"));
    // Nor over another that a program wrote.
    let words = ["recording", "r.rec", "--snapshot-json", "s.json"];
    let answer = fixture.ask(&words);
    assert_eq!(answer.code, Some(2));
    assert!(
        answer
            .errors
            .contains("s.json: is a file of statistics; give the snapshot")
    );
    let words = ["recording", "r.rec", "--snapshot-json", "r.json"];
    assert_eq!(fixture.ask(&words).code, Some(0));
    assert!(read("r.json").starts_with(b"{"));
    assert_eq!(read("r.rec"), recorded().bytes());
}

#[test]
fn folded_stacks_are_lines_with_bytes() {
    let fixture = fixture("folded");
    let folded = |more: &[&str]| {
        let answer = fixture.ask(&[&["export", "s.json", "--format", "folded"], more].concat());
        assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
        answer.out
    };
    let peak = format!(
        "outer;at::native::empty_cuda {}\ntrain.py:80 main;train.py:41 forward {}\n",
        30 << 20,
        70 << 20
    );
    assert_eq!(folded(&[]), peak);
    assert_eq!(folded(&["--at", "peak"]), peak);
    assert!(folded(&["--at", "now"]).contains(&format!("forward {}\n", 35 << 20)));
    assert_eq!(folded(&["--at", "failed"]), "");
    let all = folded(&["--all-frames"]);
    assert!(
        all.contains("train.py:41 forward;at::native::empty_cuda;c10::cuda::"),
        "{all}"
    );
    let answer = fixture.ask(&["export", "s.json", "--format", "folded", "-o", "out"]);
    assert_eq!((answer.code, &*answer.out), (Some(0), ""));
    assert_eq!(
        fs::read_to_string(fixture.folder.join("out")).unwrap(),
        peak
    );
}

#[test]
fn a_chrome_trace_has_the_memory_after_each_event() {
    let fixture = fixture("perfetto");
    let answer = fixture.ask(&["export", "s.json", "--format", "perfetto"]);
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    let trace: Value = serde_json::from_str(&answer.out).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let counters = events
        .iter()
        .filter(|event| event["ph"] == "C")
        .map(|event| {
            let mib = |name: &str| event["args"][name].as_u64().unwrap() >> 20;
            let parts = ["live", "limbo", "cached"].map(mib);
            (event["ts"].as_u64().unwrap(), parts)
        });
    let expected = [
        (100, [0, 0, 20]),
        (101, [8, 0, 12]),
        (200, [12, 0, 8]),
        (300, [8, 4, 8]),
        (400, [8, 0, 12]),
    ];
    assert_eq!(counters.collect::<Vec<_>>(), expected);
    let mark = events.iter().find(|event| event["ph"] == "i").unwrap();
    assert_eq!(
        (&mark["ts"], &mark["name"]),
        (&250.into(), &"out of memory on device 0: 64.0 MiB".into())
    );
    let name = &events[0];
    assert_eq!(
        (&name["ph"], &name["args"]["name"]),
        (&"M".into(), &"train (42)".into())
    );
}

#[test]
fn a_snapshot_is_that_of_the_report_with_names() {
    let fixture = fixture("memory_viz");
    let answer = fixture.ask(&[
        "export",
        "s.json",
        "--format",
        "memory_viz",
        "-o",
        "e.pickle",
    ]);
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    let report = [
        "report",
        "--snapshot",
        "r.pickle",
        "--snapshot-json",
        "r.json",
        "s.json",
    ];
    assert_eq!(fixture.ask(&report).code, Some(0));
    let read = |name: &str| fs::read(fixture.folder.join(name)).unwrap();
    assert_eq!(read("e.pickle"), read("r.pickle"));
    let snapshot: Value = serde_json::from_slice(&read("r.json")).unwrap();
    let frames = &snapshot["segments"][0]["blocks"][0]["frames"];
    assert_eq!(frames[1]["name"], "at::native::empty_cuda");
    let line = json!({"filename": "/home/u/train.py", "line": 41, "name": "forward"});
    assert_eq!(frames[2], line);
}

#[test]
fn what_cannot_be_had_is_said_in_one_line() {
    let fixture = fixture("refused");
    fixture.write_whole("none.json", &statistics());
    let mut empty = statistics();
    empty["snapshot"] = json!({"blocks": 0, "arenas": []});
    fixture.write_whole("empty.json", &empty);
    fs::write(fixture.folder.join("text"), "hello").unwrap();
    let nothing = RecordedFile::new("{}").bytes();
    fs::write(fixture.folder.join("nothing.rec"), nothing).unwrap();
    fs::write(fixture.folder.join("cut.rec"), "vramrec\n").unwrap();
    for (arguments, complaint) in [
        (
            &["nothing.rec", "--format", "folded"][..],
            "nothing.rec: it holds no call stacks",
        ),
        (
            &["nothing.rec", "--format", "perfetto"],
            "nothing.rec: it holds no events",
        ),
        (
            &["cut.rec", "--format", "perfetto"],
            "cut.rec: it is cut off before its first event",
        ),
        (
            &["none.json", "--format", "folded"],
            "none.json: it holds no call stacks",
        ),
        (
            &["empty.json", "--format", "perfetto"],
            "empty.json: it holds no events",
        ),
        (
            &["none.json", "--format", "memory_viz"],
            "none.json: it holds no snapshot",
        ),
        (
            &["text", "--format", "folded"],
            "text: not statistics of vramalloc",
        ),
        (&["gone", "--format", "folded"], "gone: "),
        (
            &["s.json", "--format", "folded", "-o", "s.json"],
            "s.json: would be overwritten",
        ),
        (
            &["s.json", "--format", "perfetto", "--at", "now"],
            "--at and --all-frames are for",
        ),
    ] {
        let answer = fixture.ask(&[&["export"], arguments].concat());
        assert_eq!((answer.code, &*answer.out), (Some(2), ""), "{arguments:?}");
        let expected = format!("vramalloc: {complaint}");
        assert!(answer.errors.starts_with(&expected), "{}", answer.errors);
        assert_eq!(answer.errors.lines().count(), 1);
    }
    let answer = fixture.ask(&[
        "export",
        "s.json",
        "--format",
        "folded",
        "-o",
        "no/such/place",
    ]);
    assert_eq!(answer.code, Some(1), "{}", answer.errors);
}
