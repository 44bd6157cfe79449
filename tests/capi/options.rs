//! Risk: a flag of Paddle's for host memory, scopes or groups is read and
//! nothing comes of it.

use vramalloc_tests::stage::{Kind, Run};

/// A number that the program saw under these flags.
#[track_caller]
fn seen(what: &str, flags: &[(&str, &str)]) -> u64 {
    let run = Run::preloaded("api_options", Kind::Driver);
    let run = flags.iter().fold(run, |run, (name, value)| {
        run.env(&format!("FLAGS_{name}"), value)
    });
    let outcome = run.go();
    outcome.quiet(0);
    let mut lines = outcome.stdout.lines();
    let found = lines.find_map(|line| line.strip_prefix(what)?.strip_prefix(": "));
    found.unwrap().parse().unwrap()
}

#[test]
fn the_chunk_of_pageable_memory_is_as_the_flags_say() {
    let chunk = |flags: &[_]| seen("chunk", flags);
    // Smaller than a 32nd of any machine that can build this.
    let of = |mib| ("initial_cpu_memory_in_mb", mib);
    assert_eq!(chunk(&[of("4")]), 4 << 20);
    assert_eq!(chunk(&[of("8")]), 8 << 20);
    // The share bounds it from the other side.
    let share = |share| ("fraction_of_cpu_memory_to_use", share);
    assert!(chunk(&[of("8"), share("0.0001")]) < 8 << 20);
    assert_eq!(chunk(&[share("0")]), 0);
    assert_eq!(chunk(&[of("0")]), 0);
}

#[test]
fn scopes_end_by_a_thread_where_the_flag_says_so() {
    let threads = |value| seen("threads", &[("eager_delete_scope", value)]);
    assert_eq!(threads("True"), 0);
    assert_eq!(threads("False"), 1);
}

#[test]
fn buffers_are_packed_as_the_flags_say() {
    let allocations = |mib, members| {
        seen(
            "allocations",
            &[
                ("fuse_parameter_memory_size", mib),
                ("fuse_parameter_groups_size", members),
            ],
        )
    };
    assert_eq!(seen("allocations", &[]), 3);
    assert_eq!(allocations("-1", "2"), 3);
    assert_eq!(allocations("0", "2"), 1);
    assert_eq!(allocations("100", "1"), 1);
    // Four are more than two; the third layer begins another.
    assert_eq!(allocations("100", "2"), 2);
    assert_eq!(allocations("100", "4"), 1);
    assert_eq!(allocations("0.001", "1"), 3);
}

/// Risk: threads that write the statistics at the same time fail, or leave half
/// of them to be read.
#[test]
fn threads_write_whole_statistics_at_the_same_time() {
    let run = Run::preloaded("api_dump", Kind::Driver);
    let outcome = run.env("VRAMALLOC_STATS", "off").go();
    outcome.quiet(0).stats();
    assert_eq!(outcome.stdout, "torn: 0\n");
}
