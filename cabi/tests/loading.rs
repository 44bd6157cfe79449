//! Libraries that come and go while CUDA is used, over the simulated CUDA: the
//! linker does the same, at the same time, as without us.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use vramalloc_tests::stage;

const STRATEGIES: [&str; 3] = ["naive_best_fit", "auto_growth", "passthrough"];

/// A folder with the program and these libraries, each with a name, a source
/// and a sign; they use the shared runtime.
fn built(test: &str, libraries: &[(&str, &str, u32)]) -> PathBuf {
    let cuda = stage::simulated_cuda();
    let folder = stage::shared(&format!("loading/{test}"));
    stage::compile("cabi/tests/loading/host.c", &folder.join("host"), &[]);
    let directory = format!("-L{}", cuda.display());
    for (name, source, sign) in libraries {
        let sign = format!("-DSIGN={sign}");
        let flags = [
            "-shared",
            &sign,
            &directory,
            "-Wl,--no-as-needed",
            "-lcudart",
        ];
        stage::compile(
            &format!("cabi/tests/loading/{source}"),
            &folder.join(name),
            &flags,
        );
    }
    folder
}

/// The program with these steps. It is ended if it hangs.
fn host(folder: &Path, steps: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", "30"])
        .arg(folder.join("host"))
        .args(steps)
        .current_dir(folder)
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("VRAMALLOC_STATS", "off");
    command
}

/// What a program prints, and the lines of ours on standard error.
fn outcome(command: &mut Command) -> (String, Vec<String>) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success(),
        "{:?}: {text}{errors}",
        output.status
    );
    let said = errors.lines().filter(|line| {
        let expected = ["vramalloc: out of memory: ", "simulated CUDA: violation: "];
        !expected.iter().any(|start| line.starts_with(start))
    });
    (text, said.map(str::to_owned).collect())
}

/// What it prints, if it prints nothing on standard error.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let (text, said) = outcome(command);
    assert!(said.is_empty(), "{said:?}");
    text
}

/// What it prints bare, and prints under every strategy too.
#[track_caller]
fn same_as_bare(folder: &Path, steps: &[&str]) -> String {
    let bare = printed(&mut host(folder, steps));
    for strategy in STRATEGIES {
        let options = format!("strategy:{strategy}");
        let with = printed(preloaded(&mut host(folder, steps)).env("VRAMALLOC_CONF", options));
        assert_eq!(with, bare, "{strategy}");
    }
    bare
}

fn preloaded(command: &mut Command) -> &mut Command {
    command.env("LD_PRELOAD", stage::debug_library())
}

#[test]
fn a_constructor_may_wait_for_a_thread_that_allocates() {
    let libraries = [
        ("libplugin.so", "plugin.c", 7),
        ("libjoins.so", "joins.c", 0),
    ];
    let folder = built("joins", &libraries);
    for how in ["local", "global"] {
        let text = same_as_bare(&folder, &[how, "+./libplugin.so", ".", "+./libjoins.so"]);
        assert!(text.ends_with("foreign 1, 1\n"), "{text}");
    }
}

#[test]
fn a_plugin_and_its_runtime_come_and_go() {
    let folder = built("come", &[("libplugin.so", "plugin.c", 7)]);
    for how in ["local", "global"] {
        let plugin = ["+./libplugin.so", ".", "-", "+./libplugin.so", ".", "-"];
        let text = same_as_bare(&folder, &[&[how][..], &plugin].concat());
        assert_eq!(text, "use 7\nclose 0\nuse 7\nclose 0\n", "{how}");
    }
    // The runtime by itself, in global scope; then something else lies there.
    let runtime = ["global", "+libcudart.so.13", "*", "-", "#"];
    let text = same_as_bare(&folder, &[&runtime[..], &runtime[1..3]].concat());
    assert_eq!(text, "own use 0\nclose 0\nown use 0\n");
}

#[test]
fn a_plugin_that_is_replaced_is_loaded_anew() {
    for how in ["local", "global"] {
        for is_preloaded in [false, true] {
            let libraries = [
                ("libplugin.so", "plugin.c", 7),
                ("libnew.so", "plugin.c", 8),
            ];
            let folder = built("anew", &libraries);
            let mut command = host(
                &folder,
                &[
                    how,
                    "+./libplugin.so",
                    ".",
                    "-",
                    "=./libnew.so:./libplugin.so",
                    "+./libplugin.so",
                    ".",
                ],
            );
            if is_preloaded {
                preloaded(&mut command);
            }
            let expected = "use 7\nclose 0\nreplace 0\nuse 8\n";
            assert_eq!(printed(&mut command), expected, "{how} {is_preloaded}");
        }
    }
}

/// Look-ups of the driver's functions pass us if we are opened late, or stand
/// behind another library with a `dlsym`.
#[test]
fn what_cannot_be_watched_is_handed_on() {
    let folder = built("past", &[("libshares.so", "shares.c", 0)]);
    stage::compile(
        "cabi/tests/loader/wraps.c",
        &folder.join("libwraps.so"),
        &["-shared"],
    );
    let library = stage::debug_library().to_str().unwrap();
    let late = format!("!{library}");
    let steps = ["global", &late, "+./libshares.so", "."];
    let behind = format!("./libwraps.so:{library}");
    for (steps, preload, before) in [
        (&steps[2..], "", ""),
        (&steps[2..], library, "served"),
        (&steps[1..], "", "not served"),
        (&steps[2..], &behind, "not served"),
    ] {
        let steps = [&steps[..0], &["global"], steps].concat();
        for limit in [None, Some("8G")] {
            let mut command = host(&folder, &steps);
            command.env("LD_PRELOAD", preload);
            if let Some(limit) = limit {
                command.env("VRAMALLOC_LIMIT", limit);
            }
            let file = folder.join("statistics.json");
            let _ = std::fs::remove_file(&file);
            command.env("VRAMALLOC_STATS", &file);
            let (text, said) = outcome(&mut command);
            assert_eq!(text, "use 0\n", "{before} {limit:?}");
            let told = said.len() == 1 && said[0].starts_with("vramalloc: limit is not in force:");
            assert_eq!(told, before == "not served" && limit.is_some(), "{said:?}");
            let statistics = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(statistics.is_empty(), before.is_empty(), "{before}");
            let told = statistics.contains("look-ups of the driver's functions do not come by");
            assert_eq!(told, before == "not served", "{statistics}");
        }
    }
}
