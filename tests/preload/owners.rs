//! Risk: the statistics name another library than the one that asked for memory, or
//! lose bytes of one.

mod python;

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;
use vramalloc_tests::stage::{self, Kind, Outcome, Run};

/// The kinds of programs whose libraries reach our doors: in a static one they call
/// the runtime that is the program's.
const KINDS: [Kind; 3] = [Kind::Dynamic, Kind::Driver, Kind::Resolver];

/// Copies of one library, which the linker takes for so many.
fn libraries(count: usize) -> Vec<PathBuf> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    const MOST: usize = 40;
    let folder = FOLDER.get_or_init(|| {
        let folder = stage::fresh_folder();
        let first = folder.join("lib0.so");
        let source = stage::root().join("tests/programs/libraries/asker.c");
        stage::compile(&source.to_string_lossy(), &first, &["-shared"]);
        for number in 1..MOST {
            fs::copy(&first, folder.join(format!("lib{number}.so"))).unwrap();
        }
        folder
    });
    let path = |number| folder.join(format!("lib{number}.so"));
    (0..count).map(path).collect()
}

fn run(kind: Kind, conf: &str, count: usize, steps: &str) -> Run {
    let run = Run::preloaded("owners", kind).conf(conf);
    let load = |run: Run, library: PathBuf| run.arg(&library.to_string_lossy());
    let run = libraries(count).into_iter().fold(run, load);
    steps.split_whitespace().fold(run, Run::arg)
}

fn done(run: &Run) -> Outcome {
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    outcome
}

/// What is told of an owner of this name: bytes now, at the peak, and past the pool.
fn of(stats: &Value, name: &str) -> (u64, u64, u64) {
    let owners = stats["owners"].as_array().unwrap();
    let owner = owners.iter().find(|owner| owner["owner"] == name);
    let bytes = |key: &str| owner.map_or(0, |owner| owner[key].as_u64().unwrap());
    (
        bytes("bytes"),
        bytes("peak_bytes"),
        bytes("past_pool_bytes"),
    )
}

/// Small blocks that threads keep, and large ones; each library frees what it took,
/// or others do.
#[test]
fn each_library_has_what_it_asked_for() {
    let steps = "~A:4096:600 ~B:4096:600 +A:4096:100 +B:4096:50 +A:1048576:3 -A:53 +B:512:7";
    for kind in KINDS {
        for conf in [
            "",
            "thread_cache:0",
            "strategy:passthrough",
            "stats_interval_s:0",
        ] {
            let stats = done(&run(kind, conf, 2, steps)).stats();
            let a = (50 * 4096, 100 * 4096 + 3 * 1_048_576, 0);
            assert_eq!(
                of(&stats, "lib0.so"),
                a,
                "{kind:?} {conf}: {}",
                stats["owners"]
            );
            let at_peak = 50 * 4096;
            let b = of(&stats, "lib1.so");
            assert_eq!(b, (at_peak + 7 * 512, at_peak, 0), "{kind:?} {conf}");
            let sum: u64 = (stats["owners"].as_array().unwrap().iter())
                .map(|owner| owner["bytes"].as_u64().unwrap())
                .sum();
            assert_eq!(stats["arenas"][0]["live_bytes"]["current"], sum);
        }
    }
}

/// A call that comes before there is a context goes through the runtime.
#[test]
fn the_first_call_of_a_program_has_its_owner_too() {
    for kind in KINDS {
        let stats = done(&run(kind, "", 1, "+A:4096:1 ! +A:4096:1")).stats();
        assert_eq!(of(&stats, "lib0.so"), (4096, 4096, 0), "{kind:?}");
        let owners = stats["owners"].as_array().unwrap();
        assert_eq!(owners.len(), 1, "{kind:?}: {owners:?}");
    }
}

