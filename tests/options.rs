//! Options from an environment, and the page that documents them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use vramalloc::Bytes;
use vramalloc::config::{
    Config, DeviceShare, FreeSync, GarbageThreshold, Host, Loaded, OPTIONS, OptionRow, Role,
    StrategyKind, Torch, check, load, variable,
};
use vramalloc::stats::StatsTarget;

fn under(host: Host, environment: &[(&str, &str)]) -> Loaded {
    load(
        environment
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value))),
        host,
    )
}

fn plain(environment: &[(&str, &str)]) -> Loaded {
    under(Host::default(), environment)
}

fn origin<'a>(loaded: &'a Loaded, key: &str) -> &'a str {
    &loaded.echo.iter().find(|e| e.key == key).unwrap().origin
}

#[test]
fn nothing_given_is_the_default_without_a_warning() {
    let loaded = plain(&[("PATH", "/bin"), ("VRAMALLOC_LIBRARY", "/lib/x.so")]);
    assert_eq!(loaded.settings.config, Config::default());
    assert_eq!(loaded.settings.stats, StatsTarget::default());
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert!(loaded.echo.iter().all(|e| e.origin == "default"));
}

#[test]
fn each_of_paddles_flags_sets_its_field() {
    let loaded = plain(&[
        ("FLAGS_allocator_strategy", "naive_best_fit"),
        ("FLAGS_fraction_of_gpu_memory_to_use", "0.5"),
        ("FLAGS_initial_gpu_memory_in_mb", "500"),
        ("FLAGS_reallocate_gpu_memory_in_mb", "100"),
        ("FLAGS_gpu_memory_limit_mb", "4096"),
        ("FLAGS_auto_growth_chunk_size_in_mb", "64"),
        ("FLAGS_eager_delete_tensor_gb", "0.25"),
        ("FLAGS_fast_eager_deletion_mode", "False"),
        ("FLAGS_memory_fraction_of_eager_deletion", "0.75"),
        ("FLAGS_cudnn_deterministic", "1"),
    ]);
    let expected = Config {
        strategy: StrategyKind::NaiveBestFit,
        chunk_fraction: 0.5,
        initial_chunk: Some(Bytes::mib(500)),
        reallocate_chunk: Some(Bytes::mib(100)),
        limit: Some(DeviceShare::Bytes(Bytes::gib(4))),
        auto_growth_chunk: Bytes::mib(64),
        garbage_threshold: GarbageThreshold::Bytes(Bytes::mib(256)),
        free_sync: FreeSync::Strict,
        garbage_fraction: 0.75,
        ..Config::default()
    };
    assert_eq!(loaded.settings.config, expected);
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(origin(&loaded, "limit"), "FLAGS_gpu_memory_limit_mb");
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
fn import_decides_over_the_frameworks_variables() {
    let flag = ("FLAGS_allocator_strategy", "naive_best_fit");
    let paddle = Host {
        paddle: true,
        ..Host::default()
    };
    for (host, import, read) in [
        (Host::default(), "auto", true),
        (Host::default(), "never", false),
        (paddle, "auto", false),
        (paddle, "always", true),
        (paddle, "never", false),
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
    let loaded = under(paddle, &[("FLAGS_allocator_strategy", "thread_local")]);
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn a_bad_value_is_one_warning_that_says_what_is_used() {
    let loaded = plain(&[("VRAMALLOC_CONF", "limit:12Q")]);
    assert_eq!(
        loaded.warnings,
        [
            "VRAMALLOC_CONF: limit: cannot read \"12Q\"; accepted: a size such as \
             16G or 512MiB, a share above 0 and up to 1, or none; using the default (none)"
        ]
    );
    let loaded = plain(&[
        ("VRAMALLOC_LIMIT", "-3"),
        ("FLAGS_gpu_memory_limit_mb", "2048"),
    ]);
    assert_eq!(
        loaded.warnings,
        [
            "VRAMALLOC_LIMIT: cannot read \"-3\"; accepted: a size such as \
             16G or 512MiB, a share above 0 and up to 1, or none; using 2GiB from \
             FLAGS_gpu_memory_limit_mb"
        ]
    );
}

#[test]
fn a_warning_is_one_line_that_does_nothing_to_a_terminal() {
    let long = format!("stats:{}", "x".repeat(100_000));
    for conf in ["stats:a\u{1b}[31m\nb", &long] {
        let loaded = plain(&[("VRAMALLOC_CONF", conf), ("VRAMALLOC_STATS", "%x\r")]);
        assert_eq!(loaded.warnings.len(), 1);
        let warning = &loaded.warnings[0];
        assert!(!warning.contains(char::is_control), "{warning:?}");
        assert!(warning.len() < 1000, "{} bytes", warning.len());
    }
}

#[test]
fn every_option_refuses_nonsense_with_one_warning_and_keeps_its_default() {
    for row in OPTIONS.iter().filter(|row| row.key != "stats") {
        for value in [
            "12Q",
            "-",
            "yes",
            "99999999999999999999999",
            "½",
            "\u{1b}[31m",
        ] {
            let conf = format!("{}:{value}", row.key);
            let loaded = plain(&[("VRAMALLOC_CONF", &conf)]);
            // A large number of GiB or a negative one has a meaning.
            let expected = usize::from(check(row.key, value).is_err());
            assert_eq!(loaded.warnings.len(), expected, "{conf}");
            assert!(value.len() > 20 || expected == 1, "{conf} was accepted");
            for warning in loaded.warnings {
                assert!(warning.contains(row.key), "{warning}");
                assert!(warning.contains(row.accepted), "{warning}");
                let end = match row.role {
                    Role::NoEffect(_) => "; ignored",
                    _ => "; using the default",
                };
                assert!(warning.contains(end), "{warning}");
                assert!(!warning.contains('\u{1b}'), "{warning}");
            }
        }
    }
}

#[test]
fn unknown_names_are_one_warning_each() {
    let loaded = plain(&[
        ("VRAMALLOC_LIMT", "3G"),
        ("VRAMALLOC_", "3G"),
        ("VRAMALLOC_CONF", "limti:3G,frobnicate:1,limit=3G"),
        ("OTHER_LIMIT", "3G"),
    ]);
    assert_eq!(
        loaded.warnings,
        [
            "unknown variable \"VRAMALLOC_LIMT\" with value \"3G\", ignored; did you \
             mean VRAMALLOC_LIMIT?",
            "unknown variable \"VRAMALLOC_\" with value \"3G\", ignored; accepted: what \
             `vramalloc options` lists",
            "VRAMALLOC_CONF: unknown option \"limti\" with value \"3G\", ignored; did \
             you mean limit?",
            "VRAMALLOC_CONF: unknown option \"frobnicate\" with value \"1\", ignored; \
             accepted: what `vramalloc options` lists",
            "VRAMALLOC_CONF: cannot read \"limit=3G\"; accepted: key:value, separated \
             by commas; ignored",
        ]
    );
    assert_eq!(loaded.settings.config, Config::default());
}

#[test]
fn empty_variables_count_as_not_set() {
    let loaded = plain(&[
        ("VRAMALLOC_CONF", ""),
        ("VRAMALLOC_LIMIT", ""),
        ("FLAGS_gpu_memory_limit_mb", " "),
    ]);
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.settings.config, Config::default());
    assert_eq!(plain(&[("VRAMALLOC_CONF", "limit:")]).warnings.len(), 1);
}

#[test]
fn what_is_not_utf8_is_a_bad_value() {
    let loaded = load(
        [
            (
                OsString::from("VRAMALLOC_STATS"),
                OsString::from_vec(b"/tmp/\xff.json".to_vec()),
            ),
            (
                OsString::from_vec(b"VRAMALLOC_\xff".to_vec()),
                OsString::from("1"),
            ),
        ],
        Host::default(),
    );
    assert_eq!(loaded.settings.stats, StatsTarget::default());
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
}

fn row() -> impl Strategy<Value = &'static OptionRow> {
    prop::sample::select(OPTIONS.iter().collect::<Vec<_>>())
}

/// A value that an option may well be given, or anything else.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        any::<f64>().prop_map(|n| n.to_string().into_bytes()),
        any::<i128>().prop_map(|n| n.to_string().into_bytes()),
        "[0-9]{0,25}[.]?[0-9]{0,3} ?[kmgtKMGT]?i?[bB]?".prop_map(String::into_bytes),
        row().prop_map(|row| row.default_value().into_bytes()),
        "[%a-z/]{0,9}".prop_map(String::into_bytes),
    ]
}

