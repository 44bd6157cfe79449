//! Whether the frameworks' own variables are read.

use vramalloc_core::config::{Host, StrategyKind};

use super::{good, plain, under, value};

const PADDLE: Host = Host {
    paddle: true,
    torch: false,
};

const TORCH: Host = Host {
    paddle: false,
    torch: true,
};

const UNCACHED: &str = "PYTORCH_NO_CUDA_MEMORY_CACHING";

#[test]
fn import_decides_over_paddles_variables() {
    let flag = ("FLAGS_allocator_strategy", "naive_best_fit");
    for (host, import, read) in [
        (Host::default(), "auto", true),
        (Host::default(), "never", false),
        (TORCH, "auto", true),
        (PADDLE, "auto", false),
        (PADDLE, "always", true),
        (PADDLE, "never", false),
    ] {
        let by_variable = under(host, &[flag, ("VRAMALLOC_IMPORT", import)]);
        let conf = format!("import:{import}");
        let by_conf = under(host, &[flag, ("VRAMALLOC_CONF", &conf)]);
        for loaded in [by_variable, by_conf] {
            assert_eq!(
                loaded.settings.config.strategy == StrategyKind::NaiveBestFit,
                read,
                "{host:?} {import}"
            );
        }
    }
    // What is not read cannot be wrong either.
    let loaded = under(PADDLE, &[("FLAGS_allocator_strategy", "best_fit")]);
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn import_decides_over_pytorchs_variables() {
    for (host, import, uncached, read) in [
        (Host::default(), "auto", None, true),
        (Host::default(), "never", None, false),
        (PADDLE, "auto", None, true),
        (TORCH, "auto", None, false),
        (TORCH, "always", None, true),
        (TORCH, "never", None, false),
        // Without PyTorch's cache, this one is the cache.
        (TORCH, "auto", Some("1"), true),
        (TORCH, "auto", Some("0"), false),
        (TORCH, "never", Some("1"), false),
        // PyTorch ignores every other value, and keeps its cache.
        (TORCH, "auto", Some("true"), false),
        (TORCH, "auto", Some(""), false),
    ] {
        for variable in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
            let mut environment = vec![
                (variable, "per_process_memory_fraction:0.5"),
                ("VRAMALLOC_IMPORT", import),
            ];
            environment.extend(uncached.map(|text| (UNCACHED, text)));
            let loaded = under(host, &environment);
            let limit = if read { "0.5" } else { "none" };
            assert_eq!(value(&loaded, "limit"), limit, "{host:?} {environment:?}");
            assert_eq!(loaded.warnings, Vec::<String>::new());
        }
    }
    let loaded = under(TORCH, &[("PYTORCH_CUDA_ALLOC_CONF", "no_such:1")]);
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn the_stronger_text_for_import_counts() {
    let flag = ("FLAGS_allocator_strategy", "naive_best_fit");
    let loaded = good(&[
        flag,
        ("VRAMALLOC_IMPORT", "never"),
        ("VRAMALLOC_CONF", "import:always"),
    ]);
    assert_eq!(value(&loaded, "strategy"), "auto_growth");
    // One that cannot be read does not.
    let loaded = plain(&[
        flag,
        ("VRAMALLOC_IMPORT", "nevr"),
        ("VRAMALLOC_CONF", "import:never"),
    ]);
    assert_eq!(value(&loaded, "strategy"), "auto_growth");
    assert_eq!(loaded.warnings.len(), 1);
}

#[test]
fn an_uncached_pytorch_is_echoed() {
    let loaded = under(TORCH, &[(UNCACHED, "1")]);
    assert!(loaded.settings.torch_uncached);
    assert_eq!(super::origin(&loaded, "no_cuda_memory_caching"), UNCACHED);
    assert_eq!(plain(&[(UNCACHED, "yes")]).warnings.len(), 1);
}
