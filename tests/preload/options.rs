//! Risk: an option is read and has no effect on an unmodified program.
//!
//! Each test gives an option by the name that its framework has for it, and
//! looks at what came of it: in the program's memory, in the simulated device,
//! in the statistics. Without the option the same program does otherwise.

use serde_json::Value;

use vramalloc_tests::stage::{Kind, Outcome, Run};

const MIB: u64 = 1 << 20;
const TORCH: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// A program that does these steps (see `steps.c`) on a device of 1 GiB.
fn steps(kind: Kind, steps: &str) -> Run {
    let run = Run::preloaded("steps", kind).env("SIM_CUDA_MEMORY", "1G");
    steps.split(' ').fold(run, Run::arg)
}

/// Runs it to a good end.
#[track_caller]
fn go(run: &Run) -> (Outcome, Value) {
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    let arena = outcome.stats()["arenas"][0].clone();
    (outcome, arena)
}

/// The statistics of the run without the option and with it.
#[track_caller]
fn both(run: &Run, name: &str, value: &str) -> [Value; 2] {
    [run.clone(), run.clone().env(name, value)].map(|run| go(&run).1)
}

#[track_caller]
fn number(arena: &Value, path: &str) -> u64 {
    let value = path.split('/').fold(arena, |value, key| &value[key]);
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{path}: {arena:#}"))
}

fn reserved(arena: &Value) -> u64 {
    number(arena, "reserved_bytes/current") / MIB
}

/// Whether chunks are packed, and if not, why.
#[test]
fn what_switches_packing_off_is_told() {
    for (conf, packing) in [
        ("limit:900M", "on"),
        ("decay_ms:1000", "off: decay_ms"),
        ("max_split_size_mb:64", "off: max_split_size_mb"),
        ("free_sync:immediate", "off: free_sync:immediate"),
        ("strategy:naive_best_fit", "off: strategy:naive_best_fit"),
    ] {
        let (_, arena) = go(&steps(Kind::Static, "+1048577 -0").conf(conf));
        assert_eq!(arena["packing"], packing, "{conf}");
    }
}

/// Whether memory is mapped, and if not, why.
#[test]
fn what_switches_mapping_off_is_told() {
    for (conf, mapping) in [
        ("strategy:mapped", "on"),
        (
            "strategy:mapped,free_sync:immediate",
            "off: free_sync:immediate",
        ),
        ("strategy:auto_growth", "off: strategy:auto_growth"),
        ("strategy:naive_best_fit", "off: strategy:naive_best_fit"),
    ] {
        let (_, arena) = go(&steps(Kind::Static, "+1048577 -0").conf(conf));
        assert_eq!(arena["mapping"], mapping, "{conf}");
    }
}

#[test]
fn pytorchs_rounding_reaches_every_kind_of_program() {
    for kind in Kind::each() {
        let run = steps(kind, "+1048577 -0 +1100000");
        let [plain, rounded] = both(&run, TORCH, "roundup_power2_divisions:8");
        assert_eq!(number(&plain, "live_bytes/peak"), 1_100_288);
        assert_eq!(number(&rounded, "live_bytes/peak"), 1_179_648);
    }
}

#[test]
fn pytorchs_list_of_divisions_is_obeyed() {
    let list = "roundup_power2_divisions:[1:2,2:8,>:4],roundup_bypass_threshold_mb:10";
    for (request, live) in [
        // Below 2 MiB: 2; from 2 MiB on: 8; from 4 MiB on: 4.
        ((1 << 20) + 1, 1_572_864),
        ((2 << 20) + 1, 2_359_296),
        ((5 << 20) + 3, 6_291_456),
        // Above the bypass: none.
        ((10 << 20) + 1, 10_486_272),
    ] {
        let run = steps(Kind::Driver, &format!("+{request}")).env(TORCH, list);
        assert_eq!(number(&go(&run).1, "live_bytes/peak"), live, "{request}");
    }
}

#[test]
fn pytorchs_splitting_keeps_large_blocks_whole() {
    for kind in Kind::each() {
        let run = steps(kind, "+64M -0 i +10M");
        let [plain, split] = both(&run, TORCH, "max_split_size_mb:32");
        assert_eq!((reserved(&plain), reserved(&split)), (64, 74));
    }
    // 64 MiB are not below 40 and the 20 of the default; they are below 65.
    let run = steps(Kind::Static, "+64M -0 i +40M");
    for (value, left) in [
        ("max_split_size_mb:32", 104),
        ("max_split_size_mb:32,max_non_split_rounding_mb:25", 64),
    ] {
        assert_eq!(reserved(&go(&run.clone().env(TORCH, value)).1), left);
    }
    let run = steps(Kind::Dynamic, "+4M +4M +4M +4M +4M");
    let [plain, segments] = both(&run, "PYTORCH_ALLOC_CONF", "large_segment_size_mb:22");
    assert_eq!((number(&plain, "chunks"), reserved(&plain)), (5, 20));
    assert_eq!((number(&segments, "chunks"), reserved(&segments)), (1, 22));
}

#[test]
fn pytorchs_threshold_gives_old_memory_back() {
    let run = steps(Kind::Static, "+100M +100M +100M -2 i -0 i -1 i +102M");
    // Of a limit of 400 MiB, and of the device where there is none.
    for (conf, left) in [
        ("garbage_collection_threshold:0.5", 402),
        ("garbage_collection_threshold:0.2", 302),
        (
            "garbage_collection_threshold:0.6,per_process_memory_fraction:0.390625",
            302,
        ),
    ] {
        let outcome = go(&run.clone().env(TORCH, conf)).1;
        assert_eq!(reserved(&outcome), left, "{conf}");
    }
}

#[test]
fn at_the_limit_a_request_can_fail_at_once() {
    for kind in Kind::each() {
        let run = steps(kind, "+60M -0 i +80M").env("FLAGS_gpu_memory_limit_mb", "100");
        let (outcome, arena) = go(&run);
        assert_eq!(outcome.stdout, "0: 0\n1: 0\n");
        assert_eq!(reserved(&arena), 80);
        let run = run.env(TORCH, "throw_on_cudamalloc_oom:True");
        let (outcome, arena) = go(&run);
        assert_eq!(outcome.stdout, "0: 0\n1: 2\n");
        assert_eq!(reserved(&arena), 60);
        assert_eq!(number(&arena, "memory_stats/num_oom_rejections"), 1);
    }
}

#[test]
fn paddles_request_waits_for_another_threads_free() {
    for kind in Kind::each() {
        let run = steps(kind, "+700M ~0 +600M");
        let (outcome, _) = go(&run);
        assert_eq!(outcome.stdout, "0: 0\n1: 2\n", "{kind:?}");
        let run = run.env("FLAGS_gpu_allocator_retry_time", "60000");
        let (outcome, arena) = go(&run);
        assert_eq!(outcome.stdout, "0: 0\n1: 0\n", "{kind:?}");
        assert_eq!(number(&arena, "ooms"), 0);
    }
}

#[test]
fn paddles_flags_give_idle_chunks_back() {
    for kind in Kind::each() {
        let run = steps(kind, "+100M w1000000 -0");
        let arenas = both(&run, "FLAGS_free_idle_chunk", "True");
        assert_eq!(arenas.map(|arena| reserved(&arena)), [100, 0]);
        let run = steps(kind, "+100M -0 i +102M");
        let arenas = both(&run, "FLAGS_free_when_no_cache_hit", "1");
        assert_eq!(arenas.map(|arena| reserved(&arena)), [202, 102]);
    }
}

#[test]
fn idle_memory_decays() {
    for kind in Kind::each() {
        let run = steps(kind, "+100M -0 i m60 i");
        let arenas = both(&run, "VRAMALLOC_DECAY_MS", "20");
        assert_eq!(arenas.map(|arena| reserved(&arena)), [100, 0]);
    }
}

#[test]
fn paddles_fill_is_what_the_program_finds() {
    for kind in Kind::each() {
        // A small block, and one in a chunk of its own.
        let run = steps(kind, "+1000 b0 -0 i +5M b1");
        let (outcome, _) = go(&run.clone().env("FLAGS_init_allocated_mem", "True"));
        assert_eq!(outcome.stdout, "0: 0\n0: ef ef\n1: 0\n1: ef ef\n");
        // The low byte of 427.
        let (outcome, _) = go(&run.clone().env("FLAGS_alloc_fill_value", "427"));
        assert_eq!(outcome.stdout, "0: 0\n0: ab ab\n1: 0\n1: ab ab\n");
        let (outcome, _) = go(&run);
        assert_eq!(outcome.driver_calls("cuMemsetD8_v2"), 0);
    }
}

#[test]
fn paddles_allocation_waits_for_the_device() {
    for kind in Kind::each() {
        let run = steps(kind, "+1M w500000000 +1M q");
        let (outcome, _) = go(&run);
        assert_eq!(outcome.stdout, "0: 0\n1: 0\nwork: 600\n");
        let (outcome, _) = go(&run.env("FLAGS_sync_after_alloc", "true"));
        assert_eq!(outcome.stdout, "0: 0\n1: 0\nwork: 0\n");
    }
}

/// A capture stays valid under the options that would spoil it.
#[test]
fn a_capture_is_spoilt_by_no_option() {
    let run = Run::bare("capture", Kind::Dynamic).arg("12");
    // It fills or frees a quarter of the device 24 times.
    let run = run.env("SIM_CUDA_MEMORY", "128M");
    let bare = run.go();
    let run = run.preload();
    for (name, value) in [
        ("FLAGS_alloc_fill_value", "1"),
        ("FLAGS_sync_after_alloc", "True"),
        ("FLAGS_free_idle_chunk", "True"),
        ("FLAGS_free_when_no_cache_hit", "True"),
        ("VRAMALLOC_DECAY_MS", "0"),
        (TORCH, "garbage_collection_threshold:0.001"),
    ] {
        let outcome = run.clone().env(name, value).go();
        outcome.quiet(0).no_violations();
        assert_eq!(outcome.stdout, bare.stdout, "{name}");
    }
}

#[test]
fn paddles_chunks_have_the_sizes_of_their_flags() {
    let naive = |steps_: &str| {
        steps(Kind::Driver, steps_).env("FLAGS_allocator_strategy", "naive_best_fit")
    };
    // 0.95 × 0.92 of 1 GiB, in whole pages, less a page that is kept to wait
    // with.
    assert_eq!(reserved(&go(&naive("+1M")).1), 892);
    let sized = naive("+40M +40M")
        .env("FLAGS_initial_gpu_memory_in_mb", "64")
        .env("FLAGS_reallocate_gpu_memory_in_mb", "48");
    assert_eq!(reserved(&go(&sized).1), 112);
    let none = naive("+1M -0 +1M -1").env("FLAGS_fraction_of_gpu_memory_to_use", "0");
    let arena = go(&none).1;
    assert_eq!((number(&arena, "direct"), reserved(&arena)), (2, 0));
    let chunk = steps(Kind::Driver, "+1M +40M").env("FLAGS_auto_growth_chunk_size_in_mb", "64");
    assert_eq!(reserved(&go(&chunk).1), 128);
}

#[test]
fn paddles_garbage_is_freed_in_batches() {
    // Four frees of 100 MiB; the budget lets all of it lie.
    let run = steps(Kind::Static, "+100M +100M +100M +100M -0 -1 -2 -3")
        .env("VRAMALLOC_LIMBO_BUDGET", "1.0");
    for (gib, epochs) in [("0", 4), ("0.15", 2), ("-1", 0)] {
        let run = run.clone().env("FLAGS_eager_delete_tensor_gb", gib);
        let (_, arena) = go(&run);
        assert_eq!(number(&arena, "epochs"), epochs, "{gib}");
    }
}

/// What threads keep changes nothing but who serves a request; it is off where an
/// option follows every request.
#[test]
fn threads_keep_what_the_option_says() {
    // Pairs of one size, more than the frees that it takes for a cache.
    let pairs: Vec<_> = (0..600).map(|n| format!("+4096 -{n}")).collect();
    let run = steps(Kind::Dynamic, &pairs.join(" "));
    let [kept, plain] = both(&run, "VRAMALLOC_THREAD_CACHE", "0");
    for key in [
        "live_bytes",
        "reserved_bytes",
        "hits",
        "misses",
        "size_classes",
    ] {
        assert_eq!(plain[key], kept[key], "{key}");
    }
    for metric in ["allocation", "allocated_bytes"] {
        for pool in ["all", "small_pool"] {
            for value in ["current", "peak", "allocated", "freed"] {
                let key = format!("{metric}.{pool}.{value}");
                assert_eq!(
                    plain["memory_stats"][&key], kept["memory_stats"][&key],
                    "{key}"
                );
            }
        }
    }
    assert!(number(&kept, "thread_hits") > 300, "{kept:#}");
    assert_eq!(number(&plain, "thread_hits"), 0);
    assert_eq!(plain["thread_cache"], "off: thread_cache");
    let (_, little) = go(&run.clone().conf("thread_cache:3k"));
    assert_eq!(little["thread_cache"], "off: thread_cache");
    assert_eq!(kept["thread_cache"], "on");
    for (name, value, told) in [
        ("VRAMALLOC_FREE_SYNC", "strict", "off: free_sync"),
        ("VRAMALLOC_TRACE", "8", "off: trace"),
        (
            "VRAMALLOC_STRATEGY",
            "passthrough",
            "off: strategy:passthrough",
        ),
    ] {
        let run = run.clone().env("VRAMALLOC_THREAD_CACHE", "4M");
        let [_, given] = both(&run, name, value);
        assert_eq!(given["thread_cache"], told);
        assert_eq!(number(&given, "thread_hits"), 0);
    }
}
