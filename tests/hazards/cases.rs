//! The cases: which program stands for which hazards, where it runs, and what
//! it is judged by.

use crate::case::{Beside, Case};
use crate::judge;
use crate::run::Mode;
use vramalloc_tests::stage::{Kind, SHARED};

/// The strategies that leave no part of the device out: a chunk in advance takes most of
/// it, and what is left does not serve a program that needs all.
const NO_ADVANCE: [&str; 3] = ["auto_growth", "passthrough", "mapped"];

/// The strategies whose memory goes back by the driver's own free, which waits for
/// whoever uses it, and for nobody else. What is mapped goes back only when the work of
/// all contexts is done: a copy between devices may read it, which nobody but the driver
/// knows of.
const PLAIN: [&str; 3] = ["naive_best_fit", "auto_growth", "passthrough"];

const SMALL: &[(&str, &str)] = &[("SIM_CUDA_MEMORY", "2G")];
const TINY: &[(&str, &str)] = &[("SIM_CUDA_MEMORY", "128M")];
const STRICT: &[(&str, &str)] = &[("SIM_CUDA_STRICT", "1"), ("SIM_CUDA_SEED", "7")];
const BARE_PEER: &[(&str, &str)] = &[("IPC_PEER_PRELOAD", "")];
const RUNTIMES: &[Kind] = &[Kind::Dynamic, Kind::Static];

/// All cases, by the first hazard that they stand for.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = memory_in_use();
    cases.extend(memory_shared());
    cases.extend(pinned_memory());
    cases.extend(captures());
    cases.extend(amounts());
    cases.extend(pointers());
    cases.extend(others_in_the_process());
    cases.extend(lives());
    cases.extend(errors());
    cases
}

/// Memory is not handed out while the device may use it.
fn memory_in_use() -> Vec<Case> {
    vec![
        Case::new(&[1], "freed_under_a_kernel", "free_after_launch").judge(judge::safe),
        Case::new(&[1], "freed_under_a_kernel_strictly", "free_after_launch")
            .options("free_sync:strict")
            .judge(judge::safe),
        Case::new(&[1], "freed_under_a_kernel_of_a_peer", "free_after_launch")
            .args(&["peer"])
            .judge(judge::safe),
        // The last blocks come only from what was freed.
        Case::new(
            &[1],
            "under_a_kernel_of_a_peer_on_a_full_device",
            "free_after_launch",
        )
        .args(&["peer"])
        .env(&[("SIM_CUDA_MEMORY", "68M")])
        .strategies(&NO_ADVANCE)
        .judge(judge::safe),
        Case::new(
            &[1],
            "under_a_copy_of_another_device_on_a_full_device",
            "peer_copy",
        )
        .args(&["unified"])
        .env(&[("SIM_CUDA_MEMORY", "68M")])
        .strategies(&NO_ADVANCE)
        .judge(judge::safe),
        Case::new(&[1], "stream_destroyed_with_work_pending", "stream_gone"),
        Case::new(&[33], "another_device_is_not_waited_for", "apart")
            .args(&["reuse"])
            .strategies(&PLAIN)
            .env(TINY),
        Case::new(&[33], "another_device_is_not_waited_for_strictly", "apart")
            .args(&["reuse"])
            .options("free_sync:strict")
            .strategies(&PLAIN)
            .env(TINY),
        Case::new(&[33], "a_context_ends_beside_a_busy_device", "apart").args(&["context"]),
        Case::new(
            &[33, 45],
            "a_context_with_live_memory_ends_beside_one",
            "apart",
        )
        .args(&["users"]),
        Case::new(
            &[68],
            "a_context_ends_slowly_beside_another_device",
            "apart",
        )
        .args(&["end"])
        .env(TINY),
        Case::new(&[68], "a_context_ends_while_it_gives_room", "apart")
            .args(&["room"])
            .env(&[("SIM_CUDA_SLOW", "cuMemFree_v2:20000000")]),
        Case::new(
            &[7, 33],
            "a_capture_begins_beside_a_mark_that_waits",
            "apart",
        )
        .args(&["mark"]),
        Case::new(&[7, 24], "another_context_ends_during_a_capture", "apart").args(&["capture"]),
        Case::new(&[1, 31], "streams_threads_and_late_kernels", "stress")
            .args(&["7", "3", "1200"])
            .env(STRICT)
            .judge(judge::served),
    ]
}

