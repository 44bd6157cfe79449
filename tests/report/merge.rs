//! `vramalloc report --merge`: the ranks of one job.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use vramalloc_core::Bytes;
use vramalloc_core::stats::{ArenaReport, CallCount, OomEvent, Process};

use crate::{directory, flat, report, statistics};

/// The file of a rank that held so many MiB.
fn rank(rank: u32, held: u64) -> Value {
    let mut arena = ArenaReport {
        device: rank % 2,
        ..ArenaReport::default()
    };
    arena.stats.live.add(Bytes::mib(held));
    arena.stats.reserved.add(Bytes::mib(1000));
    arena.stats.limbo.add(Bytes::mib(100));
    arena.stats.ooms = u64::from(rank == 2);
    arena.stats.wait_ns = 1_000_000;
    arena.calls.alloc = CallCount {
        calls: 1,
        ns: 5_000_000_000,
        ..CallCount::default()
    };
    of_rank(rank, &[arena])
}

fn of_rank(rank: u32, arenas: &[ArenaReport]) -> Value {
    let process = Process {
        pid: 100 + rank,
        host: format!("node{}", rank / 2),
        rank: rank.to_string(),
        ..Process::default()
    };
    statistics(process, arenas)
}

/// Answer and errors for files of these names.
fn merged(files: &[(&str, String)]) -> (Option<i32>, String, String) {
    let texts: Vec<(&str, &str)> = (files.iter())
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let place = directory(&texts);
    let mut arguments = vec!["--merge"];
    arguments.extend(files.iter().map(|(name, _)| *name));
    let answer = report(&place, &arguments);
    (answer.code, answer.out, answer.errors)
}

