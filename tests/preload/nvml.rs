//! Risk: what NVML tells and what CUDA tells differ under a limit, so that a
//! program takes more than it may have, or a limit of NVIDIA's is not obeyed.

use vramalloc_tests::stage::{Kind, Run};

#[test]
fn nvml_agrees_with_the_limit() {
    for kind in Kind::each() {
        // The second device is the larger index of CUDA's, and NVML's first.
        let run = Run::preloaded("nvml", kind).env("SIM_CUDA_NVML_REVERSED", "1");
        let outcome = run.conf("limit:1G").go();
        outcome.quiet(0).no_violations();
        let told = &outcome.stdout;
        // A chunk is a little larger than its only block.
        let first = "device 0 is 1: total 1024, free 922, used 102; \
                     total 1024, free 922, used 102\n";
        assert!(told.contains(first), "{told}");
        let second = "device 1 is 0: total 1024, free 1024, used 0; \
                      total 1024, free 1024, used 0\n";
        assert!(told.contains(second), "{told}");
        // A failure stays NVML's own.
        assert!(told.contains("another version: 25\n"), "{told}");
        // Before and after the memory is given back, CUDA says the same.
        let free: Vec<u64> = (told.split("CUDA: total 1024, free ").skip(1))
            .map(|rest| {
                let free = rest.lines().next().unwrap().parse().unwrap();
                let used = 1024 - free;
                let one = format!("total 1024, free {free}, used {used}");
                assert!(
                    rest.contains(&format!("device 0 is 1: {one}; {one}\n")),
                    "{told}"
                );
                free
            })
            .collect();
        assert!(matches!(free[..], [922, 1022..=1024]), "{told}");
    }
}

#[test]
fn nvmls_own_answers_stay_without_a_limit_and_where_the_option_says_so() {
    for conf in ["strategy:auto_growth", "limit:1G,nvml:off"] {
        let outcome = Run::preloaded("nvml", Kind::Driver).conf(conf).go();
        outcome.quiet(0).no_violations();
        let own = "device 0 is 0: total 16384, free 16282, used 102; total 16384";
        assert!(outcome.stdout.contains(own), "{conf}: {}", outcome.stdout);
    }
}

/// Nothing is in use by a process that has not used the device; nothing of ours
/// begins there either.
#[test]
fn a_monitor_without_cuda_is_told_of_a_limited_device() {
    let bare = Run::bare("monitor", Kind::Driver).go();
    bare.quiet(0);
    assert!(bare.stdout.starts_with("before: 0\n"), "{}", bare.stdout);
    assert!(bare.stdout.contains("driver: 0\n"), "{}", bare.stdout);
    let plain = Run::preloaded("monitor", Kind::Driver).go();
    assert_eq!(plain.stdout, bare.stdout);
    for (limit, free) in [("1G", 1024), ("25%", 4096)] {
        let conf = format!("limit:{limit}");
        let outcome = Run::preloaded("monitor", Kind::Driver).conf(&conf).go();
        outcome.quiet(0);
        let of = format!(
            ": total {free}, free {free}, used 0; total {free}, reserved 0, free {free}, used 0"
        );
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        let expected = [
            "before: 0",
            &format!("0{of}"),
            &format!("1{of}"),
            &format!("0{of}"),
            "driver: 0",
        ];
        assert_eq!(lines, expected);
    }
}

/// The numbers are CUDA's, also for a device that is not used yet.
#[test]
fn a_device_may_have_its_own_limit() {
    let run = Run::preloaded("nvml", Kind::Driver).env("SIM_CUDA_NVML_REVERSED", "1");
    let run = run.env("CUDA_DEVICE_MEMORY_LIMIT_0", "1g");
    let outcome = run.env("CUDA_DEVICE_MEMORY_LIMIT_1", "2048m").go();
    outcome.quiet(0).no_violations();
    let told = &outcome.stdout;
    assert!(told.contains("CUDA: total 1024, free 922\n"), "{told}");
    for line in [
        "0 is 1: total 1024, free 922",
        "1 is 0: total 2048, free 2048",
    ] {
        assert!(told.contains(&format!("device {line}, ")), "{told}");
    }
    let option = &outcome.stats()["options"]["device_limits"];
    assert_eq!(option["value"], "[0:1GiB,1:2GiB]");
    assert_eq!(
        option["origin"], "CUDA_DEVICE_MEMORY_LIMIT_0, …",
        "{option}"
    );
}

