//! Files of any sort: whole, of an older library, broken.

use std::fs;

use serde_json::Value;
use vramalloc_core::Bytes;
use vramalloc_core::stats::{ArenaReport, ClassCount, ClassLive, PinnedReport};

use crate::{arena, directory, flat, one_process, report, report_of};

#[test]
fn a_report_shows_the_arenas() {
    let out = report_of(&one_process(&[arena()]).to_string());
    let flat = flat(&out);
    for part in [
        "train (process 42",
        "strategy = auto_growth (default)",
        "limit = 8GiB (VRAMALLOC_LIMIT)",
        "warning: VRAMALLOC_CONF: unknown option",
        "device 0: Model",
        "16.0 GiB",
        "live 1.5 GiB 1.5 GiB",
        "requests 4: 75.0 % hits, 25.0 % misses, 0.0 % direct",
        "driver calls 5 in 0 ms, 0 failed: 5 alloc",
        "waits 0 in 1.5 ms",
    ] {
        assert!(flat.contains(part), "{part} is not in\n{out}");
    }
    assert!(!out.contains('\u{1b}'));
}

#[test]
fn two_contexts_of_a_device_have_a_table_each() {
    let other = ArenaReport {
        device: 1,
        ..arena()
    };
    let out = report_of(&one_process(&[arena(), other, arena()]).to_string());
    let headings: Vec<&str> = (out.lines())
        .filter(|line| line.starts_with("device ") || line.contains("memory summary"))
        .map(|line| line.trim_matches(['|', ' ']))
        .collect();
    assert_eq!(
        headings,
        [
            "device 0: Model \u{fffd}[31m, 16.0 GiB, context 1 of 2",
            "PyTorch CUDA memory summary, device ID 0",
            "device 1: Model \u{fffd}[31m, 16.0 GiB",
            "PyTorch CUDA memory summary, device ID 1",
            "device 0: Model \u{fffd}[31m, 16.0 GiB, context 2 of 2",
            "PyTorch CUDA memory summary, device ID 0",
        ]
    );
}

/// Memory of the host has parts of its own, behind those of the devices.
#[test]
fn host_memory_is_told_apart() {
    let pinned = |context, flags| ArenaReport {
        device: 1,
        device_name: None,
        device_total: None,
        pinned: Some(PinnedReport { context, flags }),
        ..arena()
    };
    let pageable = ArenaReport {
        pageable: true,
        ..arena()
    };
    let all = [pageable, pinned(2, Some(4)), arena(), pinned(3, None)];
    let value = one_process(&all);
    let out = report_of(&value.to_string());
    let headings: Vec<&str> = (out.lines())
        .map(str::trim_start)
        .filter(|line| line.starts_with("device 0") || line.contains("host memory"))
        .collect();
    assert_eq!(
        headings,
        [
            "device 0: Model \u{fffd}[31m, 16.0 GiB, limit 8.0 GiB",
            "page-locked host memory of device 1, context 2, flags 0x4",
            "page-locked host memory of device 1, context 3",
            "pageable host memory",
        ]
    );
    assert_eq!(flat(&out).matches("live 1.5 GiB 1.5 GiB").count(), 4);
    let mut broken = value.clone();
    broken["pageable"]["hits"] = Value::Null;
    let mut lacks = value;
    lacks["pageable"].as_object_mut().unwrap().remove("hits");
    for (wrong, complaint) in [
        (broken, "pageable.hits: invalid type: null, expected u64"),
        (lacks, "pageable: missing field `hits`"),
    ] {
        let answer = report(&directory(&[("s.json", &wrong.to_string())]), &["s.json"]);
        assert_eq!((answer.code, answer.errors.lines().count()), (Some(2), 1));
        let expected = format!("vramalloc: s.json: {complaint} at line 1 column ");
        assert!(answer.errors.starts_with(&expected), "{}", answer.errors);
    }
}

