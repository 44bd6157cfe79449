//! Risk: a call of CUDA's fails for lack of memory that lies idle in our pools,
//! or ours for lack of what lies idle in CUDA's.

use vramalloc_tests::stage::{Kind, Outcome, Run, STRATEGIES};

fn run(kind: Kind, strategy: &str, steps: &str) -> Run {
    let run = Run::preloaded("families", kind)
        .conf(&format!("strategy:{strategy}"))
        .env("SIM_CUDA_MEMORY", "1G");
    steps.split_whitespace().fold(run, Run::arg)
}

/// The code of the last step of a run to an end without violations.
#[track_caller]
fn last(run: &Run) -> u32 {
    let outcome: Outcome = run.go();
    outcome.quiet(0).no_violations();
    let line = outcome.stdout.lines().last().expect(&outcome.what);
    let (_, code) = line.rsplit_once(": ").unwrap();
    code.parse().unwrap()
}

/// A program that gave 90 % of the device back gets half of it by each family.
#[test]
fn freed_memory_can_be_had_by_each_family() {
    for kind in Kind::each() {
        for strategy in STRATEGIES {
            for way in ["pool", "virtual", "managed", "array", "graph"] {
                let run = run(kind, strategy, &format!("plain:900M give {way}:500M"));
                assert_eq!(last(&run), 0, "{run}");
            }
        }
    }
}

/// The same where the device still works with the memory.
#[test]
fn freed_memory_is_waited_for() {
    for way in ["pool", "virtual", "array", "graph"] {
        let steps = format!("plain:900M work:1000000 give {way}:500M");
        // A question that the host asks takes as long there as here, or nearly.
        let run = run(Kind::Driver, "auto_growth", &steps).env("SIM_CUDA_CALL_NS", "20000");
        assert_eq!(last(&run), 0, "{run}");
        // The simulated driver's own pools wait by themselves.
        let impatient = run.env("VRAMALLOC_ROOM_WAIT_MS", "0");
        let expected = if way == "pool" { 0 } else { 2 };
        assert_eq!(last(&impatient), expected, "{impatient}");
    }
}

/// What one of them gives back is there for the others, too, whoever finds it
/// on its way.
#[test]
fn freed_memory_can_be_had_by_threads_at_once() {
    for way in ["pool", "virtual", "managed", "array", "graph"] {
        for limit in ["none", "1G"] {
            let steps = format!("plain:900M give three-{way}:300M");
            let run = run(Kind::Driver, "auto_growth", &steps)
                .env("VRAMALLOC_LIMIT", limit)
                .env("SIM_CUDA_SLOW", "cuMemFree_v2:3000000");
            assert_eq!(last(&run), 0, "{run}");
        }
    }
}

/// Nothing is waited for, and nothing goes back, for more than there is.
#[test]
fn what_can_never_be_had_is_not_waited_for() {
    let steps = "plain:300M work:1000000000000 give virtual:100G info";
    let run = run(Kind::Driver, "auto_growth", steps).env("VRAMALLOC_ROOM_WAIT_MS", "100000");
    let began = std::time::Instant::now();
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    assert!(outcome.stdout.contains("virtual:100G: 2\n"), "{run}");
    assert!(began.elapsed().as_secs() < 60, "{run}");
}

#[test]
fn freed_memory_can_be_had_by_another_context() {
    for kind in Kind::each() {
        for strategy in STRATEGIES {
            let run = run(kind, strategy, "plain:600M give enter");
            let run = run.env("SIM_CUDA_CONTEXT_SIZE", "300M");
            assert_eq!(last(&run), 0, "{run}");
        }
    }
}

/// A full device makes neither a context nor a stream, however little they take.
#[test]
fn freed_memory_makes_room_for_contexts_and_streams() {
    const FULL: &str = "fill-plain:64M fill-plain:2M";
    for step in ["enter", "stream:0", "other", "after"] {
        let freed = format!("{FULL} all {step}");
        for kind in Kind::each() {
            for strategy in STRATEGIES {
                let run = run(kind, strategy, &freed);
                assert_eq!(last(&run), 0, "{run}");
            }
        }
        let without = run(Kind::Driver, "auto_growth", &freed).env("VRAMALLOC_ROOM", "off");
        assert_eq!(last(&without), 2, "{without}");
        let live = run(Kind::Driver, "auto_growth", &format!("{FULL} {step}"));
        assert_eq!(last(&live), 2, "{live}");
    }
}

/// Without the option the calls fail.
#[test]
fn without_the_option_nothing_goes_back() {
    for step in ["virtual:500M", "array:500M", "graph:500M", "enter"] {
        let run = run(
            Kind::Driver,
            "auto_growth",
            &format!("plain:600M give {step}"),
        )
        .env("SIM_CUDA_CONTEXT_SIZE", "300M")
        .env("VRAMALLOC_ROOM", "off");
        assert_eq!(last(&run), 2, "{run}");
    }
}

