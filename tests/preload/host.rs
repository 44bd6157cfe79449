//! Risk: page-locked host memory is handed out while a copy still uses it, or
//! is something else to the program than the driver's own.

use serde_json::{Value, json};

use vramalloc_tests::stage::{Kind, Outcome, Run, STRATEGIES};

/// Strategies, and what the driver lacks, so that work is marked otherwise.
const WAYS: [(&str, &str); 4] = [
    ("naive_best_fit", ""),
    ("auto_growth", ""),
    ("auto_growth", "cuCtxRecordEvent"),
    ("passthrough", ""),
];

const HOWS: [&str; 7] = [
    "apart",
    "blocking",
    "default",
    "thread",
    "peer",
    "destroyed",
    "capture",
];

/// The bare run, and a preloaded one under each strategy, which must print and
/// violate the same.
fn same_as_bare(
    program: &'static str,
    argument: &str,
    change: impl Fn(Run) -> Run,
    each: impl Fn(&Outcome, &Outcome, &str),
) {
    same_but(program, argument, |line, _| line.to_owned(), change, each);
}

/// The same where lines of the bare run are `told` otherwise under a strategy.
fn same_but(
    program: &'static str,
    argument: &str,
    told: impl Fn(&str, &str) -> String,
    change: impl Fn(Run) -> Run,
    each: impl Fn(&Outcome, &Outcome, &str),
) {
    let with_argument = |run: Run| match argument {
        "" => run,
        argument => run.arg(argument),
    };
    for kind in Kind::each() {
        let bare = change(with_argument(Run::bare(program, kind))).go();
        bare.quiet(0);
        for strategy in STRATEGIES {
            let run = change(with_argument(Run::preloaded(program, kind)));
            let outcome = run.conf(&format!("strategy:{strategy}")).go();
            outcome.quiet(0);
            let expected: Vec<String> = (texts(&bare).into_iter())
                .map(|line| told(line, strategy))
                .collect();
            assert_eq!(texts(&outcome), expected, "{}", outcome.what);
            outcome.no_more_violations(&bare);
            each(&bare, &outcome, strategy);
        }
    }
}

fn same(program: &'static str, argument: &str) {
    same_as_bare(program, argument, |run| run, |_, _, _| {});
}

/// Without the lines that hold amounts.
fn texts(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stdout.lines();
    lines.filter(|line| !line.starts_with("info ")).collect()
}

/// Calls to the driver that take page-locked memory, and that give it back.
fn calls(outcome: &Outcome) -> (u64, u64) {
    let taken = outcome.driver_calls("cuMemHostAlloc") + outcome.driver_calls("cuMemAllocHost_v2");
    (taken, outcome.driver_calls("cuMemFreeHost"))
}

/// The same by the statistics.
fn told(outcome: &Outcome) -> (u64, u64) {
    let stats = outcome.stats();
    let arenas = stats["host_arenas"].as_array().unwrap();
    let sum = |kind: &str| {
        let calls = arenas
            .iter()
            .map(|arena| &arena["driver_calls"][kind]["calls"]);
        calls.map(|calls| calls.as_u64().unwrap()).sum()
    };
    (sum("alloc"), sum("free"))
}

fn locked(outcome: &Outcome) -> u64 {
    outcome.report()["host"]["peak_bytes"].as_u64().unwrap()
}

#[test]
fn pinned_memory_is_what_the_driver_gives() {
    same("host_memory", "");
}

/// Also where the driver's own is aligned as the pool wants it.
#[test]
fn pinned_memory_may_be_aligned_better() {
    let aligned = |run: Run| run.env("SIM_CUDA_HOST_ALIGN", "2M");
    same_as_bare("host_memory", "", aligned, |_, _, _| {});
}

/// Whatever else lies in the memory that the driver has given.
#[test]
fn pinned_memory_has_the_flags_that_it_was_asked_for_with() {
    let packed = |run: Run| run.env("SIM_CUDA_HOST_PACKED", "1");
    same_as_bare("host_memory", "", packed, |_, _, _| {});
    let registers = |run| registers(packed(run));
    same_but("host_memory", "", once_more, registers, |_, _, _| {});
}

/// The same blocks over and over: the pool asks the driver for a few chunks,
/// bare each request is a call.
#[test]
fn a_program_that_repeats_does_without_the_driver() {
    let few = |_: &Outcome, outcome: &Outcome, strategy: &str| {
        let (taken, given) = calls(outcome);
        if strategy == "passthrough" {
            assert_eq!((taken, given), (1440, 1440), "{}", outcome.what);
        } else {
            assert!(taken <= 20 && given <= 20, "{}", outcome.what);
        }
    };
    same_as_bare("host_memory", "30", |run| run, few);
}

