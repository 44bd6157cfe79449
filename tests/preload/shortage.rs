//! Risk: out of memory too early, too late, or with another answer than CUDA's.

use vramalloc_tests::stage::{Kind, Outcome, Run, STRATEGIES};

/// The lines that no pool and no cap changes.
fn fixed(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stdout.lines();
    lines.filter(|line| !line.starts_with("info ")).collect()
}

/// A number of the first "info" line, in MiB.
fn info(outcome: &Outcome, key: &str) -> u64 {
    let line = outcome.stdout.lines().find(|l| l.starts_with("info "));
    let mut words = line.unwrap().split(' ');
    let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap().parse().unwrap()
}

#[test]
fn the_end_of_memory_is_told_as_by_the_driver() {
    for kind in Kind::each() {
        let bare = Run::bare("oom", kind).env("SIM_CUDA_MEMORY", "2G").go();
        bare.quiet(0).no_violations();
        for strategy in STRATEGIES {
            let outcome = Run::preloaded("oom", kind)
                .env("SIM_CUDA_MEMORY", "2G")
                .conf(&format!("strategy:{strategy}"))
                .go();
            outcome.quiet(0).no_violations();
            assert_eq!(fixed(&outcome), fixed(&bare), "{}", outcome.what);
            let stats = outcome.stats();
            assert!(stats["totals"]["ooms"].as_u64() > Some(0));
            // A pool may not cost the program memory that it could have.
            let (got, could) = (info(&outcome, "got"), info(&bare, "got"));
            assert!(got + 8 >= could, "{}: {got} of {could}", outcome.what);
        }
    }
}

#[test]
fn a_limit_makes_the_device_small() {
    for kind in Kind::each() {
        for strategy in STRATEGIES {
            let outcome = Run::preloaded("oom", kind)
                .conf(&format!("strategy:{strategy},limit:1G"))
                .go();
            outcome.quiet(0).no_violations();
            let [total, free, got] = ["total", "free", "got"].map(|key| info(&outcome, key));
            assert_eq!(total, 1024, "{}", outcome.what);
            assert!(free <= total, "{}: {free}", outcome.what);
            assert!((1000..=1024).contains(&got), "{}: {got}", outcome.what);
            let stats = outcome.stats();
            let reserved = &stats["arenas"][0]["reserved_bytes"]["peak"];
            assert!(
                reserved.as_u64().is_some_and(|bytes| bytes <= 1 << 30),
                "{}",
                outcome.what
            );
            assert!(stats["totals"]["limit_ooms"].as_u64() > Some(0));
        }
    }
}

/// A limit above what the device has changes nothing.
#[test]
fn a_limit_never_makes_the_device_large() {
    for kind in Kind::each() {
        let outcome = Run::preloaded("oom", kind)
            .env("SIM_CUDA_MEMORY", "1G")
            .conf("limit:64G")
            .go();
        assert_eq!(info(&outcome, "total"), 1024, "{}", outcome.what);
    }
}

/// One line tells a person what happened, however often it happens.
#[test]
fn running_out_is_told_in_one_line() {
    let outcome = Run::preloaded("oom", Kind::Dynamic)
        .env("SIM_CUDA_MEMORY", "1G")
        .go();
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    outcome.quiet(0);
}

/// What the device has lost is within the limit at every moment, however the
/// driver rounds: a request above 1 MiB takes pages of 2 MiB, smaller ones
/// share them, and a page is kept back.
#[test]
fn a_limit_holds_on_the_device_itself() {
    const LIMIT: u64 = 64 << 20;
    for conf in [
        "passthrough",
        "auto_growth,dedicated_min:512",
        "auto_growth",
        "naive_best_fit",
    ] {
        for (size, at_least) in [(700, 60), (1100, 30), (3000, 14), (5, 80)] {
            let run = Run::preloaded("steps", Kind::Driver)
                .conf(&format!("strategy:{conf}"))
                .env("VRAMALLOC_LIMIT", "64M");
            let wanted = format!("+{size}K");
            let outcome = (0..100).fold(run.arg("i"), |run, _| run.arg(&wanted)).go();
            outcome.quiet(0).no_violations();
            let lost = outcome.report()["devices"][0]["peak_bytes"].as_u64();
            assert!(
                lost.is_some_and(|lost| lost <= LIMIT),
                "{lost:?}: {}",
                outcome.what
            );
            let got = outcome.stdout.lines().filter(|line| line.ends_with(": 0"));
            let got = got.count();
            assert!(got >= at_least, "{got}: {}", outcome.what);
        }
    }
}

