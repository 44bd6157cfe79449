//! Risk: a fence that misses work, on another stream or in another context,
//! or one that stops the host where a mark would do.

use vramalloc_tests::stage::{Kind, Outcome, Run};

/// What the driver lacks, and so how work is marked: whole contexts, stream by
/// stream.
const MARKS: [&str; 2] = ["", "cuCtxRecordEvent"];
/// As above, and not at all: contexts are waited for.
const WAYS: [&str; 3] = ["", "cuCtxRecordEvent", "cuCtxRecordEvent,cuEventCreate"];

const COPIES: [&str; 3] = ["peer", "unified", "host"];

const STREAMS: [&str; 6] = [
    "apart",
    "blocking",
    "default",
    "thread",
    "destroyed",
    "destroyed-blocking",
];

fn run(program: &'static str, kind: Kind, lacks: &str, conf: &str) -> Run {
    Run::preloaded(program, kind)
        .env("SIM_CUDA_LACKS", lacks)
        .conf(conf)
}

fn bare(program: &'static str, kind: Kind, lacks: &str, arguments: &[&str]) -> Outcome {
    let run = Run::bare(program, kind).env("SIM_CUDA_LACKS", lacks);
    let outcome = arguments.iter().fold(run, |run, a| run.arg(a)).go();
    outcome.quiet(0).no_violations();
    outcome
}

/// How often the host waited for a context, and how often events were
/// recorded.
fn waits_and_records(outcome: &Outcome) -> (u64, u64) {
    (
        outcome.driver_calls("cuCtxSynchronize"),
        outcome.driver_calls("cuEventRecord"),
    )
}

#[test]
fn a_copy_between_devices_reads_what_was_there_before() {
    for kind in Kind::each() {
        for copy in COPIES {
            let bare = bare("peer_copy", kind, "", &[copy]);
            let modes = [
                ("deferred", "auto_growth"),
                ("strict", "auto_growth"),
                ("deferred", "naive_best_fit"),
            ];
            for (lacks, (free_sync, strategy)) in WAYS.into_iter().zip(modes) {
                let conf = format!("strategy:{strategy},free_sync:{free_sync}");
                let outcome = run("peer_copy", kind, lacks, &conf).arg(copy).go();
                outcome.quiet(0).no_violations();
                assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            }
        }
    }
}

/// So the test above can fail.
#[test]
fn without_a_fence_the_copy_reads_what_came_later() {
    for copy in COPIES {
        let outcome = run("peer_copy", Kind::Driver, "", "free_sync:immediate")
            .arg(copy)
            .go();
        assert_eq!(outcome.code(), 3, "{}", outcome.what);
    }
}

/// The last block fits only when the copy's source comes back, which no fence
/// may be made for.
#[test]
fn memory_is_short_during_a_capture_while_another_device_reads() {
    for kind in Kind::each() {
        for copy in COPIES {
            bare("peer_copy", kind, "", &[copy, "capture"]);
            for free_sync in ["deferred", "strict"] {
                let outcome = run("peer_copy", kind, "", &format!("free_sync:{free_sync}"))
                    .env("VRAMALLOC_LIMIT", "67M")
                    .args([copy, "capture"])
                    .go();
                outcome.quiet(0).no_violations();
                // Either the last chunk went back, or it was waited for.
                let arena = outcome.stats()["arenas"][0].clone();
                let ways = ["waits", "chunks_released"].map(|key| arena[key].as_u64());
                assert!(ways.iter().any(|n| *n >= Some(1)), "{}", outcome.what);
            }
        }
    }
}

/// A driver that waits for little: what a free from the copying device's
/// context waits for, one from the owner's does not. Memory is short, so that
/// what was freed goes back to the driver before the copy is done.
#[test]
fn memory_freed_from_the_context_that_copies_it_stays_until_then() {
    for kind in Kind::each() {
        for copy in COPIES {
            let narrow = |run: Run| {
                run.args([copy, "there"])
                    .env("SIM_CUDA_NARROW_FREES", "1")
                    .env("SIM_CUDA_MEMORY", "68M")
            };
            let bare = narrow(Run::bare("peer_copy", kind)).go();
            bare.quiet(0).no_violations();
            for conf in [
                "strategy:auto_growth",
                "strategy:passthrough",
                "dedicated_min:512",
                "free_idle_chunk:1",
                "free_sync:strict",
            ] {
                let outcome = narrow(run("peer_copy", kind, "", conf)).go();
                outcome.quiet(0).no_violations();
                assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            }
        }
    }
}

