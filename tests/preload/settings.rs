//! Risk: a bad setting breaks a program, or goes unnoticed.

use std::process::Command;

use crate::stage::{Kind, Run, fresh_folder, library};

#[test]
fn a_bad_value_is_told_once_and_harms_nothing() {
    for kind in Kind::ALL {
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
        for kind in Kind::ALL {
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
