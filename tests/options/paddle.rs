//! Paddle's flags.

use std::time::Duration;

use vramalloc_core::Bytes;
use vramalloc_core::config::{
    Config, DeviceShare, Fill, FreeSync, GarbageThreshold, GroupConfig, OPTIONS, PageableConfig,
    PinnedConfig, Settings, StrategyKind, find,
};

use super::{good, origin, plain, value};

#[test]
fn each_flag_sets_its_field() {
    let loaded = good(&[
        ("FLAGS_allocator_strategy", "naive_best_fit"),
        ("FLAGS_fraction_of_gpu_memory_to_use", "0.5"),
        ("FLAGS_initial_gpu_memory_in_mb", "500"),
        ("FLAGS_reallocate_gpu_memory_in_mb", "100"),
        ("FLAGS_gpu_memory_limit_mb", "4096"),
        ("FLAGS_auto_growth_chunk_size_in_mb", "64"),
        ("FLAGS_free_idle_chunk", "true"),
        ("FLAGS_free_when_no_cache_hit", "1"),
        ("FLAGS_gpu_allocator_retry_time", "10000"),
        ("FLAGS_use_system_allocator", "False"),
        ("FLAGS_eager_delete_tensor_gb", "0.25"),
        ("FLAGS_fast_eager_deletion_mode", "False"),
        ("FLAGS_memory_fraction_of_eager_deletion", "0.75"),
        ("FLAGS_init_allocated_mem", "True"),
        ("FLAGS_sync_after_alloc", "TRUE"),
        ("FLAGS_fraction_of_cuda_pinned_memory_to_use", "0.25"),
        ("FLAGS_fraction_of_cpu_memory_to_use", "0.125"),
        ("FLAGS_initial_cpu_memory_in_mb", "250"),
        ("FLAGS_eager_delete_scope", "False"),
        ("FLAGS_fuse_parameter_groups_size", "3"),
        ("FLAGS_fuse_parameter_memory_size", "16.5"),
        ("FLAGS_cudnn_deterministic", "1"),
    ]);
    let expected = Settings {
        config: Config {
            strategy: StrategyKind::NaiveBestFit,
            chunk_fraction: 0.5,
            initial_chunk: Some(Bytes::mib(500)),
            reallocate_chunk: Some(Bytes::mib(100)),
            limit: Some(DeviceShare::Bytes(Bytes::gib(4))),
            auto_growth_chunk: Bytes::mib(64),
            free_idle_chunk: true,
            free_when_no_cache_hit: true,
            retry_time: Duration::from_secs(10),
            garbage_threshold: GarbageThreshold::Bytes(Bytes::mib(256)),
            free_sync: FreeSync::Strict,
            garbage_fraction: 0.75,
            fill: Some(Fill {
                byte: 0xEF,
                whole_block: false,
            }),
            sync_after_alloc: true,
            ..Config::default()
        },
        pinned: PinnedConfig {
            fraction: 0.25,
            ..PinnedConfig::default()
        },
        pageable: PageableConfig {
            fraction: 0.125,
            initial: Bytes::mib(250),
        },
        groups: GroupConfig {
            most_members: 3,
            least_mib: 16.5,
        },
        scopes_end_inline: false,
        ..Settings::default()
    };
    assert_eq!(loaded.settings, expected);
    for row in OPTIONS.iter().filter(|row| row.paddle.is_some()) {
        let shown = loaded.echo.iter().find(|e| e.key == row.key);
        if let Some(shown) = shown.filter(|_| row.key != "alloc_fill_value") {
            assert_eq!(Some(&*shown.origin), row.paddle);
        }
    }
    assert_eq!(origin(&loaded, "limit"), "FLAGS_gpu_memory_limit_mb");
    assert_eq!(origin(&loaded, "strategy"), "FLAGS_allocator_strategy");
}

