//! Risk: what was lost from a recording stays in its sums for good.

use std::fs;

use serde_json::Value;
use vramalloc_tests::recorded::{RecordedFile, Step};

use crate::fixture::Fixture;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 1 << 30;
const DEVICE: &str = r#"{"place":"device","device":0}"#;
const PINNED: &str = r#"{"place":"pinned","device":0}"#;

/// What is said of each arena of a recording with these steps.
fn told(name: &str, steps: &[Step<'_>]) -> String {
    let fixture = Fixture::new(name);
    let file = steps
        .iter()
        .fold(RecordedFile::new("{}"), |file, step| file.after(100, *step));
    fs::write(fixture.folder.join("r.rec"), file.bytes()).unwrap();
    let answer = fixture.ask(&["recording", "r.rec"]);
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    let (_, places) = answer.out.split_once("\n\n").unwrap();
    places.to_owned()
}

/// The frees of a block, and of two segments, are lost.
#[test]
fn what_was_freed_in_a_gap_is_gone_once_all_was_told_anew() {
    let before = [
        Step::Thread(1),
        Step::Arena(0),
        Step::IsArena(0, DEVICE),
        Step::Segment(CHUNK, 20 * MIB),
        Step::Segment(2 * CHUNK, 20 * MIB),
        Step::Alloc(CHUNK, 8 * MIB, None),
        Step::Alloc(CHUNK + 8 * MIB, 4 * MIB, None),
        Step::Gap(3),
    ];
    let held = |after: &[Step<'_>]| told("recorded_gap", &[&before, after].concat());
    let live = |held: &str| {
        let (_, rest) = held.split_once("live at the end ").unwrap();
        rest.split_once('\n').unwrap().0.to_owned()
    };
    let telling = [
        Step::Telling(true),
        Step::IsArena(0, DEVICE),
        Step::IsSegment(CHUNK, 20 * MIB),
        Step::IsAlloc(CHUNK, 8 * MIB),
    ];
    let ends = [Step::Telling(false)];
    // While it is told, and if more is lost, nobody knows.
    assert_eq!(live(&held(&telling)), "12.0 MiB in 2 blocks");
    let lost = [&telling[..], &[Step::Gap(1)], &ends].concat();
    assert_eq!(live(&held(&lost)), "12.0 MiB in 2 blocks");
    // Nor where another thread began before the gap.
    let other = [
        &telling[..1],
        &[Step::Thread(2)],
        &ends,
        &[Step::Thread(1)],
        &telling[1..],
    ];
    assert_eq!(live(&held(&other.concat())), "12.0 MiB in 2 blocks");
    // What came meanwhile is there, too.
    let new = [Step::Alloc(CHUNK + 16 * MIB, MIB, None)];
    let whole = [&telling[..], &new, &ends].concat();
    assert_eq!(live(&held(&whole)), "9.0 MiB in 2 blocks");
    // The segment is gone as well: another one makes no new peak.
    let more = [&whole[..], &[Step::Segment(3 * CHUNK, 20 * MIB)]].concat();
    assert!(held(&more).contains("; at most 40.0 MiB reserved"));
}

/// As at the begin of a ring that came round.
#[test]
fn what_an_arena_did_before_it_is_told_of_counts_where_it_is() {
    let steps = [
        Step::Thread(1),
        Step::Arena(0),
        Step::Segment(CHUNK, 20 * MIB),
        Step::Alloc(CHUNK, 8 * MIB, None),
        Step::Alloc(CHUNK + 8 * MIB, 4 * MIB, None),
        Step::Free(CHUNK + 8 * MIB, 4 * MIB),
        Step::Arena(1),
        Step::Alloc(2 * CHUNK, 90 * MIB, None),
        Step::Oom(64 * MIB, None),
        Step::Telling(true),
        Step::IsArena(0, DEVICE),
        Step::IsArena(1, PINNED),
        Step::Arena(0),
        Step::IsSegment(CHUNK, 20 * MIB),
        Step::IsAlloc(CHUNK, 8 * MIB),
        // Twice, as for each quarter of a ring.
        Step::IsArena(0, DEVICE),
    ];
    let places = told("recorded_late", &steps);
    let expected = "\
device 0
  most live       12.0 MiB in 2 blocks, after 0.2 ms; at most 20.0 MiB reserved
  live at the end 8.0 MiB in 1 block
  requests        2 allocations, 1 free, 0 out of memory

page-locked host memory
  most live       90.0 MiB in 1 block, after 0.4 ms; at most 0 B reserved
  live at the end 90.0 MiB in 1 block
  requests        1 allocation, 0 frees, 1 out of memory
";
    assert_eq!(places, expected);
}

/// As where the program ends while its memory is paused: tools that draw a snapshot know
/// no block without a segment.
#[test]
fn blocks_without_memory_are_in_the_snapshot() {
    let steps = [
        Step::Thread(1),
        Step::Arena(0),
        Step::IsArena(0, DEVICE),
        Step::Segment(2 * CHUNK, 20 * MIB),
        Step::Alloc(CHUNK, 8 * MIB, None),
        Step::Alloc(CHUNK + 8 * MIB, 4 * MIB, None),
        Step::Alloc(2 * CHUNK - MIB, 2 * MIB, None),
        Step::Alloc(2 * CHUNK + 2 * MIB, MIB, None),
    ];
    let fixture = Fixture::new("recorded_paused");
    let file = steps
        .iter()
        .fold(RecordedFile::new("{}"), |file, step| file.after(100, *step));
    fs::write(fixture.folder.join("r.rec"), file.bytes()).unwrap();
    let how = ["--snapshot=o.pickle", "--snapshot-json=o.json"];
    let answer = fixture.ask(&[&["recording", "r.rec"][..], &how].concat());
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    let text = fs::read_to_string(fixture.folder.join("o.json")).unwrap();
    let snapshot: Value = serde_json::from_str(&text).unwrap();
    let segments = snapshot["segments"].as_array().unwrap();
    let spans: Vec<_> = segments
        .iter()
        .map(|segment| (segment["address"].as_u64(), segment["total_size"].as_u64()))
        .collect();
    let span = |start, size| (Some(start), Some(size));
    let expected = [
        span(CHUNK, 12 * MIB),
        span(2 * CHUNK - MIB, MIB),
        span(2 * CHUNK, 20 * MIB),
    ];
    assert_eq!(spans, expected);
    let events = snapshot["device_traces"][0].as_array().unwrap();
    let allocs = events.iter().filter(|event| event["action"] == "alloc");
    assert_eq!(allocs.count(), 4, "{events:?}");
}

/// What cannot be replayed, and why.
#[test]
fn a_replay_says_what_it_is_not_made_of() {
    let fixture = Fixture::new("recorded_replayed");
    let begins = [Step::Thread(1), Step::Arena(0), Step::IsArena(0, DEVICE)];
    let file = |steps: &[Step<'_>]| {
        let begun = RecordedFile::new("{}");
        let file = (steps.iter()).fold(begun, |file, step| file.after(100, *step));
        file.bytes()
    };
    // As auto_growth takes memory for two requests at a time.
    let chunks = (0..30).flat_map(|n| {
        let start = CHUNK + n * 2 * MIB;
        let block = |at| Step::Alloc(at, MIB, None);
        [
            Step::Segment(start, 2 * MIB),
            block(start + MIB),
            block(start),
        ]
    });
    let steps: Vec<_> = begins.into_iter().chain(chunks).collect();
    let mut cut = file(&steps);
    // The head has a block of its own.
    cut.truncate((64 << 10) + 300);
    let statistics = r#"{"schema": 1}"#;
    for (bytes, code, said) in [
        (file(&begins), 1, "it has no request for device memory"),
        (cut, 0, "The file is cut off"),
        // As in a ring that came round: what tells of the arena is gone.
        (
            file(&[
                Step::Thread(1),
                Step::Arena(7),
                Step::Gap(3),
                Step::Alloc(CHUNK, MIB, None),
            ]),
            1,
            "events found no room in it",
        ),
        (statistics.into(), 2, "record=%e.%p.rec makes a recording"),
        (Vec::new(), 2, "neither a recording nor a snapshot"),
    ] {
        fs::write(fixture.folder.join("r.rec"), bytes).unwrap();
        for what in ["replay", "advise"] {
            let answer = fixture.ask(&[what, "r.rec"]);
            let all = (answer.out + &answer.errors).replace("\n  ", " ");
            assert_eq!(answer.code, Some(code), "{what}: {all}");
            assert!(all.contains(said), "{what}: {all}");
        }
    }
    // Whole blocks are missing.
    let mut between = file(&steps);
    between.truncate(64 << 10);
    fs::write(fixture.folder.join("r.rec"), between).unwrap();
    let told = fixture.ask(&["recording", "r.rec"]).out;
    assert!(told.contains("the file is cut off"), "{told}");
    assert!(!told.contains("nothing happened in it"), "{told}");
}
