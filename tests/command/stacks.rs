//! The names in call stacks, and what the report says of who held memory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::fixture::{Fixture, statistics};

/// The places of a stack of native functions, as the report shows them.
fn shown(fixture: &Fixture) -> String {
    let section = fixture.report(&["s.json"]);
    section.split_whitespace().collect::<Vec<_>>().join(" ")
}

const NATIVE: &[&str] = &["empty_cuda", "hidden", "outer", "_ZN2at3any"];

fn native(test: &str) -> Fixture {
    let fixture = Fixture::new(test);
    fixture.write("s.json", fixture.call_stacks(&[(NATIVE, 64)]));
    fixture
}

#[test]
fn who_held_memory_is_told_with_python_first() {
    let fixture = Fixture::new("stacks");
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
        (&["DeviceCachingAllocator", "empty_cuda", "outer"], 30),
        (&["outer", "train.py:41 forward", "train.py:80 main"], 6),
        (&["DeviceCachingAllocator"], 1),
    ]);
    fixture.write("s.json", stacks);
    fixture.tool(&["strip", "--strip-debug", "libx.so"]);
    insta::assert_snapshot!("held", fixture.report(&["s.json"]));
    insta::assert_snapshot!(
        "held_all_frames",
        fixture.report(&["--all-frames", "s.json"])
    );
}

#[test]
fn what_the_file_says_of_its_stacks_is_told() {
    let fixture = native("remarks");
    let mut stacks = fixture.call_stacks(&[(&["outer"], 12)]);
    stacks["sample_bytes"] = (512 << 10).into();
    stacks["cut"] = 3.into();
    stacks["untaken"] = 50.into();
    stacks["dropped"] = 1.into();
    stacks["python"] =
        json!({"version": "3.9", "read": false, "reason": "its version is not known"});
    stacks["failed"] = json!([
        {"stack": 0, "count": 2, "bytes": 3u64 << 30},
        {"stack": null, "count": 1, "bytes": 1u64 << 30},
        {"stack": 99, "count": 1, "bytes": 1},
    ]);
    stacks["live"] = json!([]);
    fixture.write("s.json", stacks);
    fixture.tool(&["strip", "--strip-debug", "libx.so"]);
    insta::assert_snapshot!("remarks", fixture.report(&["s.json"]));
}

#[test]
fn lines_and_inlined_functions_are_shown_where_the_file_has_them() {
    let fixture = native("lines");
    let out = shown(&fixture);
    for part in [
        "x.c:6 at::native::empty_cuda < x.c:7 hidden <",
        " < x.c:8 inner < x.c:12 outer < x.c:10 at::any<>",
    ] {
        assert!(out.contains(part), "{out}");
    }
}

#[test]
fn lines_come_from_a_file_of_debug_information() {
    let fixture = native("debug");
    fs::create_dir(fixture.folder.join(".debug")).unwrap();
    fixture.tool(&["objcopy", "--only-keep-debug", "libx.so", ".debug/x.debug"]);
    fixture.tool(&["strip", "--strip-all", "libx.so"]);
    fixture.tool(&["objcopy", "--add-gnu-debuglink=.debug/x.debug", "libx.so"]);
    let out = shown(&fixture);
    assert!(
        out.contains("x.c:7 hidden < x.c:8 inner < x.c:12 outer"),
        "{out}"
    );
    // One without lines has the names of functions that are not exported.
    fixture.tool(&["strip", "--strip-debug", ".debug/x.debug"]);
    fs::remove_dir_all(fixture.folder.join("cache")).unwrap();
    let out = shown(&fixture);
    assert!(
        out.contains("at::native::empty_cuda < hidden < outer"),
        "{out}"
    );
}

#[test]
fn of_a_stripped_file_the_nearest_exported_function_is_marked() {
    let fixture = native("stripped");
    fixture.tool(&["strip", "--strip-all", "libx.so"]);
    let out = shown(&fixture);
    assert!(out.contains("at::native::empty_cuda < ~"), "{out}");
    assert!(out.contains(" < outer < at::any<>"), "{out}");
}