/// Memory that others than this process's kernels know by its address.
fn memory_shared() -> Vec<Case> {
    vec![
        Case::new(&[3, 6, 28], "what_the_driver_knows_of_a_block", "ranges")
            .judge(judge::same_but_amounts),
        Case::new(&[2, 5], "shared_with_another_process", "ipc")
            .args(&["share"])
            .strategies(&SHARED)
            .files(2),
        Case::new(&[2, 3], "shared_from_inside_a_block", "ipc")
            .args(&["ranges"])
            .strategies(&SHARED)
            .files(2),
        Case::new(&[2], "shared_with_a_bare_receiver", "ipc")
            .args(&["share"])
            .env(BARE_PEER)
            .strategies(&SHARED)
            .judge(judge::never_other_bytes),
        Case::new(&[2, 5], "mapped_memory_is_not_shared", "ipc")
            .args(&["ranges"])
            .strategies(&["mapped"])
            .judge(judge::refused_with_a_word),
        // What a bare receiver can open is all of an allocation.
        Case::new(&[4, 27], "blocks_with_their_own_allocation", "ipc")
            .args(&["share"])
            .env(BARE_PEER)
            .options("dedicated_min:512")
            .strategies(&["naive_best_fit", "auto_growth", "mapped"]),
    ]
}

/// Page-locked memory of the host.
fn pinned_memory() -> Vec<Case> {
    let life = |hazards, name, arguments| Case::new(hazards, name, "host_life").args(arguments);
    vec![
        Case::new(&[34], "pinned_memory_under_copies", "host_in_flight").judge(judge::safe),
        Case::new(
            &[34],
            "pinned_memory_under_a_copy_of_a_peer",
            "host_in_flight",
        )
        .args(&["peer"])
        .judge(judge::safe),
        Case::new(&[36, 37], "pinned_memory_of_every_kind", "host_memory").judge(judge::same),
        life(&[37], "pinned_memory_of_contexts_that_end", &["contexts"]).judge(judge::same),
        life(&[37], "pinned_memory_in_other_threads", &["threads"]),
        life(&[37], "pinned_memory_in_forked_children", &["fork"]),
        life(&[37], "pinned_memory_freed_by_exit_handlers", &["atexit"]).judge(judge::same),
        life(&[37], "pinned_memory_freed_by_destructors", &["destructor"]).judge(judge::same),
        life(&[37], "pinned_memory_during_captures", &["captures"]),
    ]
}

/// Graphs that are captured meanwhile.
fn captures() -> Vec<Case> {
    vec![
        Case::new(&[7, 8], "capture_of_many_times_the_memory", "capture")
            .args(&["64"])
            .env(SMALL),
        Case::new(&[7, 8], "capture_in_every_mode", "capture_modes").env(SMALL),
        Case::new(&[7], "capture_on_a_full_device", "capture_full").env(TINY),
        Case::new(&[1, 7], "captures_on_two_full_devices", "capture_full")
            .args(&["both"])
            .env(TINY),
        Case::new(
            &[7],
            "capture_beside_a_context_without_memory",
            "capture_full",
        )
        .args(&["beside"])
        .env(TINY),
    ]
}

/// How much there is.
fn amounts() -> Vec<Case> {
    vec![
        Case::new(&[9, 10], "free_memory_as_programs_watch_it", "info"),
        Case::new(&[40], "what_is_told_at_first_can_be_had", "info")
            .args(&["first"])
            .env(SMALL),
        Case::new(&[40], "what_is_told_of_a_cap_can_be_had", "info")
            .args(&["first"])
            .options("limit:1G"),
        Case::new(&[40], "what_is_told_of_an_odd_cap_can_be_had", "info")
            .args(&["first"])
            .options("limit:333M"),
        Case::new(&[10, 15], "the_end_of_memory", "oom")
            .env(SMALL)
            .judge(judge::as_much_as_bare),
        neighbours("memory_of_one_context_and_then_of_another", &["turns"]),
        neighbours("the_same_during_a_capture", &["capture"]),
        neighbours("idle_memory_comes_before_other_devices", &["busy"]).strategies(&PLAIN),
        neighbours("another_contexts_idle_memory_is_told", &["told"]),
        neighbours("contexts_of_threads_that_take_turns", &["threads"]),
        neighbours("contexts_of_threads_that_do_not", &["race"]),
        neighbours("two_contexts_below_one_cap", &["turns"]).options("limit:1G"),
        Case::new(&[10], "a_cap_is_the_whole_device", "oom")
            .options("limit:1G")
            .judge(judge::within_the_cap),
    ]
}

