//! `vramalloc diff`: what it finds, and when it fails.

use serde_json::{Value, json};
use vramalloc_tests::recorded::{RecordedFile, Step};

use crate::fixture::{Fixture, statistics};

/// Another run, which held so much more.
fn grown(mib: u64) -> Value {
    let mut grown = statistics();
    grown["arenas"][0]["live_bytes"]["peak"] = ((100 + mib) << 20).into();
    grown["arenas"][0]["size_classes"][0]["peak_bytes"] = ((4 + mib) << 20).into();
    grown
}

/// What libraries held, two of which users know by one name.
fn owners(mib: u64) -> Value {
    let owner = |name: &str, mib: u64| json!({"device": 0, "owner": name, "file": null, "bytes": 1, "peak_bytes": mib << 20, "past_pool_bytes": 0});
    json!([
        owner("libc10_cuda.so", mib - 10),
        owner("libtorch_cuda.so", 10),
        owner("libcublas.so.12", 10),
    ])
}

/// Two runs of a library that was built anew in between.
fn fixture(test: &str) -> Fixture {
    let fixture = Fixture::new(test);
    fixture.tool(&["strip", "--strip-debug", "libx.so"]);
    let mut before = statistics();
    before["call_stacks"] = fixture.call_stacks(&[
        (
            &["empty_cuda", "train.py:41 forward", "train.py:80 main"],
            64,
        ),
        (&["empty_cuda", "outer"], 30),
        (&["outer"], 6),
    ]);
    before["owners"] = owners(90);
    fixture.write_whole("a.json", &before);
    let mut after = grown(20);
    after["call_stacks"] = fixture.call_stacks(&[
        // The line has moved.
        (
            &["empty_cuda", "train.py:43 forward", "train.py:80 main"],
            84,
        ),
        (&["empty_cuda", "outer"], 30),
        (&["data.py:7 load"], 6),
    ]);
    after["owners"] = owners(110);
    after["families"] = json!([{"device": 1, "family": "virtual",
        "bytes": {"current": 0, "peak": 3 << 20}, "calls": 1, "refused": 0}]);
    fixture.write_whole("b.json", &after);
    fixture
}

#[test]
fn what_grew_and_what_shrank_is_told() {
    let fixture = fixture("diff");
    let answer = fixture.ask(&["diff", "a.json", "b.json"]);
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    assert!(answer.out.lines().all(|line| line.chars().count() <= 80));
    insta::assert_snapshot!("diff", answer.out);
    let same = fixture.ask(&["diff", "a.json", "a.json"]);
    insta::assert_snapshot!("diff_of_the_same", same.out);
}

#[test]
fn as_json_it_is_the_same() {
    let fixture = fixture("diff_json");
    let answer = fixture.ask(&["diff", "--json", "--fail-over", "19%", "a.json", "b.json"]);
    assert_eq!((answer.code, &*answer.errors), (Some(1), ""));
    let found: Value = serde_json::from_str(&answer.out).unwrap();
    let live = json!({"rank": "", "device": 0, "of": "live", "is_over": true,
                      "before": 100 << 20, "after": 120 << 20});
    assert_eq!(found["peaks"][0], live);
    assert_eq!(found["peaks"][1]["is_over"], false);
    let owner = json!([{"owner": "PyTorch", "before": 90 << 20, "after": 110 << 20}]);
    assert_eq!(found["owners"], owner);
    assert_eq!(found["stacks"].as_array().unwrap().len(), 3);
    let stack = json!({"stack": "train.py:43 forward < train.py:80 main",
                       "before": 64 << 20, "after": 84 << 20});
    assert_eq!(found["stacks"][0], stack);
}

/// As after a reset of the device.
#[test]
fn contexts_that_were_there_one_after_the_other_do_not_add_up() {
    let fixture = fixture("diff_contexts");
    let before = statistics();
    fixture.write_whole("a.json", &before);
    for (ended, code) in [(2000, 0), (2001, 1)] {
        let mut after = before.clone();
        let mut context = after["arenas"][0].clone();
        context["made_unix_ms"] = 2000.into();
        after["arenas"][0]["made_unix_ms"] = 1000.into();
        after["arenas"][0]["ended_unix_ms"] = ended.into();
        after["arenas"].as_array_mut().unwrap().push(context);
        fixture.write_whole("b.json", &after);
        let answer = fixture.ask(&["diff", "--json", "--fail-over", "0", "a.json", "b.json"]);
        assert_eq!((answer.code, &*answer.errors), (Some(code), ""));
        let found: Value = serde_json::from_str(&answer.out).unwrap();
        let of_sizes = found["sizes"].as_array().unwrap();
        assert_eq!(of_sizes.is_empty(), code == 0, "{of_sizes:?}");
    }
}