#[test]
fn a_file_that_was_replaced_gives_no_names() {
    let fixture = native("replaced");
    let mut source = fs::read_to_string(fixture.folder.join("x.c")).unwrap();
    source.push_str("void more(void) { sink = 9; }\n");
    fs::write(fixture.folder.join("x.c"), source).unwrap();
    let words = [
        "gcc",
        "-shared",
        "-fPIC",
        "-Wl,--build-id",
        "x.c",
        "-o",
        "libx.so",
    ];
    fixture.tool(&words);
    let out = shown(&fixture);
    assert!(out.contains("libx.so+0x"), "{out}");
    assert!(!out.contains("empty_cuda"), "{out}");
    let note = "libx.so was replaced since, so its functions have no names here.";
    assert!(out.contains(note), "{out}");
    // Without a build id it counts when the file was changed.
    let mut stacks = fixture.call_stacks(&[(NATIVE, 1)]);
    stacks["objects"][0]["build_id"] = json!(null);
    let mut whole = statistics();
    whole["call_stacks"] = stacks;
    fixture.write_whole("s.json", &whole);
    assert!(shown(&fixture).contains(note));
    whole["started_unix_ms"] = 99_000_000_000_000u64.into();
    fixture.write_whole("s.json", &whole);
    assert!(!shown(&fixture).contains(note));
}

#[test]
fn names_are_kept_for_when_the_file_is_gone() {
    let fixture = native("kept");
    let before = shown(&fixture);
    let cache = fixture.folder.join("cache/vramalloc/symbols");
    let kept = cache.join(format!("{}.json", fixture.build_id()));
    let text = fs::read_to_string(&kept).unwrap();
    fs::rename(fixture.folder.join("libx.so"), fixture.folder.join("away")).unwrap();
    assert_eq!(shown(&fixture), before);
    // Cut off, it counts as empty.
    fs::write(&kept, &text[..text.len() / 2]).unwrap();
    let gone = shown(&fixture);
    assert!(gone.contains("libx.so+0x"), "{gone}");
    assert!(
        gone.contains("Not here, so without names of functions: libx.so."),
        "{gone}"
    );
    // And is replaced as soon as the file is back.
    fs::rename(fixture.folder.join("away"), fixture.folder.join("libx.so")).unwrap();
    assert_eq!(shown(&fixture), before);
    assert_eq!(fs::read_to_string(&kept).unwrap(), text);
    // A folder that cannot be written is no fault.
    fs::remove_dir_all(&cache).unwrap();
    fs::write(&cache, "").unwrap();
    assert_eq!(shown(&fixture), before);
}

/// The same build, with more in it than before: what was found before is not
/// the last word.
#[test]
fn a_file_that_knows_more_is_read_again() {
    let fixture = native("more");
    fs::copy(fixture.folder.join("libx.so"), fixture.folder.join("whole")).unwrap();
    fixture.tool(&["strip", "--strip-all", "libx.so"]);
    assert!(shown(&fixture).contains('~'));
    fs::copy(fixture.folder.join("whole"), fixture.folder.join("libx.so")).unwrap();
    assert!(shown(&fixture).contains("x.c:7 hidden"));
}

#[test]
fn a_file_that_is_no_library_gives_no_names() {
    let fixture = native("strange");
    let mut stacks = fixture.call_stacks(&[(NATIVE, 1)]);
    stacks["frames"] = json!([
        {"object": 0, "offset": 5}, {"object": 1, "offset": 6}, {"object": 7, "offset": 8},
        {"object": null, "offset": 0x1000}, {"object": 2, "offset": 7},
    ]);
    stacks["stacks"] = json!([{"stack": 0, "frames": [0, 1, 2, 3, 4, 99]}]);
    let pipe = fixture.folder.join("pipe");
    fixture.tool(&["mkfifo", pipe.to_str().unwrap()]);
    let locked = fixture.folder.join("locked\u{1b}[31m");
    fs::write(&locked, "").unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o0)).unwrap();
    stacks["objects"] = json!([
        {"file": pipe, "build_id": "ab12"},
        {"file": "/dev/zero", "build_id": "../../x"},
        {"file": locked, "build_id": null},
    ]);
    fixture.write("s.json", stacks);
    let out = shown(&fixture);
    let parts = "pipe+0x5 < zero+0x6 < +0x8 < 0x1000 < locked\u{fffd}[31m+0x7";
    assert!(
        out.contains("Not here, so without names of functions: "),
        "{out}"
    );
    assert!(
        out.replace("~", "").contains(&parts.replace("+0x8", "0x8")),
        "{out}"
    );
}