/// Two contexts on one device.
fn neighbours(name: &'static str, arguments: &'static [&'static str]) -> Case {
    Case::new(&[39], name, "neighbours")
        .args(arguments)
        .env(SMALL)
}

/// What may be done with a pointer.
fn pointers() -> Vec<Case> {
    vec![
        Case::new(
            &[11, 13, 14],
            "every_kind_of_memory_to_every_free",
            "foreign",
        )
        .judge(judge::same),
        Case::new(&[14, 15], "wrong_frees", "misuse")
            .args(&["gone"])
            .judge(judge::same),
        Case::new(&[14, 26, 30], "daily_work", "basics").judge(judge::served),
        Case::new(&[26], "each_request_seen_by_tools", "ranges")
            .strategies(&["passthrough"])
            .judge(judge::one_to_one),
        Case::new(&[12, 13], "allocated_here_freed_there", "layers").args(&["local"]),
        Case::new(&[12], "runtimes_visible_to_all", "layers").args(&["global"]),
        Case::new(&[21], "runtimes_that_look_past_preloads", "layers").args(&["deepbind"]),
        Case::new(&[12, 21], "runtimes_that_were_there_before", "layers").args(&["deep-later"]),
        Case::new(&[21, 38], "freed_past_preloads", "layers")
            .args(&["crossed"])
            .judge(judge::refused_at_most),
        Case::new(&[25, 31], "threads_without_a_device", "threads"),
        Case::new(&[50], "freed_while_the_driver_calls_back", "called_back").judge(judge::same),
        Case::new(&[50], "freed_at_once_while_it_calls_back", "called_back")
            .options("free_sync:immediate,free_idle_chunk:true")
            .judge(judge::same),
    ]
}

/// Look-ups, and other libraries that stand between.
fn others_in_the_process() -> Vec<Case> {
    vec![
        Case::new(&[16, 17, 20], "look_ups_of_every_way", "lookups").judge(judge::same),
        Case::new(&[16, 29], "another_hook_before", "layers")
            .args(&["local"])
            .beside(Beside::Before("next")),
        Case::new(&[16, 29], "another_hook_behind", "layers")
            .args(&["local"])
            .beside(Beside::Behind("next")),
        Case::new(
            &[16, 29, 55],
            "another_shim_of_the_runtime_before",
            "misuse",
        )
        .beside(Beside::Before("counts"))
        .judge(judge::same),
        Case::new(&[16, 29], "another_shim_of_the_runtime_behind", "misuse")
            .beside(Beside::Behind("counts"))
            .judge(judge::same),
        Case::new(&[16, 56], "a_driver_that_stands_before_another", "basics")
            .beside(Beside::Driver)
            .modes(&[Mode::Full])
            .judge(judge::served),
        past_us("shared_behind_another_dlsym", "ipc").args(&["share"]),
        past_us("reset_behind_another_dlsym", "reset"),
        past_us("captured_behind_another_dlsym", "capture_modes").env(SMALL),
        Case::new(&[19], "linked_to_cuda_and_idle", "nothing")
            .files(0)
            .judge(judge::same),
    ]
}

/// Another library hides the driver from us.
fn past_us(name: &'static str, program: &'static str) -> Case {
    Case::new(&[57], name, program)
        .kinds(&[Kind::Dynamic])
        .beside(Beside::Before("hides"))
}

/// Beginnings and ends.
fn lives() -> Vec<Case> {
    vec![
        Case::new(&[23], "first_call_in_a_constructor", "constructor").judge(judge::same),
        Case::new(&[22], "forks_of_every_kind", "forks").files(2),
        Case::new(&[22], "forks_with_statistics_in_between", "forks")
            .options("stats_interval_s:1")
            .modes(&[Mode::Full])
            .files(2),
        Case::new(&[22], "a_forked_child_exits", "exit_paths").args(&["fork"]),
        Case::new(&[23], "return_with_live_memory", "exit_paths").args(&["return"]),
        Case::new(&[23], "exit_with_live_memory", "exit_paths")
            .args(&["exit"])
            .judge(judge::same),
        Case::new(&[23], "frees_after_main", "exit_paths")
            .args(&["atexit"])
            .judge(judge::same),
        Case::new(&[23], "frees_in_a_destructor", "exit_paths")
            .args(&["destructor"])
            .judge(judge::same),
        Case::new(&[23], "threads_still_allocating", "exit_paths")
            .args(&["racing"])
            .judge(judge::cut_off),
        Case::new(&[63], "reset_in_an_exit_handler", "exit_paths")
            .args(&["reset"])
            .judge(judge::same),
        Case::new(&[63], "released_in_an_exit_handler", "exit_paths")
            .args(&["released"])
            .judge(judge::same),
        cut_off("ended_by__exit", &["_exit"]),
        cut_off("ended_by_quick_exit", &["quick_exit"]),
        cut_off("ended_by_abort", &["abort"]),
        cut_off("ended_by_a_signal", &["terminated"]),
        Case::new(&[22, 23], "killed_with_statistics_in_between", "exit_paths")
            .args(&["killed"])
            .options("stats_interval_s:1")
            .kinds(&[Kind::Dynamic, Kind::Driver])
            .modes(&[Mode::Full])
            .judge(judge::cut_off),
        Case::new(&[24], "device_reset", "reset"),
        Case::new(&[51], "parts_of_a_device", "green")
            .env(&[("SIM_CUDA_DEVICES", "3")])
            .strategies(&SHARED)
            .judge(judge::same),
        Case::new(&[51], "parts_of_a_device_alone", "green")
            .args(&["alone"])
            .env(&[("SIM_CUDA_DEVICES", "3")])
            .judge(judge::same),
        Case::new(&[17, 24], "contexts_come_and_go", "contexts").judge(judge::same),
        end(&[44], "ends_that_the_driver_refuses", &["refused"]).env(&[(
            "SIM_CUDA_FAULT",
            "cuCtxDestroy_v2:2:999,cuDevicePrimaryCtxReset_v2:1:999",
        )]),
        end(&[44], "detached_while_another_is_attached", &["counted"]),
        end(&[33, 45], "released_but_retained_elsewhere", &["shared"]),
        end(&[46], "called_back_from_inside_an_end", &["called"]),
        end(&[24, 46], "allocating_beside_a_reset", &["crossed"]),
        end(&[46], "memory_of_a_context_that_is_just_gone", &["taken"]),
        end(&[44], "asked_while_the_driver_refuses", &["undecided"])
            .env(&[("SIM_CUDA_SLOW", "cuCtxDestroy_v2:2000000")])
            .options("limit:1G")
            .judge(judge::served),
        end(&[47], "current_before_it_is_made", &["unmade"]),
        end(&[31, 48], "a_thread_begins_with_a_free", &["fresh"]),
        end(&[49], "hundreds_of_contexts", &["many", "400"]),
    ]
}

fn end(hazards: &'static [u8], name: &'static str, arguments: &'static [&'static str]) -> Case {
    Case::new(hazards, name, "ends").args(arguments)
}

