//! Risk: a process that ends, in whatever way, ends differently with us.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use vramalloc_tests::stage::{self, Kind, Run, STRATEGIES, fresh_folder};

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

#[test]
fn every_way_to_end_is_the_same() {
    let ways = [
        ("return", 0),
        ("exit", 3),
        ("_exit", 4),
        ("abort", -SIGABRT),
        ("atexit", 0),
        ("moved", 0),
        ("destructor", 5),
        ("reset", 0),
        ("released", 0),
        ("fork", 0),
        ("crowded", 0),
        ("handler", 8),
        ("narrow", 8),
    ];
    for kind in Kind::each() {
        for (way, code) in ways {
            let bare = Run::bare("exit_paths", kind).arg(way).go();
            bare.quiet(code);
            let outcome = Run::preloaded("exit_paths", kind).arg(way).go();
            outcome.quiet(code);
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            if bare.has_report() {
                outcome.no_more_violations(&bare);
            }
        }
    }
}

/// An ordinary end leaves the statistics of the one process that allocated, in
/// the folder that it was started in.
#[test]
fn an_ordinary_end_leaves_statistics() {
    for kind in Kind::each() {
        let ways = ["return", "exit", "atexit", "moved", "destructor", "fork"];
        for way in ways.into_iter().chain(["handler", "narrow"]) {
            let outcome = Run::preloaded("exit_paths", kind).arg(way).go();
            let totals = &outcome.stats()["totals"];
            assert_eq!(totals["allocations"], 16, "{}", outcome.what);
        }
    }
}

/// What is done at the end is no place at which a thread is cancelled. The simulated
/// CUDA's report is one.
#[test]
fn a_thread_whose_cancellation_is_pending_ends_the_process() {
    for kind in Kind::each() {
        let pending = |run: Run| run.arg("pending").env("SIM_CUDA_REPORT", "").go();
        pending(Run::bare("exit_paths", kind)).quiet(8);
        let outcome = pending(Run::preloaded("exit_paths", kind));
        outcome.quiet(8);
        assert_eq!(outcome.stats()["final"], true);
    }
}

/// Where the context ends in an exit handler, before the statistics are
/// written, they tell of the program's memory as it was then.
#[test]
fn a_context_that_ends_first_leaves_what_it_held() {
    let run = |kind, way| {
        let run = Run::preloaded("exit_paths", kind).arg(way);
        run.conf("free_sync:strict,trace:100").go().stats()
    };
    for kind in Kind::each() {
        let plain = run(kind, "return");
        assert_eq!(plain["arenas"][0]["ended_unix_ms"], Value::Null);
        let live = &plain["arenas"][0]["live_bytes"]["current"];
        for way in ["reset", "released"] {
            let stats = run(kind, way);
            let arena = &stats["arenas"][0];
            let ended = arena["ended_unix_ms"].as_u64().unwrap();
            assert!(ended <= stats["ended_unix_ms"].as_u64().unwrap());
            for key in [
                "live_bytes",
                "reserved_bytes",
                "frees",
                "size_classes",
                "paddle",
            ] {
                assert_eq!(arena[key], plain["arenas"][0][key], "{kind:?} {way}: {key}");
            }
            let freed = &arena["memory_stats"]["allocation.all.freed"];
            assert_eq!(*freed, arena["frees"], "{kind:?} {way}");
            let mut held = 0;
            for segment in stats["snapshot"]["arenas"][0]["segments"]
                .as_array()
                .unwrap()
            {
                let blocks = segment["blocks"].as_array().unwrap();
                held += (blocks.iter())
                    .filter(|block| block["state"] == "active_allocated")
                    .map(|block| block["size"].as_u64().unwrap())
                    .sum::<u64>();
            }
            assert_eq!(*live, held, "{kind:?} {way}");
            assert!(held > 0);
        }
    }
}

/// Where no handler runs, what was written in between stays.
#[test]
fn a_killed_process_leaves_what_was_written_in_between() {
    let killed = |interval| {
        let run = Run::preloaded("exit_paths", Kind::Driver).arg("killed");
        let outcome = run.conf(&format!("stats_interval_s:{interval}")).go();
        outcome.quiet(-SIGKILL);
        outcome
    };
    let stats = killed(1).stats();
    assert_eq!(stats["final"], false);
    assert_eq!(stats["totals"]["allocations"], 16);
    assert!(killed(0).written.is_empty());

    let run = Run::preloaded("exit_paths", Kind::Driver).arg("return");
    assert_eq!(run.conf("stats_interval_s:1").go().stats()["final"], true);
}