#[test]
fn ranks_stand_in_one_table() {
    // Not in their order.
    let files = [(2, 400), (0, 800), (10, 760), (1, 790)];
    let names = ["c.json", "a.json", "k.json", "b.json"];
    let files: Vec<(&str, String)> = (names.into_iter())
        .zip(files)
        .map(|(name, (n, held))| (name, rank(n, held).to_string()))
        .collect();
    let (code, out, errors) = merged(&files);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[..13],
        [
            concat!(
                "train: 4 processes under vramalloc ",
                env!("CARGO_PKG_VERSION")
            ),
            "  - no file of ranks 3 to 9",
            "",
            "rank  host   dev  peak live    reserved      limbo  ooms   waits  driver",
            "   0  node0    0  800.0 MiB  1000.0 MiB  100.0 MiB     0  1.0 ms   5.0 s",
            "   1  node0    1  790.0 MiB  1000.0 MiB  100.0 MiB     0  1.0 ms   5.0 s",
            "   2  node1    0  400.0 MiB  1000.0 MiB  100.0 MiB     1  1.0 ms   5.0 s",
            "  10  node5    0  760.0 MiB  1000.0 MiB  100.0 MiB     0  1.0 ms   5.0 s",
            " sum                2.7 GiB     3.9 GiB  400.0 MiB     1  4.0 ms  20.0 s",
            " max              800.0 MiB  1000.0 MiB  100.0 MiB     1  1.0 ms   5.0 s",
            " min              400.0 MiB  1000.0 MiB  100.0 MiB     0  1.0 ms   5.0 s",
            "",
            "  - live memory at the peak: rank 0 has most (800.0 MiB) and rank 2 least (400.0",
        ]
    );
    let flat = flat(&out);
    for part in [
        "(400.0 MiB), 50.0 % less.",
        "requests out of memory: rank 2 has most (1) and rank 0 least (0), 100.0 % less.",
        "Within 10 % of each other: reserved memory at the peak, limbo at the peak, time in the \
         driver.",
    ] {
        assert!(flat.contains(part), "{part} is not in\n{out}");
    }
    // A millisecond of waits is not worth a word.
    assert!(!flat.contains("time in waits"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

/// As after a reset of the device.
#[test]
fn peaks_of_contexts_one_after_the_other_do_not_add_up() {
    let mut arena = ArenaReport::default();
    arena.stats.live.add(Bytes::mib(300));
    arena.stats.ooms = 1;
    for (ended, sum) in [(2000, "300.0 MiB"), (2001, "600.0 MiB")] {
        let mut twice = of_rank(0, &[arena.clone(), arena.clone()]);
        twice["arenas"][0]["made_unix_ms"] = 1000.into();
        twice["arenas"][0]["ended_unix_ms"] = ended.into();
        twice["arenas"][1]["made_unix_ms"] = 2000.into();
        let (_, out, errors) = merged(&[("a.json", twice.to_string())]);
        let told = out.lines().find(|line| line.starts_with(" sum")).unwrap();
        let words: Vec<&str> = told.split_whitespace().collect();
        assert_eq!(words[1..3].join(" "), sum, "{out}{errors}");
        assert_eq!(words[7], "2", "{out}");
    }
}

#[test]
fn contexts_of_a_device_and_processes_of_a_rank_have_their_rows() {
    let arena = |device| ArenaReport {
        device,
        ..ArenaReport::default()
    };
    let several = of_rank(0, &[arena(0), arena(1), arena(0)]);
    let mut second = rank(0, 500);
    second["pid"] = 7.into();
    second["host"] = "a-host-with-a-long-name".into();
    let files = [
        ("a.json", several.to_string()),
        ("b.json", second.to_string()),
    ];
    let (code, out, _) = merged(&files);
    assert_eq!(code, Some(0));
    assert!(flat(&out).contains("- rank 0: 2 processes"), "{out}");
    let rows: Vec<String> = out.lines().map(flat).collect();
    for start in [
        "0 node0 0.1 ",
        "0 node0 1 ",
        "0 node0 0.2 ",
        "0 a-host-with-",
    ] {
        assert!(
            rows.iter().any(|row| row.starts_with(start)),
            "{start}: {out}"
        );
    }
}

/// Streams have arenas of their own, so a device can have many.
#[test]
fn many_arenas_of_a_device_keep_their_numbers() {
    let arenas = vec![ArenaReport::default(); 100];
    let files = [("a.json", of_rank(0, &arenas).to_string())];
    let (code, out, _) = merged(&files);
    assert_eq!(code, Some(0));
    let ends: Vec<usize> = (out.lines())
        .filter(|line| line.contains("node0") || line.contains("peak live"))
        .map(|line| line.chars().count())
        .collect();
    assert_eq!(ends.len(), 101);
    assert!(ends.iter().all(|end| *end == ends[0]), "{out}");
    for number in ["0.1 ", "0.99 ", "0.100 "] {
        assert!(out.contains(number), "{number}: {out}");
    }
}

/// Where a rank has several rows its name alone does not tell which is meant.
#[test]
fn rows_of_one_rank_are_told_apart() {
    let holds = |device, held| {
        let mut arena = ArenaReport {
            device,
            ..ArenaReport::default()
        };
        arena.stats.live.add(Bytes::mib(held));
        arena
    };
    let one = of_rank(0, &[holds(0, 800), holds(1, 900)]);
    // Of another container, in which processes are counted anew.
    let mut other = of_rank(0, &[holds(0, 200)]);
    other["started_unix_ms"] = 1_000_001.into();
    let files = [("a.json", one.to_string()), ("b.json", other.to_string())];
    let (code, out, errors) = merged(&files);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let told = "live memory at the peak: rank 0 (process 100 on node0, device 1) has most (900.0 \
                MiB) and rank 0 (process 100 on node0, device 0) least (200.0 MiB), 77.8 % less.";
    assert!(flat(&out).contains(told), "{out}");
}

#[test]
fn the_rank_that_was_short_first_is_named() {
    let failed = |number: u32, seconds: u64, mib: u64| {
        let mut arena = ArenaReport::default();
        arena.ooms.push(OomEvent {
            time_us: (1000 + seconds) * 1_000_000,
            request: Bytes::mib(mib),
            ..OomEvent::default()
        });
        of_rank(number, &[arena])
    };
    let files = [
        ("a.json", failed(0, 7, 64).to_string()),
        ("b.json", failed(1, 3, 96).to_string()),
        ("c.json", rank(2, 500).to_string()),
    ];
    let (code, out, errors) = merged(&files);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let told = "The first request that failed for want of memory was of rank 1: 96.0 MiB, 3.0 s \
                after its start. The report of b.json says what stood in the way.";
    assert!(flat(&out).contains(told), "{out}");
    let (_, out, _) = merged(&files[2..]);
    assert!(!out.contains("The first request"), "{out}");
}

#[test]
fn a_file_from_before_the_end_is_named() {
    let mut partial = rank(1, 500);
    partial["final"] = false.into();
    let files = [
        ("a.json", rank(0, 500).to_string()),
        ("b.json", partial.to_string()),
    ];
    let (code, out, _) = merged(&files);
    assert_eq!(code, Some(0));
    let told = "rank 1: b.json was taken while it ran, not at its end";
    assert!(flat(&out).contains(told), "{out}");
}

#[test]
fn what_is_not_of_one_job_is_an_error_that_names_the_file() {
    let good = || rank(0, 500);
    let changed = |key: &str, value: Value| {
        let mut other = rank(1, 500);
        other[key] = value;
        other
    };
    let later = 1000 * 3600 * 24;
    let mut another_time = changed("started_unix_ms", later.into());
    another_time["ended_unix_ms"] = (later + 1).into();
    for (other, error) in [
        (
            changed("program", "test".into()),
            "of another job: it is of test, and a.json of train",
        ),
        (
            another_time,
            "of another job: it did not run at the same time as a.json",
        ),
        (
            changed("library_version", "0.0.1".into()),
            concat!(
                "written by vramalloc 0.0.1, but a.json by ",
                env!("CARGO_PKG_VERSION")
            ),
        ),
        (good(), "of the same process as a.json"),
    ] {
        let files = [
            ("a.json", good().to_string()),
            ("b.json", other.to_string()),
        ];
        let (code, out, errors) = merged(&files);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
        assert_eq!(errors, format!("vramalloc: b.json: {error}\n"));
    }
}

/// A file that cannot be read is named, and the others stand.
#[test]
fn a_rank_that_cannot_be_read_is_named() {
    let mut schema = rank(1, 500);
    schema["schema"] = 9.into();
    let files = [
        ("a.json", rank(0, 500).to_string()),
        ("b.json", schema.to_string()),
        ("c.json", rank(2, 500).to_string()),
    ];
    let (code, out, errors) = merged(&files);
    assert_eq!(code, Some(2));
    assert_eq!(
        errors,
        "vramalloc: b.json: schema 9, but this command reads schema 1\n"
    );
    assert!(flat(&out).contains("no file of rank 1"), "{out}");

    let answer = report(&directory(&[]), &["--merge", "no-such.json"]);
    assert_eq!((answer.code, answer.out.as_str()), (Some(2), ""));
    assert!(answer.errors.starts_with("vramalloc: no-such.json: "));
}

#[test]
fn a_clock_of_another_host_may_be_a_little_off() {
    let mut other = rank(1, 500);
    let shift = Duration::from_secs(1009);
    other["started_unix_ms"] = (UNIX_EPOCH + shift)
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        .saturating_mul(1000)
        .into();
    let files = [
        ("a.json", rank(0, 500).to_string()),
        ("b.json", other.to_string()),
    ];
    assert_eq!(merged(&files).0, Some(0));
}