/// Small allocations come and go, and what pages they leave behind count.
#[test]
fn a_limit_counts_pages_that_small_allocations_hold() {
    let steps = (0..200).map(|_| "+600K".to_owned());
    let frees = (0..200).step_by(3).map(|n| format!("-{n}"));
    let again = (0..100).map(|_| "+2000".to_owned());
    // One page more than they hold: in which page the driver puts a small
    // allocation is known only afterwards.
    let run = Run::preloaded("steps", Kind::Driver).conf("strategy:passthrough,limit:66M");
    let steps = steps.take(96).chain(frees.take(32)).chain(again);
    let outcome = steps.fold(run, |run, step| run.arg(&step)).go();
    outcome.quiet(0).no_violations();
    let lost = outcome.report()["devices"][0]["peak_bytes"].as_u64();
    assert_eq!(lost, Some(64 << 20), "{}", outcome.what);
    assert!(
        outcome.stdout.lines().all(|line| line.ends_with(": 0")),
        "{}",
        outcome.stdout
    );
}

/// Pages have room enough in sum, and not in one piece.
#[test]
fn no_limit_is_passed_for_a_moment() {
    let steps = ["+600K", "+600K", "+600K", "+1500K", "-1", "+700K"];
    let run = Run::preloaded("steps", Kind::Driver).conf("strategy:passthrough,limit:4M");
    let outcome = run.args(steps).go();
    outcome.no_violations();
    let lost = outcome.report()["devices"][0]["peak_bytes"].as_u64();
    assert_eq!(lost, Some(4 << 20), "{}", outcome.what);
    let codes = outcome.stdout.lines().filter(|line| line.ends_with(": 0"));
    assert_eq!(codes.count(), 4, "{}", outcome.stdout);
}

/// A free that waits has no page for that below a small limit.
#[test]
fn no_limit_is_passed_to_wait_in_a_free() {
    let outcome = Run::preloaded("steps", Kind::Driver)
        .conf("free_sync:strict,limit:16M")
        .env("SIM_CUDA_LACKS", "cuCtxRecordEvent")
        .args(["+1000", "+1000", "+14M", "-0"])
        .go();
    outcome.quiet(0).no_violations();
    let lost = outcome.report()["devices"][0]["peak_bytes"].as_u64();
    assert_eq!(lost, Some(16 << 20), "{}", outcome.what);
}

/// A pool of the program's own, as large as ours: told in the line.
#[test]
fn a_second_pool_in_ours_is_named() {
    let line = |strategy: &str| {
        let outcome = Run::preloaded("steps", Kind::Driver)
            .env("SIM_CUDA_MEMORY", "2G")
            .conf(&format!("strategy:{strategy}"))
            .args(["+1M", "+1M", "-0", "+1788M", "+1788M"])
            .go();
        outcome.quiet(0).no_violations();
        outcome.stderr.clone()
    };
    let naive = line("naive_best_fit");
    assert!(
        naive.contains("not in one piece (naive_best_fit holds"),
        "{naive}"
    );
    let growth = line("auto_growth");
    assert!(growth.contains("too little; said once"), "{growth}");
}

/// A wait during a capture frees what is kept back for it, and takes it again:
/// others that ask the driver meanwhile do not get it.
#[test]
fn a_crowd_beside_a_capture_is_served_from_what_it_frees() {
    for kind in Kind::each() {
        let crowd = |run: Run| {
            let run = run.arg("80").env("SIM_CUDA_MEMORY", "80M");
            let outcome = run.env("SIM_CUDA_SLOW", "cuMemAlloc_v2:100000").go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, "refused: 0\n", "{}", outcome.what);
        };
        crowd(Run::bare("capture_crowd", kind));
        for conf in ["", "thread_cache:0", "strategy:naive_best_fit"] {
            crowd(Run::preloaded("capture_crowd", kind).conf(conf));
        }
    }
}

