//! Risk: a bad setting breaks a program, or goes unnoticed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use vramalloc_tests::stage::{Kind, Run, fresh_folder, library};

#[test]
fn a_bad_value_is_told_once_and_harms_nothing() {
    for kind in Kind::each() {
        let bare = Run::bare("basics", kind).go();
        let outcome = Run::preloaded("basics", kind)
            .conf("limit:12Q,strategy:best,colour:red")
            .env("VRAMALLOC_FREE_SYNC", "sometimes")
            .go();
        assert_eq!(outcome.code(), 0, "{}", outcome.what);
        assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
        let told = outcome.said();
        assert_eq!(told.len(), 4, "{told:?}");
        for (key, value) in [
            ("limit", "12Q"),
            ("strategy", "best"),
            ("colour", "red"),
            ("FREE_SYNC", "sometimes"),
        ] {
            let matching = told.iter().filter(|line| {
                line.starts_with("vramalloc: ") && line.contains(key) && line.contains(value)
            });
            assert_eq!(matching.count(), 1, "{key} in {told:?}");
        }
        let stats = outcome.stats();
        assert_eq!(stats["warnings"].as_array().unwrap().len(), 4);
        assert_eq!(stats["options"]["strategy"]["value"], "auto_growth");
    }
}

#[test]
fn statistics_that_cannot_be_written_are_told_once() {
    for path in ["/no-such-folder/vramalloc.json", "/dev/null/vramalloc.json"] {
        for kind in Kind::each() {
            let bare = Run::bare("basics", kind).go();
            let outcome = Run::preloaded("basics", kind)
                .env("VRAMALLOC_STATS", path)
                .go();
            assert_eq!(outcome.code(), 0, "{}", outcome.what);
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            let told = outcome.said();
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told.iter().all(|line| line.contains(path)), "{told:?}");
            assert!(outcome.written.is_empty(), "{}", outcome.what);
        }
    }
}

#[test]
fn statistics_go_where_they_are_sent() {
    let off = Run::preloaded("basics", Kind::Dynamic)
        .env("VRAMALLOC_STATS", "off")
        .go();
    off.quiet(0);
    assert!(off.written.is_empty(), "{:?}", off.written.keys());

    let named = Run::preloaded("basics", Kind::Dynamic)
        .env("VRAMALLOC_STATS", "vramalloc.%r.%%.%e.json")
        .env("RANK", "5")
        .go();
    named.stats();
    let name = named.written.keys().next().unwrap();
    assert_eq!(name, "vramalloc.5.%.basics.dynamic.json");

    let shown = Run::preloaded("basics", Kind::Dynamic)
        .env("VRAMALLOC_STATS", "stderr")
        .go();
    assert_eq!(shown.code(), 0);
    assert!(shown.written.is_empty(), "{:?}", shown.written.keys());
    let value: serde_json::Value = serde_json::from_str(&shown.said().join("\n")).unwrap();
    assert_eq!(value["schema"], 1);
}

