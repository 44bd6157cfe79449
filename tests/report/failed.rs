//! What is said of requests that failed for want of memory.

use serde_json::{Value, json};
use vramalloc_core::Bytes;
use vramalloc_core::stats::{ArenaReport, Group, Holdings, OomEvent, StackId};

use crate::{arena, directory, flat, one_process, report, report_of};
use vramalloc_tests::stage::{Kind, Run};

const MIB: u64 = 1 << 20;

fn holdings(live: u64, cached: u64, limbo: u64) -> Holdings {
    Holdings {
        reserved: Bytes::mib(live + cached + limbo),
        live: Bytes::mib(live),
        cached: Bytes::mib(cached),
        limbo: Bytes::mib(limbo),
        ..Holdings::default()
    }
}

/// Two and a half seconds after the start of the process.
fn event() -> OomEvent {
    OomEvent {
        time_us: 1_002_500_000,
        request: Bytes::mib(512),
        rounded: Bytes::mib(512),
        driver_free: Some(Bytes::mib(100)),
        driver_total: Some(Bytes::gib(16)),
        device_reserved: Bytes::gib(15),
        before: holdings(14_000, 760, 600),
        after: Holdings {
            largest_cached: Bytes::mib(300),
            ..holdings(14_000, 1360, 0)
        },
        ..OomEvent::default()
    }
}

/// An arena in which these requests failed.
fn failed(events: impl IntoIterator<Item = OomEvent>) -> ArenaReport {
    let mut arena = arena();
    for event in events {
        arena.stats.ooms += 1;
        arena.stats.largest_oom = arena.stats.largest_oom.max(event.rounded);
        arena.stats.limit_ooms += u64::from(event.at_limit);
        arena.stats.fragmented_ooms += u64::from(event.is_fragmented());
        arena.ooms.push(event);
    }
    arena
}