/// A recording in which an allocation of so many MiB is the largest.
fn recorded(mib: u64) -> Vec<u8> {
    const CHUNK: u64 = 1 << 30;
    let steps = [
        Step::Thread(1),
        Step::Arena(0),
        Step::IsArena(0, r#"{"place":"device","device":0}"#),
        Step::IsStack(0, &[("/u/train.py", 41 + mib, "forward")]),
        Step::IsStack(1, &[("/u/data.py", 7, "load")]),
        Step::Segment(CHUNK, 64 << 20),
        Step::Alloc(CHUNK, mib << 20, Some(0)),
        Step::Alloc(CHUNK + (32 << 20), 1 << 20, Some(1)),
        Step::Free(CHUNK, mib << 20),
        Step::Arena(1),
        Step::IsArena(1, r#"{"place":"pinned","device":0}"#),
        Step::Alloc(9 * CHUNK, 90 << 20, None),
    ];
    let begun = RecordedFile::new(r#"{"program":"train","pid":42,"host":"node7","rank":"0"}"#);
    let after = |file: RecordedFile, step| file.after(100, step);
    steps.into_iter().fold(begun, after).bytes()
}

#[test]
fn recordings_are_compared_by_size_and_call_stack() {
    let fixture = fixture("diff_recordings");
    for (name, mib) in [("a.rec", 8), ("b.rec", 12)] {
        std::fs::write(fixture.folder.join(name), recorded(mib)).unwrap();
    }
    let answer = fixture.ask(&["diff", "--json", "--fail-over", "10%", "a.rec", "b.rec"]);
    assert_eq!((answer.code, &*answer.errors), (Some(1), ""));
    let found: Value = serde_json::from_str(&answer.out).unwrap();
    let expected = json!({
        "before": {"name": "a.rec", "programs": ["train"], "unfinished": 0, "out_of_memory": 0},
        "after": {"name": "b.rec", "programs": ["train"], "unfinished": 0, "out_of_memory": 0},
        "fails_more": false,
        "peaks": [
            {"rank": "", "device": 0, "of": "live", "is_over": true,
             "before": 9 << 20, "after": 13 << 20},
            {"rank": "", "device": 0, "of": "reserved", "is_over": false,
             "before": 64 << 20, "after": 64 << 20},
        ],
        "owners": [],
        "sizes": [
            {"up_to_bytes": 16 << 20, "before": 0, "after": 12 << 20},
            {"up_to_bytes": 8 << 20, "before": 8 << 20, "after": 0},
        ],
        "stacks": [
            {"stack": "train.py:53 forward", "before": 8 << 20, "after": 12 << 20},
        ],
    });
    assert_eq!(found, expected);
}

/// A program that fails holds less, and so does one that is not at its end.
#[test]
fn a_run_that_failed_or_was_not_over_is_told() {
    let fixture = Fixture::new("diff_failed");
    fixture.write_whole("a.json", &statistics());
    let mut failed = statistics();
    failed["arenas"][0]["live_bytes"]["peak"] = (10 << 20).into();
    failed["arenas"][0]["ooms"] = 2.into();
    fixture.write_whole("failed.json", &failed);
    let answer = fixture.ask(&["diff", "--fail-over", "5%", "a.json", "failed.json"]);
    assert_eq!(answer.code, Some(1));
    let line = "B: failed.json (train)\n   2 requests failed for want of memory.\n";
    assert!(answer.out.contains(line), "{}", answer.out);
    let back = fixture.ask(&["diff", "--fail-over", "2000%", "failed.json", "a.json"]);
    assert_eq!(back.code, Some(0));

    let mut early = statistics();
    early["final"] = false.into();
    fixture.write_whole("early.json", &early);
    let answer = fixture.ask(&["diff", "a.json", "early.json"]);
    assert_eq!(answer.code, Some(0));
    let line = "   1 file is from before the end of its process: what came later is missing.\n";
    assert!(answer.out.contains(line), "{}", answer.out);
}

/// Of one rank there can be several files.
#[test]
fn a_sum_of_processes_is_told() {
    let fixture = Fixture::new("diff_sums");
    for name in ["a/1.json", "a/2.json", "b/1.json"] {
        fixture.write_whole(name, &statistics());
    }
    let answer = fixture.ask(&["diff", "a", "b"]);
    let (before, after) = answer.out.split_once("B: b").unwrap();
    assert!(
        before.contains("its peaks are the sums of theirs"),
        "{before}"
    );
    assert!(!after.contains("sums"), "{after}");
}

/// An older library does not tell of owners.
#[test]
fn owners_are_compared_where_both_sides_have_them() {
    let fixture = fixture("diff_owners");
    fixture.write_whole("old.json", &statistics());
    for sides in [["old.json", "a.json"], ["a.json", "old.json"]] {
        let answer = fixture.ask(&[&["diff"], &sides[..]].concat());
        assert_eq!(answer.code, Some(0));
        assert!(!answer.out.contains("by owner"), "{}", answer.out);
    }
}

#[test]
fn it_fails_over_what_is_allowed() {
    let fixture = fixture("diff_fails");
    let code = |arguments: &[&str]| fixture.ask(&[&["diff"], arguments].concat()).code;
    for (allowed, expected) in [("21%", 1), ("20M", 0), ("19M", 1), ("0", 1), ("0%", 1)] {
        // Memory past the pool is there in one of them only, so no share allows it.
        assert_eq!(
            code(&["--fail-over", allowed, "a.json", "b.json"]),
            Some(expected),
            "{allowed}"
        );
    }
    assert_eq!(code(&["--fail-over", "0", "a.json", "a.json"]), Some(0));
    assert_eq!(code(&["--fail-over", "0", "b.json", "a.json"]), Some(0));
    assert_eq!(code(&["--fail-over", "much", "a.json", "b.json"]), Some(2));
}

#[test]
fn only_like_is_compared_with_like() {
    let fixture = fixture("diff_kinds");
    let ranks = |folder: &str, ranks: &[(&str, u64)]| {
        for (rank, mib) in ranks {
            let mut one = grown(*mib);
            one["rank"] = (*rank).into();
            fixture.write_whole(&format!("{folder}/{rank}.json"), &one);
        }
    };
    ranks("two", &[("0", 0), ("1", 0)]);
    ranks("grown", &[("0", 0), ("1", 16)]);
    ranks("one", &[("0", 0)]);
    std::fs::create_dir(fixture.folder.join("empty")).unwrap();
    std::fs::create_dir(fixture.folder.join("recorded")).unwrap();
    for name in ["a.rec", "recorded/0.json"] {
        std::fs::write(fixture.folder.join(name), recorded(8)).unwrap();
    }
    let answer = fixture.ask(&["diff", "--fail-over", "5%", "two", "grown"]);
    assert_eq!((answer.code, &*answer.errors), (Some(1), ""));
    let over: Vec<&str> = answer
        .out
        .lines()
        .filter(|line| line.ends_with("over"))
        .collect();
    assert_eq!(over.len(), 1, "{}", answer.out);
    assert!(over[0].contains("rank 1 device 0 live"), "{}", over[0]);
    // What another program left there is no rank; what was cut off may be one.
    let other = fixture.folder.join("grown/config.json");
    std::fs::write(&other, "[1, {}]").unwrap();
    let beside = fixture.ask(&["diff", "--fail-over", "5%", "two", "grown"]);
    let note = "vramalloc: grown/config.json: left out: no statistics of vramalloc\n";
    assert_eq!((beside.out, &*beside.errors), (answer.out, note));
    std::fs::write(&other, r#"{"arenas": [{"#).unwrap();
    let cut_off = fixture.ask(&["diff", "two", "grown"]);
    assert_eq!(cut_off.code, Some(2));
    let why = "grown/config.json: it ends too early: ";
    assert!(cut_off.errors.contains(why), "{}", cut_off.errors);
    for (sides, complaint) in [
        (
            ["two", "one"],
            "two is a folder with ranks 0, 1, and one is a folder with rank 0: ",
        ),
        (
            ["a.json", "one"],
            "a.json is one file of statistics, and one is a folder with rank 0: ",
        ),
        (
            ["a.rec", "a.json"],
            "a.rec is a recording, and a.json is one file of statistics: ",
        ),
        (
            ["recorded", "one"],
            "recorded/0.json: a recording; compare recordings one by one",
        ),
        (["empty", "one"], "empty: no statistics that end in .json"),
        (["gone", "one"], "gone: No such file"),
        (["x.c", "a.json"], "x.c: not statistics of vramalloc"),
    ] {
        let answer = fixture.ask(&[&["diff"], &sides[..]].concat());
        assert_eq!((answer.code, &*answer.out), (Some(2), ""));
        let expected = format!("vramalloc: {complaint}");
        assert!(answer.errors.starts_with(&expected), "{}", answer.errors);
    }
}