/// Files of older libraries name a place's file and function themselves.
#[test]
fn mangled_names_of_older_files_are_read() {
    let fixture = native("older");
    let mut old = statistics();
    old["snapshot"] = json!({
        "frames": [
            {"object": "/gone/libc10.so", "offset": 1, "name": "_ZN3c104cuda20CUDACachingAllocator3getEv"},
            {"object": "/gone/libtorch.so", "offset": 2, "name": "_ZN2at6native10empty_cudaEN3c108ArrayRefIlEE"},
            {"object": "", "offset": 3, "name": null},
        ],
        "stacks": [{"stack": 4, "frames": [0, 1, 2]}],
    });
    old["arenas"][0]["oom_events"] = json!([{
        "time_us": 1_000_500_000, "request_bytes": 1, "rounded_bytes": 512, "at_limit": false,
        "limit_bytes": null, "driver_free_bytes": null, "driver_total_bytes": null,
        "device_reserved_bytes": 1,
        "before": {"reserved_bytes": 1, "live_bytes": 1, "cached_bytes": 0, "limbo_bytes": 0},
        "after": {"reserved_bytes": 1, "live_bytes": 1, "cached_bytes": 0, "limbo_bytes": 0},
        "free_in_sum_bytes": 0, "largest_free_bytes": 0, "fragmented": false,
        "live_sizes": [], "live_stacks": [{"stack": 4, "count": 1, "bytes": 1}], "stack": 4,
    }]);
    fixture.write_whole("old.json", &old);
    let answer = fixture.ask(&["report", "old.json"]);
    assert_eq!(answer.code, Some(0), "{}", answer.errors);
    let flat = answer.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("asked for by at::native::empty_cuda < 0x3"),
        "{flat}"
    );
    assert!(!flat.contains("by call stack, those") || !flat.contains("CUDACachingAllocator"));
    assert!(!flat.contains("who held memory, by call stack"));
}

/// A line of the program, for whoever ran out of memory.
#[test]
fn out_of_memory_names_the_line_that_holds_most() {
    let fixture = native("line");
    let mut whole = statistics();
    whole["call_stacks"] = fixture.call_stacks(&[
        (
            &["empty_cuda", "train.py:41 forward", "train.py:80 main"],
            64,
        ),
        (&["outer", "train.py:41 forward", "train.py:81 main"], 16),
        (&["empty_cuda", "data.py:7 load"], 70),
    ]);
    whole["arenas"][0]["oom_events"] = json!([{
        "time_us": 1_000_500_000, "request_bytes": 1, "rounded_bytes": 512, "at_limit": false,
        "limit_bytes": null, "driver_free_bytes": null, "driver_total_bytes": null,
        "device_reserved_bytes": 1,
        "before": {"reserved_bytes": 1, "live_bytes": 1, "cached_bytes": 0, "limbo_bytes": 0},
        "after": {"reserved_bytes": 1, "live_bytes": 1, "cached_bytes": 0, "limbo_bytes": 0},
        "free_in_sum_bytes": 0, "largest_free_bytes": 0, "fragmented": false, "live_sizes": [],
        "live_stacks": [
            {"stack": 2, "count": 1, "bytes": 70 << 20}, {"stack": 0, "count": 1, "bytes": 64 << 20},
            {"stack": 1, "count": 1, "bytes": 16 << 20},
        ],
        "stack": 2,
    }]);
    fixture.write_whole("s.json", &whole);
    let answer = fixture.ask(&["report", "s.json"]);
    let flat = answer.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("asked for by data.py:7 load"), "{flat}");
    assert!(
        flat.contains("held most train.py:41 forward, 80.0 MiB"),
        "{flat}"
    );
}

/// Of a long stack the innermost places, and the program's own if that is
/// farther out.
#[test]
fn a_long_stack_is_cut_behind_the_programs_own_line() {
    let fixture = native("long");
    let far = "site-packages/nn.py:1 call";
    let own = "train.py:7 <module>";
    let told = |before: usize, after: usize| {
        let mut places = vec![far; before];
        places.push(own);
        places.extend(vec![far; after]);
        fixture.write("s.json", fixture.call_stacks(&[(&places, 1)]));
        let out = shown(&fixture);
        let (_, line) = out.split_once("1.0 MiB 2 blocks ").unwrap();
        line.split_once(" in the end").unwrap().0.to_owned()
    };
    let eight = ["nn.py:1 call"; 8].join(" < ");
    assert_eq!(told(8, 0), format!("{eight} < {own}"));
    assert_eq!(told(9, 1), format!("{eight} < … < {own} < …"));
    assert_eq!(
        told(0, 9),
        format!("{own} < {} < …", &eight["nn.py:1 call < ".len()..])
    );
    assert_eq!(told(0, 2), format!("{own} < nn.py:1 call < nn.py:1 call"));
}