#[test]
fn pinned_memory_freed_under_a_copy_waits_for_it() {
    for (how, kind) in HOWS.into_iter().zip(Kind::ALL.into_iter().cycle()) {
        Run::bare("host_in_flight", kind).arg(how).go().quiet(0);
        for (strategy, lacks) in WAYS {
            for free_sync in ["deferred", "strict"] {
                let run = Run::preloaded("host_in_flight", kind).arg(how);
                let run = run.env("SIM_CUDA_LACKS", lacks);
                let conf = format!("strategy:{strategy},free_sync:{free_sync}");
                run.conf(&conf).go().quiet(0).no_violations();
            }
        }
    }
}

/// The end of a kernel may hang on what the program does next. Chunks that do
/// not begin where they must are the driver's memory, too, and its free waits.
#[test]
fn no_allocation_of_pinned_memory_waits_for_a_kernel() {
    for kind in Kind::each() {
        Run::bare("host_does_not_wait", kind).go().quiet(0);
        for align in ["4K", "2M"] {
            let run =
                || Run::preloaded("host_does_not_wait", kind).env("SIM_CUDA_HOST_ALIGN", align);
            for strategy in STRATEGIES {
                let outcome = run().conf(&format!("strategy:{strategy}")).go();
                outcome.quiet(0).no_violations();
            }
            registers(run()).go().quiet(0).no_violations();
        }
    }
}

/// So the test above can fail.
#[test]
fn without_the_fence_the_copy_reads_what_came_later() {
    for how in HOWS {
        let run = Run::preloaded("host_in_flight", Kind::Driver).arg(how);
        let outcome = run.conf("free_sync:immediate").go();
        assert_eq!(outcome.code(), 3, "{}", outcome.what);
    }
}

#[test]
fn pinned_memory_goes_with_its_context() {
    same("host_life", "contexts");
}

#[test]
fn pinned_memory_belongs_to_no_thread() {
    same("host_life", "threads");
}

#[test]
fn a_forked_child_has_no_pinned_memory() {
    same("host_life", "fork");
}

#[test]
fn a_capture_minds_no_pinned_memory() {
    let clean = |bare: &Outcome, outcome: &Outcome, _: &str| {
        bare.no_violations();
        outcome.no_violations();
    };
    same_as_bare("host_life", "captures", |run| run, clean);
}

#[test]
fn pinned_memory_is_freed_late() {
    same("host_life", "atexit");
    same("host_life", "destructor");
}

/// The program gets as much as bare, but for what little a pool needs, and all
/// of it again in another shape.
#[test]
fn a_host_that_is_short_gives_as_much_as_bare() {
    let short = |run: Run| run.env("SIM_CUDA_HOST_MEMORY", "256M");
    let as_much = &|bare: &Outcome, outcome: &Outcome, _: &str| {
        let got = |outcome: &Outcome| -> Vec<u64> {
            let lines = outcome.stdout.lines();
            let amounts = lines.filter_map(|line| line.strip_prefix("info got="));
            amounts.map(|amount| amount.parse().unwrap()).collect()
        };
        for (bare, with) in got(bare).into_iter().zip(got(outcome)) {
            assert!(with + 4 >= bare, "{with} of {bare}: {}", outcome.what);
        }
    };
    same_as_bare("host_life", "short", short, as_much);
    same_as_bare("host_life", "short", |run| registers(short(run)), as_much);
    // Arenas are apart by context and way of asking, and the host is one.
    let two = |run: Run| short(run).env("SIM_CUDA_DEVICES", "2");
    same_as_bare("host_life", "kinds", two, as_much);
    same_as_bare("host_life", "kinds", |run| registers(two(run)), as_much);
    // The program's own memory is of the same host.
    same_as_bare("host_life", "own", short, as_much);
    same_as_bare("host_life", "own", |run| registers(short(run)), as_much);
    // A first chunk whose address does not serve is no loss to others.
    same_as_bare("host_life", "ways", short, as_much);
}

#[test]
fn a_driver_that_takes_nothing_back_holds_nobody_up() {
    for code in [700, 999] {
        for nth in [1, 2] {
            let fault = format!("cuMemFreeHost:{nth}:{code}");
            let run = Run::preloaded("host_life", Kind::Driver).arg("refused");
            run.env("SIM_CUDA_FAULT", &fault).go().quiet(0);
        }
    }
}

/// Beyond the cap the driver serves, and nothing fails; what is asked of it is
/// counted.
#[test]
fn beyond_the_cap_the_driver_serves() {
    let capped = |run: Run| {
        let run = run.env("SIM_CUDA_HOST_MEMORY", "256M");
        run.env("FLAGS_fraction_of_cuda_pinned_memory_to_use", "0.001")
    };
    same_as_bare("host_life", "short", capped, |_, outcome, _| {
        assert_eq!(told(outcome), calls(outcome), "{}", outcome.what);
    });
}