/// Threads that are still allocating when the process ends.
#[test]
fn racing_threads_do_not_hang_or_crash_the_end() {
    for kind in Kind::each() {
        for _ in 0..5 {
            let outcome = Run::preloaded("exit_paths", kind).arg("racing").go();
            outcome.quiet(0);
            outcome.stats();
        }
    }
}

/// A thread that asks for memory up to the end is hardly ever told that the driver has
/// ended, as bare: with the statistics, which take longer than it pauses.
#[test]
fn threads_hear_no_more_of_the_end_than_bare() {
    const RUNS: usize = 6;
    let failed = |run: &Run| {
        let outcome = run.go();
        assert_eq!(outcome.code(), 0, "{}", outcome.what);
        outcome.stdout.contains("failed") || !outcome.violations().is_empty()
    };
    for kind in Kind::each() {
        let run = Run::preloaded("exit_paths", kind).arg("paced");
        let count = (0..RUNS).filter(|_| failed(&run)).count();
        assert!(count < RUNS / 2, "{kind:?}: {count} of {RUNS}");
    }
}

/// What the program prints to a closed number does not come into the files of ours.
#[test]
fn a_closed_output_is_not_a_file_of_ours() {
    for _ in 0..4 {
        let run = Run::preloaded("exit_paths", Kind::Driver).arg("closed");
        let outcome = run.env("VRAMALLOC_RECORD", "recording").go();
        outcome.quiet(0).no_violations();
        let files = outcome.written.iter();
        let mut statistics = files.filter(|(name, _)| name.ends_with(".json"));
        let (_, statistics) = statistics.next().expect(&outcome.what);
        let statistics: Value = serde_json::from_str(statistics).expect(&outcome.what);
        assert_eq!(statistics["final"], true, "{}", outcome.what);
        let recording = &outcome.written["recording"];
        assert!(!recording.starts_with("printed"), "{}", outcome.what);
    }
}

/// Threads of ours that write in between, or look after freed memory, are none of the
/// program's.
#[test]
fn a_process_ends_with_the_last_thread_of_the_program() {
    for option in ["STATS_INTERVAL_S", "PINNED_USE_BACKGROUND_THREADS"] {
        let run = Run::preloaded("exit_paths", Kind::Driver).arg("first");
        let outcome = run.env(&format!("VRAMALLOC_{option}"), "1").go();
        outcome.quiet(0).no_violations();
        assert_eq!(outcome.stats()["final"], true, "{}", outcome.what);
    }
}

/// A signal handler may end the process while the statistics are written, too. Without
/// another thread that is amid the ends of libraries, of which the system leaves out those
/// that have begun.
#[test]
fn an_end_amid_the_end_waits_for_nothing() {
    const RUNS: usize = 20;
    let mut lost = 0;
    for way in ["alarmed", "alone"].repeat(RUNS) {
        let outcome = Run::preloaded("exit_paths", Kind::Driver).arg(way).go();
        // It may have ended before.
        assert!([0, 8].contains(&outcome.code()), "{}", outcome.what);
        // Or ends the process amid the driver's own end.
        if outcome.has_report() {
            outcome.no_violations();
        }
        if way == "alone" && outcome.written.is_empty() {
            lost += 1;
        } else {
            assert_eq!(outcome.stats()["final"], true, "{}", outcome.what);
        }
    }
    assert!(lost <= RUNS / 2, "{lost}");
}

/// What exit handlers free, and threads that they wait for, is told too.
#[test]
fn statistics_tell_what_exit_handlers_do() {
    for kind in Kind::each() {
        for way in ["joined", "handled"] {
            let outcome = Run::preloaded("exit_paths", kind).arg(way).go();
            outcome.quiet(0).no_violations();
            let stats = outcome.stats();
            assert_eq!(stats["totals"]["allocations"], 16, "{}", outcome.what);
            assert_eq!(stats["totals"]["frees"], 16, "{}", outcome.what);
            assert_eq!(stats["final"], true);
        }
    }
}

/// A signal handler that ends the process may have interrupted malloc, which is
/// not to be called then.
#[test]
fn a_process_that_ends_inside_malloc_ends() {
    for kind in Kind::each() {
        Run::bare("exit_in_malloc", kind).go().quiet(3);
        for conf in ["", "stats:off,control:off", "trace:100"] {
            let outcome = Run::preloaded("exit_in_malloc", kind).conf(conf).go();
            outcome.quiet(3);
            if !conf.contains("off") {
                assert_eq!(outcome.stats()["totals"]["allocations"], 1);
            }
        }
    }
}