/// What is said of a run in which everything happened that is worth a word.
#[test]
fn the_meaning_is_said_in_words() {
    let mut told = arena();
    let stats = &mut told.stats;
    stats.reserved.add(Bytes::mib(2048));
    stats.at_reserved_peak.live = Bytes::mib(1536);
    stats.at_reserved_peak.cached = Bytes::mib(384);
    stats.at_reserved_peak.idle = Bytes::mib(256);
    stats.at_reserved_peak.limbo = Bytes::mib(128);
    stats.fragmented_misses = 1;
    stats.limbo_misses = 1;
    stats.limbo.add(Bytes::mib(130));
    stats.idle_low = Bytes::mib(16);
    stats.waits = 3;
    stats.budget_waits = 2;
    stats.wait_ns = 1_000_000_000;
    stats.longest_wait_ns = 600_000_000;
    stats.ooms = 2;
    stats.limit_ooms = 1;
    stats.fragmented_ooms = 1;
    stats.largest_oom = Bytes::mib(700);
    stats.bad_frees = 1;
    stats.classes_live[3].blocks = 9;
    for class in 8..16 {
        stats.classes[class] = ClassCount {
            allocations: 1,
            ..ClassCount::default()
        };
        stats.classes_at_peak[class] = ClassLive {
            blocks: 1 + class as u64,
            bytes: (1 << class) << 10,
        };
    }
    told.calls.alloc.ns = 2_000_000_000;
    let out = report_of(&one_process(&[told]).to_string());
    let flat = flat(&out);
    for part in [
        "The program held at most 1.5 GiB; about 0 B of",
        "At most 2.0 GiB were reserved, 33.3 % more than that; at that moment 75.0 % of it were \
         live, 18.8 % cached and 6.2 % in limbo; 12.5 % lay in chunks that nothing was live in.",
        "Fragmentation: 1 of 1 request that took more",
        "while as much was in limbo",
        "Limbo held up to 130.0 MiB.",
        "16.0 MiB of the 2.0 GiB reserved were kept for nothing",
        "3 calls waited for the device, 1.0 s in all, 10.0 % of the run, 600.0 ms at the longest; \
         2 of them because limbo was over its budget.",
        "Calls to the driver took 2.0 s, 20.0 % of the run.",
        "2 requests ran out of memory, 1 of them at the limit; the largest asked for 700.0 MiB. \
         For 1 of them enough was cached",
        "One call freed an address at which no block was live",
        "ended without freeing 9 blocks, 1.5 GiB.",
        "up to 16.0 MiB 16 32.0 MiB 2.1 %",
        "all others 19 768.0 KiB 0.0 %",
    ] {
        assert!(flat.contains(part), "{part} is not in\n{out}");
    }
    let held: Vec<&str> = (out.lines())
        .filter(|line| line.starts_with("  up to") || line.starts_with("  all others"))
        .collect();
    assert_eq!(held.len(), 7, "{held:#?}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

/// What one context held, the next one had no part in.
#[test]
fn contexts_that_were_there_one_after_the_other_do_not_add_up() {
    let at = |made: u64, ended: Option<u64>| {
        let mut told = arena();
        told.stats.made_us = made * 1000;
        told.stats.ended_us = ended.map(|ms| ms * 1000);
        told
    };
    for (second, third, used) in [
        (at(5, Some(8)), at(8, None), "1.5 GiB"),
        // All in a moment, and the last one gone too.
        (at(5, Some(5)), at(5, None), "1.5 GiB"),
        (at(5, Some(5)), at(5, Some(5)), "1.5 GiB"),
        (at(4, Some(8)), at(9, None), "3.0 GiB"),
        (at(5, Some(8)), at(7, None), "3.0 GiB"),
        (at(2, None), at(3, None), "4.5 GiB"),
    ] {
        let out = report_of(&one_process(&[at(1, Some(5)), second, third]).to_string());
        let flat = flat(&out);
        assert!(flat.contains(&format!("used at most {used}")), "{out}");
    }
}

/// Threads that wait side by side wait longer than the run; and what a context
/// held when it ended is told as such.
#[test]
fn threads_and_ended_contexts_are_told_as_what_they_are() {
    let mut told = arena();
    told.stats.waits = 1;
    told.stats.wait_ns = 20_000_000_000;
    told.stats.ended_us = Some(1_002_500_000);
    told.stats.classes_live[3].blocks = 1;
    told.stats.ooms = 1;
    told.stats.fragmented_ooms = 1;
    let out = report_of(&one_process(&[told]).to_string());
    let flat = flat(&out);
    for part in [
        "Its context ended 2.5 s after the start of the process",
        "One call waited for the device, 20.0 s in all, in several threads side by side,",
        "Live when its context ended, and gone with it: 1 block, 1.5 GiB.",
        "at its end peak live 1.5 GiB",
    ] {
        assert!(flat.contains(part), "{part} is not in\n{out}");
    }
    for part in ["200.0 %", "Fragmentation cost no memory", "1 blocks"] {
        assert!(!flat.contains(part), "{part} is in\n{out}");
    }
}

/// Nothing is said of what did not happen.
#[test]
fn an_uneventful_run_is_short() {
    let out = flat(&report_of(&one_process(&[arena()]).to_string()));
    for part in [
        "limbo held",
        "ran out of",
        "freed an address",
        "without freeing",
        "for nothing",
        "not packed",
        "lanes",
    ] {
        assert!(!out.contains(part), "{part} is in\n{out}");
    }
    for part in [
        "No call waited",
        "Fragmentation cost no memory",
        "Nothing: no number here",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
}

/// Under `mapped` a miss may take nothing from the driver, but its calls.
#[test]
fn what_was_mapped_anew_is_told() {
    let mut mapped = ArenaReport {
        not_mapped: None,
        ..arena()
    };
    mapped.stats.fragmented_misses = 1;
    (mapped.calls.alloc.calls, mapped.calls.mapping.map.calls) = (1, 2);
    let out = flat(&report_of(&one_process(&[mapped]).to_string()));
    for part in [
        "for 1 of 1 request that called the driver for memory enough was cached, but not in one \
         piece: more was taken, or pieces were mapped elsewhere.",
        "driver calls 1 of 4 saved",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
}

/// What an option or the program switched off is told with its reason.
#[test]
fn what_is_off_is_told_with_its_reason() {
    let off = ArenaReport {
        not_mapped: Some("the device"),
        not_packed: Some("decay_ms"),
        ..arena()
    };
    let mut value = one_process(&[off]);
    value["lanes"] = "off: strategy:passthrough".into();
    let packed = report_of(&value.to_string());
    value["options"]["strategy"]["value"] = "mapped".into();
    let mapped = report_of(&value.to_string());
    let out = flat(&(packed + &mapped));
    for part in [
        "Chunks were not packed, because of decay_ms.",
        "Memory was not mapped, or not any more (the device): auto_growth served.",
        "lanes for streams: off: strategy:passthrough",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
}

/// A file of the schema from before a key was added is a file all the same.
#[test]
fn files_of_an_older_library_have_a_summary() {
    let mut value = one_process(&[arena()]);
    let old = value["arenas"][0].as_object_mut().unwrap();
    for key in [
        "memory_stats",
        "paddle",
        "at_reserved_peak",
        "idle_low_bytes",
        "fragmented_misses",
        "limbo_misses",
        "longest_wait_ns",
        "budget_waits",
        "budget_wait_ns",
        "fragmented_ooms",
        "largest_oom_bytes",
    ] {
        assert!(old.remove(key).is_some(), "{key}");
    }
    for class in old["size_classes"].as_array_mut().unwrap() {
        let class = class.as_object_mut().unwrap();
        class.retain(|key, _| !key.starts_with("live_") && !key.starts_with("peak_"));
    }
    let out = report_of(&value.to_string());
    assert!(out.contains("did not count as PyTorch does"), "{out}");
    assert!(flat(&out).contains("live 1.5 GiB 1.5 GiB"), "{out}");
}

#[test]
fn a_broken_file_is_one_clear_line_and_does_not_hide_the_others() {
    let whole = || one_process(&[arena()]);
    let text = whole().to_string();
    let mut schema = whole();
    schema["schema"] = 2.into();
    let mut broken = vec![
        String::new(),
        "{}".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "{\"schema\":1}".to_owned(),
        "[".repeat(100_000),
        schema.to_string(),
    ];
    broken.extend([1, text.len() / 3, text.len() - 1].map(|end| text[..end].to_owned()));
    for pointer in [
        "",
        "/arenas/0",
        "/arenas/0/driver_calls/alloc",
        "/arenas/0/at_reserved_peak",
        "/arenas/0/memory_stats",
        "/arenas/0/size_classes/0",
        "/options/limit",
    ] {
        for key in [
            "live_bytes",
            "calls",
            "origin",
            "arenas",
            "device",
            "pid",
            "warnings",
            "memory_stats",
            "idle_bytes",
            "peak_blocks",
            "requested_bytes.small_pool.freed",
            "num_ooms",
        ] {
            let mut value = whole();
            let object = value.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
            let known = object.insert(key.to_owned(), Value::Bool(true)).is_some();
            // What the report does not read harms nobody.
            let unread = [
                ("/arenas/0", "idle_bytes"),
                ("/arenas/0/size_classes/0", "live_bytes"),
            ];
            if known && !unread.contains(&(pointer, key)) {
                broken.push(value.to_string());
            }
        }
    }
    let place = directory(&[("good.json", &text)]);
    for text in broken {
        fs::write(place.join("broken.json"), &text).unwrap();
        let answer = report(&place, &["broken.json", "good.json"]);
        let (start, errors): (String, _) = (text.chars().take(80).collect(), answer.errors);
        assert_eq!(answer.code, Some(2), "{start}");
        assert_eq!(errors.lines().count(), 1, "{start}: {errors}");
        assert!(errors.starts_with("vramalloc: broken.json: "), "{errors}");
        assert!(answer.out.starts_with("train"), "{}", answer.out);
    }
    let answer = report(&place, &["no-such.json"]);
    assert_eq!(answer.code, Some(2));
    assert!(
        answer.errors.starts_with("vramalloc: no-such.json: "),
        "{}",
        answer.errors
    );
}
