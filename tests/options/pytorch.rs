//! PyTorch's keys and grammar.

use vramalloc_core::Bytes;
use vramalloc_core::config::{
    Config, DeviceShare, OPTIONS, PinnedConfig, Role, Rounding, Settings, Splitting, Torch, find,
};

use super::{effective, good, origin, plain, value};

/// Every key that a release of PyTorch knows.
const KEYS: &[&str] = &[
    "backend",
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "roundup_bypass_threshold_mb",
    "garbage_collection_threshold",
    "expandable_segments",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "per_process_memory_fraction",
    "throw_on_cudamalloc_oom",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "pinned_free_catch_all",
];

const CUDA: &str = "PYTORCH_CUDA_ALLOC_CONF";
const GENERIC: &str = "PYTORCH_ALLOC_CONF";

#[test]
fn every_key_is_known_and_no_other() {
    for key in KEYS {
        assert!(find(key).unwrap().torch_keys().contains(key), "{key}");
    }
    let known = OPTIONS.iter().flat_map(|row| row.torch_keys());
    assert_eq!(known.count(), KEYS.len());
    // Our own are not PyTorch's, and no help is given that would mislead.
    let loaded = plain(&[(CUDA, "limit:8G,limti:1,max_split_size:64")]);
    assert_eq!(
        loaded.warnings,
        [
            "PYTORCH_CUDA_ALLOC_CONF: unknown option \"limit\" with value \"8G\", ignored; \
             accepted: what `vramalloc options` lists",
            "PYTORCH_CUDA_ALLOC_CONF: unknown option \"limti\" with value \"1\", ignored; \
             accepted: what `vramalloc options` lists",
            "PYTORCH_CUDA_ALLOC_CONF: unknown option \"max_split_size\" with value \"64\", \
             ignored; did you mean max_split_size_mb?",
        ]
    );
    assert_eq!(loaded.settings, Settings::default());
}

#[test]
fn each_key_sets_its_field() {
    let conf = "backend:native,max_split_size_mb:64,max_non_split_rounding_mb:32,\
                large_segment_size_mb:24,roundup_power2_divisions:[256:1,512:2,1024:4,>:8],\
                roundup_bypass_threshold_mb:1280,garbage_collection_threshold:0.8,\
                per_process_memory_fraction:0.5,release_lock_on_cudamalloc:True,\
                throw_on_cudamalloc_oom:True,pinned_use_cuda_host_register:True,\
                pinned_num_register_threads:8,pinned_use_background_threads:True,\
                pinned_reserve_segment_size_mb:512,pinned_max_round_threshold_mb:1024,\
                pinned_max_cached_size_mb:0";
    let mut divisions = [8; 16];
    divisions[..9].fill(1);
    divisions[9..11].copy_from_slice(&[2, 4]);
    let expected = Settings {
        config: Config {
            limit: Some(DeviceShare::Fraction(0.5)),
            rounding: Rounding {
                divisions,
                bypass: Some(Bytes::mib(1280)),
            },
            splitting: Splitting {
                max_split: Some(Bytes::mib(64)),
                max_non_split_rounding: Some(Bytes::mib(32)),
                large_segment: Some(Bytes::mib(24)),
            },
            garbage_collection_threshold: Some(0.8),
            fail_at_limit: true,
            ..Config::default()
        },
        pinned: PinnedConfig {
            reserve_segment: Some(Bytes::mib(512)),
            max_round_threshold: Some(Bytes::mib(1024)),
            max_cached: Some(Bytes::ZERO),
            use_host_register: true,
            register_threads: 8,
            background_threads: true,
            ..PinnedConfig::default()
        },
        ..Settings::default()
    };
    for variable in [CUDA, GENERIC, "VRAMALLOC_CONF"] {
        let loaded = good(&[(variable, conf)]);
        assert_eq!(loaded.settings, expected, "{variable}");
        assert_eq!(origin(&loaded, "max_split_size_mb"), variable);
        assert_eq!(
            origin(&loaded, "limit"),
            format!("{variable} (per_process_memory_fraction)")
        );
    }
    // One by one, in variables of ours.
    let mut entries: Vec<(String, &str)> = Vec::new();
    let mut rest = conf;
    while let Some((key, value)) = rest.split_once(':') {
        let end = match value.find(']') {
            Some(end) if value.starts_with('[') => end + 1,
            _ => value.find(',').unwrap_or(value.len()),
        };
        entries.push((format!("VRAMALLOC_{}", key.to_uppercase()), &value[..end]));
        rest = value[end..].trim_start_matches(',');
    }
    let environment: Vec<(&str, &str)> = entries.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(environment.len(), 16);
    assert_eq!(good(&environment).settings, expected);
}

#[test]
fn the_first_variable_that_is_set_counts_alone() {
    let both = [
        (GENERIC, "max_split_size_mb:64,no_such:1"),
        (CUDA, "garbage_collection_threshold:0.5"),
    ];
    let loaded = good(&both);
    assert_eq!(value(&loaded, "max_split_size_mb"), "none");
    assert_eq!(value(&loaded, "garbage_collection_threshold"), "0.5");
    // Also where it holds nothing.
    assert_eq!(good(&[both[0], (CUDA, "")]).settings, Settings::default());
    assert_eq!(plain(&both[..1]).warnings.len(), 1);
}