/// Cancellation that is pending at a request waits until the program's own next
/// point at which a thread can be cancelled.
#[test]
fn a_cancelled_thread_is_served_and_ends_in_the_program() {
    for kind in Kind::each() {
        let outcome = Run::preloaded("cancelled", kind).go();
        outcome.quiet(0);
        let expected = "reached the end: 3, cancelled there: 3\n";
        assert_eq!(outcome.stdout, expected, "{}", outcome.what);
    }
}

/// Only CUDA does not survive a fork: a child whose parent has not used it is
/// served, below the limit that its parent has set.
#[test]
fn a_child_of_a_process_without_cuda_is_served() {
    for kind in Kind::each() {
        let run = Run::preloaded("forks", kind)
            .arg("early")
            .conf("oom_report:off");
        let outcome = run.env("SIM_CUDA_MEMORY", "4G").go();
        outcome.quiet(0);
        assert_eq!(
            outcome.stdout, "begins: 2\na grandchild begins: 2\nhas a child: 102\n",
            "{}",
            outcome.what
        );
        assert_eq!(outcome.written.len(), 2, "{}", outcome.what);
        for text in outcome.written.values() {
            let stats: Value = serde_json::from_str(text).unwrap();
            assert_eq!(stats["totals"]["allocations"], 2);
            assert_eq!(stats["final"], true);
        }
    }
}

/// However a fork came about: within another one, say.
#[test]
fn a_child_of_a_fork_within_a_fork_is_served() {
    for (handler, told) in [
        ("prepare", "begins: 2\nbegins: 2\n"),
        ("child", "begins: 2\n"),
    ] {
        let run = Run::preloaded("forks", Kind::Driver).arg(handler);
        let outcome = run.conf("oom_report:off").env("SIM_CUDA_MEMORY", "4G").go();
        outcome.quiet(0);
        assert_eq!(outcome.stdout, told, "{}", outcome.what);
        assert_eq!(
            outcome.written.len(),
            told.lines().count(),
            "{}",
            outcome.what
        );
    }
}

/// The same if another thread of the parent is in the library: the child has
/// neither that thread nor its locks.
#[test]
fn a_child_of_a_busy_process_without_cuda_is_served() {
    for kind in Kind::each() {
        let run = Run::preloaded("forks", kind).arg("beside");
        let run = run.conf("oom_report:off,stats_interval_s:1");
        let outcome = run.env("SIM_CUDA_MEMORY", "4G").go();
        outcome.quiet(0);
        assert_eq!(outcome.stdout, "begins: 2\n".repeat(20), "{}", outcome.what);
        assert_eq!(outcome.written.len(), 20, "{}", outcome.what);
    }
}

/// However many threads fork, and whatever locks of the program's they wait for.
#[test]
fn forks_at_once_leave_no_child_waiting() {
    let outcome = Run::preloaded("forks", Kind::Driver).arg("many").go();
    outcome.quiet(0);
    assert_eq!(outcome.stdout, "bad: 0\nno deadlock\n", "{}", outcome.what);
}

/// A fork while another thread ends, whose variables are being destroyed, and others
/// allocate: the child has the locks of neither, and nothing that they keep, whether it
/// leaves at once or by its exit handlers; one that executes a program is served, and
/// the statistics of both are whole.
#[test]
fn a_fork_beside_threads_that_end_leaves_both_whole() {
    const FORKS: usize = 40;
    const EXECUTED: usize = FORKS / 8;
    for kind in Kind::each() {
        let forks = |run: Run| {
            let outcome = run.args(["forks", &FORKS.to_string()]).go();
            outcome.quiet(0);
            let (children, allocations) = outcome.stdout.split_once("allocations: ").unwrap();
            let told = (children.to_owned(), allocations.trim().parse().unwrap());
            (told, outcome)
        };
        let ((bare, _), _) = forks(Run::bare("thread_life", kind));
        // The driver refuses each: a free, a small request and a large one.
        let refused = format!("children: 7, others 0, executed {EXECUTED}\n");
        assert_eq!(bare, refused, "{kind:?}");
        let ((children, allocations), outcome) = forks(Run::preloaded("thread_life", kind));
        assert_eq!(children, refused, "{}", outcome.what);
        let texts = outcome.written.values();
        let mut totals: Vec<Value> = texts
            .map(|text| serde_json::from_str::<Value>(text).unwrap()["totals"].take())
            .collect();
        totals.sort_by_key(|totals| totals["allocations"].as_u64());
        let counts = totals.iter().map(|totals| {
            assert_eq!(totals["frees"], totals["allocations"], "{}", outcome.what);
            totals["allocations"].as_u64().unwrap()
        });
        let mut expected = vec![100; EXECUTED];
        expected.push(allocations);
        assert_eq!(counts.collect::<Vec<u64>>(), expected, "{}", outcome.what);
    }
}