/// The name of a variable that is read, or nearly.
fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        row().prop_map(|row| variable(row).into_bytes()),
        row().prop_map(|row| format!("FLAGS_{}", row.key).into_bytes()),
        "VRAMALLOC_CONF".prop_map(String::into_bytes),
        "VRAMALLOC_[A-Z_]{0,30}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..20),
    ]
}

/// What the arena takes for granted.
fn assert_valid(config: &Config) {
    assert!((0.0..=1.0).contains(&config.chunk_fraction));
    assert!((0.0..=1.0).contains(&config.garbage_fraction));
    for share in [config.limit, config.limbo_budget].into_iter().flatten() {
        match share {
            DeviceShare::Fraction(f) => assert!(f > 0.0 && f <= 1.0),
            DeviceShare::Bytes(bytes) => assert!(!bytes.is_zero()),
        }
    }
    for size in [
        config.dedicated_min,
        config.initial_chunk,
        config.reallocate_chunk,
    ]
    .into_iter()
    .flatten()
    {
        assert!(!size.is_zero());
    }
    if let GarbageThreshold::Bytes(bytes) = config.garbage_threshold {
        assert!(!bytes.is_zero());
    }
}

proptest! {
    #[test]
    fn any_environment_gives_a_valid_config(
        environment in prop::collection::vec((name(), value()), 0..8),
        entries in prop::collection::vec(
            (row(), value()), 0..6),
        paddle in any::<bool>(),
    ) {
        let mut conf = Vec::new();
        for (row, value) in entries {
            conf.extend_from_slice(row.key.as_bytes());
            conf.push(b':');
            conf.extend_from_slice(&value);
            conf.push(b',');
        }
        let environment: Vec<(OsString, OsString)> = environment
            .into_iter()
            .chain([(b"VRAMALLOC_CONF".to_vec(), conf)])
            .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
            .collect();
        let host = Host { paddle, torch: false };
        let loaded = load(environment, host);
        assert_valid(&loaded.settings.config);
        for warning in &loaded.warnings {
            prop_assert!(!warning.contains('\n'));
        }
        // What is echoed, given as options, is the same configuration.
        let again: Vec<(OsString, OsString)> = loaded
            .echo
            .iter()
            .map(|e| (format!("VRAMALLOC_{}", e.key.to_uppercase()).into(), (&e.value).into()))
            .collect();
        let again = load(again, host);
        prop_assert_eq!(again.warnings, Vec::<String>::new());
        prop_assert_eq!(again.settings.config, loaded.settings.config);
        prop_assert_eq!(again.settings.stats, loaded.settings.stats);
    }
}