#[test]
fn blanks_are_dropped_even_inside_words() {
    let loaded = good(&[(
        CUDA,
        " max_split _size_mb : 1 28 ,\n\troundup_power2_divisions : [ 2 56 : 1 , > : 8 ] , ",
    )]);
    assert_eq!(value(&loaded, "max_split_size_mb"), "128");
    assert_eq!(value(&loaded, "roundup_power2_divisions"), "[256:1,>:8]");
}

#[test]
fn of_duplicates_the_last_counts() {
    let loaded = good(&[(CUDA, "max_split_size_mb:64,max_split_size_mb:128")]);
    assert_eq!(value(&loaded, "max_split_size_mb"), "128");
}

#[test]
fn what_pytorch_would_refuse_or_misread_is_one_warning() {
    for (conf, part) in [
        ("max_split_size_mb:19", "large_segment_size_mb"),
        ("max_split_size_mb:100abc", "a whole number"),
        ("max_split_size_mb:-1", "a whole number"),
        ("max_split_size_mb=64", "key:value"),
        ("max_split_size_mb", "key:value"),
        ("max_split_size_mb:64:128", "a whole number"),
        ("max_split_size_mb:[64]", "a whole number"),
        ("large_segment_size_mb:10", "from 11"),
        ("max_non_split_rounding_mb:8", "large_segment_size_mb"),
        ("roundup_power2_divisions:0", "a power of two"),
        ("roundup_power2_divisions:3", "a power of two"),
        ("roundup_power2_divisions:[3:2]", "a power of two"),
        ("roundup_power2_divisions:[256:1,512:2", "a power of two"),
        ("roundup_power2_divisions:[256:1,512:2]]", "a power of two"),
        ("garbage_collection_threshold:0", "above 0 and below 1"),
        ("garbage_collection_threshold:1", "above 0 and below 1"),
        ("garbage_collection_threshold:0.8x", "above 0 and below 1"),
        ("per_process_memory_fraction:1.5", "up to 1"),
        ("per_process_memory_fraction:-0.1", "up to 1"),
        // PyTorch refuses every request then. A limit below one page is
        // a mistake, and so it is told instead.
        ("per_process_memory_fraction:0", "above 0"),
        ("backend:cudaMallocasync", "cudaMallocAsync"),
        ("pinned_num_register_threads:3", "power of two"),
        ("pinned_num_register_threads:256", "to 128"),
        ("expandable_segments:true", "accepted: True, False;"),
        ("throw_on_cudamalloc_oom:1", "accepted: True, False;"),
        ("expandable_segments_reserve:0", "above 0"),
        ("expandable_segments_reserve_by_class:[a:b]", "a list"),
    ] {
        let loaded = plain(&[(CUDA, conf)]);
        assert_eq!(loaded.warnings.len(), 1, "{conf}: {:?}", loaded.warnings);
        let warning = &loaded.warnings[0];
        assert!(
            warning.starts_with("PYTORCH_CUDA_ALLOC_CONF: "),
            "{warning}"
        );
        let (key, _) = conf.split_once(':').unwrap_or((conf, ""));
        assert!(warning.contains(key) && warning.contains(part), "{warning}");
        assert_eq!(loaded.settings, Settings::default(), "{conf}");
    }
    // Our own variables are not as strict about truth.
    assert!(
        good(&[("VRAMALLOC_CONF", "throw_on_cudamalloc_oom:1")])
            .settings
            .config
            .fail_at_limit
    );
}

#[test]
fn a_bad_entry_leaves_the_others() {
    let loaded = plain(&[(
        CUDA,
        "max_split_size_mb:1,garbage_collection_threshold:0.5,",
    )]);
    assert_eq!(loaded.warnings.len(), 1);
    assert_eq!(
        loaded.settings.config.garbage_collection_threshold,
        Some(0.5)
    );
}

#[test]
fn the_large_segment_bounds_the_others_wherever_it_stands() {
    for conf in [
        "large_segment_size_mb:12,max_split_size_mb:16,max_non_split_rounding_mb:12",
        "max_non_split_rounding_mb:12,max_split_size_mb:16,large_segment_size_mb:12",
    ] {
        let splitting = good(&[(CUDA, conf)]).settings.config.splitting;
        assert_eq!(splitting.max_split, Some(Bytes::mib(16)));
        assert_eq!(splitting.max_non_split_rounding, Some(Bytes::mib(12)));
    }
    // Also in another variable, and a weaker text counts where the stronger
    // one is too small.
    let loaded = plain(&[
        (CUDA, "large_segment_size_mb:64,max_split_size_mb:64"),
        ("VRAMALLOC_MAX_SPLIT_SIZE_MB", "32"),
    ]);
    assert_eq!(
        loaded.warnings,
        [
            "VRAMALLOC_MAX_SPLIT_SIZE_MB: cannot read \"32\"; accepted: a whole number of MiB \
             from large_segment_size_mb (where that is none, 20) to 17592186044415, or none; \
             using 64 from PYTORCH_CUDA_ALLOC_CONF"
        ]
    );
    assert_eq!(value(&loaded, "max_split_size_mb"), "64");
}

