//! The library among others in a process: the dynamic linker says the same with
//! it as without it, except about the driver's functions.
//!
//! Compiles the pieces in `tests/loader` with the C compiler; their driver has
//! four functions and no CUDA in it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use vramalloc_tests::stage;

/// The pieces and what each is built into.
const PIECES: [(&str, &str, &[&str]); 7] = [
    (
        "driver.c",
        "libcuda.so.1",
        &["-shared", "-Wl,-soname,libcuda.so.1"],
    ),
    ("driver.c", "libother.so", &["-shared"]),
    (
        "driver.c",
        "libcuda.so.7",
        &[
            "-shared",
            "-DNAME=\"libcuda.so.7\"",
            "-Wl,-soname,libcuda.so.1",
        ],
    ),
    (
        "shim.c",
        "shim/libcuda.so.1",
        &["-shared", "-Wl,-soname,libcuda.so.1"],
    ),
    ("next.c", "libnext.so", &["-shared"]),
    ("wraps.c", "libwraps.so", &["-shared"]),
    ("asks.c", "asks", &[]),
];

/// Where the built pieces lie.
fn pieces() -> &'static Path {
    static PIECES_AT: OnceLock<PathBuf> = OnceLock::new();
    PIECES_AT.get_or_init(|| {
        let folder = stage::shared("loader");
        stage::shared("loader/shim");
        for (source, output, flags) in PIECES {
            stage::compile(
                &format!("cabi/tests/loader/{source}"),
                &folder.join(output),
                flags,
            );
        }
        folder
    })
}

/// What `asks` prints under these preloads; `us` stands for the library.
fn asks(preloads: &[&str]) -> Vec<String> {
    asks_of(pieces().to_str().unwrap(), preloads)
}

/// What `asks` prints with libraries from these folders.
fn asks_of(folders: &str, preloads: &[&str]) -> Vec<String> {
    let preload: Vec<String> = preloads
        .iter()
        .map(|name| match *name {
            "us" => stage::debug_library().to_owned(),
            other => pieces().join(other),
        })
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    let output = Command::new(pieces().join("asks"))
        .env("LD_LIBRARY_PATH", folders)
        .env("LD_PRELOAD", preload.join(":"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{:?}: {text}", output.status);
    assert!(output.stderr.is_empty(), "{:?}", output.stderr);
    text.lines().map(str::to_owned).collect()
}

/// The lines that differ, those of `without` replaced by those of `with`.
fn differences(without: &[String], with: &[String]) -> Vec<String> {
    assert_eq!(without.len(), with.len());
    std::iter::zip(without, with)
        .filter(|(without, with)| without != with)
        .map(|(_, with)| with.clone())
        .collect()
}

/// The lines that the library is there to change; it changes no others.
const SWAPPED: [&str; 7] = [
    "driver cuMemAlloc_v2: libvramalloc.so, no error",
    "driver cuMemFree_v2: libvramalloc.so, no error",
    "resolver: libvramalloc.so, by itself: libvramalloc.so",
    "resolver cuMemAlloc at 3020: 0, 0, libvramalloc.so",
    "resolver cuMemFree at 3020: 0, 0, libvramalloc.so",
    "resolver cuCtxCreate at 11040: 0, 0, libvramalloc.so",
    "resolver cuCtxCreate at 12050: 0, 0, libvramalloc.so",
];

#[test]
fn only_driver_functions_with_a_door_are_swapped() {
    assert_eq!(differences(&asks(&[]), &asks(&["us"])), SWAPPED);
}

#[test]
fn failures_the_drivers_own_look_ups_and_other_libraries_are_left_alone() {
    let lines = asks(&["us"]);
    for expected in [
        "the driver itself: libcuda.so.1",
        "resolver cuMemHostAlloc at 2020: 0, 1, nowhere",
        "resolver cuMemAlloc at 99000: 1, -1, nowhere",
        "and then: none",
        "other cuMemAlloc_v2: libother.so, no error",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}");
    }
}

/// A driver that stands before another looks up the other's functions.
#[test]
fn a_driver_before_another_finds_the_other() {
    let folder = pieces().to_str().unwrap();
    let folders = format!("{folder}/shim:{folder}");
    let without = asks_of(&folders, &[]);
    let with = asks_of(&folders, &["us"]);
    assert_eq!(differences(&without, &with), SWAPPED);
    for expected in ["the driver itself: libcuda.so.7", "calls: 41, 43"] {
        assert!(with.iter().any(|line| line == expected), "{with:#?}");
    }
}

#[test]
fn another_preload_before_or_behind_finds_its_next_in_line() {
    let without = asks(&["libnext.so"]);
    assert_eq!(without[0], "isatty: 1000");
    for preloads in [["libnext.so", "us"], ["us", "libnext.so"]] {
        assert_eq!(differences(&without, &asks(&preloads)), SWAPPED);
    }
}

#[test]
fn another_dlsym_before_or_behind_still_does_its_work() {
    let without = asks(&["libwraps.so"]);
    let wrapped = "driver wrapped_cuInit: libcuda.so.1, no error";
    assert!(without.iter().any(|line| line == wrapped), "{without:#?}");
    let behind = asks(&["us", "libwraps.so"]);
    assert_eq!(differences(&without, &behind), SWAPPED);
    // Before us it answers alone.
    let before = asks(&["libwraps.so", "us"]);
    assert_eq!(differences(&without, &before), [""; 0]);
}
