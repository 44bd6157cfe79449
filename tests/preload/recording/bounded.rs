//! Risk: a recording that may not grow any more harms the program, or is not what it says
//! that it is.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vramalloc_core::recording::Standing;
use vramalloc_tests::stage::{self, Kind, Run};

use super::{Place, books, said_of_recording};

#[test]
fn a_recording_that_is_full_says_so_and_has_the_beginning() {
    let place = Place::new();
    let outcome = place.run(Kind::Static, "record_size:1M", 2, 200_000, 0);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    let file = place.file();
    let expected = format!(
        "{}: it has reached record_size, 1 MiB; what happens from now on is not recorded",
        file.display()
    );
    assert_eq!(said_of_recording(&outcome), [expected]);
    assert!(fs::metadata(&file).unwrap().len() <= 1 << 20);
    let books = place.books();
    assert_eq!(books.standing, Some(Standing::Full));
    assert!(books.lost > 0 && !books.late);
    let told = &outcome.stats()["recording"];
    assert_eq!(told["state"], "full");
    assert_eq!(told["lost_events"], books.lost);
    assert!(told["reason"].as_str().unwrap().contains("record_size"));
}

#[test]
fn a_ring_has_the_end_and_all_that_is_held() {
    for (kind, steps) in [(Kind::Dynamic, 200_000), (Kind::Driver, 150_000)] {
        let place = Place::new();
        let outcome = place.run(kind, "record_size:1M,record_full:ring", 2, steps, 0);
        outcome.quiet(0);
        assert_eq!(fs::metadata(place.file()).unwrap().len(), 1 << 20);
        let books = place.books();
        assert_eq!(books.live, place.noted(2).live, "{}", outcome.what);
        assert_eq!((books.lost, books.late), (0, true));
        let told = &outcome.stats()["recording"];
        assert_eq!(told["state"], "ended");
        assert_eq!(told["oldest_lost"], true);
        let (first, last) = reserved_over_time(&place.file());
        assert!(first > last / 2, "{first} {last}");
    }
}

/// What was reserved of the device at the first and the last step that is told of it.
fn reserved_over_time(recording: &Path) -> (u64, u64) {
    let words = ["export", "--format", "perfetto"];
    let mut command = Command::new(stage::command());
    let output = command.args(words).arg(recording).output().unwrap();
    let trace: Value = serde_json::from_slice(&output.stdout).unwrap();
    let points = trace["traceEvents"].as_array().unwrap().iter();
    let mut counters = points.filter(|point| point["ph"] == "C");
    let reserved = |point: &Value| {
        let parts = ["live", "limbo", "cached"];
        parts
            .map(|part| point["args"][part].as_u64().unwrap())
            .iter()
            .sum()
    };
    let first = counters.next().map(reserved).unwrap();
    (first, counters.next_back().map(reserved).unwrap())
}

/// A bound for the size of files ends a recording, and not the program; so does a
/// disk without room, which answers in the same way.
#[test]
fn a_file_that_may_not_grow_ends_the_recording_alone() {
    let place = Place::new();
    let log = place.0.join("log");
    let run = Run::preloaded("recorded", Kind::Dynamic)
        // More than the first 4 MiB and the logs, less than what comes after.
        .args([&*log.to_string_lossy(), "3", "300000", "0", "7500000"])
        .conf(&place.conf(""));
    let outcome = run.go();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    let said = said_of_recording(&outcome);
    let [said] = said[..] else { panic!("{said:?}") };
    assert!(
        said.ends_with("what happens from now on is not recorded"),
        "{said}"
    );
    let books = place.books();
    assert_eq!(books.standing, Some(Standing::Failed));
    assert!(books.lost > 0 && books.events > 100_000, "{books:?}");
    assert_eq!(outcome.stats()["recording"]["state"], "failed");
}

#[test]
fn a_full_disk_ends_the_recording_alone() {
    let place = Place::new();
    let mount = place.0.join("disk");
    fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "none"])
        .arg(&mount)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        // Nobody but root may; the bound of a file is tested above.
        return;
    }
    let (log, file) = (place.0.join("log"), mount.join("run.rec"));
    let run = Run::preloaded("recorded", Kind::Dynamic)
        .args([&*log.to_string_lossy(), "2", "400000", "0"])
        .conf(&format!("record:{}", file.display()));
    let outcome = run.go();
    let books = books(&file);
    // A child of another test's may hold it for a moment longer.
    let unmounted = Command::new("umount")
        .arg("-l")
        .arg(&mount)
        .status()
        .unwrap();
    assert!(unmounted.success());
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert_eq!(books.standing, Some(Standing::Failed));
    let said = said_of_recording(&outcome);
    assert!(said[0].contains("No space left on device"), "{said:?}");
}
