//! Risk: the statistics say something else than what happened.

use serde_json::{Value, json};

use vramalloc_tests::stage::{Kind, Outcome, Run, STRATEGIES, trace};

/// What a program did, which no door and no strategy changes.
fn deeds(outcome: &Outcome) -> Value {
    let stats = outcome.stats();
    let arenas = stats["arenas"].as_array().unwrap();
    assert_eq!(arenas.len(), 1, "{}", outcome.what);
    let arena = arenas.first().unwrap();
    json!({
        "allocations": arena["allocations"],
        "frees": arena["frees"],
        "requested_bytes": arena["requested_bytes"],
        "size_classes": arena["size_classes"],
    })
}

fn replay(trace: &str, kind: Kind, passes: &str) -> Run {
    Run::preloaded("replay", kind)
        .arg(trace)
        .arg(passes)
        .env("SIM_CUDA_MEMORY", "64G")
}

#[test]
fn every_kind_counts_the_same() {
    let trace = trace("gpt_train");
    let trace = trace.to_string_lossy();
    let mut first = None;
    for strategy in STRATEGIES {
        for kind in Kind::each() {
            let run = replay(&trace, kind, "2").conf(&format!("strategy:{strategy}"));
            let outcome = run.go();
            outcome.quiet(0).no_violations();
            let told = "total allocations=11266 frees=11266 peak_live=";
            assert!(outcome.stdout.contains(told), "{}", outcome.stdout);
            let mut deeds = deeds(&outcome);
            // What is live at the peak: in `passthrough` it takes pages.
            for class in deeds["size_classes"].as_array_mut().unwrap() {
                for peak in ["peak_blocks", "peak_bytes"] {
                    class.as_object_mut().unwrap().remove(peak);
                }
            }
            assert_eq!(deeds["allocations"], 11_266, "{}", outcome.what);
            assert_eq!(deeds["frees"], 11_266, "{}", outcome.what);
            let first = first.get_or_insert(deeds.clone());
            assert_eq!(deeds, *first, "{}", outcome.what);
        }
    }
}

/// From the third pass on, `auto_growth` serves a trace from what it has. (What `llm_infer`
/// needs of slabs goes by chance: see the arena's tests of traces. It takes one at the
/// most, and gives nothing back for it.)
#[test]
fn later_passes_take_nothing_from_the_driver() {
    for (name, slabs) in [("gpt_train", 0), ("varlen_train", 0), ("llm_infer", 1)] {
        let trace = trace(name);
        let trace = trace.to_string_lossy();
        for kind in [Kind::Dynamic, Kind::Static, Kind::Driver] {
            let [[two, freed], [three, freed_then]] = ["2", "3"].map(|passes| {
                let outcome = replay(&trace, kind, passes).go();
                outcome.quiet(0).no_violations();
                ["cuMemAlloc_v2", "cuMemFree_v2"].map(|name| outcome.driver_calls(name))
            });
            let said = format!("{name} {kind:?}: {two} and {freed}, then {three} and {freed_then}");
            assert!(three <= two + slabs && freed == freed_then, "{said}");
        }
    }
}

/// Where the device lags behind, a program needs little more than it holds: it waits
/// for what it has freed rather than take more. That the device goes on while it waits
/// is told by `SIM_CUDA_NAP_NS`.
#[test]
fn a_program_that_waits_needs_little_more_than_it_holds() {
    const LIVE: u64 = 1_150_623_744;
    let trace = trace("llm_infer");
    let trace = trace.to_string_lossy();
    for (strategy, over) in [
        ("auto_growth", 10),
        ("auto_growth", 80),
        ("mapped", 60),
        ("mapped", 80),
    ] {
        let memory = LIVE / 1000 * (1000 + over);
        let run = replay(&trace, Kind::Dynamic, "3")
            .arg("50000")
            .conf(&format!("strategy:{strategy}"))
            .env("SIM_CUDA_NAP_NS", "100000")
            .env("SIM_CUDA_MEMORY", &memory.to_string());
        run.go().quiet(0).no_violations();
    }
}

/// The driver's own count of allocations is that of the statistics, with the
/// page that is kept back where there is a pool.
#[test]
fn driver_calls_are_those_that_the_driver_saw() {
    let trace = trace("gpt_train");
    let trace = trace.to_string_lossy();
    for strategy in STRATEGIES {
        let run = replay(&trace, Kind::Driver, "1").conf(&format!("strategy:{strategy}"));
        let outcome = run.go();
        let calls = outcome.stats()["arenas"][0]["driver_calls"].clone();
        let seen = |function: &str| outcome.driver_calls(function);
        let allocated = seen("cuMemAlloc_v2");
        assert_eq!(calls["alloc"]["calls"], allocated, "{strategy}");
        assert_eq!(calls["free"]["calls"], seen("cuMemFree_v2"), "{strategy}");
    }
}

/// Also what is asked of the driver after all else has failed.
#[test]
fn the_last_calls_before_a_failure_are_counted() {
    for kind in [Kind::Dynamic, Kind::Driver] {
        let outcome = Run::preloaded("oom", kind)
            .env("SIM_CUDA_MEMORY", "1G")
            .go();
        outcome.quiet(0);
        let calls = &outcome.stats()["arenas"][0]["driver_calls"]["alloc"];
        let seen = outcome.driver_calls("cuMemAlloc_v2");
        assert_eq!(calls["calls"], seen, "{}", outcome.what);
    }
}

/// And what waits where a stream captures: the driver's free, of the page that
/// is kept back and of a page that is taken for it.
#[test]
fn waits_by_the_drivers_free_are_counted() {
    for (kind, strategy) in Kind::ALL.into_iter().zip(STRATEGIES.into_iter().cycle()) {
        let run = Run::preloaded("capture_full", kind).env("SIM_CUDA_MEMORY", "64M");
        let outcome = run.conf(&format!("strategy:{strategy}")).go();
        outcome.quiet(0);
        let calls = &outcome.stats()["arenas"][0]["driver_calls"];
        for (told, function) in [("alloc", "cuMemAlloc_v2"), ("free", "cuMemFree_v2")] {
            let seen = outcome.driver_calls(function);
            assert_eq!(calls[told]["calls"], seen, "{told}: {}", outcome.what);
        }
    }
}

/// The statistics name the doors that a program came through.
#[test]
fn doors_are_those_of_the_kind() {
    for (kind, used, unused) in [
        (Kind::Dynamic, "cudaMalloc", "cuMemAllocPitch_v2"),
        (Kind::Static, "cuMemAlloc_v2", "cudaMalloc"),
        (Kind::Driver, "cuMemAlloc_v2", "cuGetProcAddress_v2"),
        (Kind::Resolver, "cuMemAlloc_v2", "cudaMalloc"),
    ] {
        let outcome = Run::preloaded("basics", kind).go();
        let doors = outcome.stats()["doors"].clone();
        let has = |name: &str| doors.as_array().unwrap().contains(&name.into());
        assert!(has(used) && !has(unused), "{}: {doors}", outcome.what);
    }
}
