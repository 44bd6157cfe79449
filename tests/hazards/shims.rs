//! Other people's preloaded libraries, compiled from `shims/*.c` and from
//! `tests/naive`, and their drivers.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use vramalloc_tests::stage;

static BUILDING: Mutex<()> = Mutex::new(());

/// The shim of this name.
pub(crate) fn built(name: &str) -> PathBuf {
    compile(&format!("tests/hazards/shims/{name}.c"), name)
}

/// A folder with a `libcuda.so.1` that only stands before the simulated one: it
/// exports what that exports, and hands everything on.
pub(crate) fn driver() -> PathBuf {
    let folder = stage::shared("shims");
    let place = folder.join("driver");
    std::fs::create_dir_all(&place).unwrap();
    let simulated = stage::simulated_cuda().join("libcuda.so.1");
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&simulated)
        .output()
        .unwrap();
    let symbols = String::from_utf8(output.stdout).unwrap();
    let names = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    let names: String = names.map(|name| format!("NAME({name})\n")).collect();
    let list = place.join("names.h");
    if std::fs::read_to_string(&list).ok().as_ref() != Some(&names) {
        std::fs::write(&list, names).unwrap();
    }
    let built = compile("tests/hazards/shims/driver.c", "cuda-shim");
    let _alone = BUILDING.lock().unwrap();
    // One that is there may lead to where the checkout was before it was moved.
    let (other, new) = (place.join("libcuda.so.2"), place.join("libcuda.so.2.new"));
    let _ = std::fs::remove_file(&new);
    std::os::unix::fs::symlink(simulated, &new).unwrap();
    std::fs::rename(&new, &other).unwrap();
    std::fs::copy(built, place.join("libcuda.so.1.new")).unwrap();
    std::fs::rename(place.join("libcuda.so.1.new"), place.join("libcuda.so.1")).unwrap();
    place
}

/// A shared library from one file of C, made once per process.
pub(crate) fn compile(source: &str, name: &str) -> PathBuf {
    static MADE: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let folder = stage::shared("shims");
    let library = folder.join(format!("lib{name}.so"));
    let _alone = BUILDING.lock().unwrap();
    if MADE.lock().unwrap().iter().any(|made| made == name) {
        return library;
    }
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
            "-I",
        ])
        .arg(folder.join("driver"))
        .arg("-o")
        .arg(&new)
        .arg(stage::root().join(source))
        .args(["-ldl", "-lpthread"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}: {told}");
    std::fs::rename(new, &library).unwrap();
    MADE.lock().unwrap().push(name.to_owned());
    library
}