/// The linker puts a library of the same size where another one was.
#[test]
fn a_library_in_the_place_of_another_is_told_from_it() {
    for kind in KINDS {
        let run = run(kind, "", 1, "~A:4096:9 +A:4096:3 xA");
        let second = libraries(2).remove(1);
        let run = run.arg(&second.to_string_lossy()).arg("+B:4096:5");
        let stats = done(&run).stats();
        for (name, blocks) in [("lib0.so", 3), ("lib1.so", 5)] {
            let (bytes, ..) = of(&stats, name);
            assert_eq!(bytes, blocks * 4096, "{kind:?} {}", stats["owners"]);
        }
    }
}

/// A static program's own runtime calls the driver: the program asks.
#[test]
fn with_a_runtime_of_its_own_the_program_asks() {
    let stats = done(&run(Kind::Static, "", 1, "~A:4096:600 +A:4096:10")).stats();
    assert_eq!(of(&stats, "owners.static"), (40960, 40960, 0));
    let file = stats["owners"][0]["file"].as_str().unwrap();
    assert!(file.ends_with("/owners.static"), "{file}");
}

#[test]
fn memory_past_the_pool_has_its_owner_too() {
    for kind in Kind::each() {
        let steps = "vA:4194304 vB:6291456 wB +A:4096:1";
        let stats = done(&run(kind, "", 2, steps)).stats();
        assert_eq!(of(&stats, "lib0.so").2, 4 << 20, "{kind:?}");
        assert_eq!(of(&stats, "lib1.so"), (0, 0, 0), "{kind:?}");
    }
}

/// More libraries than there are numbers: the last ones count together.
#[test]
fn of_many_libraries_the_last_ones_count_together() {
    let letters = (b'A'..).take(40).map(char::from);
    let steps = letters.map(|letter| format!("+{letter}:4096:2 "));
    let stats = done(&run(Kind::Dynamic, "", 40, &steps.collect::<String>())).stats();
    for number in 0..30 {
        let name = format!("lib{number}.so");
        assert_eq!(of(&stats, &name), (8192, 8192, 0), "{name}");
    }
    assert_eq!(of(&stats, "others"), (81920, 81920, 0));
}

#[test]
fn nobody_is_told_of_where_the_option_is_off() {
    let stats = done(&run(
        Kind::Dynamic,
        "owners:off",
        1,
        "~A:4096:600 +A:4096:9",
    ))
    .stats();
    let owners = stats["owners"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(owners[0]["owner"], Value::Null);
    assert_eq!(owners[0]["bytes"], 9 * 4096);
    let hits = stats["arenas"][0]["thread_hits"].as_u64().unwrap();
    assert!(hits > 300, "{hits}");
}

/// What CUDA takes for itself is told of where the program asked how much is free.
#[test]
fn what_is_nobodys_here_is_told_of_once_the_driver_was_asked() {
    for kind in Kind::each() {
        let run = |steps| run(kind, "", 1, steps).env("SIM_CUDA_CONTEXT_SIZE", "300M");
        let asked = done(&run("+A:4194304:3 vA:8388608 ?")).stats();
        assert_eq!(asked["elsewhere"].as_array().unwrap().len(), 1);
        assert_eq!(asked["elsewhere"][0]["bytes"], 300 << 20, "{kind:?}");
        let never = done(&run("+A:4096:1")).stats();
        assert_eq!(never["elsewhere"].as_array().unwrap().len(), 0, "{kind:?}");
    }
}

/// Memory of a context that has ended is gone: it is nobody's, and what was held at
/// its peak is not added to what others held.
#[test]
fn what_a_context_held_goes_with_it() {
    for kind in KINDS {
        for (steps, peak) in [
            ("+A:1048576:3 ! +A:1048576:1", 3 << 20),
            ("+A:1048576:2 ! +A:1048576:1 ! +A:1048576:1", 2 << 20),
        ] {
            let stats = done(&run(kind, "", 1, steps)).stats();
            let held = of(&stats, "lib0.so");
            assert_eq!(held, (1 << 20, peak, 0), "{kind:?} {steps}");
        }
    }
}