/// Calls that take memory for CUDA's own use are made once more, if something
/// went back.
#[test]
fn calls_that_find_no_memory_are_made_once_more() {
    for (function, step) in [
        ("cuCtxSetLimit", "stack:4096"),
        ("cuEventCreate", "event:0"),
        ("cuStreamCreate", "stream:0"),
        ("cuCtxCreate_v2", "enter"),
        ("cuMemMap", "virtual:2M"),
        ("cuMemImportFromShareableHandle", "import"),
        ("cuMemPoolImportPointer", "import"),
    ] {
        let after = |first: &str| {
            let run = run(Kind::Driver, "auto_growth", &format!("{first} {step}"));
            run.env("SIM_CUDA_FAULT", &format!("{function}:1:2"))
        };
        let run = after("plain:900M give");
        assert_eq!(last(&run), 0, "{run}");
    }
}

/// Nothing idle, no second call: the driver's answer stands.
#[test]
fn a_call_is_not_repeated_for_nothing() {
    let run = run(Kind::Driver, "auto_growth", "array:900M array:500M");
    let outcome = run.go();
    outcome.no_violations();
    assert_eq!(outcome.driver_calls("cuArrayCreate_v2"), 2, "{run}");
}

/// Our own pool gets what CUDA's pools and graphs keep.
#[test]
fn what_the_driver_keeps_can_be_had_by_our_pools() {
    for kind in Kind::each() {
        for strategy in STRATEGIES {
            for way in ["pool", "graph"] {
                let run = run(kind, strategy, &format!("{way}:900M give plain:500M"));
                assert_eq!(last(&run), 0, "{run}");
            }
        }
    }
}

/// But for what the program has told a pool to keep: bare CUDA refuses, too.
#[test]
fn what_a_pool_is_told_to_keep_stays() {
    for (keep, then, code) in [
        ("900M", "plain", 2),
        ("900M", "array", 2),
        ("300M", "plain", 0),
        ("300M", "array", 0),
    ] {
        let steps = format!("keep:{keep} pool:900M give {then}:500M");
        let run = run(Kind::Driver, "auto_growth", &steps);
        assert_eq!(last(&run), code, "{run}");
        // Below a limit it would be missing for all the others.
        let limited = run
            .env("SIM_CUDA_MEMORY", "4G")
            .env("VRAMALLOC_LIMIT", "1G");
        assert_eq!(last(&limited), 0, "{limited}");
    }
}

/// Below a limit of 1 GiB, on a device that has enough.
fn limited(steps: &str) -> Run {
    run(Kind::Driver, "auto_growth", steps)
        .env("SIM_CUDA_MEMORY", "4G")
        .env("SIM_CUDA_CALL_NS", "20000")
        .env("VRAMALLOC_LIMIT", "1G")
}

/// What a stream has yet to free is waited for below a limit as well, whatever
/// stream it is.
#[test]
fn what_a_pool_waits_for_leaves_the_limit() {
    for (sizes, then) in [
        ("700M 800M", ""),
        ("700M 700M", "other"),
        ("700M 800M", "other"),
    ] {
        let (first, second) = sizes.split_once(' ').unwrap();
        let steps = format!("pool:{first} work:1000000 give {then} pool:{second}");
        let run = limited(&steps);
        assert_eq!(last(&run), 0, "{run}");
        let impatient = run.env("VRAMALLOC_ROOM_WAIT_MS", "0");
        assert_eq!(last(&impatient), 2, "{impatient}");
    }
}

/// So is what was freed behind many others in one stream.
#[test]
fn the_last_of_many_frees_is_waited_for() {
    let (all, first, rest) = (
        "pool:16M ".repeat(40),
        "give ".repeat(36),
        "give ".repeat(4),
    );
    let steps = format!("{all} work:20000000 {first} work:20000000 {rest} other pool:1000M");
    assert_eq!(last(&limited(&steps)), 0);
}

/// Where nothing was freed there is nothing to wait for.
#[test]
fn a_refusal_does_not_wait_for_work_that_frees_nothing() {
    let refused = "pool:500M ".repeat(10);
    let run = limited(&format!("pool:700M work:1000000000000 {refused}"));
    let run = run.env("VRAMALLOC_ROOM_WAIT_MS", "10000");
    let began = std::time::Instant::now();
    assert_eq!(last(&run), 2, "{run}");
    assert!(began.elapsed().as_secs() < 10, "{run}");
}

