//! Where the effect of each option is shown.
//!
//! That a text reaches its field is shown here; that the field does what the
//! table says of it is shown on the simulated device, by the tests named
//! below. One more option needs one more line.

use std::collections::BTreeSet;
use std::fs;

use vramalloc_core::config::{OPTIONS, Role};
use vramalloc_tests::stage::root;

/// An option, and a test that fails where it has no effect: file below
/// `tests/` or `src/`, and function.
const SHOWN: &[(&str, &str, &str)] = &[
    (
        "strategy",
        "tests/preload/frameworks.rs",
        "strategies_are_those_of_our_name",
    ),
    (
        "limit",
        "tests/preload/shortage.rs",
        "a_limit_makes_the_device_small",
    ),
    (
        "device_limits",
        "tests/preload/nvml.rs",
        "a_device_may_have_its_own_limit",
    ),
    (
        "nvml",
        "tests/preload/nvml.rs",
        "nvmls_own_answers_stay_without_a_limit_and_where_the_option_says_so",
    ),
    (
        "managed",
        "tests/preload/families.rs",
        "uncounted_managed_memory_passes_the_limit",
    ),
    (
        "room",
        "tests/preload/room.rs",
        "without_the_option_nothing_goes_back",
    ),
    (
        "room_wait_ms",
        "tests/preload/room.rs",
        "freed_memory_is_waited_for",
    ),
    (
        "free_sync",
        "tests/preload/reuse.rs",
        "only_strict_frees_wait",
    ),
    (
        "dedicated_min",
        "tests/arena/conformance.rs",
        "large_requests_can_have_their_own_allocation",
    ),
    (
        "limbo_budget",
        "tests/arena/strategies.rs",
        "a_host_that_runs_ahead_waits_at_the_limbo_budget",
    ),
    (
        "thread_cache",
        "tests/preload/options.rs",
        "threads_keep_what_the_option_says",
    ),
    ("decay_ms", "tests/preload/options.rs", "idle_memory_decays"),
    (
        "stats",
        "tests/preload/settings.rs",
        "statistics_go_where_they_are_sent",
    ),
    (
        "stats_interval_s",
        "tests/preload/ending.rs",
        "a_killed_process_leaves_what_was_written_in_between",
    ),
    (
        "control",
        "tests/preload/control.rs",
        "a_process_without_a_page_runs_as_it_would",
    ),
    (
        "ipc_dir",
        "tests/preload/ipc.rs",
        "a_planted_folder_is_not_used",
    ),
    (
        "import",
        "tests/preload/settings.rs",
        "a_framework_keeps_its_own_variables",
    ),
    (
        "no_cuda_memory_caching",
        "tests/preload/settings.rs",
        "a_framework_keeps_its_own_variables",
    ),
    (
        "allocator_strategy",
        "tests/preload/frameworks.rs",
        "strategies_are_those_of_our_name",
    ),
    (
        "use_system_allocator",
        "tests/preload/frameworks.rs",
        "strategies_are_those_of_our_name",
    ),
    (
        "use_virtual_memory_auto_growth",
        "tests/preload/frameworks.rs",
        "strategies_are_those_of_our_name",
    ),
    (
        "expandable_segments",
        "tests/preload/frameworks.rs",
        "strategies_are_those_of_our_name",
    ),
    (
        "gpu_memory_limit_mb",
        "tests/preload/frameworks.rs",
        "limits_make_the_device_small",
    ),
    (
        "per_process_memory_fraction",
        "tests/preload/frameworks.rs",
        "limits_make_the_device_small",
    ),
    (
        "fast_eager_deletion_mode",
        "tests/preload/frameworks.rs",
        "a_deletion_that_is_not_fast_waits",
    ),
    (
        "fraction_of_gpu_memory_to_use",
        "tests/arena/strategies.rs",
        "naive_fraction_zero_goes_to_the_driver",
    ),
    (
        "initial_gpu_memory_in_mb",
        "tests/preload/options.rs",
        "paddles_chunks_have_the_sizes_of_their_flags",
    ),
    (
        "reallocate_gpu_memory_in_mb",
        "tests/preload/options.rs",
        "paddles_chunks_have_the_sizes_of_their_flags",
    ),
    (
        "auto_growth_chunk_size_in_mb",
        "tests/preload/options.rs",
        "paddles_chunks_have_the_sizes_of_their_flags",
    ),
    (
        "free_idle_chunk",
        "tests/preload/options.rs",
        "paddles_flags_give_idle_chunks_back",
    ),
    (
        "free_when_no_cache_hit",
        "tests/preload/options.rs",
        "paddles_flags_give_idle_chunks_back",
    ),
    (
        "gpu_allocator_retry_time",
        "tests/preload/options.rs",
        "paddles_request_waits_for_another_threads_free",
    ),
    (
        "eager_delete_tensor_gb",
        "tests/arena/options/garbage.rs",
        "a_batch_closes_when_the_sum_reaches_the_threshold",
    ),
    (
        "memory_fraction_of_eager_deletion",
        "tests/arena/options/garbage.rs",
        "of_a_batch_the_largest_go_up_to_the_fraction",
    ),
    (
        "init_allocated_mem",
        "tests/preload/options.rs",
        "paddles_fill_is_what_the_program_finds",
    ),
    (
        "alloc_fill_value",
        "tests/preload/options.rs",
        "paddles_fill_is_what_the_program_finds",
    ),
    (
        "sync_after_alloc",
        "tests/preload/options.rs",
        "paddles_allocation_waits_for_the_device",
    ),
    (
        "max_split_size_mb",
        "tests/preload/options.rs",
        "pytorchs_splitting_keeps_large_blocks_whole",
    ),
    (
        "max_non_split_rounding_mb",
        "tests/arena/options/splitting.rs",
        "a_large_request_takes_no_block_that_is_much_larger",
    ),
    (
        "large_segment_size_mb",
        "tests/arena/options/splitting.rs",
        "segments_have_the_worked_sizes",
    ),
    (
        "roundup_power2_divisions",
        "tests/preload/options.rs",
        "pytorchs_rounding_reaches_every_kind_of_program",
    ),
    (
        "roundup_bypass_threshold_mb",
        "tests/arena/options/rounding.rs",
        "above_the_bypass_nothing_is_rounded",
    ),
    (
        "garbage_collection_threshold",
        "tests/preload/options.rs",
        "pytorchs_threshold_gives_old_memory_back",
    ),
    (
        "throw_on_cudamalloc_oom",
        "tests/preload/options.rs",
        "at_the_limit_a_request_can_fail_at_once",
    ),
    (
        "owners",
        "tests/preload/owners.rs",
        "nobody_is_told_of_where_the_option_is_off",
    ),
    (
        "oom_report",
        "tests/preload/failures.rs",
        "nothing_is_told_where_nothing_is_wanted",
    ),
    (
        "stacks",
        "tests/preload/stacks.rs",
        "sums_are_those_of_the_blocks_and_of_a_sample_about_so",
    ),
    (
        "stack_distance",
        "tests/preload/stacks.rs",
        "sums_are_those_of_the_blocks_and_of_a_sample_about_so",
    ),
    (
        "trace",
        "tests/preload/history.rs",
        "the_newest_events_fit_the_blocks",
    ),
    (
        "record",
        "tests/preload/recording.rs",
        "what_is_recorded_is_what_the_program_did",
    ),
    (
        "record_size",
        "tests/preload/recording/bounded.rs",
        "a_recording_that_is_full_says_so_and_has_the_beginning",
    ),
    (
        "record_full",
        "tests/preload/recording/bounded.rs",
        "a_ring_has_the_end_and_all_that_is_held",
    ),
    (
        "fraction_of_cuda_pinned_memory_to_use",
        "tests/preload/host.rs",
        "the_options_of_the_pool_do_what_they_say",
    ),
    (
        "pinned_max_cached_size_mb",
        "tests/preload/host.rs",
        "the_options_of_the_pool_do_what_they_say",
    ),
    (
        "pinned_max_round_threshold_mb",
        "tests/preload/host.rs",
        "pinned_requests_are_rounded_as_the_option_says",
    ),
    (
        "pinned_num_register_threads",
        "tests/preload/host.rs",
        "registered_memory_is_touched_by_as_many_threads_as_are_wanted",
    ),
    (
        "pinned_reserve_segment_size_mb",
        "tests/preload/host.rs",
        "the_options_of_the_pool_do_what_they_say",
    ),
    (
        "pinned_use_background_threads",
        "tests/preload/host.rs",
        "the_thread_empties_limbo",
    ),
    (
        "pinned_use_cuda_host_register",
        "tests/preload/host.rs",
        "registered_memory_is_what_the_driver_gives",
    ),
    (
        "fraction_of_cpu_memory_to_use",
        "tests/capi/options.rs",
        "the_chunk_of_pageable_memory_is_as_the_flags_say",
    ),
    (
        "initial_cpu_memory_in_mb",
        "tests/capi/options.rs",
        "the_chunk_of_pageable_memory_is_as_the_flags_say",
    ),
    (
        "eager_delete_scope",
        "tests/capi/options.rs",
        "scopes_end_by_a_thread_where_the_flag_says_so",
    ),
    (
        "fuse_parameter_groups_size",
        "tests/capi/options.rs",
        "buffers_are_packed_as_the_flags_say",
    ),
    (
        "fuse_parameter_memory_size",
        "tests/capi/options.rs",
        "buffers_are_packed_as_the_flags_say",
    ),
];

#[test]
fn every_option_has_a_test_of_its_effect() {
    let shown: BTreeSet<&str> = SHOWN.iter().map(|(key, ..)| *key).collect();
    let effective: BTreeSet<&str> = OPTIONS
        .iter()
        .filter(|row| !matches!(row.role, Role::NoEffect(_)))
        .map(|row| row.key)
        .collect();
    assert_eq!(shown, effective);
}

#[test]
fn every_test_that_is_named_is_there() {
    for (key, file, test) in SHOWN {
        let path = root().join(file);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let start = format!("fn {test}(");
        let at = lines.iter().position(|line| line.starts_with(&start));
        let before = at.and_then(|at| lines.get(at.checked_sub(1)?));
        // A test stands under its mark, or among the names of a suite that a
        // macro marks.
        let named = lines.iter().any(|line| line.trim_end_matches(',') == *test);
        assert!(
            before == Some(&"#[test]") || (at.is_some() && named),
            "{key}: there is no test {test} in {file}"
        );
    }
}
