//! What is found of the machine, the process's environment and the library.

use std::fs;
use std::path::Path;

use vramalloc_tests::stage::library;

use crate::place::{Place, program};

#[test]
fn without_a_program_the_machine_is_examined() {
    let report = Place::new("machine").doctor(&[]);
    report.no_problem();
    report.finds("ok", "library", "libvramalloc.so");
    report.finds("ok", "device", "0: Simulated");
    report.finds("ok", "runtime", "libcudart.so.13");
    report.finds("ok", "verdict", "nothing stands in the way");

    let report = Place::without_cuda("bare-machine").doctor(&[]);
    report.finds("problem", "driver", "install NVIDIA's driver");
    assert_eq!(report.code, Some(1));
}

#[test]
fn a_driver_that_refuses_is_a_problem() {
    let place = Place::new("refuses").env("SIM_CUDA_FAULT", "cuInit:1:803");
    let report = place.doctor(&[]);
    report.finds(
        "problem",
        "devices",
        "cuInit fails: library and kernel module",
    );
    let none = Place::new("none")
        .env("SIM_CUDA_FAULT", "cuInit:1:100")
        .doctor(&[]);
    none.finds("problem", "devices", "CUDA_VISIBLE_DEVICES");
    // Another program is not concerned.
    place.doctor(&["--", "ls"]).no_problem();
    place.doctor(&["--", "sh", "-c", ":"]).no_problem();

    let place = Place::without_cuda("stub");
    fs::create_dir(place.path("stubs")).unwrap();
    place.shared(
        "stubs/libcuda.so.1",
        "int cuInit(unsigned flags) { return 34; }",
    );
    let stubs = place.path("stubs");
    let report = place.env("LD_LIBRARY_PATH", &stubs).doctor(&[]);
    report.finds("problem", "driver", "stub");
}

#[test]
fn other_preloads_are_named() {
    let place = Place::new("preloads");
    let ours = library().to_str().unwrap().to_owned();
    let rival = place.shared(
        "rival.so",
        "int cudaMalloc(void **p, unsigned long n) { return 2; }\n\
         int cuMemAlloc_v2(void *p, unsigned long n) { return 2; }",
    );
    let other = place.shared("other.so", "int nothing_of_cudas;");
    let copy = place.path("libvramalloc.so");
    fs::copy(&ours, &copy).unwrap();
    let with = |preload: &str| {
        let place = Place::new("preloads-run").env("LD_PRELOAD", preload);
        place.doctor(&["--no-trial", "--", &program("basics.static")])
    };

    let report = with(&format!("{other}:{rival}"));
    report.no_problem();
    report.finds("ok", "preload", "other.so in LD_PRELOAD defines none");
    report.finds(
        "note",
        "preload",
        "rival.so in LD_PRELOAD defines cuMemAlloc_v2, cudaMalloc too",
    );

    let report = with(&format!("{ours} {rival}"));
    report.no_problem();
    report.finds("ok", "preload", "LD_PRELOAD names this library already");
    report.finds("note", "preload", "rival.so");

    let report = with(&format!("{rival}:{ours}"));
    report.finds(
        "problem",
        "preload",
        "stands before this library and takes cuMemAlloc_v2",
    );

    let report = with(&copy);
    report.finds("problem", "preload", "another copy");

    let hides = place.shared(
        "hides.so",
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n\
         void *dlsym(void *h, const char *n) {\n\
         return ((void *(*)(void *, const char *))dlvsym(RTLD_NEXT, \"dlsym\", \
         \"GLIBC_2.2.5\"))(h, n); }",
    );
    let report = with(&format!("{hides}:{ours}"));
    report.finds(
        "problem",
        "preload",
        "stands before this library and exports dlsym",
    );
    // A trial puts the library in front of it.
    let place = Place::new("hidden").env("LD_PRELOAD", &format!("{ours}:{hides}"));
    place
        .doctor(&["--", &program("basics.dynamic")])
        .no_problem();

    let report = with("/nowhere/at/all.so");
    report.no_problem();
    report.finds(
        "note",
        "preload",
        "/nowhere/at/all.so in LD_PRELOAD is not there",
    );
}

#[test]
fn a_runtime_that_looks_past_preloads_is_named() {
    for (how, deep) in [("deepbind", true), ("deep-later", false), ("local", false)] {
        let place = Place::new(&format!("deepbind-{how}"));
        let report = place.doctor(&["--", &program("layers.dynamic"), how]);
        report.no_problem();
        assert_eq!(report.text.contains("deepbind "), deep, "{report:?}");
        if deep {
            report.finds("note", "deepbind", "libcudart.so.12 came into a process");
        }
    }
}

#[test]
fn a_runtime_of_a_program_that_another_became_is_not_taken_for_one() {
    let place = Place::new("deepbind-exec");
    let report = place.doctor(&["--", "nice", "env", &program("basics.dynamic")]);
    report.no_problem();
    report.has_no("deepbind ");
    report.finds(
        "ok",
        "verdict",
        "1671 allocations of basics.dynamic were served",
    );
}

/// In an image with libc alone nothing starts under the library.
#[test]
fn what_the_library_needs_is_looked_for() {
    let place = Place::new("needs");
    let mut bytes = fs::read(library()).unwrap();
    let (name, other) = (b"libgcc_s.so.1\0", b"libgcc_q.so.1\0");
    let at: Vec<usize> = (bytes.windows(name.len()).enumerate())
        .filter(|(_, window)| window == name)
        .map(|(at, _)| at)
        .collect();
    assert!(!at.is_empty());
    for at in at {
        bytes[at..at + other.len()].copy_from_slice(other);
    }
    let copy = place.executable("libvramalloc.so", &bytes);
    let report = place.doctor_of(Path::new(&copy), &[]);
    report.finds(
        "problem",
        "library",
        "libgcc_q.so.1, which the library needs, is nowhere",
    );
    place.doctor(&[]).no_problem();
}

#[test]
fn options_and_the_way_of_the_statistics() {
    let place = Place::new("options")
        .env("VRAMALLOC_CONF", "limit:8G,strategy:best")
        .env("PYTORCH_ALLOC_CONF", "pinned_free_catch_all:True")
        .env("VRAMALLOC_STATS", "/nowhere/at/all.json");
    let report = place.doctor(&["--", "/bin/ls"]);
    report.finds("ok", "option", "limit = 8GiB (VRAMALLOC_CONF)");
    report.finds("ok", "option", "strategy = auto_growth (default)");
    report.finds("problem", "option", "cannot read \"best\"");
    let idle = "pinned_free_catch_all = True (PYTORCH_ALLOC_CONF) has no effect: a free here";
    report.finds("note", "option", idle);
    report.finds("problem", "stats", "/nowhere/at is not a directory");
    report.finds("note", "verdict", "2 problems");

    for (stats, level, words) in [
        ("off", "note", "switched off"),
        ("stderr", "ok", "standard error"),
        ("/tmp/%h/a.json", "note", "/tmp/%h/a.json"),
        ("/tmp/a.%p.json", "ok", "a.%p.json in /tmp"),
    ] {
        let report = Place::new("stats")
            .env("VRAMALLOC_STATS", stats)
            .doctor(&[]);
        report.no_problem();
        report.finds(level, "stats", words);
    }
}
