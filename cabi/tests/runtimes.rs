//! Runtimes that a library brought for itself alone, under whatever name:
//! the real function behind a runtime's door is theirs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use std::process::Command;

/// What `opens` prints of a library linked to a runtime in the file `name`.
fn use_of(name: &str) -> String {
    let folder = stage::folder(&format!("runtimes/{name}"));
    let soname = format!("-Wl,-soname,{name}");
    let runtime = folder.join(name);
    stage::compile("loader/runtime.c", &runtime, &["-shared", &soname]);
    let user = folder.join("libuses.so");
    let directory = format!("-L{}", folder.display());
    let needed = format!("-l:{name}");
    let flags = ["-shared", &directory, "-Wl,--no-as-needed", &needed];
    stage::compile(
        "loader/uses.c",
        &user,
        &[&flags[..], &["-Wl,-rpath,$ORIGIN"]].concat(),
    );
    let program = folder.join("opens");
    stage::compile("loader/opens.c", &program, &[]);
    let output = Command::new(program)
        .arg(user)
        .env("LD_PRELOAD", stage::library())
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{:?}", output.stderr);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_runtime_is_found_under_any_name() {
    // As CUDA names it, as the tools that make wheels do, and inside of
    // something else.
    for name in [
        "libcudart.so.12",
        "libcudart-9335f6a2.so.12",
        "libframework.so",
    ] {
        assert_eq!(use_of(name), "0\n", "{name}");
    }
}
