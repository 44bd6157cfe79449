//! What is said of what cannot be read.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use vramalloc_core::config::{Config, Host, OPTIONS, Role, StatsTarget, check, load};

use super::plain;

#[test]
fn a_bad_value_is_one_warning_that_says_what_is_used() {
    let loaded = plain(&[("VRAMALLOC_CONF", "limit:12Q")]);
    assert_eq!(
        loaded.warnings,
        [
            "VRAMALLOC_CONF: limit: cannot read \"12Q\"; accepted: a size such as \
             16G or 512MiB, a share up to 100% such as 0.5 or 50%, or none; no limit is in force"
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
             16G or 512MiB, a share up to 100% such as 0.5 or 50%, or none; using 2GiB from \
             FLAGS_gpu_memory_limit_mb"
        ]
    );
}

/// Bytes are what nobody means by it.
#[test]
fn a_limit_of_a_few_bytes_is_told_and_none_is_in_force() {
    let loaded = plain(&[("VRAMALLOC_LIMIT", "16")]);
    assert_eq!(
        loaded.warnings,
        [
            "VRAMALLOC_LIMIT: cannot read \"16\" (did you mean 16G?); accepted: a size such \
             as 16G or 512MiB, a share up to 100% such as 0.5 or 50%, or none; no limit is in force"
        ]
    );
    assert_eq!(loaded.settings.config.limit, None);
    let budget = plain(&[("VRAMALLOC_CONF", "dedicated_min:x")]);
    assert!(budget.warnings[0].ends_with("using the default (none)"));
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
    for row in OPTIONS
        .iter()
        .filter(|row| !["stats", "record"].contains(&row.key))
    {
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
                    _ if row.target().key == "limit" => "; no limit is in force",
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
        ("VRAMALLOC_LIMT", ""),
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