/// One chunk, out of something a little larger.
#[test]
fn a_little_pinned_memory_locks_little() {
    for kind in Kind::each() {
        for (align, most) in [("2M", 320 << 10), ("4K", 320 << 10)] {
            let run = Run::preloaded("host_life", kind).arg("little");
            let outcome = run.env("SIM_CUDA_HOST_ALIGN", align).go();
            outcome.quiet(0).no_violations();
            let bytes = locked(&outcome);
            assert!(bytes <= most, "{bytes}: {}", outcome.what);
        }
    }
}

/// Memory is taken from the system and registered.
fn registers(run: Run) -> Run {
    run.env(
        "PYTORCH_CUDA_ALLOC_CONF",
        "pinned_use_cuda_host_register:True",
    )
    .env("VRAMALLOC_PINNED_NUM_REGISTER_THREADS", "4")
}

/// The program cannot tell: everything is said and answered as of the driver's
/// own memory.
/// The one answer that tells registered memory: it cannot be registered again, while
/// the driver's own cannot be registered at all.
fn once_more(line: &str, strategy: &str) -> String {
    if strategy == "passthrough" {
        return line.to_owned();
    }
    line.replace(
        "a block registered: 1, last error 1",
        "a block registered: 712, last error 712",
    )
    .replace("a block registered: 1,", "a block registered: 712,")
}

#[test]
fn registered_memory_is_what_the_driver_gives() {
    let registered = |bare: &Outcome, outcome: &Outcome, strategy: &str| {
        let count = |outcome: &Outcome| outcome.driver_calls("cuMemHostRegister_v2");
        let pooled = strategy != "passthrough";
        assert_eq!(count(outcome) > count(bare), pooled, "{}", outcome.what);
        if pooled {
            // Stand-ins, write-combined memory, and what the host refuses.
            assert!(calls(outcome).0 <= 20, "{}", outcome.what);
        }
    };
    same_but("host_memory", "", once_more, registers, registered);
}

#[test]
fn registered_memory_freed_under_a_copy_waits_for_it() {
    for (how, kind) in HOWS.into_iter().zip(Kind::ALL.into_iter().cycle()) {
        for conf in ["", "pinned_max_cached_size_mb:0"] {
            let run = registers(Run::preloaded("host_in_flight", kind).arg(how));
            run.conf(conf).go().quiet(0).no_violations();
        }
    }
}

/// Nothing of it is left behind, neither in the process nor with the driver.
#[test]
fn registered_memory_goes_with_its_context() {
    same_as_bare("host_life", "contexts", registers, |_, outcome, _| {
        assert!(
            outcome.stdout.contains("info shared=0\n"),
            "{}",
            outcome.what
        );
    });
    for argument in ["threads", "fork", "captures", "atexit", "destructor"] {
        same_as_bare("host_life", argument, registers, |_, _, _| {});
    }
}

/// As many threads touch it as the option says, this one among them, and none
/// for less than 8 MiB.
#[test]
fn registered_memory_is_touched_by_as_many_threads_as_are_wanted() {
    for (threads, started) in [("1", 0), ("2", 1), ("4", 3), ("64", 7)] {
        for kind in Kind::each() {
            let conf =
                format!("pinned_use_cuda_host_register:True,pinned_num_register_threads:{threads}");
            let run = Run::preloaded("host_touch", kind).env("PYTORCH_CUDA_ALLOC_CONF", &conf);
            let outcome = run.go();
            outcome.quiet(0).no_violations();
            let expected = format!("threads started: {started}\n");
            assert_eq!(outcome.stdout, expected, "{}", outcome.what);
        }
    }
}

/// A device for which registered memory would be something else gets the
/// driver's own.
#[test]
fn where_registered_memory_is_something_else_it_is_not_used() {
    for fault in ["cuMemHostRegister_v2:1:801", "cuDeviceGetAttribute:1:1"] {
        for kind in [Kind::Driver, Kind::Resolver] {
            let bare = Run::bare("host_life", kind).arg("captures").go();
            let run = registers(Run::preloaded("host_life", kind).arg("captures"));
            let outcome = run.env("SIM_CUDA_FAULT", fault).go();
            outcome.quiet(0).no_violations();
            assert_eq!(outcome.stdout, bare.stdout, "{}", outcome.what);
            assert!(calls(&outcome).0 > 1, "{}", outcome.what);
        }
    }
}

/// A thread that looks after what was freed.
fn watches(run: Run) -> Run {
    run.env("PYTORCH_ALLOC_CONF", "pinned_use_background_threads:True")
}

#[test]
fn a_thread_looks_after_freed_memory_where_it_is_asked_for() {
    for kind in Kind::each() {
        let run = Run::preloaded("host_life", kind).arg("watched");
        let polls = |run: Run| {
            let outcome = run.go();
            outcome.quiet(0).no_violations();
            outcome.driver_calls("cuEventQuery")
        };
        let (without, with) = (polls(run.clone()), polls(watches(run)));
        assert!(with > without + 5, "{with} polls, {without} without");
    }
}