/// Threads that find no memory at once have nothing on its way to each other.
#[test]
fn threads_that_are_refused_do_not_wait_for_each_other() {
    for (way, limit) in [("virtual", "none"), ("pool", "4G")] {
        let steps = format!("virtual:900M three-{way}:300M");
        let run = run(Kind::Driver, "auto_growth", &steps)
            .env(
                "SIM_CUDA_SLOW",
                "cuMemCreate:50000000,cuMemAllocAsync:50000000",
            )
            .env("VRAMALLOC_LIMIT", limit)
            .env("VRAMALLOC_ROOM_WAIT_MS", "10000");
        let began = std::time::Instant::now();
        assert_eq!(last(&run), 3, "{run}");
        assert!(began.elapsed().as_secs() < 10, "{run}");
    }
}

/// What a pool has that is gone is the device's until the last stream gets to its free.
#[test]
fn a_pool_that_is_gone_counts_until_its_memory_is_free() {
    for (then, expected) in [("", 2), ("sync", 0)] {
        let steps = format!("mine pool:64M work:1000000000000 give end {then} virtual:64M");
        let run = run(Kind::Driver, "auto_growth", &steps)
            .env("VRAMALLOC_LIMIT", "100M")
            .env("VRAMALLOC_ROOM_WAIT_MS", "0");
        assert_eq!(last(&run), expected, "{run}");
    }
}

/// Also where nothing is given back for a request, what CUDA's pools gave back is seen.
#[test]
fn what_a_pool_gave_back_by_itself_leaves_the_limit_at_once() {
    let run = run(
        Kind::Driver,
        "auto_growth",
        "pool:64M give sync virtual:64M",
    )
    .env("VRAMALLOC_LIMIT", "100M")
    .env("VRAMALLOC_ROOM", "off");
    assert_eq!(last(&run), 0, "{run}");
}

/// A thread that waits at the limit breaks no capture.
#[test]
fn a_capture_begins_and_ends_while_a_thread_waits_at_the_limit() {
    let steps = "pool:700M work:1000000000000 give beside-pool:800M after begin:0 nap done";
    let outcome = limited(steps).env("SIM_CUDA_CALL_NS", "1000").go();
    outcome.quiet(0).no_violations();
    assert!(
        outcome.stdout.contains("begin:0: 0\nnap: 0\ndone: 0\n"),
        "{}",
        outcome.stdout
    );
}

/// What the limit leaves is shared by threads that free behind work: as long as
/// frees are under way, none is refused.
#[test]
fn newer_frees_are_waited_for_as_long_as_there_are_some() {
    for seed in 1..=12 {
        let run = run(Kind::Driver, "auto_growth", "share:16M")
            .env("SIM_CUDA_SEED", &seed.to_string())
            .env("SIM_CUDA_MEMORY", "4G")
            .env("VRAMALLOC_LIMIT", "256M");
        assert_eq!(last(&run), 0, "{run}");
    }
}

/// A pool that a request made pass the limit serves others from what it has.
#[test]
fn what_goes_back_after_work_does_not_close_the_pool() {
    let steps = "keep:1G holes:4 other work:1000000000000 pool:20M other pool:4M give pool:4M own";
    let run = limited(steps)
        .env("VRAMALLOC_LIMIT", "128M")
        .env("VRAMALLOC_ROOM_WAIT_MS", "10000");
    let began = std::time::Instant::now();
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    let wanted = "pool:20M: 2\nother: 0\npool:4M: 0\ngive: 0\npool:4M: 0\n";
    assert!(outcome.stdout.contains(wanted), "{}", outcome.stdout);
    // Not for frees that were reached long ago.
    assert!(began.elapsed().as_secs() < 10, "{run}");
    let most = (128 + 32) << 10;
    assert!(all(&outcome) <= most, "{}", outcome.stdout);
}

/// Nor for those that were reached beside other work.
#[test]
fn frees_that_are_reached_are_not_waited_for() {
    let steps = "pool:700M other work:1000000000000 other pool:4M give nap pool:400M";
    let run = limited(steps).env("VRAMALLOC_ROOM_WAIT_MS", "10000");
    let began = std::time::Instant::now();
    assert_eq!(last(&run), 2, "{run}");
    assert!(began.elapsed().as_secs() < 10, "{run}");
}

