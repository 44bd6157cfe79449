//! Risk: what NVML tells and what CUDA tells differ under a limit, so that a
//! program takes more than it may have, or a limit of NVIDIA's is not obeyed.

use vramalloc_tests::stage::{Kind, Run};

#[test]
fn nvml_agrees_with_the_limit() {
    for kind in Kind::ALL {
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
