//! The naive pool, and where it must fail.
//!
//! It is there to show that the suite can fail: for each case named here at
//! least one of its runs must be found wrong, and for each other case none
//! may, or else the case or this list is wrong.

use std::path::PathBuf;
use std::time::Duration;

use crate::case::Case;
use crate::run::{self, Extent, Mode, Pool};
use crate::shims;
use vramalloc_tests::stage::Kind;

/// How naive it is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// Freed blocks are handed out at once.
    Immediate,
    /// They are waited for, with no regard to captures.
    Waits,
}

impl Variant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Variant::Immediate => "immediate",
            Variant::Waits => "waits",
        }
    }

    fn must_fail(self, case: &str) -> bool {
        let own = match self {
            Variant::Immediate => IMMEDIATE,
            Variant::Waits => WAITS,
        };
        BOTH.contains(&case) || own.contains(&case)
    }
}

/// Some programs hang under it. Bare none takes half as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Where every naive pool must fail.
const BOTH: &[&str] = &[
    // Nothing watches contexts: pointers outlive a reset, and blocks of one
    // device or context are handed out in another.
    "device_reset",
    "contexts_come_and_go",
    "pinned_memory_of_contexts_that_end",
    "threads_without_a_device",
    // Free lists do not notice what is freed twice, inside, or in order.
    "wrong_frees",
    "every_kind_of_memory_to_every_free",
    "another_shim_of_the_runtime_before",
    "another_shim_of_the_runtime_behind",
    "look_ups_of_every_way",
    "what_the_driver_knows_of_a_block",
    "pinned_memory_of_every_kind",
    // A forked child is served memory that it does not have.
    "forks_of_every_kind",
    "forks_with_statistics_in_between",
    "pinned_memory_in_forked_children",
    // Nothing goes back to the device, and nothing is counted.
    "free_memory_as_programs_watch_it",
    "the_end_of_memory",
    "a_cap_is_the_whole_device",
    "errors_leave_the_runtime_as_bare",
    "errors_that_last_surface_in_frees",
    "capture_on_a_full_device",
    "captures_on_two_full_devices",
    "capture_beside_a_context_without_memory",
    "daily_work",
    // Every block is a part of something larger.
    "blocks_with_their_own_allocation",
    "each_request_seen_by_tools",
    "shared_with_another_process",
    "shared_with_a_bare_receiver",
    // A chunk's start is as good as any place, and goes to the driver's free.
    "freed_past_preloads",
    "freed_while_the_driver_calls_back",
    "freed_at_once_while_it_calls_back",
    // It knows neither who stands before it nor what it cannot see.
    "a_driver_that_stands_before_another",
    "shared_behind_another_dlsym",
    "reset_behind_another_dlsym",
    // Nor does it know when a context begins, ends, or goes on.
    "parts_of_a_device",
    "ends_that_the_driver_refuses",
    "detached_while_another_is_attached",
    "called_back_from_inside_an_end",
    "allocating_beside_a_reset",
    "current_before_it_is_made",
    "a_thread_begins_with_a_free",
    "hundreds_of_contexts",
];

/// Where one must that reuses memory at once.
const IMMEDIATE: &[&str] = &[
    "freed_under_a_kernel",
    "freed_under_a_kernel_strictly",
    "freed_under_a_kernel_of_a_peer",
    "stream_destroyed_with_work_pending",
    "streams_threads_and_late_kernels",
    "pinned_memory_under_copies",
    "pinned_memory_under_a_copy_of_a_peer",
];

/// Where one must that waits for its own context and minds no captures.
const WAITS: &[&str] = &[
    "another_context_ends_during_a_capture",
    "freed_under_a_kernel_of_a_peer",
    "capture_in_every_mode",
    "pinned_memory_under_a_copy_of_a_peer",
    "pinned_memory_during_captures",
    "captured_behind_another_dlsym",
];

/// The naive pool, built.
pub(crate) fn library() -> PathBuf {
    shims::compile("tests/naive/pool.c", "naive")
}

/// Whether its few hooks are reached at all, which is enough to look at.
pub(crate) fn takes_part(kind: Kind, mode: Mode) -> bool {
    mode == Mode::Full && matches!(kind, Kind::Dynamic | Kind::Driver)
}

/// Runs it where it takes part. One finding for each variant and case, and
/// whether it is as expected. Of the cases where it need not fail, which take
/// most of the time, none if not all are asked for.
pub(crate) fn judge(cases: &[Case], extent: Extent) -> Vec<(String, bool)> {
    let mut findings = Vec::new();
    for variant in [Variant::Immediate, Variant::Waits] {
        let asked = |case: &&Case| extent == Extent::All || variant.must_fail(case.name);
        let cases: Vec<_> = cases.iter().filter(asked).copied().collect();
        let verdicts = run::all(&cases, Pool::Naive(variant), Extent::All, None);
        for case in &cases {
            let mut own = verdicts.iter().filter(|v| v.case == case.name);
            let failure = own.find_map(|v| v.failure.as_deref());
            let failed = failure.is_some();
            let must = variant.must_fail(case.name);
            if failed || must {
                let what = match (failed, must) {
                    (true, true) => "fails, as it must",
                    (true, false) => failure.unwrap_or_default(),
                    _ => "passes, but must fail",
                };
                findings.push((
                    format!("naive pool ({}): {} {what}", variant.name(), case.name),
                    failed == must,
                ));
            }
        }
    }
    findings
}