/// In the order of a stream nobody is waited for, whoever has the block.
#[test]
fn a_free_in_the_order_of_a_stream_does_not_stop_the_host() {
    for kind in Kind::each() {
        let steps = [
            "+4M",
            "+4M",
            "w60000000000",
            "a0",
            "q",
            "+4M",
            "q",
            "a1",
            "q",
            "s",
            "-2",
        ];
        let bare = Run::bare("steps", kind).args(steps).go();
        bare.quiet(0).no_violations();
        assert_eq!(bare.stdout.matches("work: 600").count(), 3, "{}", bare.what);
        for conf in [
            "strategy:auto_growth",
            "strategy:naive_best_fit",
            "strategy:passthrough",
            "dedicated_min:512",
            "free_idle_chunk:1",
            "free_sync:strict",
            "free_sync:strict,strategy:passthrough",
        ] {
            for lacks in MARKS {
                let outcome = run("steps", kind, lacks, conf).args(steps).go();
                outcome.quiet(0).no_violations();
                assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
                let live = &outcome.stats()["arenas"][0]["live_bytes"];
                assert_eq!(live["current"], 0, "{}", outcome.what);
            }
        }
    }
}

/// A thread that frees waits for a kernel, which ends only by what another thread
/// submits next. A mark on the default stream would hold that back.
#[test]
fn a_free_that_waits_orders_no_streams_with_each_other() {
    let slow = "cuMemFree_v2:300000000,cuEventSynchronize:300000000,cuCtxSynchronize:300000000";
    let steps = ["+4M", "x3600000000000", "~0", "m200", "y1000"];
    for kind in Kind::each() {
        for lacks in MARKS {
            let bare = bare("steps", kind, lacks, &steps);
            assert!(
                bare.stdout.ends_with("work beside it: 0\n"),
                "{}",
                bare.what
            );
            let outcome = run("steps", kind, lacks, "free_sync:strict")
                .args(steps)
                .env("SIM_CUDA_SLOW", slow)
                .go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
        }
    }
}

/// A thread whose free waits by the driver's own holds the page for that, while a host
/// function that the device's work waits for frees too.
#[test]
fn a_free_in_a_host_function_waits_for_nobody() {
    for kind in Kind::each() {
        for (version, words, conf) in [
            ("13000", "device captured", "free_sync:strict"),
            ("12040", "device", "free_sync:strict"),
            ("12040", "host captured", "free_sync:strict"),
            ("13000", "device large", "free_idle_chunk:1"),
        ] {
            let outcome = words
                .split(' ')
                .fold(Run::preloaded("host_function_free", kind), Run::arg)
                .conf(conf)
                .env("SIM_CUDA_VERSION", version)
                .env("SIM_CUDA_SLOW", "cuMemFree_v2:400000000")
                .go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, "ended\n", "{} {words}", outcome.what);
        }
    }
}

/// Where the device is full and something live lies in every chunk, nothing but
/// a wait for everybody is left; a program that goes on before that finds the
/// memory, and nobody is waited for that had not to be.
#[test]
fn a_full_device_waits_for_the_others_in_the_end() {
    for kind in Kind::each() {
        for (strategy, goes_on) in [
            ("naive_best_fit", "no"),
            ("auto_growth", "no"),
            ("passthrough", "yes"),
        ] {
            for lacks in MARKS {
                let outcome = run("apart", kind, lacks, &format!("strategy:{strategy}"))
                    .env("SIM_CUDA_MEMORY", "128M")
                    .arg("full")
                    .go();
                outcome.quiet(0).no_violations();
                let expected =
                    format!("all of it again: 1\ndevice 1 was still at work: {goes_on}\n");
                assert_eq!(outcome.stdout, expected, "{}", outcome.what);
            }
        }
    }
}

/// Device 1 has room for few things more, and is not done with any. A call of
/// ours that found its queue full would wait for the end of its work.
#[test]
fn marks_for_others_do_not_fill_their_queues() {
    for kind in Kind::each() {
        for conf in [
            "strategy:naive_best_fit",
            "strategy:auto_growth",
            "free_sync:strict",
        ] {
            for lacks in MARKS {
                let outcome = run("apart", kind, lacks, conf)
                    .env("SIM_CUDA_QUEUE", "100")
                    .arg("small")
                    .go();
                outcome.quiet(0).no_violations();
                let expected = "device 1 was still at work: yes\n";
                assert_eq!(outcome.stdout, expected, "{}", outcome.what);
            }
        }
    }
}

