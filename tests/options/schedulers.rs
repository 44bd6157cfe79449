//! The limits that schedulers and container runtimes tell by variables of
//! their own.

use vramalloc_core::config::{Host, Unchanged};

use super::{good, origin, plain, under, value};

const NVIDIA: &str = "NVIDIA_GPU_MEMORY_LIMIT";
const HAMI: &str = "CUDA_DEVICE_MEMORY_LIMIT";
const KAI: &str = "GPU_MEMORY_LIMIT";

#[test]
fn a_schedulers_limit_is_the_limit() {
    for (name, text, limit) in [
        (NVIDIA, "8Gi", "8GiB"),
        (HAMI, "1024m", "1GiB"),
        (HAMI, "4g", "4GiB"),
        (HAMI, "1073741824", "1GiB"),
        (KAI, "8589934592", "8GiB"),
        (KAI, "0", "none"),
    ] {
        let loaded = good(&[(name, text)]);
        assert_eq!(
            (value(&loaded, "limit"), origin(&loaded, "limit")),
            (limit, name),
            "{text}"
        );
    }
    assert_eq!(origin(&good(&[(HAMI, "")]), "limit"), "default");
}

#[test]
fn an_own_limit_is_stronger_and_a_frameworks_weaker() {
    let schedulers = [
        (KAI, "1g"),
        (NVIDIA, "3g"),
        (HAMI, "2g"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "5g"),
    ];
    let with = |more: &[(&str, &str)]| {
        let mut all = schedulers.to_vec();
        all.extend(more);
        let loaded = good(&all);
        let of = |key| format!("{} by {}", value(&loaded, key), origin(&loaded, key));
        (of("limit"), of("device_limits"))
    };
    let by_device = "[1:5GiB] by CUDA_DEVICE_MEMORY_LIMIT_1".to_owned();
    let nvidia = (format!("3GiB by {NVIDIA}"), by_device.clone());
    assert_eq!(with(&[]), nvidia);
    assert_eq!(with(&[("FLAGS_gpu_memory_limit_mb", "64")]), nvidia);
    let none = "none by default".to_owned();
    for (name, text, place) in [
        ("VRAMALLOC_LIMIT", "16G", "VRAMALLOC_LIMIT"),
        ("VRAMALLOC_CONF", "limit:16G", "VRAMALLOC_CONF"),
        (
            "VRAMALLOC_GPU_MEMORY_LIMIT_MB",
            "16384",
            "VRAMALLOC_GPU_MEMORY_LIMIT_MB",
        ),
    ] {
        assert_eq!(
            with(&[(name, text)]),
            (format!("16GiB by {place}"), none.clone())
        );
    }
    let own = with(&[("VRAMALLOC_CONF", "device_limits:[0:1G,1:50%]")]);
    assert_eq!(
        own,
        (nvidia.0, "[0:1GiB,1:0.5] by VRAMALLOC_CONF".to_owned())
    );
    // One that cannot be read sets nothing.
    let mut all = schedulers.to_vec();
    all.push(("VRAMALLOC_LIMIT", "16"));
    let loaded = plain(&all);
    assert_eq!(value(&loaded, "limit"), "3GiB");
    assert!(loaded.warnings[0].ends_with("using 3GiB from NVIDIA_GPU_MEMORY_LIMIT"));
}

#[test]
fn each_device_may_have_its_own() {
    let loaded = good(&[
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g"),
        (HAMI, "1g"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "512m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_2", "0"),
    ]);
    assert_eq!(value(&loaded, "device_limits"), "[0:512MiB,1:2GiB]");
    assert_eq!(
        origin(&loaded, "device_limits"),
        "CUDA_DEVICE_MEMORY_LIMIT_0, …"
    );
    let config = &loaded.settings.config;
    let of = |device| {
        config
            .limit_of(device)
            .map(|limit| limit.of(vramalloc_core::Bytes::MAX))
    };
    let mib = |count| Some(vramalloc_core::Bytes::mib(count));
    assert_eq!(
        [of(Some(0)), of(Some(1)), of(Some(2)), of(None)],
        [mib(512), mib(2048), mib(1024), mib(1024)]
    );
    // Who sets the limit of a running process means every device.
    let mut changed = loaded.clone();
    assert_eq!(
        changed.change("limit", "3G", |_| true),
        Ok::<(), Unchanged>(())
    );
    assert_eq!(value(&changed, "device_limits"), "none");
    assert_eq!(
        changed.settings.config.limit_of(Some(0)),
        changed.settings.config.limit
    );
}

#[test]
fn what_cannot_be_read_is_one_warning_that_names_the_forms() {
    const ACCEPTED: &str = "accepted: a size such as 1024m, 4g or 4Gi, a whole number of bytes \
                            from 1 MiB, or 0 (no limit)";
    for (name, end) in [
        (KAI, "no limit is in force"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "ignored"),
    ] {
        let loaded = plain(&[(name, "50%")]);
        assert_eq!(
            loaded.warnings,
            [format!("{name}: cannot read \"50%\"; {ACCEPTED}; {end}")]
        );
        assert_eq!(value(&loaded, "limit"), "none");
    }
    // A number of MiB, as some charts have it.
    let loaded = plain(&[(HAMI, "4096")]);
    assert_eq!(
        loaded.warnings,
        [format!(
            "{HAMI}: cannot read \"4096\" (did you mean 4096M?); {ACCEPTED}; no limit is in force"
        )]
    );
}

#[test]
fn they_are_read_unless_nothing_is_imported() {
    let torch = Host {
        paddle: true,
        torch: true,
    };
    for (import, limit) in [("auto", "1GiB"), ("always", "1GiB"), ("never", "none")] {
        let loaded = under(torch, &[(HAMI, "1g"), ("VRAMALLOC_IMPORT", import)]);
        assert_eq!(value(&loaded, "limit"), limit, "{import}");
        assert_eq!(loaded.warnings, Vec::<String>::new());
    }
}
