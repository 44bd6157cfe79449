//! Risk: the simulated CUDA counts memory in another way than it says.

use vramalloc_tests::stage::{Kind, Run};

/// What the driver itself counts after these steps, in its own words.
fn own(steps: &[&str]) -> Vec<String> {
    let run = steps
        .iter()
        .fold(Run::bare("families", Kind::Driver), |r, s| r.arg(s));
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    let lines = outcome.stdout.lines();
    lines
        .filter(|line| line.starts_with("plain ") && line.contains("all"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_family_is_counted_by_itself() {
    let told = own(&[
        "plain:3M",
        "pool:5M",
        "virtual:5M",
        "managed:5M",
        "array:100K",
        "graph:3M",
        "own",
        "give",
        "give",
        "give",
        "give",
        "give",
        "give",
        "own",
        "sync",
        "own",
        "trim",
        "own",
    ]);
    let lines = [
        "plain 4096, pool 32768, virtual 6144, managed 6144, array 2048, graph 4096, all 55296",
        "plain 0, pool 32768, virtual 0, managed 0, array 0, graph 4096, all 36864",
        "plain 0, pool 0, virtual 0, managed 0, array 0, graph 4096, all 4096",
        "plain 0, pool 0, virtual 0, managed 0, array 0, graph 0, all 0",
    ];
    assert_eq!(told, lines);
}

#[test]
fn nvml_finds_the_devices_in_its_own_order() {
    for kind in Kind::each() {
        let run = Run::bare("nvml", kind).env("SIM_CUDA_NVML_REVERSED", "1");
        let outcome = run.go();
        outcome.quiet(0);
        let first = "device 0 is 1: total 16384, free 16284, used 100; \
                     total 16384, free 16284, used 100";
        assert!(outcome.stdout.contains(first), "{}", outcome.stdout);
        assert!(
            outcome.stdout.contains("device 1 is 0: "),
            "{}",
            outcome.what
        );
        assert!(outcome.stdout.contains("another version: 25"));
    }
}

/// PyTorch asks so when memory is short, and takes a refusal for an error of its own.
#[test]
fn nvml_finds_a_device_by_what_the_runtime_says_of_its_bus() {
    let outcome = Run::bare("nvml", Kind::Driver).arg("bus").go();
    outcome.quiet(0);
    let told: Vec<&str> = outcome.stdout.lines().collect();
    let expected = [
        "libcudart.so.12, device 0, 00000000:01:00.0: 0, index 0",
        "libcudart.so.12, device 1, 00000000:02:00.0: 0, index 1",
        "libcudart.so.13, device 0, 00000000:01:00.0: 0, index 0",
        "libcudart.so.13, device 1, 00000000:02:00.0: 0, index 1",
    ];
    assert_eq!(told, expected);
}

#[test]
fn only_root_limits_a_process() {
    let run = Run::bare("nvml", Kind::Driver).args(["10", "90"]);
    let refused = run.go();
    assert!(refused.stdout.contains("limits: 4\n"), "{}", refused.stdout);
    assert!(refused.stdout.contains("100 MiB: 0\n"));
    let run = Run::bare("nvml", Kind::Driver).args(["10", "90"]);
    let limited = run.env("SIM_CUDA_NVML_ROOT", "1").go();
    assert!(limited.stdout.contains("soft 10, hard 90, used 0\n"));
    assert!(
        limited.stdout.contains("100 MiB: 2\n"),
        "{}",
        limited.stdout
    );
}