/// It is gone before the driver is.
#[test]
fn the_thread_does_not_outlive_the_driver() {
    for argument in ["watched", "atexit", "destructor", "fork", "contexts"] {
        same_as_bare("host_life", argument, watches, |_, _, _| {});
    }
}

/// Options of the pool, by what they do to the driver's calls.
#[test]
fn the_options_of_the_pool_do_what_they_say() {
    let run = |conf: &str| {
        let run = Run::preloaded("host_memory", Kind::Driver).arg("30");
        let outcome = run.env("SIM_CUDA_HOST_ALIGN", "2M").conf(conf).go();
        outcome.quiet(0).no_violations();
        outcome
    };
    // Nothing is cached.
    let outcome = run("pinned_max_cached_size_mb:0");
    assert_eq!(calls(&outcome), (1440, 1440), "{}", outcome.what);
    let outcome = run("pinned_reserve_segment_size_mb:32");
    assert_eq!(calls(&outcome), (1, 0), "{}", outcome.what);
    assert_eq!(locked(&outcome), 32 << 20, "{}", outcome.what);
    let outcome = run("fraction_of_cuda_pinned_memory_to_use:0");
    assert_eq!(calls(&outcome), (1440, 1440), "{}", outcome.what);
}

/// The one arena of page-locked memory in the statistics.
#[track_caller]
fn host_arena(outcome: &Outcome) -> Value {
    let stats = outcome.stats();
    let arenas = stats["host_arenas"].as_array().unwrap();
    assert_eq!(arenas.len(), 1, "{}: {arenas:#?}", outcome.what);
    arenas[0].clone()
}

/// A process without device memory of its own has statistics, too, and they
/// agree with what the driver saw.
#[test]
fn the_statistics_tell_of_pinned_memory() {
    for kind in Kind::each() {
        for strategy in STRATEGIES {
            let run = Run::preloaded("host_life", kind).arg("little");
            let outcome = run.conf(&format!("strategy:{strategy}")).go();
            outcome.quiet(0);
            let arena = host_arena(&outcome);
            let (taken, given) = calls(&outcome);
            // A chunk that comes at an odd address goes back with a later free.
            assert_eq!(told(&outcome), (taken, given), "{}", outcome.what);
            assert!((1..=2).contains(&taken), "{}: {taken}", outcome.what);
            assert_eq!(
                (&arena["device"], &arena["context"]),
                (&0.into(), &0.into())
            );
            assert_eq!(
                (&arena["allocations"], &arena["frees"]),
                (&1.into(), &1.into())
            );
            let host = &arena["host_memory_stats"];
            let direct = strategy == "passthrough";
            assert_eq!(host["num_host_alloc"], 1, "{}", outcome.what);
            assert_eq!(host["num_host_free"], u64::from(direct), "{}", outcome.what);
            assert_eq!(given > 0, direct, "{}", outcome.what);
            assert_eq!(outcome.stats()["arenas"], json!([]), "{}", outcome.what);
        }
    }
}

#[test]
fn each_way_of_asking_has_its_own_pool() {
    let outcome = Run::preloaded("host_memory", Kind::Driver).go();
    let stats = outcome.stats();
    let flags: Vec<_> = (stats["host_arenas"].as_array().unwrap().iter())
        .map(|arena| arena["flags"].clone())
        .collect();
    assert_eq!(flags, [json!(0), json!(1), json!(2), json!(4), Value::Null]);
}

/// Requests of 3000, 6000, 12 000 … bytes, three of each, in pages and in
/// powers of two.
#[test]
fn pinned_requests_are_rounded_as_the_option_says() {
    let live = |conf: &str| {
        let run = Run::preloaded("host_memory", Kind::Driver).arg("1");
        let outcome = run.conf(conf).go();
        host_arena(&outcome)["live_bytes"]["peak"].as_u64().unwrap()
    };
    let pages = live("");
    let powers = live("pinned_max_round_threshold_mb:64");
    let some = live("pinned_max_round_threshold_mb:0");
    assert!(powers > pages && some == pages, "{pages}, {powers}, {some}");
}

/// With the thread nothing is left in limbo, although nobody asks any more.
#[test]
fn the_thread_empties_limbo() {
    for (run, empty) in [
        (
            Run::preloaded("host_life", Kind::Driver).arg("watched"),
            false,
        ),
        (
            watches(Run::preloaded("host_life", Kind::Driver).arg("watched")),
            true,
        ),
    ] {
        let limbo = host_arena(&run.go())["limbo_bytes"]["current"].clone();
        assert_eq!(limbo == 0, empty, "{limbo}");
    }
}
