//! The corners of the driver's doors, over the simulated driver: the program
//! that visits them prints the same bare and preloaded.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use vramalloc_tests::stage;

/// The simulated driver's folder and the program.
fn built() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = stage::shared("doors").join("corners");
        stage::compile("cabi/tests/doors/corners.c", &program, &[]);
        (stage::simulated_cuda().to_owned(), program)
    })
}

/// What the program prints, with these options for the library if it is
/// preloaded.
fn corners(options: Option<&str>) -> Vec<String> {
    let (driver, program) = built();
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", driver);
    if let Some(options) = options {
        command
            .env("LD_PRELOAD", stage::debug_library())
            .env("VRAMALLOC_CONF", options)
            .env("VRAMALLOC_STATS", "off");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{:?}: {text}", output.status);
    text.lines().map(str::to_owned).collect()
}

const NONE: [&str; 0] = [];

/// The lines that differ, as the preloaded program prints them.
fn differences(options: &str) -> Vec<String> {
    let (bare, preloaded) = (corners(None), corners(Some(options)));
    assert_eq!(bare.len(), preloaded.len(), "{preloaded:#?}");
    std::iter::zip(bare, preloaded)
        .filter(|(bare, preloaded)| bare != preloaded)
        .map(|(_, preloaded)| preloaded)
        .collect()
}

#[test]
fn a_pool_answers_as_the_driver_does() {
    for options in ["", "strategy:naive_best_fit", "free_sync:strict"] {
        assert_eq!(differences(options), NONE, "{options}");
    }
}

#[test]
fn blocks_with_an_allocation_of_their_own_have_handles() {
    for options in ["strategy:passthrough", "dedicated_min:1"] {
        assert_eq!(differences(options), NONE, "{options}");
    }
}

#[test]
fn a_handle_never_shows_the_wrong_bytes() {
    for options in ["", "strategy:naive_best_fit", "strategy:passthrough"] {
        let lines = corners(Some(options));
        let expected = "handles to the wrong bytes: 0";
        assert!(lines.iter().any(|line| line == expected), "{lines:#?}");
    }
}
