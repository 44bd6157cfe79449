//! Runtimes that libraries brought for themselves alone, under whatever name:
//! the real function behind a runtime's door is that of the calling library.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use vramalloc_tests::stage;

/// A library that uses a runtime in the file `name`, which signs its work.
fn user(folder: &Path, name: &str, sign: u32) -> PathBuf {
    let sign_flag = format!("-DSIGN={sign}");
    let soname = format!("-Wl,-soname,{name}");
    stage::compile(
        "cabi/tests/loader/runtime.c",
        &folder.join(name),
        &["-shared", &soname, &sign_flag],
    );
    let user = folder.join(format!("libuses{sign}.so"));
    let directory = format!("-L{}", folder.display());
    let needed = format!("-l:{name}");
    let flags = ["-shared", &directory, "-Wl,--no-as-needed", &needed];
    stage::compile(
        "cabi/tests/loader/uses.c",
        &user,
        &[&flags[..], &["-Wl,-rpath,$ORIGIN", &sign_flag]].concat(),
    );
    user
}

/// What `opens` prints of these libraries.
fn use_of(folder: &Path, users: &[PathBuf]) -> String {
    use_among(&[stage::debug_library().to_owned()], folder, users)
}

/// What `opens` prints under these preloads.
fn use_among(preloads: &[PathBuf], folder: &Path, users: &[PathBuf]) -> String {
    let preloads: Vec<_> = preloads.iter().map(|path| path.to_str().unwrap()).collect();
    let program = folder.join("opens");
    stage::compile("cabi/tests/loader/opens.c", &program, &[]);
    let output = Command::new(program)
        .args(users)
        .env("LD_PRELOAD", preloads.join(":"))
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{:?}", output.stderr);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_runtime_is_found_under_any_name() {
    // Named as by CUDA, as by tools that make wheels, and in another library.
    for name in [
        "libcudart.so.12",
        "libcudart-9335f6a2.so.12",
        "libframework.so",
    ] {
        let folder = stage::shared(&format!("runtimes/{name}"));
        let users = [user(&folder, name, 0)];
        assert_eq!(use_of(&folder, &users), "0\n", "{name}");
    }
}

/// With two runtimes in the process, each library's calls end in its own.
#[test]
fn a_call_ends_in_the_callers_own_runtime() {
    let folder = stage::shared("runtimes/two");
    let names = ["libcudart.so.12", "libcudart.so.13", "libframework.so"];
    let users: Vec<_> = (1..)
        .zip(names)
        .map(|(sign, name)| user(&folder, name, sign))
        .collect();
    assert_eq!(use_of(&folder, &users), "0\n0\n0\n");
}

/// Wrappers before us are not found again from behind us, however many there
/// are; those behind us are next.
#[test]
fn a_wrapper_of_the_runtime_is_not_led_back_to_itself() {
    let folder = stage::shared("runtimes/wrapped");
    let runtime = "libcudart.so.12";
    let users = [user(&folder, runtime, 0)];
    let wrappers = ["libcounts.so", "libtoo.so"].map(|name| {
        stage::compile(
            "cabi/tests/loader/counts.c",
            &folder.join(name),
            &["-shared"],
        );
        folder.join(name)
    });
    let [first, second] = wrappers;
    let us = stage::debug_library().to_owned();
    let runtime = folder.join(runtime);
    for preloads in [
        vec![first.clone(), runtime.clone()],
        vec![first.clone(), us.clone(), runtime.clone()],
        vec![first.clone(), second.clone(), us.clone(), runtime.clone()],
        vec![first.clone(), us.clone(), second.clone(), runtime.clone()],
        vec![us, first, second, runtime],
    ] {
        assert_eq!(use_among(&preloads, &folder, &users), "0\n", "{preloads:?}");
    }
}