#[test]
fn a_limit_for_a_device_that_is_not_there_is_told() {
    let run = Run::preloaded("nvml", Kind::Driver).conf("device_limits:[0:1G,9:64M]");
    let errors = run.go().stderr;
    let line =
        "vramalloc: device_limits: no device 9; CUDA numbers those of this process from 0 to 1\n";
    assert!(errors.contains(line), "{errors}");
    let run = Run::preloaded("nvml", Kind::Driver).conf("device_limits:[0:1G,1:1G]");
    assert!(!run.go().stderr.contains("no device"));
}

/// A process in a control group that NVIDIA's driver limits, as its container
/// says. These steps are taken there.
fn in_group(conf: &str, steps: &[&str]) -> Run {
    let run = Run::preloaded("families", Kind::Driver).conf(conf);
    let run = run.env("SIM_CUDA_VERSION", "13040");
    let run = run.env("NVIDIA_GPU_MEMORY_REQUEST", "256Mi");
    steps.iter().fold(run, |run, step| run.arg(step))
}

#[test]
fn nvidias_hard_limit_holds_like_ours_and_is_named() {
    let nvidia = "NVIDIA's limit for this control group";
    for (conf, steps, said) in [
        (
            "",
            ["plain:600M", "virtual:600M"],
            format!("{nvidia} (1 GiB) leaves less"),
        ),
        (
            "",
            ["virtual:600M", "plain:600M"],
            format!("{nvidia} was reached"),
        ),
        (
            "limit:800M",
            ["plain:600M", "virtual:600M"],
            "the option limit (800 MiB) leaves".to_owned(),
        ),
        (
            "limit:2G",
            ["virtual:600M", "plain:600M"],
            format!("{nvidia} was reached"),
        ),
    ] {
        let run = in_group(conf, &steps)
            .arg("info")
            .env("SIM_CUDA_HARD_LIMIT", "1G");
        let outcome = run.go();
        outcome.no_violations();
        let all = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(outcome.stderr.contains(&said), "{conf} {steps:?}: {all}");
        let total = if conf == "limit:800M" {
            800 << 10
        } else {
            1 << 20
        };
        assert!(outcome.stdout.contains(&total.to_string()), "{all}");
    }
}

/// The driver counts what we do not; where it refuses first, that is said.
#[test]
fn the_drivers_own_refusal_says_whose_it_is() {
    let refused = |run: Run| {
        let outcome = run.env("SIM_CUDA_HARD_LIMIT", "1G").go();
        outcome.no_violations();
        outcome.stderr
    };
    // There is room below the limit, but for the context.
    let steps = ["virtual:600M", "plain:400M"];
    let run = |version: &str| {
        let run = in_group("", &steps).env("SIM_CUDA_VERSION", version);
        refused(run.env("SIM_CUDA_CONTEXT_SIZE", "128M"))
    };
    let asked = run("13040");
    let nvidia = "NVIDIA's limit for this control group leaves less";
    assert!(asked.contains(nvidia), "{asked}");
    // A driver without such limits is not asked for them.
    let unasked = run("13000");
    assert!(unasked.contains("the device has no more"), "{unasked}");
}

#[test]
fn idle_memory_goes_back_before_nvidias_soft_limit_is_passed() {
    let held = |soft: &str, steps: &[&str]| {
        let run = in_group("", steps)
            .arg("own")
            .env("SIM_CUDA_SOFT_LIMIT", soft);
        let outcome = run.go();
        outcome.quiet(0).no_violations();
        let mut lines = outcome.stdout.lines();
        let all = lines
            .find_map(|line| Some(line.rsplit_once(", all ")?.1))
            .unwrap();
        all.parse::<u64>().unwrap() >> 10
    };
    let own = ["plain:150M", "give", "plain:200M"];
    let other = ["plain:150M", "give", "virtual:200M"];
    let pool = ["plain:150M", "give", "pool:200M"];
    for steps in [own, other, pool] {
        let (without, with) = (held("1G", &steps), held("256M", &steps));
        assert!(without >= 350, "{steps:?}: {without}");
        assert!((200..=230).contains(&with), "{steps:?}: {with}");
    }
}