/// Drivers that have parts of devices can mark contexts, but for one release.
#[test]
fn another_device_is_not_waited_for_by_a_part() {
    for kind in Kind::each() {
        for strategy in ["naive_best_fit", "auto_growth"] {
            let outcome = run("apart", kind, "", &format!("strategy:{strategy}"))
                .env("SIM_CUDA_MEMORY", "128M")
                .arg("part")
                .go();
            outcome.quiet(0).no_violations();
            let expected = "device 1 was still at work: yes\n";
            assert_eq!(outcome.stdout, expected, "{}", outcome.what);
        }
    }
}

#[test]
fn work_on_every_sort_of_stream_is_waited_for() {
    for kind in Kind::each() {
        for sort in STREAMS {
            for lacks in MARKS {
                let bare = bare("free_after_launch", kind, lacks, &[sort]);
                let outcome = run("free_after_launch", kind, lacks, "").arg(sort).go();
                outcome.quiet(0).no_violations();
                let (bare_waits, bare_records) = waits_and_records(&bare);
                let (waits, records) = waits_and_records(&outcome);
                assert_eq!(waits, bare_waits, "{}", outcome.what);
                let by_stream = records > bare_records;
                assert_eq!(by_stream, !lacks.is_empty(), "{}", outcome.what);
                let whole = outcome.driver_calls("cuCtxRecordEvent") > 0;
                assert_eq!(whole, lacks.is_empty(), "{}", outcome.what);
            }
        }
    }
}

/// The program is a driver-API one: the runtime of that time has no resolver
/// either, but asks for what is newer.
#[test]
fn a_driver_without_a_resolver_is_marked_stream_by_stream() {
    let lacks = "cuCtxRecordEvent,cuGetProcAddress,cuGetProcAddress_v2";
    for sort in STREAMS {
        let bare = bare("free_after_launch", Kind::Driver, lacks, &[sort]);
        let outcome = run("free_after_launch", Kind::Driver, lacks, "")
            .arg(sort)
            .go();
        outcome.quiet(0).no_violations();
        assert_eq!(
            waits_and_records(&outcome).0,
            waits_and_records(&bare).0,
            "{}",
            outcome.what
        );
    }
}

/// Many streams come and go under several threads' frees.
#[test]
fn streams_that_come_and_go_need_no_wait_for_the_context() {
    for (kind, seed) in Kind::ALL.into_iter().zip(["11", "12", "13", "14"]) {
        for lacks in WAYS {
            let arguments = [seed, "4", "800"];
            let bare = bare("stress", kind, lacks, &arguments);
            let outcome = run("stress", kind, lacks, "")
                .args(arguments)
                .env("SIM_CUDA_STRICT", "1")
                .env("SIM_CUDA_SEED", seed)
                .go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            let (waits, bare_waits) = (waits_and_records(&outcome).0, waits_and_records(&bare).0);
            let waited = waits > bare_waits;
            assert_eq!(waited, lacks.contains("cuEvent"), "{}", outcome.what);
        }
    }
}

/// Where what a destroyed stream still does orders with nothing any more, the
/// mark that it left behind is all that covers it.
#[test]
fn a_destroyed_streams_work_is_marked_by_itself() {
    for kind in Kind::each() {
        for sort in ["destroyed", "destroyed-blocking"] {
            let outcome = run("free_after_launch", kind, "cuCtxRecordEvent", "")
                .arg(sort)
                .env("SIM_CUDA_ORPHANS", "1")
                .go();
            outcome.quiet(0).no_violations();
        }
    }
}

/// Marks are slow, so that streams and contexts go while they are made.
#[test]
fn marks_meet_streams_and_contexts_that_are_going() {
    for (what, lacks, slow) in [
        ("streams", "cuCtxRecordEvent", "cuEventRecord:1000000"),
        ("contexts", "cuCtxRecordEvent", "cuEventRecord:1000000"),
        ("contexts", "", "cuCtxRecordEvent:1000000"),
    ] {
        for kind in Kind::each() {
            let arguments = [what, "40"];
            let bare = bare("crossing", kind, lacks, &arguments);
            let outcome = run("crossing", kind, lacks, "")
                .args(arguments)
                .env("SIM_CUDA_SLOW", slow)
                .go();
            outcome.quiet(0).no_violations();
            let (waits, bare_waits) = (waits_and_records(&outcome).0, waits_and_records(&bare).0);
            assert_eq!(waits, bare_waits, "{}", outcome.what);
        }
    }
}

