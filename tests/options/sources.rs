//! Which of several texts counts.

use vramalloc_core::Bytes;
use vramalloc_core::config::{
    Config, DeviceShare, FreeSync, Settings, StatsTarget, StrategyKind, ThreadCacheSize, check,
    check_all,
};

use super::{effective, good, origin, plain, value};

#[test]
fn nothing_given_is_the_default_without_a_warning() {
    let loaded = plain(&[("PATH", "/bin"), ("VRAMALLOC_LIBRARY", "/lib/x.so")]);
    assert_eq!(loaded.settings.config, Config::default());
    assert_eq!(loaded.settings.stats, StatsTarget::default());
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert!(loaded.echo.iter().all(|e| e.origin == "default"));
}

#[test]
fn stronger_sources_win() {
    let flag = ("FLAGS_allocator_strategy", "naive_best_fit");
    let conf = ("VRAMALLOC_CONF", " strategy : auto_growth , limit:8G,");
    let own = ("VRAMALLOC_STRATEGY", "passthrough");
    for (environment, strategy, from) in [
        (
            vec![flag],
            StrategyKind::NaiveBestFit,
            "FLAGS_allocator_strategy",
        ),
        (vec![conf, flag], StrategyKind::AutoGrowth, "VRAMALLOC_CONF"),
        (
            vec![own, conf, flag],
            StrategyKind::Passthrough,
            "VRAMALLOC_STRATEGY",
        ),
    ] {
        let loaded = plain(&environment);
        assert_eq!(loaded.settings.config.strategy, strategy);
        assert_eq!(origin(&loaded, "strategy"), from);
        assert_eq!(loaded.warnings, Vec::<String>::new());
    }
}

#[test]
fn an_options_own_name_wins_within_a_source() {
    for conf in [
        "free_sync:strict,fast_eager_deletion_mode:True",
        "fast_eager_deletion_mode:True,free_sync:strict",
    ] {
        let loaded = plain(&[("VRAMALLOC_CONF", conf)]);
        assert_eq!(loaded.settings.config.free_sync, FreeSync::Strict, "{conf}");
    }
    let loaded = plain(&[
        ("VRAMALLOC_LIMIT", "0.5"),
        ("VRAMALLOC_GPU_MEMORY_LIMIT_MB", "100"),
    ]);
    assert_eq!(
        loaded.settings.config.limit,
        Some(DeviceShare::Fraction(0.5))
    );
    let loaded = plain(&[("VRAMALLOC_CONF", "gpu_memory_limit_mb:100")]);
    assert_eq!(
        origin(&loaded, "limit"),
        "VRAMALLOC_CONF (gpu_memory_limit_mb)"
    );
}

#[test]
fn of_duplicates_the_last_wins() {
    let loaded = plain(&[("VRAMALLOC_CONF", "limit:1G,limit:2G")]);
    assert_eq!(
        loaded.settings.config.limit,
        Some(DeviceShare::Bytes(Bytes::gib(2)))
    );
}

#[test]
fn of_the_frameworks_pytorch_is_the_stronger() {
    let torch = ("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.5");
    let paddle = ("FLAGS_gpu_memory_limit_mb", "1024");
    for environment in [[torch, paddle], [paddle, torch]] {
        let loaded = good(&environment);
        assert_eq!(value(&loaded, "limit"), "0.5");
        assert_eq!(
            origin(&loaded, "limit"),
            "PYTORCH_CUDA_ALLOC_CONF (per_process_memory_fraction)"
        );
    }
}

#[test]
fn a_switch_that_is_off_takes_back_what_it_said_elsewhere() {
    let on = ("FLAGS_use_system_allocator", "True");
    let best = ("FLAGS_allocator_strategy", "naive_best_fit");
    for (environment, strategy, from) in [
        (
            vec![on, best],
            StrategyKind::Passthrough,
            "FLAGS_use_system_allocator",
        ),
        (
            vec![on, best, ("VRAMALLOC_USE_SYSTEM_ALLOCATOR", "False")],
            StrategyKind::NaiveBestFit,
            "FLAGS_allocator_strategy",
        ),
        (
            vec![on, ("VRAMALLOC_CONF", "use_system_allocator:0")],
            StrategyKind::AutoGrowth,
            "default",
        ),
    ] {
        let loaded = good(&environment);
        assert_eq!(loaded.settings.config.strategy, strategy);
        assert_eq!(origin(&loaded, "strategy"), from);
    }
}

#[test]
fn a_list_keeps_its_commas() {
    for conf in [
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],limit:8G",
        "limit:8G, roundup_power2_divisions : [ 256:1 , 512:2,1024:4,>:8, ] ,",
    ] {
        let loaded = good(&[("VRAMALLOC_CONF", conf)]);
        assert_eq!(
            value(&loaded, "roundup_power2_divisions"),
            "[256:1,512:2,1024:4,>:8]"
        );
        assert_eq!(value(&loaded, "limit"), "8GiB");
    }
    // A bracket elsewhere is a letter like others.
    let loaded = good(&[("VRAMALLOC_CONF", "stats:/t/a[1.json,limit:8G")]);
    assert_eq!(value(&loaded, "stats"), "/t/a[1.json");
    assert_eq!(value(&loaded, "limit"), "8GiB");
}

#[test]
fn what_depends_on_others_is_checked_with_them() {
    let [segment, split] = [("large_segment_size_mb", "12"), ("max_split_size_mb", "16")];
    assert!(check(split.0, split.1).is_err());
    assert!(check(segment.0, segment.1).is_ok());
    for together in [[segment, split], [split, segment]] {
        assert_eq!(check_all(Settings::default(), &together), Ok(()));
    }
    let given = good(&[("VRAMALLOC_LARGE_SEGMENT_SIZE_MB", "12")]);
    assert_eq!(check_all(given.settings, &[split]), Ok(()));
    let wrong = check_all(Settings::default(), &[segment, ("no_such", "1")]);
    assert!(wrong.unwrap_err().contains("no_such"));
}

#[test]
fn the_size_of_a_threads_cache_is_read() {
    let given = |text: &str| good(&[("VRAMALLOC_CONF", &format!("thread_cache:{text}"))]);
    let kib = |n| ThreadCacheSize::Most(Bytes::kib(n));
    for (text, size, told) in [
        ("auto", ThreadCacheSize::Auto, "auto"),
        ("4M", kib(4096), "4MiB"),
        ("1.5 GiB", kib(1536 << 10), "1536MiB"),
        ("65536", kib(64), "64KiB"),
        ("0", kib(0), "0"),
    ] {
        let loaded = given(text);
        assert_eq!(loaded.settings.config.thread_cache, size, "{text}");
        let effective = effective(&loaded, "thread_cache");
        assert_eq!(&*effective.value, told);
        assert!(effective.no_effect.is_none());
    }
    for nonsense in ["much", "-1", "none"] {
        assert!(check("thread_cache", nonsense).is_err(), "{nonsense}");
    }
}