/// A wait in vain on one device is none on another: there each of these frees is
/// waited for.
#[test]
fn devices_wait_for_their_own_frees() {
    const STEP: u64 = 25_000_000;
    let mut steps = String::from("device:1 ");
    for number in 1..=12 {
        steps += &format!("other pool:64M work:{} give ", number * STEP);
    }
    let steps = format!(
        "{steps} device:0 other pool:700M work:1000000000000 give other pool:700M \
         device:1 other fill-pool:64M"
    );
    let run = limited(&steps)
        .env("VRAMALLOC_LIMIT", "768M")
        .env("VRAMALLOC_ROOM_WAIT_MS", "200");
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    let wanted = format!("{} KiB, fill-pool:64M: 2\n", 768 << 10);
    assert!(outcome.stdout.contains(&wanted), "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains("pool:700M: 2\n"),
        "{}",
        outcome.stdout
    );
}

/// Requests to a pool that are made one after the other wait for their turn,
/// however long CUDA's calls take.
#[test]
fn a_turn_that_takes_long_is_waited_for() {
    let steps = "keep:32M pool:2M pool:30M give three-pool:8M";
    let run = run(Kind::Driver, "auto_growth", steps)
        .env("SIM_CUDA_SLOW", "cuMemPoolGetAttribute:185000000")
        .env("VRAMALLOC_ROOM", "off")
        .env("VRAMALLOC_LIMIT", "32M");
    assert_eq!(last(&run), 0, "{run}");
}

/// What the last step `own` or `peak` of a run says that all families have, in
/// KiB.
#[track_caller]
fn all(outcome: &Outcome) -> u64 {
    let (_, all) = outcome.stdout.rsplit_once("all ").expect(&outcome.what);
    all.lines().next().unwrap().parse().unwrap()
}

/// While CUDA takes a request out of what its pool has, another thread that is
/// short has the pool give that back: the pool grows again, and the limit is
/// not passed by that.
#[test]
fn a_pool_that_was_trimmed_meanwhile_does_not_pass_the_limit() {
    for way in ["plain", "virtual"] {
        let steps = "virtual:100M keep:100M pool:16M pool:64M give sync";
        let steps = format!("hold:cuMemAllocFromPoolAsync {steps}");
        let steps = format!("{steps} beside-pool:48M {way}:122M join own");
        let run = run(Kind::Driver, "auto_growth", &steps).env("VRAMALLOC_LIMIT", "256M");
        let outcome = run.go();
        outcome.quiet(0).no_violations();
        assert!(
            outcome
                .stdout
                .contains(&format!("{way}:122M: 0\njoin: 2\n")),
            "{}",
            outcome.stdout
        );
        assert!(all(&outcome) <= 256 << 10, "{}", outcome.stdout);
    }
}

/// Where the limit leaves what the pool may grow by, nobody else gets that
/// meanwhile: not even for a moment is the limit passed.
#[test]
fn what_a_pool_may_grow_by_is_taken_before_the_call() {
    for way in ["plain", "virtual"] {
        let steps = "keep:100M pool:16M pool:64M give sync";
        let steps = format!("await:cuMemAllocAsync {steps}");
        let steps = format!("{steps} beside-pool:48M {way}:222M join peak");
        let run = run(Kind::Driver, "auto_growth", &steps)
            .env("SIM_CUDA_SLOW", "cuMemAllocAsync:400000000")
            .env("VRAMALLOC_LIMIT", "256M");
        let outcome = run.go();
        outcome.no_violations();
        assert!(
            outcome
                .stdout
                .contains(&format!("{way}:222M: 2\njoin: 0\n")),
            "{}",
            outcome.stdout
        );
        assert!(all(&outcome) <= 256 << 10, "{}", outcome.stdout);
    }
}

/// The same below a limit, on a device that has enough.
#[test]
fn what_the_driver_keeps_leaves_the_limit() {
    for (first, then) in [("plain", "array"), ("pool", "plain"), ("graph", "plain")] {
        let steps = format!("{first}:900M give {then}:500M");
        let run = run(Kind::Static, "auto_growth", &steps)
            .env("SIM_CUDA_MEMORY", "4G")
            .env("VRAMALLOC_LIMIT", "1G");
        assert_eq!(last(&run), 0, "{run}");
    }
}

/// A small block that comes to lie beside a freed one still in limbo, in the chunk that is
/// needed whole next, is no reason to be refused that in each round.
#[test]
fn a_program_that_repeats_is_not_refused_each_time() {
    const ROUNDS: usize = 200;
    let round = ["plain:11673K", "give", "plain:2355K", "plain:12902K", "all"].join(" ");
    for strategy in ["auto_growth", "mapped"] {
        let steps = [round.as_str(); ROUNDS].join(" ");
        let run = run(Kind::Driver, strategy, &steps).env("SIM_CUDA_MEMORY", "28M");
        let outcome = run.go();
        outcome.quiet(0).no_violations();
        let refused = outcome.stdout.matches(": 2\n").count();
        assert!(refused < ROUNDS / 20, "{refused}: {}", outcome.stdout);
    }
}