/// What is kept back for waits is taken from no memory that the program needs.
#[test]
fn the_last_page_is_the_programs() {
    for kind in Kind::each() {
        let found = |run: Run| {
            let outcome = run.env("SIM_CUDA_MEMORY", "64M").go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, "missing: 0\n", "{}", outcome.what);
        };
        found(Run::bare("capture_last_page", kind));
        for conf in [
            "",
            "dedicated_min:1M",
            "strategy:passthrough",
            "limit:60M,dedicated_min:1M",
        ] {
            found(Run::preloaded("capture_last_page", kind).conf(conf));
        }
    }
}

/// What was freed in a capture is there for a stream and for memory past the pool too.
#[test]
fn what_a_capture_freed_makes_room_past_the_pool() {
    for (kind, mib) in Kind::each().flat_map(|kind| ["20", "30"].map(|mib| (kind, mib))) {
        let found = |run: Run| {
            let outcome = run.arg(mib).env("SIM_CUDA_MEMORY", "301M").go();
            outcome.quiet(0).no_violations();
        };
        found(Run::bare("capture_room", kind));
        for conf in [
            "",
            "thread_cache:0",
            "strategy:passthrough",
            "free_sync:strict",
        ] {
            let conf = format!("oom_report:off,{conf}");
            found(Run::preloaded("capture_room", kind).conf(&conf));
        }
    }
}

/// Nor is more taken to wait for another context, or once its memory cannot be unmapped;
/// and what was freed is not refused.
#[test]
fn no_limit_is_passed_during_a_capture() {
    for (how, conf) in [
        ("works", ""),
        ("works", "free_sync:strict"),
        ("works", "strategy:naive_best_fit"),
        ("works", "strategy:mapped"),
        ("ends", ""),
        ("ends", "strategy:mapped"),
        ("made", ""),
        ("made", "free_sync:strict"),
    ] {
        for kind in Kind::each() {
            let run = Run::preloaded("capture_at_limit", kind).arg(how);
            let outcome = run.conf(&format!("limit:40M,{conf}")).go();
            outcome.quiet(0).no_violations();
            let peak = outcome.report()["devices"][0]["peak_bytes"].as_u64();
            assert!(
                peak.is_some_and(|peak| peak <= 40 << 20),
                "{peak:?}: {}",
                outcome.what
            );
        }
    }
}

/// What another context keeps back is taken from no memory that the program has just freed,
/// and a wait that has borrowed it holds up nobody who uses that context.
#[test]
fn two_contexts_of_a_full_device_do_not_stand_in_each_others_way() {
    for (how, memory) in [
        ("to_and_fro", "64M"),
        ("large", "128M"),
        ("ends", "64M"),
        ("free", "64M"),
        ("pool", "64M"),
    ] {
        for kind in Kind::each() {
            let found = |run: Run| {
                let run = run.arg(how).env("SIM_CUDA_MEMORY", memory);
                let outcome = run.env("SIM_CUDA_POOL_GRAIN", "2M").go();
                outcome.quiet(0).no_violations();
                let expected = "refused: 0, held up: 0\n";
                assert_eq!(outcome.stdout, expected, "{}", outcome.what);
            };
            found(Run::bare("beside_full", kind));
            for conf in ["", "strategy:mapped", "free_sync:strict"] {
                found(Run::preloaded("beside_full", kind).conf(conf));
            }
        }
    }
}

/// It is there in a capture, also where memory was short when the program began; but not of
/// what the program was told to be free.
#[test]
fn a_lone_context_waits_in_a_capture_however_it_began() {
    // At the first request there is no room for the stream that mapping needs.
    let every = ["", "free_sync:strict", "strategy:mapped"];
    for (how, confs) in [
        ("nearly_full", &every[..]),
        ("ample_later", &every[..2]),
        ("told", &every[..2]),
    ] {
        for kind in Kind::each() {
            let found = |run: Run| {
                let run = run.arg(how).env("SIM_CUDA_MEMORY", "64M");
                run.go().quiet(0).no_violations();
            };
            found(Run::bare("page_kept", kind));
            for conf in confs {
                let conf = format!("oom_report:off,{conf}");
                found(Run::preloaded("page_kept", kind).conf(&conf));
            }
        }
    }
}
