//! `vramalloc export`: the forms, and what it refuses.

use std::fs;

use serde_json::{Value, json};

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
    for (arguments, complaint) in [
        (
            &["none.json", "--format", "folded"][..],
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
