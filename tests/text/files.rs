//! What is made of recordings, of two files together, and in forms for other tools.

use vramalloc_tests::recorded::{RecordedFile, Step};

use crate::{Shown, samples};

/// A recording of two devices, with page-locked memory beside them, in which so many
/// MiB more were asked for than in another.
fn recording(more: u64) -> Vec<u8> {
    const MIB: u64 = 1 << 20;
    const CHUNK: u64 = 1 << 30;
    let steps = [
        Step::Thread(1),
        Step::Arena(0),
        Step::IsArena(
            0,
            r#"{"place":"device","device":0,"device_name":"Model H200"}"#,
        ),
        Step::IsStack(
            0,
            &[("/u/train.py", 41, "forward"), ("/u/train.py", 80, "main")],
        ),
        Step::IsStack(5, &[("/u/data.py", 7, "load")]),
        Step::Segment(CHUNK, 20 * MIB),
        Step::Alloc(CHUNK, (8 + more) * MIB, Some(0)),
        Step::Alloc(CHUNK + 18 * MIB, MIB, None),
        Step::Oom(64 * MIB, Some(5)),
        Step::Free(CHUNK, (8 + more) * MIB),
        Step::Completed(CHUNK, (8 + more) * MIB),
        Step::Thread(2),
        Step::Arena(1),
        Step::IsArena(1, r#"{"place":"pinned","device":0}"#),
        Step::Segment(9 * CHUNK, 90 * MIB),
        Step::Alloc(9 * CHUNK, 90 * MIB, None),
        Step::Arena(2),
        Step::IsArena(2, r#"{"place":"device","device":1}"#),
        Step::Segment(2 * CHUNK, 2 * MIB),
        Step::Alloc(2 * CHUNK, 2 * MIB, Some(5)),
    ];
    let begun = RecordedFile::new(r#"{"program":"train","pid":4711,"host":"node7","rank":"3"}"#);
    let after = |file: RecordedFile, step| file.after(1_500, step);
    steps.into_iter().fold(begun, after).bytes()
}

#[test]
fn recordings() {
    let whole = recording(0);
    let place = Shown::new()
        .file("a.rec", &whole)
        .file("cut.rec", &whole[..(64 << 10) + 150])
        .file("train.json", samples::training());
    insta::assert_snapshot!("recording", place.all(&["recording", "a.rec"]));
    insta::assert_snapshot!("recording_in_a_report", place.all(&["report", "a.rec"]));
    insta::assert_snapshot!(
        "recording_that_is_cut",
        place.all(&["recording", "cut.rec"])
    );
    insta::assert_snapshot!(
        "recording_as_lines",
        place.at(80, &["recording", "--json-lines", "a.rec"])
    );
    insta::assert_snapshot!(
        "recording_as_columns",
        place.at(80, &["recording", "--csv", "a.rec"])
    );
    insta::assert_snapshot!(
        "recording_as_a_snapshot",
        place.all(&["recording", "--snapshot", "s.pickle", "a.rec"])
    );
    insta::assert_snapshot!(
        "recording_that_is_none",
        place.all(&["recording", "train.json"])
    );
}

#[test]
fn differences() {
    let [before, after] = samples::two_runs();
    let mut place = Shown::new()
        .file("before.json", before)
        .file("after.json", after)
        .file("train.json", samples::training())
        .file("a.rec", recording(0))
        .file("b.rec", recording(6));
    for rank in 0..12 {
        let more = if rank % 4 == 2 { 5 } else { 0 };
        let (before, after) = (samples::rank(rank), samples::grown_rank(rank, more));
        let name = |folder: &str| format!("{folder}/{rank}.json");
        place = place
            .file(&name("before"), before)
            .file(&name("after"), after);
    }
    for (name, arguments) in [
        ("diff", &["before.json", "after.json"][..]),
        ("diff_of_the_same", &["train.json", "train.json"]),
        ("diff_that_fails", &["--fail-over", "5%", "before", "after"]),
        ("diff_of_recordings", &["a.rec", "b.rec"]),
        ("diff_of_two_kinds", &["a.rec", "before"]),
        (
            "diff_with_a_wrong_amount",
            &["--fail-over", "5 apples", "a.rec", "b.rec"],
        ),
    ] {
        let arguments = [&["diff"], arguments].concat();
        insta::assert_snapshot!(name, place.all(&arguments));
    }
    insta::assert_snapshot!(
        "diff_as_json",
        place.at(80, &["diff", "--json", "a.rec", "b.rec"])
    );
}

#[test]
fn exports() {
    let place = Shown::new()
        .file("train.json", samples::training())
        .file("stacks.json", samples::with_stacks())
        .file("a.rec", recording(0));
    for (name, arguments) in [
        ("export", &["stacks.json", "--format", "folded"][..]),
        (
            "export_of_a_recording",
            &["a.rec", "--format", "folded", "--at", "failed"],
        ),
        ("export_as_a_trace", &["a.rec", "--format", "perfetto"]),
        (
            "export_without_stacks",
            &["train.json", "--format", "folded"],
        ),
        (
            "export_without_events",
            &["train.json", "--format", "perfetto"],
        ),
        (
            "export_of_no_moment",
            &["a.rec", "--format", "perfetto", "--at", "now"],
        ),
        (
            "export_over_its_file",
            &["a.rec", "--format", "memory_viz", "-o", "a.rec"],
        ),
        ("export_without_a_form", &["a.rec"]),
        ("export_of_nothing", &["gone.rec", "--format", "folded"]),
    ] {
        let arguments = [&["export"], arguments].concat();
        insta::assert_snapshot!(name, place.at(80, &arguments));
    }
}