/// The table of docs/options.md.
fn documented_table() -> String {
    let mut table =
        String::from("| option | default | accepted | what it does |\n|---|---|---|---|\n");
    for row in OPTIONS {
        let mut name = format!("`{}`", row.key);
        for other in row.paddle.iter().chain(row.torch_keys().iter().skip(1)) {
            name += &format!("<br>`{other}`");
        }
        match row.torch {
            Torch::Keys(_) => name += "<br>PyTorch",
            Torch::Variable(variable) => name += &format!("<br>`{variable}`"),
            Torch::No => {}
        }
        let (default, more) = match row.role {
            Role::Own(_) => (format!("`{}`", row.default_value()), String::new()),
            Role::Sets(key) => (format!("as `{key}`"), String::new()),
            Role::NoEffect(why) => (
                "no effect".to_owned(),
                format!(" It has no effect here: {why}."),
            ),
        };
        table += &format!(
            "| {name} | {default} | *{}*: {} | {}{more} |\n",
            row.kind, row.accepted, row.help
        );
    }
    table
}

#[test]
fn the_page_holds_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/options.md");
    let page = fs::read_to_string(path).unwrap();
    let (head, rest) = page.split_once("<!-- options:").unwrap();
    let (marker, rest) = rest.split_once("-->\n").unwrap();
    let (_, tail) = rest.split_once("<!-- /options -->").unwrap();
    let expected = format!(
        "{head}<!-- options:{marker}-->\n{}<!-- /options -->{tail}",
        documented_table()
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, expected).unwrap();
    } else {
        assert!(
            page == expected,
            "docs/options.md is behind the table: UPDATE_DOCS=1 cargo test --test options"
        );
    }
}
