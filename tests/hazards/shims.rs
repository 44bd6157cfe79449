//! Other people's preloaded libraries, compiled from `shims/*.c` and from
//! `tests/naive`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

static BUILDING: Mutex<()> = Mutex::new(());

/// The shim of this name.
pub(crate) fn built(name: &str) -> PathBuf {
    compile(&format!("tests/hazards/shims/{name}.c"), name)
}

/// A shared library from one file of C, made once per process.
pub(crate) fn compile(source: &str, name: &str) -> PathBuf {
    static MADE: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shims");
    let library = folder.join(format!("lib{name}.so"));
    let _alone = BUILDING.lock().unwrap();
    if MADE.lock().unwrap().iter().any(|made| made == name) {
        return library;
    }
    std::fs::create_dir_all(&folder).unwrap();
    let new = folder.join(format!("lib{name}.so.{}", std::process::id()));
    let output = Command::new("gcc")
        .args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-shared",
        ])
        .arg("-o")
        .arg(&new)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
        .args(["-ldl", "-lpthread"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}: {told}");
    std::fs::rename(new, &library).unwrap();
    MADE.lock().unwrap().push(name.to_owned());
    library
}
