//! Risk: what is told of failed requests is wrong, or who asked for them.

use std::process::Command;

use serde_json::Value;

use vramalloc_tests::stage::{Kind, Run, STRATEGIES};

use crate::history::{ALL, snapshot, text};

#[test]
fn failed_requests_are_told() {
    for kind in Kind::each() {
        for strategy in STRATEGIES {
            let run = Run::preloaded("oom", kind)
                .env("SIM_CUDA_MEMORY", "1G")
                .conf(&format!("strategy:{strategy},{ALL}"));
            let outcome = run.go();
            let found = snapshot(&outcome);
            let stats = outcome.stats();
            let arena = &stats["arenas"][0];
            let (ooms, events) = (&arena["ooms"], arena["oom_events"].as_array().unwrap());
            let told = events.len() as u64 + arena["oom_events_left_out"].as_u64().unwrap();
            assert_eq!(*ooms, told, "{}", outcome.what);
            assert_eq!(found["actions"][0]["oom"], *ooms, "{}", outcome.what);
            let first = &events[0];
            assert_eq!(first["request_bytes"], 256 << 20, "{}", outcome.what);
            assert_eq!(first["driver_total_bytes"], 1 << 30);
            // What is left of a large chunk and what is left beside it.
            let enough = first["free_in_sum_bytes"].as_u64() >= Some(256 << 20);
            assert_eq!(first["fragmented"], enough, "{}", outcome.what);
            assert!(
                first["largest_free_bytes"]
                    .as_u64()
                    .is_some_and(|bytes| bytes < 256 << 20)
            );
            let before = &first["before"];
            // Three quarters, or all in one chunk.
            assert!(before["reserved_bytes"].as_u64() >= Some(768 << 20));
            let group = &first["live_sizes"][0];
            assert_eq!(group["size_bytes"], 256 << 20);
            assert_eq!(group["bytes"], before["live_bytes"], "{}", outcome.what);
        }
    }
}

#[test]
fn the_one_line_tells_what_was_there() {
    for strategy in STRATEGIES {
        let outcome = Run::preloaded("oom", Kind::Driver)
            .env("SIM_CUDA_MEMORY", "1G")
            .conf(&format!("strategy:{strategy}"))
            .go();
        let line = outcome.stderr.trim_end();
        assert!(!line.contains('\n'), "{line}");
        assert!(
            line.contains(": 256 MiB asked for and the device has no more; "),
            "{line}"
        );
        assert!(!line.contains(" 0 B reserved"), "{line}");
    }
}

#[test]
fn nothing_is_told_where_nothing_is_wanted() {
    let run = Run::preloaded("oom", Kind::Driver).env("SIM_CUDA_MEMORY", "1G");
    let outcome = run.conf("oom_report:off").go();
    outcome.quiet(0);
    assert_eq!(outcome.stderr, "");
    let arena = &outcome.stats()["arenas"][0];
    assert!(arena["ooms"].as_u64() > Some(0));
    assert_eq!(arena["oom_events"], Value::Array(Vec::new()));
}

/// The function of a program that an address in its file lies in.
fn function_at(program: &str, offset: u64) -> Option<String> {
    let output = Command::new("nm").arg("-n").arg(program).output().unwrap();
    let mut found = None;
    for line in text(&output.stdout).lines() {
        let [address, _, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            continue;
        };
        if u64::from_str_radix(address, 16).unwrap() > offset {
            break;
        }
        found = Some(name.to_owned());
    }
    found
}

#[test]
fn call_stacks_lead_to_where_the_program_asked() {
    for kind in Kind::each() {
        let run = Run::preloaded("oom", kind).env("SIM_CUDA_MEMORY", "1G");
        let outcome = run.conf(&format!("oom_report:full,{ALL}")).go();
        let found = snapshot(&outcome);
        assert!(found["frames"].as_u64() > Some(0), "{}", outcome.what);
        let stats = outcome.stats();
        let (event, told) = (&stats["arenas"][0]["oom_events"][0], &stats["call_stacks"]);
        // All blocks were asked for by one loop.
        let group = &event["live_stacks"][0];
        assert_eq!(group["bytes"], event["before"]["live_bytes"]);
        assert_eq!(group["count"], event["live_sizes"][0]["count"]);
        assert_eq!(group["stack"], event["stack"], "{}", outcome.what);
        let stacks = told["stacks"].as_array().unwrap();
        let stack = stacks.iter().find(|stack| stack["stack"] == group["stack"]);
        let places = stack.unwrap()["frames"].as_array().unwrap();
        let frame = |place: &Value| told.pointer(&format!("/frames/{place}")).unwrap();
        let frames: Vec<&Value> = places.iter().map(frame).collect();
        let file = |frame: &Value| {
            let object = told
                .pointer(&format!("/objects/{}", frame["object"]))
                .unwrap();
            object["file"].as_str().unwrap().to_owned()
        };
        let objects: Vec<String> = frames.iter().map(|frame| file(frame)).collect();
        assert!(
            objects
                .iter()
                .all(|object| !object.contains("libvramalloc"))
        );
        let names = |part: &str| -> Vec<Option<String>> {
            let found = objects
                .iter()
                .zip(&frames)
                .filter(|(object, _)| object.contains(part));
            let offset = |frame: &Value| frame["offset"].as_u64().unwrap();
            found
                .map(|(object, frame)| function_at(object, offset(frame)))
                .collect()
        };
        let names = names("/oom.");
        for place in ["main", "_start"] {
            let is_there = names.contains(&Some(place.to_owned()));
            assert!(is_there, "{}: {names:?}", outcome.what);
        }
        // The program's later requests, from elsewhere, failed too.
        let mut failed = told["failed"].as_array().unwrap().iter();
        let same = |group: &Value| group["stack"] == event["stack"];
        assert!(failed.any(same), "{}", outcome.what);
        assert_eq!(told["mode"], "off", "{}", outcome.what);
    }
}

#[test]
fn without_the_option_no_stack_is_walked() {
    let run = Run::preloaded("oom", Kind::Driver).env("SIM_CUDA_MEMORY", "1G");
    let outcome = run.conf(ALL).go();
    let stats = outcome.stats();
    assert_eq!(stats.get("call_stacks"), None);
    assert_eq!(stats["snapshot"]["stacks"], Value::Array(Vec::new()));
    assert!(!outcome.statistics().contains("\"stack\": 0"));
    let event = &stats["arenas"][0]["oom_events"][0];
    assert_eq!(event["live_stacks"], Value::Array(Vec::new()));
    assert_eq!(event["stack"], Value::Null);
}
