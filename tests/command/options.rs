//! `vramalloc options`.

use vramalloc_core::config::OPTIONS;

use crate::{Place, output};

#[test]
fn options_lists_values_in_force_and_where_they_come_from() {
    let place = Place::new("options");
    let options = |arguments: &[&str]| {
        let mut command = place.command(&[&["options"], arguments].concat());
        command
            .env("VRAMALLOC_CONF", "limit:8G,frobnicate:1")
            .env("PYTORCH_ALLOC_CONF", "pinned_free_catch_all:True")
            .env("FLAGS_fast_eager_deletion_mode", "False");
        let (code, out, errors) = output(command);
        assert_eq!(errors.lines().count(), 1);
        assert!(
            errors.starts_with("vramalloc: VRAMALLOC_CONF: unknown option"),
            "{errors}"
        );
        (code, out)
    };
    let (code, out) = options(&["-v"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = out.lines().collect();
    // Another name shows what the option has come to, and what has no effect
    // whether it was given.
    for line in [
        "limit = 8GiB (VRAMALLOC_CONF)",
        "gpu_memory_limit_mb: limit = 8GiB (VRAMALLOC_CONF)",
        "backend: not given",
        "pinned_free_catch_all = True (PYTORCH_ALLOC_CONF)",
        "free_sync = strict (FLAGS_fast_eager_deletion_mode)",
        "trace = 0 (default)",
    ] {
        assert!(lines.contains(&line), "{line}: {out}");
    }
    let flat = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in OPTIONS {
        assert!(
            lines
                .iter()
                .any(|line| line.split([' ', ':']).next() == Some(row.key)),
            "{}",
            row.key
        );
        for part in [row.help, row.accepted, row.paddle.unwrap_or("")] {
            let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(&part), "{part}");
        }
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");

    let rows = |arguments: &[&str]| {
        let (code, out) = options(arguments);
        assert_eq!(code, Some(0), "{out}");
        let lines = out.lines().take_while(|line| !line.is_empty());
        let rows = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        rows.collect::<Vec<_>>()
    };
    assert_eq!(
        rows(&["--changed"]),
        [
            "OPTION VALUE DEFAULT FROM",
            "limit 8GiB none VRAMALLOC_CONF",
            "free_sync strict deferred FLAGS_fast_eager_deletion_mode",
        ]
    );
    let all = rows(&[]);
    for row in ["limit 8GiB (VRAMALLOC_CONF)", "trace 0"] {
        assert!(all.iter().any(|line| line == row), "{row}: {all:?}");
    }
}

#[test]
fn options_are_found_by_any_of_their_names_or_a_near_one_is_told() {
    let place = Place::new("option_names");
    let found = |pattern: &str| {
        let (code, out, errors) = output(place.command(&["options", "--json", pattern]));
        assert_eq!(code, Some(0), "{pattern}: {errors}");
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        let found = found.as_array().unwrap().iter();
        let keys = found.map(|option| option["option"].as_str().unwrap().to_owned());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(found("stats_i"), ["stats_interval_s"]);
    assert_eq!(found("GPU_MEMORY_LIMIT"), ["limit", "gpu_memory_limit_mb"]);
    assert_eq!(found("flags_fast_e*mode"), ["fast_eager_deletion_mode"]);
    for (pattern, near) in [("stratgy", "strategy"), ("LIMBO_BUGET", "limbo_budget")] {
        let (code, _, errors) = output(place.command(&["options", pattern]));
        let expected = format!("vramalloc: no option fits \"{pattern}\"; did you mean {near}?");
        assert_eq!((code, errors), (Some(2), expected));
    }
    // An option's own variable names it; what is like none is not guessed at.
    assert_eq!(found("VRAMALLOC_STATS_I"), ["stats_interval_s"]);
    let (_, _, errors) = output(place.command(&["options", "PYTORCH_CUDA_ALLOC_CONF"]));
    let expected = "vramalloc: no option fits \"PYTORCH_CUDA_ALLOC_CONF\"";
    assert_eq!(errors, expected);
    assert_eq!(output(place.command(&["options", "[a"])).0, Some(2));
}

#[test]
fn options_that_are_given_are_as_those_of_run() {
    let place = Place::new("options_given");
    let options = |given: &[&str]| {
        let given = given.iter().map(|option| format!("--option={option}"));
        let mut command = place.command(&["options", "--changed"]);
        command
            .args(given)
            .env("FLAGS_fast_eager_deletion_mode", "False");
        output(command)
    };
    let (code, out, errors) = options(&["limit=1G", "limit: 8G ", "free_sync=deferred"]);
    let rows = out.lines().map(|line| line.split_whitespace());
    let rows: Vec<_> = rows
        .map(|words| words.collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!((code, &*errors), (Some(0), ""));
    assert!(
        rows.contains(&"limit 8GiB none VRAMALLOC_LIMIT".to_owned()),
        "{rows:?}"
    );
    // Paddle's variable would have given it another value.
    assert!(!out.contains("strict"), "{out}");
    for (given, told) in [
        ("limit=5Q", "limit: cannot read \"5Q\"; accepted: "),
        (
            "lmit=5G",
            "unknown option \"lmit\" with value \"5G\"; did you mean limit?",
        ),
        ("limit", "--option limit: accepted: KEY=VALUE"),
    ] {
        let (code, out, errors) = options(&["trace=5", given]);
        assert_eq!((code, &*out), (Some(2), ""), "{given}");
        assert!(
            errors.starts_with(&format!("vramalloc: {told}")),
            "{errors}"
        );
    }
}
