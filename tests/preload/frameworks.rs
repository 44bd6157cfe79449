//! Risk: a framework's option does something else here than there.
//!
//! What an option of ours does is shown beside it; these are the frameworks'
//! other names for them, each as the framework's user gives it.

use vramalloc_tests::stage::{Kind, Outcome, Run};

fn under(program: &'static str, name: &str, value: &str) -> Outcome {
    let outcome = Run::preloaded(program, Kind::Driver)
        .env("SIM_CUDA_MEMORY", "2G")
        .env(name, value)
        .go();
    outcome.quiet(0).no_violations();
    outcome
}

/// MiB that the device seems to have.
fn total(outcome: &Outcome) -> &str {
    let mut words = outcome.stdout.split_whitespace();
    words.find_map(|word| word.strip_prefix("total=")).unwrap()
}

#[test]
fn limits_make_the_device_small() {
    for (name, value, expected) in [
        ("FLAGS_gpu_memory_limit_mb", "1024", "1024"),
        ("FLAGS_gpu_memory_limit_mb", "0", "2048"),
        (
            "PYTORCH_CUDA_ALLOC_CONF",
            "per_process_memory_fraction:0.25",
            "512",
        ),
        (
            "PYTORCH_ALLOC_CONF",
            "per_process_memory_fraction:1.0",
            "2048",
        ),
    ] {
        let outcome = under("oom", name, value);
        assert_eq!(total(&outcome), expected, "{}", outcome.what);
    }
}

/// The strategy that a run shows by what it took from the driver.
fn strategy(name: &str, value: &str) -> &'static str {
    let stats = under("basics", name, value).stats();
    let totals = &stats["totals"];
    let reserved = &stats["arenas"][0]["reserved_bytes"]["peak"];
    let mapped = &stats["arenas"][0]["driver_calls"]["map"]["calls"];
    if mapped.as_u64() > Some(0) {
        "mapped"
    } else if totals["direct"] == totals["allocations"] {
        "passthrough"
    } else if reserved.as_u64() > Some(1 << 30) {
        "naive_best_fit"
    } else {
        "auto_growth"
    }
}

#[test]
fn strategies_are_those_of_our_name() {
    for name in ["naive_best_fit", "auto_growth", "mapped", "passthrough"] {
        assert_eq!(strategy("VRAMALLOC_STRATEGY", name), name);
    }
    let flag = "FLAGS_allocator_strategy";
    assert_eq!(strategy(flag, "naive_best_fit"), "naive_best_fit");
    assert_eq!(strategy(flag, "thread_local"), "auto_growth");
    let system = "FLAGS_use_system_allocator";
    assert_eq!(strategy(system, "True"), "passthrough");
    assert_eq!(strategy(system, "False"), "auto_growth");
    let mapped = "FLAGS_use_virtual_memory_auto_growth";
    assert_eq!(strategy(mapped, "True"), "mapped");
    assert_eq!(strategy(mapped, "False"), "auto_growth");
    let conf = "PYTORCH_CUDA_ALLOC_CONF";
    assert_eq!(strategy(conf, "expandable_segments:True"), "mapped");
}

#[test]
fn a_deletion_that_is_not_fast_waits() {
    let waits = |value| {
        let outcome = under("free_after_launch", "FLAGS_fast_eager_deletion_mode", value);
        outcome.stats()["totals"]["waits"].as_u64().unwrap()
    };
    assert_eq!(waits("True"), 0);
    assert!(waits("False") >= 5);
}