/// The flags that a user of Paddle may have set, all of which the table knows.
#[test]
fn every_flag_is_known() {
    for key in [
        "allocator_strategy",
        "fraction_of_gpu_memory_to_use",
        "initial_gpu_memory_in_mb",
        "reallocate_gpu_memory_in_mb",
        "gpu_memory_limit_mb",
        "auto_growth_chunk_size_in_mb",
        "free_idle_chunk",
        "free_when_no_cache_hit",
        "gpu_allocator_retry_time",
        "use_system_allocator",
        "eager_delete_tensor_gb",
        "memory_fraction_of_eager_deletion",
        "fast_eager_deletion_mode",
        "init_allocated_mem",
        "alloc_fill_value",
        "sync_after_alloc",
        "fraction_of_cuda_pinned_memory_to_use",
        "fraction_of_cpu_memory_to_use",
        "initial_cpu_memory_in_mb",
        "eager_delete_scope",
        "fuse_parameter_groups_size",
        "fuse_parameter_memory_size",
        "use_stream_safe_cuda_allocator",
        "use_virtual_memory_auto_growth",
        "use_cuda_managed_memory",
        "use_cuda_malloc_async_allocator",
        "use_pinned_memory",
        "use_auto_growth_pinned_allocator",
    ] {
        let row = find(key).unwrap();
        assert_eq!(row.paddle, Some(format!("FLAGS_{key}").as_str()));
    }
}

#[test]
fn a_thread_local_pool_is_one_for_all() {
    let loaded = good(&[("FLAGS_allocator_strategy", "thread_local")]);
    assert_eq!(value(&loaded, "strategy"), "auto_growth");
    assert_eq!(origin(&loaded, "strategy"), "FLAGS_allocator_strategy");
}

#[test]
fn a_value_to_fill_with_counts_over_a_pattern() {
    let pattern = Some((0xEF, false));
    let init = |text| ("FLAGS_init_allocated_mem", text);
    let fill = |text| ("FLAGS_alloc_fill_value", text);
    for (environment, expected) in [
        (vec![init("True")], pattern),
        (vec![init("False")], None),
        (vec![init("True"), fill("-1")], pattern),
        (vec![fill("7"), init("True")], Some((7, true))),
        (vec![fill("7"), init("False")], Some((7, true))),
        // The low byte counts.
        (vec![fill("511")], Some((255, true))),
        (vec![fill("9223372036854775807")], Some((255, true))),
        // Wherever they are given.
        (
            vec![fill("7"), ("VRAMALLOC_INIT_ALLOCATED_MEM", "1")],
            Some((7, true)),
        ),
        (
            vec![init("1"), ("VRAMALLOC_ALLOC_FILL_VALUE", "7")],
            Some((7, true)),
        ),
        (
            vec![fill("7"), init("1"), ("VRAMALLOC_ALLOC_FILL_VALUE", "-1")],
            pattern,
        ),
    ] {
        let loaded = good(&environment);
        let found = loaded.settings.config.fill;
        assert_eq!(
            found.map(|fill| (fill.byte, fill.whole_block)),
            expected,
            "{environment:?}"
        );
        // The echo says what is in force, and of which flag.
        let counts = |key| origin(&loaded, key) != "default";
        if let Some((_, whole_block)) = expected {
            assert_eq!(counts("init_allocated_mem"), !whole_block);
        }
    }
    for bad in ["-2", "9223372036854775808", "0xEF", "1.5"] {
        let loaded = plain(&[fill(bad)]);
        assert_eq!(
            (loaded.warnings.len(), loaded.settings.config.fill),
            (1, None)
        );
    }
}

#[test]
fn what_paddle_would_misread_is_refused() {
    for (flag, text) in [
        // Paddle reads 12, 2^64 - 1, and nonsense at the first request.
        ("FLAGS_initial_gpu_memory_in_mb", "12abc"),
        ("FLAGS_gpu_memory_limit_mb", "-1"),
        ("FLAGS_fraction_of_gpu_memory_to_use", "1.5"),
        ("FLAGS_fraction_of_gpu_memory_to_use", "-0.5"),
        ("FLAGS_allocator_strategy", "best_fit"),
        ("FLAGS_free_idle_chunk", "yes"),
        ("FLAGS_gpu_allocator_retry_time", "-5"),
        ("FLAGS_fuse_parameter_groups_size", "2147483648"),
        ("FLAGS_fuse_parameter_memory_size", "nan"),
        ("FLAGS_use_pinned_memory", "maybe"),
        ("FLAGS_alignment_size", "-256"),
    ] {
        let loaded = plain(&[(flag, text)]);
        assert_eq!(loaded.warnings.len(), 1, "{flag}={text}");
        assert!(
            loaded.warnings[0].starts_with(&format!("{flag}: cannot read \"{text}\"; accepted: "))
        );
        assert_eq!(loaded.settings, Settings::default(), "{flag}={text}");
    }
}