/// A run with an empty library of this name in the process.
fn beside(name: &str) -> Run {
    let file = fresh_folder().join(name);
    let made = Command::new("gcc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&file)
        .status();
    assert!(made.unwrap().success());
    let preload = format!("{} {}", library().display(), file.display());
    Run::bare("basics", Kind::Dynamic).env("LD_PRELOAD", &preload)
}

#[test]
fn a_framework_keeps_its_own_variables() {
    let paddle = ("FLAGS_gpu_memory_limit_mb", "4096");
    let torch = ("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.5");
    let uncached = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1");
    let always = ("VRAMALLOC_IMPORT", "always");
    for (name, environment, limit) in [
        ("libother.so", vec![paddle], "4GiB"),
        ("libother.so", vec![torch], "0.5"),
        ("libpaddle.so", vec![paddle], "none"),
        ("libpaddle.so", vec![paddle, torch], "0.5"),
        ("libpaddle.so", vec![paddle, always], "4GiB"),
        ("libc10_cuda.so", vec![torch], "none"),
        ("libc10_cuda.so", vec![torch, paddle], "4GiB"),
        ("libc10_cuda.so", vec![torch, uncached], "0.5"),
        ("libc10_cuda.so", vec![torch, always], "0.5"),
    ] {
        let run = environment
            .iter()
            .fold(beside(name), |run, (name, value)| run.env(name, value));
        let outcome = run.go();
        let stats = outcome.quiet(0).stats();
        assert_eq!(
            stats["options"]["limit"]["value"], limit,
            "{}",
            outcome.what
        );
    }
}

/// What is said never ends, stops or changes a program, whatever descriptor 2
/// is.
#[test]
fn nobody_has_to_hear_what_is_said() {
    let ways = ["nobody", "full", "nonblocking", "reused", "closed"];
    for kind in Kind::each() {
        for way in ways {
            let bare = Run::bare("descriptors", kind).arg(way).go();
            bare.quiet(0);
            let outcome = Run::preloaded("descriptors", kind)
                .arg(way)
                .conf("colour:red,limit:12Q")
                .go();
            outcome.quiet(0);
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            let warnings = &outcome.stats()["warnings"];
            assert_eq!(warnings.as_array().unwrap().len(), 2);
        }
    }
    for way in ["nobody", "reused", "closed"] {
        let run = Run::preloaded("descriptors", Kind::Driver).arg(way);
        let outcome = run.env("VRAMALLOC_STATS", "stderr").go();
        outcome.quiet(0);
        assert!(outcome.written.is_empty(), "{}", outcome.what);
    }
}

/// A limit on the size of files is an error of the file, not a signal.
#[test]
fn a_file_that_may_not_grow_is_said_and_harms_nothing() {
    let outcome = Run::preloaded("exit_paths", Kind::Driver)
        .arg("limited")
        .env("SIM_CUDA_REPORT", "/dev/null")
        .go();
    assert_eq!(outcome.code(), 0, "{}", outcome.what);
    let said = outcome.said().join("\n");
    assert!(said.contains("File too large"), "{said}");
    assert!(outcome.written.is_empty(), "{:?}", outcome.written.keys());
}

/// A pipe, or a link to something, under the name that the statistics would
/// have: nothing waits for it and nothing follows it.
#[test]
fn what_waits_under_the_statistics_name_is_left_alone() {
    for (lure, kind) in [
        ("mkfifo $name", Kind::Dynamic),
        ("mkfifo lure && ln -s lure $name", Kind::Static),
        ("ln -s /dev/full $name", Kind::Driver),
    ] {
        let name = format!("name=vramalloc.basics.{}.$$.json", kind.suffix());
        let outcome = Run::preloaded("basics", kind)
            .before(&format!("{name}; {lure}"))
            .go();
        assert_eq!(outcome.code(), 0, "{}", outcome.what);
        let said = outcome.said().join("\n");
        assert!(said.ends_with("no regular file"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// A pipe and a descriptor that the user names in full are written to.
#[test]
fn what_the_user_names_in_full_is_written_to() {
    for (before, target) in [
        (
            "mkfifo f; cat f >vramalloc.got.json & \
             exec 4<>f; \"$@\"; exec 4<&-; wait; exit",
            "f",
        ),
        ("exec 3>vramalloc.got.json", "/dev/fd/3"),
    ] {
        let run = Run::preloaded("basics", Kind::Driver).before(before);
        let outcome = run.env("VRAMALLOC_STATS", target).go();
        outcome.quiet(0).stats();
    }
    // Nobody reads: an error, and no wait for whoever might.
    let run = Run::preloaded("basics", Kind::Driver).before("mkfifo f");
    let outcome = run.env("VRAMALLOC_STATS", "f").go();
    assert_eq!(outcome.code(), 0, "{}", outcome.what);
    assert_eq!(outcome.said().len(), 1, "{}", outcome.stderr);
}

/// What is open already is written to where the program writes, and not over it.
#[test]
fn standard_output_holds_the_statistics_and_what_the_program_said() {
    for target in ["/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"] {
        let bare = Run::bare("descriptors", Kind::Driver).arg("plain").go();
        let run = Run::preloaded("descriptors", Kind::Driver).arg("plain");
        let outcome = run.env("VRAMALLOC_STATS", target).go();
        let stats = outcome.quiet(0).stdout.strip_suffix(&bare.quiet(0).stdout);
        let stats: serde_json::Value =
            serde_json::from_str(stats.unwrap_or_else(|| panic!("{}", outcome.stdout))).unwrap();
        assert_eq!(stats["totals"]["allocations"], 1);
    }
}

/// The folder that the program was started in has another name by its end, was
/// made anew under its own, or has none below the program's root.
#[test]
fn statistics_follow_the_folder_that_the_program_was_started_in() {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    for way in ["renamed", "removed", "rooted"]
        .into_iter()
        .take(2 + usize::from(is_root))
    {
        let mut run = Run::preloaded("exit_paths", Kind::Driver).arg(way);
        if way == "rooted" {
            run = run.env("SIM_CUDA_REPORT", "report.json");
        }
        let outcome = run
            .before(
                "top=$PWD; mkdir start; cd start; \"$@\"; end=$?; cp $top/*/vramalloc.* $top; exit $end",
            )
            .go();
        assert_eq!(outcome.quiet(0).stats()["totals"]["allocations"], 16);
        let name = outcome.written.keys().next().unwrap();
        assert!(name.starts_with("vramalloc.exit_paths.driver."), "{name}");
    }
}

/// A file that is named in full and can be written to, but not replaced: a
/// mount of its own, and one in a folder that takes no files.
#[test]
fn a_file_that_cannot_be_replaced_is_written_in_place() {
    let mut namespace = Command::new("unshare");
    if !(namespace.args(["-rm", "true"]).status()).is_ok_and(|status| status.success()) {
        eprintln!("skipped: nothing can be mounted here");
        return;
    }
    for (target, then) in [
        ("s.json", ""),
        ("in/s.json", "&& mount -o remount,ro,bind in"),
    ] {
        let script = format!(
            "mkdir in; echo longer >host; touch {target}; exec unshare -rm sh -c 'mount --bind in in \
             && mount --bind host {target} {then} && exec \"$@\"' sh \"$@\""
        );
        let run = Run::preloaded("basics", Kind::Driver).before(&script);
        let outcome = run.env("VRAMALLOC_STATS", target).go();
        let written = &outcome.quiet(0).written["host"];
        let stats: serde_json::Value = serde_json::from_str(written).unwrap();
        assert_eq!(stats["final"], true, "{}", outcome.what);
    }
}

/// Where a process of the same name and id was before, or is in another
/// container, both files stay.
#[test]
fn a_file_of_another_process_stays() {
    // Written twice in between, into one file.
    for (way, last) in [("return", true), ("killed", false)] {
        let outcome = Run::preloaded("exit_paths", Kind::Driver)
            .arg(way)
            .conf("stats_interval_s:1")
            .before("echo theirs >vramalloc.exit_paths.driver.$$.json; echo $$ >id")
            .go();
        let pid = outcome.written["id"].trim();
        let name = format!("vramalloc.exit_paths.driver.{pid}");
        assert_eq!(outcome.written.len(), 3, "{:?}", outcome.written.keys());
        assert_eq!(outcome.written[&format!("{name}.json")], "theirs\n");
        let own = &outcome.written[&format!("{name}.1.json")];
        let own: serde_json::Value = serde_json::from_str(own).unwrap();
        assert_eq!(own["final"], last);
    }
}