#[track_caller]
fn all_in(text: &str, parts: &[&str]) {
    let flat = flat(text);
    for part in parts {
        assert!(flat.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn one_that_fragmentation_stood_in_the_way_of() {
    let group = |key, count, bytes| Group {
        key: Bytes::mib(key),
        count,
        bytes: Bytes::mib(bytes),
    };
    let stack = |number, count, bytes| Group {
        key: StackId::new(number),
        count,
        bytes: Bytes::mib(bytes),
    };
    let told = OomEvent {
        sizes: vec![group(64, 175, 11_200), group(7, 400, 2800)],
        stacks: vec![stack(7, 175, 11_200), stack(9, 400, 2800)],
        stack: StackId::new(8),
        ..event()
    };
    let mut value = one_process(&[failed([told])]);
    value["snapshot"] = json!({
        "arenas": [{ "anything": [1, 2, 3] }],
        "frames": [
            { "object": "/usr/lib/libtorch.so", "offset": 0x1234, "name": null },
            { "object": "/usr/bin/train", "offset": 1, "name": "forward\u{1b}[31m" },
        ],
        "stacks": [
            { "stack": 7, "frames": [0, 1, 99] },
            { "stack": 8, "frames": [1] },
        ],
    });
    let out = report_of(&value.to_string());
    all_in(
        &out,
        &[
            "- 512.0 MiB, 2.5 s after the start: the device had no more.",
            "device 100.0 MiB free of 16.0 GiB; 15.0 GiB reserved by this process, 924.0 MiB \
             taken by others:",
            "when it came 15.0 GiB reserved: 13.7 GiB live, 760.0 MiB cached, 600.0 MiB in limbo",
            "in the end 15.0 GiB reserved: 13.7 GiB live, 1.3 GiB cached, 0 B in limbo",
            "free in the end 1.4 GiB, at most 300.0 MiB in one piece",
            "fragmentation in the way: there was enough in sum, but the largest piece was 212.0 \
             MiB too small",
            "asked for by forward\u{fffd}[31m live blocks by size",
            "blocks of in all of live 175 64.0 MiB 10.9 GiB 80.0 % 400 7.0 MiB 2.7 GiB 20.0 %",
            "10.9 GiB in 175 blocks: libtorch.so+0x1234 < forward\u{fffd}[31m 2.7 GiB in 400 \
             blocks: a call stack that is not in the file",
            "No option that these numbers point to: free memory lay between the live blocks",
        ],
    );
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(!out.contains('\u{1b}'));
}

#[test]
fn one_for_which_there_was_too_little() {
    let little = OomEvent {
        request: Bytes::new(4096 * MIB - 100),
        rounded: Bytes::mib(4096),
        ..event()
    };
    let parts = [
        "- 4.0 GiB (4.0 GiB in whole slots), 2.5 s after",
        "fragmentation not in the way: also in one piece it would have been 2.6 GiB too little",
        "No option: the program held 13.7 GiB and asked for 4.0 GiB more, which were not to be \
         had.",
    ];
    all_in(
        &report_of(&one_process(&[failed([little])]).to_string()),
        &parts,
    );
}

/// The limit that is advised holds what was asked for; none is advised that
/// the device cannot hold.
#[test]
fn one_that_failed_on_the_limit() {
    let limited = |request| OomEvent {
        request,
        rounded: request,
        at_limit: true,
        limit: Some(Bytes::gib(8)),
        device_reserved: Bytes::gib(7),
        driver_free: None,
        ..event()
    };
    let mut raisable = failed([limited(Bytes::gib(4))]);
    raisable.stats.raisable_ooms = 1;
    raisable.stats.limit_needed = Bytes::mib(8448);
    let out = report_of(&one_process(&[raisable]).to_string());
    all_in(
        &out,
        &[
            "after the start: the limit of 8.0 GiB was reached.",
            "device the driver did not say how much was free",
            "- limit:8448M. 1 request failed",
        ],
    );
    let out = report_of(&one_process(&[failed([limited(Bytes::gib(40))])]).to_string());
    assert!(!out.contains("- limit:"), "{out}");
    all_in(&out, &["No option: the program held"]);
}

#[test]
fn of_many_the_first_and_the_last_are_told() {
    let events = (0..40).map(|number| OomEvent {
        request: Bytes::mib(1000 + number),
        time_us: 1_000_000_000 + number * 1000,
        ..event()
    });
    let out = report_of(&one_process(&[failed(events)]).to_string());
    all_in(
        &out,
        &[
            "1000.0 MiB (512.0 MiB in whole slots), number 1 of 40, 0 ms after the start",
            "- 38 more in between - 1.0 GiB",
            "number 40 of 40, 39.0 ms after the start",
        ],
    );
    assert_eq!(out.matches("in one piece\n").count(), 2, "{out}");
}

/// Files of a library that did not describe them, and of runs that were told
/// not to.
#[test]
fn without_a_description_the_count_is_told() {
    let mut value = one_process(&[failed([event()])]);
    value["arenas"][0]["oom_events"] = json!([]);
    let none = report_of(&value.to_string());
    let old = value["arenas"][0].as_object_mut().unwrap();
    assert!(old.remove("oom_events").is_some() && old.remove("oom_events_left_out").is_some());
    for out in [none, report_of(&value.to_string())] {
        assert!(!out.contains("requests that failed for want of memory"));
        all_in(&out, &["One request ran out of memory"]);
    }
}

#[test]
fn a_broken_description_is_one_clear_line() {
    let event = OomEvent {
        sizes: vec![Group {
            key: Bytes::mib(1),
            count: 1,
            bytes: Bytes::mib(1),
        }],
        ..event()
    };
    let whole = one_process(&[failed([event])]);
    for (key, complaint) in [
        ("request_bytes", "request_bytes: invalid type: string"),
        ("at_limit", "at_limit: invalid type: string"),
        ("before", "before: invalid type: string"),
        ("after/live_bytes", "after.live_bytes: invalid type: string"),
        ("live_sizes", "live_sizes: invalid type: string"),
        (
            "live_sizes/0/count",
            "live_sizes[0].count: invalid type: string",
        ),
    ] {
        let mut value = whole.clone();
        let place = format!("/arenas/0/oom_events/0/{key}");
        *value.pointer_mut(&place).unwrap() = Value::from("?");
        let answer = report(&directory(&[("s.json", &value.to_string())]), &["s.json"]);
        assert_eq!((answer.code, answer.errors.lines().count()), (Some(2), 1));
        let expected = format!("vramalloc: s.json: arenas[0].oom_events[0].{complaint}");
        assert!(answer.errors.starts_with(&expected), "{}", answer.errors);
    }
    let mut value = whole;
    value["snapshot"] = json!({ "frames": 1 });
    let answer = report(&directory(&[("s.json", &value.to_string())]), &["s.json"]);
    assert_eq!((answer.code, answer.errors.lines().count()), (Some(2), 1));
}

/// What a program meets is what its report tells.
#[test]
fn a_program_that_takes_all_there_is() {
    let outcome = Run::preloaded("oom", Kind::Dynamic)
        .env("SIM_CUDA_MEMORY", "1G")
        .conf("oom_report:full")
        .go();
    outcome.quiet(0);
    let stats = outcome.stats();
    let ooms = &stats["arenas"][0]["ooms"];
    let out = report_of(&stats.to_string());
    all_in(
        &out,
        &[
            "- 256.0 MiB, number 1 of",
            // With the page that is kept back, which nobody else has taken.
            "the device had no more. device 254.0 MiB free of 1.0 GiB; 770.0 MiB reserved by this \
             process when it came",
            "in the end 768.0 MiB reserved: 768.0 MiB live, 0 B cached, 0 B in limbo",
            "blocks of in all of live 3 256.0 MiB 768.0 MiB 100.0 %",
            "those that held most: 768.0 MiB in 3 blocks: gpu_runtime.h:",
            "asked for by gpu_runtime.h:",
            "gpu_malloc < oom.c:",
            &format!("number {ooms} of {ooms}, "),
        ],
    );
}
