//! Risk: memory of the wrong device, a context that changes under the program,
//! memory that is handed out while the device still writes to it.

use crate::Comes;
use vramalloc_tests::stage::Kind;

fn expected(comes: Comes) -> Vec<&'static str> {
    let mut lines = vec![
        "released before all: 0",
        "host memory is alike: 1",
        "a late kernel wrote: 0",
    ];
    lines.extend(match comes {
        Comes::First => &["the address came again: 1", "released at last: some"][..],
        // Nothing is pooled.
        Comes::Late => &["released at last: none"],
    });
    lines
}

#[test]
fn memory_lies_where_it_was_asked_for() {
    for kind in Kind::each() {
        for comes in Comes::ALL {
            let outcome = comes
                .run("api_places", kind)
                .env("SIM_CUDA_STRICT", "1")
                .go();
            outcome.quiet(0).no_violations();
            let lines: Vec<&str> = outcome.stdout.lines().collect();
            assert_eq!(lines, expected(comes), "{}", outcome.what);
            let stats = outcome.stats();
            let totals = &stats["totals"];
            assert_eq!(totals["ooms"], 0, "{}", outcome.what);
            let pageable = &stats["pageable"];
            assert_eq!(pageable["allocations"], 2, "{}", outcome.what);
            assert_eq!(pageable["frees"], 2, "{}", outcome.what);
            let mapped = pageable["driver_calls"]["alloc"]["calls"].as_u64();
            assert!(mapped > Some(0), "{}", outcome.what);
            let count = |key: &str| totals[key].as_u64().unwrap();
            // Of the context that was reset, where there is one.
            let left = u64::from(comes == Comes::First);
            let ended = count("frees") + left;
            assert_eq!(count("allocations"), ended, "{}", outcome.what);
        }
    }
}

#[test]
fn a_block_that_cuda_does_not_free_stays_in_its_scope() {
    for kind in Kind::each() {
        for comes in Comes::ALL {
            let outcome = comes
                .run("api_places", kind)
                .arg("refused")
                .env("VRAMALLOC_STRATEGY", "passthrough")
                .env(
                    "SIM_CUDA_FAULT",
                    "cuMemFree_v2:1:999,cuMemFreeAsync:1:999,cuMemFree_v2:4:999",
                )
                .go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, "", "{}", outcome.what);
        }
    }
}