#[test]
fn a_fraction_of_one_is_no_limit() {
    let whole = (CUDA, "per_process_memory_fraction:1.0");
    assert_eq!(value(&good(&[whole]), "limit"), "none");
    let loaded = good(&[("FLAGS_gpu_memory_limit_mb", "1024"), whole]);
    assert_eq!(value(&loaded, "limit"), "none");
}

#[test]
fn an_option_that_others_leave_idle_says_why() {
    for (idle, with, key) in [
        (
            "initial_gpu_memory_in_mb:100",
            "strategy:naive_best_fit",
            "",
        ),
        ("max_split_size_mb:64", "", "strategy:passthrough"),
        ("large_segment_size_mb:32", "", "strategy:naive_best_fit"),
        ("max_non_split_rounding_mb:64", "max_split_size_mb:64", ""),
        ("dedicated_min:1M", "", "strategy:passthrough"),
        (
            "roundup_bypass_threshold_mb:8",
            "roundup_power2_divisions:4",
            "",
        ),
        ("record_full:ring", "record:x.rec", ""),
        ("stack_distance:1M", "stacks:sampled", ""),
        ("stats_interval_s:5", "", "stats:off"),
        ("limit:1", "limit:0.5", ""),
        (
            "fuse_parameter_groups_size:5",
            "fuse_parameter_memory_size:1",
            "",
        ),
        (
            "pinned_num_register_threads:4",
            "pinned_use_cuda_host_register:True",
            "",
        ),
    ] {
        let says = |others: &str| {
            let conf = [idle, others].join(",");
            let loaded = good(&[("VRAMALLOC_CONF", conf.trim_end_matches(','))]);
            let (name, _) = idle.split_once(':').unwrap();
            effective(&loaded, name).no_effect
        };
        assert_eq!(says(with), None, "{idle} with {with}");
        assert!(says(key).is_some(), "{idle} with {key}");
    }
}

#[test]
fn what_has_no_effect_is_read_and_says_why() {
    let conf = "backend:cudaMallocAsync,\
                expandable_segments_reserve:16G,\
                expandable_segments_reserve_by_class:[default:0.5,side:2G],\
                graph_capture_record_stream_reuse:True,release_lock_on_hipmalloc:True,\
                pinned_free_catch_all:False";
    let loaded = good(&[(CUDA, conf), ("FLAGS_use_cuda_managed_memory", "False")]);
    assert_eq!(loaded.settings, Settings::default());
    let told: Vec<&str> = loaded
        .echo
        .iter()
        .filter(|e| e.no_effect.is_some())
        .map(|e| e.key)
        .collect();
    assert_eq!(told.len(), 7, "{told:?}");
    let backend = effective(&loaded, "backend");
    assert_eq!(
        (&*backend.value, &*backend.origin),
        ("cudaMallocAsync", CUDA)
    );
    assert!(backend.no_effect.unwrap().contains("stream"));
    let reserve = effective(&loaded, "expandable_segments_reserve_by_class");
    assert_eq!(reserve.value, "[default:0.5,side:2G]");
    let managed = effective(&loaded, "use_cuda_managed_memory");
    assert_eq!(managed.origin, "FLAGS_use_cuda_managed_memory");
    // Other names of PyTorch's are names of ours too.
    let loaded = good(&[("VRAMALLOC_RELEASE_LOCK_ON_HIPMALLOC", "True")]);
    assert_eq!(
        origin(&loaded, "release_lock_on_cudamalloc"),
        "VRAMALLOC_RELEASE_LOCK_ON_HIPMALLOC"
    );
    // Not given, not told.
    assert!(good(&[]).echo.iter().all(|e| e.no_effect.is_none()));
    // What cannot be read is ignored, and told.
    let loaded = plain(&[("VRAMALLOC_BACKEND", "hipMallocAsync")]);
    assert_eq!(
        loaded.warnings,
        [
            "VRAMALLOC_BACKEND: cannot read \"hipMallocAsync\"; accepted: native, \
             cudaMallocAsync; ignored"
        ]
    );
}

#[test]
fn every_option_of_pytorchs_goes_by_its_own_name() {
    for row in OPTIONS {
        match row.torch {
            Torch::Keys(keys) => assert!(KEYS.contains(&keys[0])),
            Torch::Variable(name) => {
                let name = name.strip_prefix("PYTORCH_").unwrap();
                assert_eq!(name.to_lowercase(), row.key);
            }
            Torch::No => {}
        }
        if matches!(row.role, Role::NoEffect(_)) {
            assert!(
                row.paddle.is_some() || row.torch != Torch::No,
                "{}",
                row.key
            );
        }
    }
}