/// Who waits for a thread that is below it, on the same processor, has to
/// sleep: what it offers goes to nobody.
#[test]
fn a_thread_does_not_keep_those_it_waits_for_from_running() {
    for (what, conf, lacks, slow) in [
        ("streams", "", "cuCtxRecordEvent", "cuEventRecord:1000000"),
        ("contexts", "", "", "cuCtxRecordEvent:1000000"),
        ("captures", "", "", "cuCtxRecordEvent:1000000"),
        (
            "requests",
            "strategy:naive_best_fit",
            "",
            "cuMemAlloc_v2:1000000",
        ),
    ] {
        let outcome = run("crossing", Kind::Dynamic, lacks, conf)
            .args([what, "40", "ranked"])
            .env("SIM_CUDA_SLOW", slow)
            .go();
        outcome.quiet(0).no_violations();
        if outcome.stdout.contains("no priorities") {
            eprintln!("skipped: {}", outcome.stdout);
            return;
        }
    }
}

/// What destroyed streams leave behind is let go of, also where nobody frees.
#[test]
fn destroyed_streams_leave_little_behind() {
    for kind in Kind::each() {
        for lacks in WAYS {
            bare("streams", kind, lacks, &["1000"]);
            let outcome = run("streams", kind, lacks, "").arg("1000").go();
            outcome.quiet(0).no_violations();
            let events = outcome.driver_calls("cuEventCreate");
            assert!(events <= 100, "{events} events: {}", outcome.what);
        }
    }
}

/// A mark that cannot be made is made up for by waiting. The programs use no
/// events of their own, so that it is one of ours that fails.
#[test]
fn where_a_mark_fails_the_context_is_waited_for() {
    let faults = [
        ("", "cuCtxRecordEvent"),
        ("", "cuEventCreate"),
        ("cuCtxRecordEvent", "cuEventCreate"),
        ("cuCtxRecordEvent", "cuEventRecord"),
        ("cuCtxRecordEvent", "cuEventQuery"),
    ];
    for (lacks, name) in faults {
        for n in [1, 2, 7] {
            for (program, argument) in [("peer_copy", "peer"), ("streams", "20")] {
                let outcome = run(program, Kind::Driver, lacks, "")
                    .arg(argument)
                    .env("SIM_CUDA_FAULT", &format!("{name}:{n}:999"))
                    .go();
                outcome.quiet(0).no_violations();
            }
        }
    }
}

/// No fence is made in a capture, and there is no request outside of one.
#[test]
fn what_is_freed_in_captures_alone_comes_back() {
    for kind in Kind::each() {
        for conf in ["", "strategy:mapped", "free_sync:strict"] {
            let outcome = Run::preloaded("capture_only", kind).conf(conf).go();
            outcome.quiet(0).no_violations();
            let reserved = &outcome.stats()["arenas"][0]["reserved_bytes"]["peak"];
            let reserved = reserved.as_u64().unwrap();
            assert!(reserved <= 96 << 20, "{reserved}: {}", outcome.what);
        }
    }
}

/// Nor does it need a capture that ends: where much waits, a free does what bare CUDA's does.
#[test]
fn what_is_freed_in_a_long_capture_comes_back() {
    for kind in Kind::each() {
        for conf in ["", "strategy:mapped", "thread_cache:0"] {
            for (what, arenas) in [("one", "arenas"), ("host", "host_arenas")] {
                let outcome = Run::preloaded("capture_only", kind);
                let outcome = outcome.arg(what).conf(conf).go();
                outcome.quiet(0).no_violations();
                let reserved = &outcome.stats()[arenas][0]["reserved_bytes"]["peak"];
                let reserved = reserved.as_u64().unwrap();
                assert!(reserved <= 160 << 20, "{reserved}: {}", outcome.what);
            }
        }
    }
}

/// What is forgotten with a context that ends is nothing of the one that another thread
/// is given under its handle.
#[test]
fn a_capture_in_a_context_with_an_old_handle_stays_valid() {
    for kind in Kind::each() {
        for conf in ["", "free_sync:strict"] {
            let outcome = Run::preloaded("capture_churn", kind).conf(conf).go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, "invalid: 0\n", "{}", outcome.what);
        }
    }
}