/// Nothing is called once the driver is shutting down.
#[test]
fn the_end_makes_no_driver_call() {
    for kind in Kind::each() {
        for way in ["return", "exit"] {
            let outcome = Run::preloaded("exit_paths", kind).arg(way).go();
            outcome.no_violations();
        }
    }
}

/// What the command says at the end of a program that ran under it, in a folder
/// of its own.
#[track_caller]
fn told(program: &[&str], options: &[&str]) -> String {
    let library = stage::library();
    let folder = fresh_folder();
    let output = Command::new(stage::command())
        .args(["run", "--library", library.to_str().unwrap()])
        .args(options)
        .arg("--")
        .arg(stage::built().join("target/programs").join(program[0]))
        .args(&program[1..])
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("SIM_CUDA_REPORT", "/dev/null")
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    said.lines().last().unwrap_or_default().to_owned()
}

/// Of lines that nobody reads the first waits a little, and the others do not.
#[test]
fn many_lines_that_nobody_reads_do_not_add_up() {
    const LINES: usize = 200;
    const ROOM: usize = 64 << 10;
    let (_unread, mut full) = std::io::pipe().unwrap();
    full.write_all(&vec![b'x'; ROOM]).unwrap();
    let began = Instant::now();
    let status = Command::new(stage::built().join("target/programs/exit_paths.driver"))
        .arg("exit")
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("LD_PRELOAD", stage::library())
        .env("VRAMALLOC_CONF", "nonsense:1,".repeat(LINES))
        .env("VRAMALLOC_STATS", "off")
        .stdout(Stdio::null())
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(3));
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

/// `vramalloc run` says that no CUDA memory was seen only where it was not.
#[test]
fn the_command_knows_why_there_are_no_statistics() {
    for kind in Kind::each() {
        let program = |name: &str| format!("{name}.{}", kind.suffix());
        let told = |name, way, options: &[&str]| told(&[&program(name), way], options);
        let exit = told("exit_paths", "_exit", &[]);
        assert!(exit.contains("used CUDA and wrote no statistics"), "{exit}");
        let full = told("exit_paths", "return", &["--stats", "/dev/full"]);
        assert!(
            full.contains("could not be written: /dev/full: No space left"),
            "{full}"
        );
        let well = told("exit_paths", "return", &[]);
        assert!(
            well.contains("statistics written; read them with"),
            "{well}"
        );
        let nothing = told("nothing", "", &[]);
        assert!(nothing.contains("no CUDA memory was seen"), "{nothing}");
    }
}

/// Of contexts that have ended little is kept, and they are counted however
/// many they are.
#[test]
fn thousands_of_contexts_are_pooled_and_counted() {
    for strategy in STRATEGIES {
        let outcome = Run::preloaded("ends", Kind::Driver)
            .args(["many", "5000"])
            .conf(&format!("strategy:{strategy}"))
            .go();
        outcome.quiet(0).no_violations();
        let expected = "5000 contexts, 5000 right, each for less than 30 KiB: 1\n";
        assert_eq!(outcome.stdout, expected, "{}", outcome.what);
        let stats = outcome.stats();
        assert_eq!(stats["totals"]["allocations"], 5000, "{}", outcome.what);
        let arenas = stats["arenas"].as_array().unwrap();
        let told = arenas.iter().filter_map(|arena| arena["sum_of"].as_u64());
        assert_eq!(told.sum::<u64>(), 5000, "{}", outcome.what);
        assert!(arenas.len() < 300, "{}: {}", outcome.what, arenas.len());
        // No two of them were there at once.
        let mut peaks = arenas.iter().map(|arena| &arena["live_bytes"]["peak"]);
        let first = peaks.next().unwrap();
        assert!(peaks.all(|peak| peak == first), "{}", outcome.what);
    }
}
