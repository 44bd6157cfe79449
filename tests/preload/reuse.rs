//! Risk: memory is handed out again while the device still uses it.

use vramalloc_tests::stage::{Kind, Run, STRATEGIES};

fn run(kind: Kind, strategy: &str, free_sync: &str) -> Run {
    Run::preloaded("free_after_launch", kind)
        .conf(&format!("strategy:{strategy},free_sync:{free_sync}"))
}

#[test]
fn a_block_freed_under_a_kernel_waits_for_it() {
    for kind in Kind::each() {
        Run::bare("free_after_launch", kind).go().quiet(0);
        for strategy in STRATEGIES {
            for free_sync in ["deferred", "strict"] {
                run(kind, strategy, free_sync).go().quiet(0).no_violations();
            }
        }
    }
}

/// The same where the driver has no fence for a whole context.
#[test]
fn it_waits_also_under_an_older_driver() {
    for kind in Kind::each() {
        for strategy in ["naive_best_fit", "auto_growth"] {
            run(kind, strategy, "deferred")
                .env("SIM_CUDA_LACKS", "cuCtxRecordEvent")
                .go()
                .quiet(0)
                .no_violations();
        }
    }
}

/// The same where the kernel runs on another device that was given access.
#[test]
fn it_waits_also_for_a_peer() {
    for kind in Kind::each() {
        Run::bare("free_after_launch", kind)
            .arg("peer")
            .go()
            .quiet(0);
        for lacks in ["", "cuCtxRecordEvent"] {
            for free_sync in ["deferred", "strict"] {
                run(kind, "auto_growth", free_sync)
                    .arg("peer")
                    .env("SIM_CUDA_LACKS", lacks)
                    .go()
                    .quiet(0)
                    .no_violations();
            }
        }
    }
}

/// So the tests above can fail.
#[test]
fn without_the_fence_the_overlap_is_seen() {
    for kind in Kind::each() {
        for strategy in ["naive_best_fit", "auto_growth"] {
            let outcome = run(kind, strategy, "immediate").go();
            assert_eq!(outcome.code(), 3, "{}", outcome.what);
        }
    }
}

/// Deferred frees and the allocations after them do not wait; strict ones do.
#[test]
fn only_strict_frees_wait() {
    for kind in Kind::each() {
        let deferred = run(kind, "auto_growth", "deferred").go();
        assert!(!deferred.stdout.contains(": no\n"), "{}", deferred.stdout);
        assert_eq!(deferred.stats()["totals"]["waits"], 0, "{}", deferred.what);
        let strict = run(kind, "auto_growth", "strict").go();
        assert!(!strict.stdout.contains(": yes\n"), "{}", strict.stdout);
        let waits = strict.stats()["totals"]["waits"].as_u64();
        assert!(waits >= Some(5), "{}: {waits:?}", strict.what);
    }
}

/// Many streams, threads, sizes and kernels at once, from a seed.
fn stress(kind: Kind, seed: &str, conf: &str) -> Run {
    Run::preloaded("stress", kind)
        .args([seed, "3", "1500"])
        .env("SIM_CUDA_STRICT", "1")
        .env("SIM_CUDA_SEED", seed)
        .conf(conf)
}

#[test]
fn no_block_is_shared_with_a_late_kernel_under_stress() {
    for (kind, seed) in Kind::ALL.into_iter().zip(["1", "2", "3", "4"]) {
        let bare = Run::bare("stress", kind).args([seed, "3", "1500"]).go();
        bare.quiet(0);
        for strategy in STRATEGIES {
            for lacks in ["", "cuCtxRecordEvent"] {
                let run = stress(kind, seed, &format!("strategy:{strategy}"));
                let outcome = run.env("SIM_CUDA_LACKS", lacks).go();
                outcome.quiet(0).no_violations();
                assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            }
        }
    }
}

/// So the test above can fail.
#[test]
fn stress_sees_what_happens_without_the_fence() {
    let conf = "strategy:auto_growth,free_sync:immediate";
    let damaged = ["1", "2", "3"].map(|seed| stress(Kind::Driver, seed, conf).go().code());
    assert_eq!(damaged, [3; 3]);
}
