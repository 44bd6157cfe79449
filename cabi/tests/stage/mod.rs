//! Builds what these tests run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library under test. Cargo does not build a shared library for a test
/// beside it, so it is asked to.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")])
            .arg("--target-dir")
            .arg(target)
            .status();
        assert!(built.unwrap().success(), "the library does not build");
        target.join("debug/libvramalloc.so")
    })
}

/// The folder with the simulated CUDA.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn simulated_cuda() -> &'static Path {
    static CUDA: OnceLock<PathBuf> = OnceLock::new();
    CUDA.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let simulated = Command::new(root.join("scripts/build-sim")).status();
        assert!(simulated.unwrap().success(), "the driver does not build");
        root.join("target/sim")
    })
}

/// A folder for what a test builds.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles a source beside the tests.
pub(crate) fn compile(source: &str, output: &Path, flags: &[&str]) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let built = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-fPIC", "-pthread"])
        .args(["-Wall", "-Wextra", "-Werror"])
        .args(flags)
        .arg("-o")
        .arg(output)
        .arg(sources.join(source))
        .arg("-ldl")
        .status();
    assert!(built.unwrap().success(), "{source} does not compile");
}