/// A process that ends without its exit handlers leaves no file.
fn cut_off(name: &'static str, arguments: &'static [&'static str]) -> Case {
    Case::new(&[22, 23], name, "exit_paths")
        .args(arguments)
        .files(0)
        .judge(judge::cut_off)
}

/// Errors that are not ours.
fn errors() -> Vec<Case> {
    const LATE: &[(&str, &str)] = &[(
        "SIM_CUDA_FAULT",
        "cuStreamSynchronize:2:700,cuMemcpyDtoH_v2:2:719,cuMemcpyDtoH_v2:3:719",
    )];
    const LASTING: &[(&str, &str)] = &[("SIM_CUDA_FAULT", "cuStreamSynchronize:2:700:sticky")];
    const REFUSED: &[(&str, &str)] = &[(
        "SIM_CUDA_FAULT",
        "cuMemAlloc_v2:1:719,cuMemAlloc_v2:2:719,cuMemAlloc_v2:3:719,cuMemAlloc_v2:4:719,\
         cuMemAlloc_v2:5:719,cuMemAlloc_v2:6:719,cuMemAlloc_v2:7:719,cuMemAlloc_v2:8:719",
    )];
    vec![
        Case::new(&[32], "errors_of_earlier_launches_surface", "surfaces")
            .env(LATE)
            .judge(judge::same),
        // `naive_best_fit` serves the program without asking the driver.
        Case::new(&[32], "errors_that_last_surface_in_frees", "surfaces")
            .env(LASTING)
            .strategies(&["auto_growth", "passthrough"])
            .judge(judge::same),
        // What is mapped is not asked for in this way.
        Case::new(&[32], "errors_reach_the_program", "constructor")
            .env(REFUSED)
            .strategies(&SHARED)
            .files(0)
            .judge(judge::cut_off),
        Case::new(&[15, 32], "errors_leave_the_runtime_as_bare", "oom")
            .env(SMALL)
            .kinds(RUNTIMES)
            .modes(&[Mode::Full])
            .judge(judge::as_much_as_bare),
    ]
}
