//! `vramalloc doctor` over programs of every kind, on the simulated CUDA.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vramalloc_tests::stage::{build, built, command, folder, library};

fn program(name: &str) -> String {
    let path = built().join("target/programs").join(name);
    path.to_str().unwrap().to_owned()
}

/// A directory of the test's own, and the command in it.
struct Place {
    directory: PathBuf,
    environment: Vec<(String, String)>,
}

impl Place {
    /// On a machine with the simulated CUDA.
    fn new(test: &str) -> Place {
        let sim = built().join("target/sim");
        Place::without_cuda(test).env("LD_LIBRARY_PATH", sim.to_str().unwrap())
    }

    /// On a machine without any CUDA.
    fn without_cuda(test: &str) -> Place {
        let directory = folder(&format!("doctor/{test}"));
        Place {
            directory,
            environment: Vec::new(),
        }
    }

    fn env(mut self, name: &str, value: &str) -> Place {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    /// A file that may be run.
    fn executable(&self, name: &str, contents: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A shared library of C.
    fn shared(&self, name: &str, source: &str) -> String {
        let (path, file) = (self.path(name), self.path("source.c"));
        fs::write(&file, source).unwrap();
        build(Command::new("gcc").args(["-shared", "-fPIC", "-o", &path, &file]));
        path
    }

    fn doctor(&self, arguments: &[&str]) -> Report {
        self.doctor_of(&library(), arguments)
    }

    /// With this library in place of the one under test.
    fn doctor_of(&self, library: &Path, arguments: &[&str]) -> Report {
        let mut command = Command::new(command());
        command
            .args(["doctor", "-v", "--library"])
            .arg(library)
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs(self.environment.iter().cloned())
            .current_dir(&self.directory);
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().unwrap();
        let report = Report {
            code: status.code(),
            text: findings(&String::from_utf8(stdout).unwrap()),
            errors: String::from_utf8_lossy(&stderr).into_owned(),
        };
        for line in report.text.lines() {
            let level = line.split_whitespace().next();
            assert!(matches!(level, Some("ok" | "note" | "problem")), "{line}");
        }
        let problems = report
            .text
            .lines()
            .filter(|line| line.starts_with("problem"));
        let expected = i32::from(problems.count() > 0);
        assert!(
            matches!(report.code, Some(2)) || report.code == Some(expected),
            "{report:?}"
        );
        report
    }
}

/// The findings, a line each, without the words that are explained below.
fn findings(text: &str) -> String {
    let text = text.split("\n\nwords\n").next().unwrap_or_default();
    let text = text.trim_end().replace(&format!("\n{:18}", ""), " ");
    match text.is_empty() {
        true => text,
        false => text + "\n",
    }
}

#[derive(Debug)]
struct Report {
    code: Option<i32>,
    text: String,
    errors: String,
}

impl Report {
    /// The one finding of this level on this subject that holds these words.
    #[track_caller]
    fn finds(&self, level: &str, subject: &str, words: &str) -> &str {
        let start = format!("{level:<9}{subject:<9}");
        let mut found = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix(&*start))
            .filter(|line| line.contains(words));
        let first = found.next();
        assert!(
            first.is_some() && found.next().is_none(),
            "{level} {subject}: {words}: {self:#?}"
        );
        first.unwrap()
    }

    #[track_caller]
    fn has_no(&self, words: &str) {
        assert!(!self.text.contains(words), "{words}: {self:#?}");
    }

    #[track_caller]
    fn no_problem(&self) {
        assert_eq!(self.code, Some(0), "{self:#?}");
    }
}

#[test]
fn every_kind_is_named_and_caught() {
    let place = Place::new("kinds");
    let stripped = place.path("stripped");
    build(Command::new("strip").args(["-o", &stripped, &program("basics.static")]));
    for (program, kind, door, other) in [
        (
            program("basics.dynamic"),
            "dynamic (",
            "cudaMalloc",
            "cuMemAlloc_v2",
        ),
        (
            program("basics.static"),
            "static (",
            "cuMemAlloc_v2",
            "cudaMalloc",
        ),
        (stripped, "static (", "cuMemAlloc_v2", "cudaMalloc"),
        (
            program("basics.driver"),
            "driver API (",
            "cuMemAlloc_v2",
            "cuGetProcAddress",
        ),
    ] {
        let report = place.doctor(&["--", &program]);
        report.no_problem();
        let name = Path::new(&program).file_name().unwrap().to_str().unwrap();
        let cuda = report.finds("ok", "cuda", "caught");
        assert!(cuda.starts_with(kind) && cuda.contains(name), "{cuda}");
        report.finds("ok", "driver", "target/sim/libcuda.so.1");
        report.finds("ok", "driver", "CUDA up to 13.0");
        report.finds("ok", "device", "1: Simulated");
        report.finds("ok", "trial", "1671 allocations served by auto_growth");
        let doors = report.finds("ok", "doors", name);
        assert!(doors.contains(door) && !doors.contains(other), "{doors}");
        report.finds("ok", "verdict", "1671 allocations");
        assert!(report.errors.contains("device 0 over the"), "{report:#?}");
    }
    // Nothing of the trials stays.
    assert_eq!(fs::read_dir(&place.directory).unwrap().count(), 1);
}

#[test]
fn a_linked_runtime_is_found_or_missed() {
    let place = Place::new("runtime");
    let report = place.doctor(&["--no-trial", "--", &program("basics.dynamic")]);
    report.no_problem();
    report.finds("ok", "runtime", "target/sim/libcudart.so.13");
    report.has_no("trial");

    let report = Place::without_cuda("no-runtime").doctor(&["--", &program("basics.dynamic")]);
    report.finds(
        "problem",
        "program",
        "libcudart.so.13, which basics.dynamic needs",
    );
    report.finds("problem", "driver", "libcuda.so.1");
    report.finds("note", "verdict", "2 problems");
    report.has_no("trial");
}

#[test]
fn programs_without_cuda_have_nothing_to_do() {
    for place in [Place::new("nothing"), Place::without_cuda("nothing-bare")] {
        let ls = place.doctor(&["--", "/bin/ls", "/"]);
        ls.no_problem();
        ls.finds("ok", "cuda", "ls and what it is linked to use no CUDA");
        ls.finds("ok", "verdict", "nothing to do");
        ls.has_no("libcuda");
        assert!(ls.errors.contains("usr"), "{ls:#?}");

        let script = place.executable("script", b"#!/bin/sh\necho said; exit 3\n");
        let script = place.doctor(&["--", &script]);
        script.no_problem();
        script.finds("note", "program", "its interpreter /bin/sh");
        script.finds("note", "cuda", "sh loads or starts while it runs");
        script.finds("note", "trial", "ended with status 3");
        script.finds("ok", "verdict", "nothing to do: script uses no CUDA memory");
        assert!(script.errors.contains("said"));

        let python = place.doctor(&["--", "python3", "-c", "pass"]);
        python.no_problem();
        python.finds("note", "cuda", "loads or starts while it runs");
        python.finds(
            "ok",
            "verdict",
            "nothing to do: python3 uses no CUDA memory",
        );
        let python = place.doctor(&["--no-trial", "--", "python3"]);
        python.finds("note", "verdict", "only a trial run tells");
    }
}

#[test]
fn what_a_script_starts_is_seen_in_the_trial() {
    let place = Place::new("script");
    let script = format!(
        "{}; {}",
        program("basics.driver"),
        program("basics.dynamic")
    );
    let report = place.doctor(&["--", "sh", "-c", &script]);
    report.no_problem();
    report.finds("ok", "doors", "basics.driver");
    report.finds("ok", "doors", "basics.dynamic");
    report.finds("ok", "verdict", "3342 allocations of sh were served");
}

#[test]
fn a_process_that_ends_without_its_handlers_is_told_of() {
    let script = "\
import ctypes, os, time
cuda = ctypes.CDLL('libcuda.so.1')
address, context = ctypes.c_uint64(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
time.sleep(2.5)
os._exit(0)
";
    let report = Place::new("unfinished").doctor(&["--", "python3", "-c", script]);
    report.no_problem();
    report.finds("ok", "doors", "cuMemAlloc_v2");
    report.finds("ok", "verdict", "1 allocation of python3 was served");
}

/// A program that never calls `cudaMalloc` has something to do with us all the
/// same.
#[test]
fn memory_past_the_pool_is_named_and_counted() {
    let place = Place::new("past");
    let past = |name: &str| [program(name), "pool:8M".to_owned(), "virtual:4M".to_owned()];
    for (name, is_told_before) in [
        ("families.driver", true),
        ("families.dynamic", true),
        // A runtime that is linked in names all functions itself.
        ("families.static", false),
    ] {
        let past = past(name);
        let report = place.doctor(&["--", &past[0], &past[1], &past[2]]);
        report.no_problem();
        let before = "it can take memory past the pool, by ";
        assert_eq!(report.text.contains(before), is_told_before, "{report:#?}");
        if is_told_before {
            let functions = report.finds("note", "cuda", before);
            // The driver's name or the runtime's.
            for part in ["llocAsync, ", "cuMemCreate", "and not pooled"] {
                assert!(functions.contains(part), "{functions}");
            }
            report.finds("note", "cuda", "managed:uncounted leaves it out");
        }
        let trial = "took memory past the pool: 1 by cuMemCreate, 1 by cudaMallocAsync";
        report.finds("ok", "trial", trial);
        let verdict = format!("2 allocations of {name} went past the pool, and none to it");
        report.finds("ok", "verdict", &verdict);
        report.has_no("0 allocations");
    }
    // What a shell starts is seen in the trial alone.
    let command = past("families.driver").join(" ");
    let report = place.doctor(&["--", "sh", "-c", &command]);
    report.finds("ok", "verdict", "2 allocations of sh went past the pool");
    let both = place.doctor(&["--", &program("families.driver"), "plain:4M", "virtual:4M"]);
    let verdict = "1 allocation of families.driver was served; 1 more went past the pool";
    both.finds("ok", "verdict", verdict);
    place
        .doctor(&["--", &program("basics.driver")])
        .has_no("went past the pool");

    let place = Place::new("past-limit").env("VRAMALLOC_LIMIT", "16M");
    let report = place.doctor(&["--", &program("families.driver"), "virtual:64M"]);
    let refused = "refused because of the limit: 1 by cuMemCreate";
    report.finds("note", "trial", refused);
}

/// Functions that a program is linked to, and none that it only speaks of.
#[test]
fn functions_past_the_pool_are_found_in_what_a_program_imports() {
    let place = Place::new("past-linked");
    let source = place.path("linked.c");
    let text = "int cudaMallocManaged(void **, unsigned long, unsigned);\n\
        int puts(const char *);\n\
        int main(void) { void *p; puts(\"cudaMallocAsync: no\");\n\
        return cudaMallocManaged(&p, 4096, 1); }";
    fs::write(&source, text).unwrap();
    let linked = place.path("linked");
    let runtime = built().join("target/sim/libcudart.so.13");
    build(Command::new("gcc").args(["-o", &linked, &source, runtime.to_str().unwrap()]));
    let report = place.doctor(&["--no-trial", "--", &linked]);
    report.no_problem();
    report.finds("note", "cuda", "past the pool, by cudaMallocManaged: CUDA");
    report.has_no("cudaMallocAsync");
}

#[test]
fn without_a_program_the_machine_is_examined() {
    let report = Place::new("machine").doctor(&[]);
    report.no_problem();
    report.finds("ok", "library", "libvramalloc.so");
    report.finds("ok", "device", "0: Simulated");
    report.finds("ok", "runtime", "libcudart.so.13");
    report.finds("ok", "verdict", "nothing stands in the way");

    let report = Place::without_cuda("bare-machine").doctor(&[]);
    report.finds("problem", "driver", "install NVIDIA's driver");
    assert_eq!(report.code, Some(1));
}

#[test]
fn a_driver_that_refuses_is_a_problem() {
    let place = Place::new("refuses").env("SIM_CUDA_FAULT", "cuInit:1:803");
    let report = place.doctor(&[]);
    report.finds(
        "problem",
        "devices",
        "cuInit fails: library and kernel module",
    );
    let none = Place::new("none")
        .env("SIM_CUDA_FAULT", "cuInit:1:100")
        .doctor(&[]);
    none.finds("problem", "devices", "CUDA_VISIBLE_DEVICES");
    // Another program is not concerned.
    place.doctor(&["--", "ls"]).no_problem();
    place.doctor(&["--", "sh", "-c", ":"]).no_problem();

    let place = Place::without_cuda("stub");
    fs::create_dir(place.path("stubs")).unwrap();
    place.shared(
        "stubs/libcuda.so.1",
        "int cuInit(unsigned flags) { return 34; }",
    );
    let stubs = place.path("stubs");
    let report = place.env("LD_LIBRARY_PATH", &stubs).doctor(&[]);
    report.finds("problem", "driver", "stub");
}

#[test]
fn other_preloads_are_named() {
    let place = Place::new("preloads");
    let ours = library().to_str().unwrap().to_owned();
    let rival = place.shared(
        "rival.so",
        "int cudaMalloc(void **p, unsigned long n) { return 2; }\n\
         int cuMemAlloc_v2(void *p, unsigned long n) { return 2; }",
    );
    let other = place.shared("other.so", "int nothing_of_cudas;");
    let copy = place.path("libvramalloc.so");
    fs::copy(&ours, &copy).unwrap();
    let with = |preload: &str| {
        let place = Place::new("preloads-run").env("LD_PRELOAD", preload);
        place.doctor(&["--no-trial", "--", &program("basics.static")])
    };

    let report = with(&format!("{other}:{rival}"));
    report.no_problem();
    report.finds("ok", "preload", "other.so in LD_PRELOAD defines none");
    report.finds(
        "note",
        "preload",
        "rival.so in LD_PRELOAD defines cuMemAlloc_v2, cudaMalloc too",
    );

    let report = with(&format!("{ours} {rival}"));
    report.no_problem();
    report.finds("ok", "preload", "LD_PRELOAD names this library already");
    report.finds("note", "preload", "rival.so");

    let report = with(&format!("{rival}:{ours}"));
    report.finds(
        "problem",
        "preload",
        "stands before this library and takes cuMemAlloc_v2",
    );

    let report = with(&copy);
    report.finds("problem", "preload", "another copy");

    let hides = place.shared(
        "hides.so",
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n\
         void *dlsym(void *h, const char *n) {\n\
         return ((void *(*)(void *, const char *))dlvsym(RTLD_NEXT, \"dlsym\", \
         \"GLIBC_2.2.5\"))(h, n); }",
    );
    let report = with(&format!("{hides}:{ours}"));
    report.finds(
        "problem",
        "preload",
        "stands before this library and exports dlsym",
    );
    // A trial puts the library in front of it.
    let place = Place::new("hidden").env("LD_PRELOAD", &format!("{ours}:{hides}"));
    place
        .doctor(&["--", &program("basics.dynamic")])
        .no_problem();

    let report = with("/nowhere/at/all.so");
    report.no_problem();
    report.finds(
        "note",
        "preload",
        "/nowhere/at/all.so in LD_PRELOAD is not there",
    );
}

#[test]
fn a_runtime_that_looks_past_preloads_is_named() {
    for (how, deep) in [("deepbind", true), ("deep-later", false), ("local", false)] {
        let place = Place::new(&format!("deepbind-{how}"));
        let report = place.doctor(&["--", &program("layers.dynamic"), how]);
        report.no_problem();
        assert_eq!(report.text.contains("deepbind "), deep, "{report:?}");
        if deep {
            report.finds("note", "deepbind", "libcudart.so.12 came into a process");
        }
    }
}

/// In an image with libc alone nothing starts under the library.
#[test]
fn what_the_library_needs_is_looked_for() {
    let place = Place::new("needs");
    let mut bytes = fs::read(library()).unwrap();
    let (name, other) = (b"libgcc_s.so.1\0", b"libgcc_q.so.1\0");
    let at: Vec<usize> = (bytes.windows(name.len()).enumerate())
        .filter(|(_, window)| window == name)
        .map(|(at, _)| at)
        .collect();
    assert!(!at.is_empty());
    for at in at {
        bytes[at..at + other.len()].copy_from_slice(other);
    }
    let copy = place.executable("libvramalloc.so", &bytes);
    let report = place.doctor_of(Path::new(&copy), &[]);
    report.finds(
        "problem",
        "library",
        "libgcc_q.so.1, which the library needs, is nowhere",
    );
    place.doctor(&[]).no_problem();
}

#[test]
fn options_and_the_way_of_the_statistics() {
    let place = Place::new("options")
        .env("VRAMALLOC_CONF", "limit:8G,strategy:best")
        .env("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        .env("VRAMALLOC_STATS", "/nowhere/at/all.json");
    let report = place.doctor(&["--", "/bin/ls"]);
    report.finds("ok", "option", "limit = 8GiB (VRAMALLOC_CONF)");
    report.finds("ok", "option", "strategy = auto_growth (default)");
    report.finds("problem", "option", "cannot read \"best\"");
    let idle = "expandable_segments = True (PYTORCH_ALLOC_CONF) has no effect: chunks are";
    report.finds("note", "option", idle);
    report.finds("problem", "stats", "/nowhere/at is not a directory");
    report.finds("note", "verdict", "2 problems");

    for (stats, level, words) in [
        ("off", "note", "switched off"),
        ("stderr", "ok", "standard error"),
        ("/tmp/%h/a.json", "note", "/tmp/%h/a.json"),
        ("/tmp/a.%p.json", "ok", "a.%p.json in /tmp"),
    ] {
        let report = Place::new("stats")
            .env("VRAMALLOC_STATS", stats)
            .doctor(&[]);
        report.no_problem();
        report.finds(level, "stats", words);
    }
}

#[test]
fn programs_that_the_library_cannot_enter() {
    let place = Place::new("enter");
    let source = place.path("nothing.c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let whole = place.path("whole");
    build(Command::new("gcc").args(["-static", "-o", &whole, &source]));
    let report = place.doctor(&["--", &whole]);
    report.no_problem();
    report.finds("note", "program", "whole has no loader");
    report.finds("ok", "verdict", "nothing to do");

    let mut header = fs::read(&whole).unwrap();
    header[4] = 1;
    header[18] = 3;
    let report = place.doctor(&["--", &place.executable("narrow", &header)]);
    report.finds("note", "program", "narrow is for i386 (32-bit)");

    let report = place.doctor(&["--", library().to_str().unwrap()]);
    report.finds("note", "program", "libvramalloc.so is a library");

    // Only root can make a program another user's.
    let copy = place.executable("raised", &fs::read(program("basics.static")).unwrap());
    if fs::metadata(&copy).unwrap().uid() == 0 {
        chown(&copy, Some(65534), None).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
        let report = place.doctor(&["--", &copy]);
        report.finds("problem", "program", "set-user-id, to user 65534");
        report.has_no("trial");
    }
}

#[test]
fn what_cannot_be_run_is_a_problem() {
    let place = Place::new("wrong");
    let report = place.doctor(&["--", "no-such-program"]);
    report.finds("problem", "program", "there is no program no-such-program");
    let lost = place.executable("lost", b"#!/no/such/interpreter\n");
    let report = place.doctor(&["--", &lost]);
    report.finds("problem", "program", "is a script for /no/such/interpreter");
    let text = place.executable("text", b"no program at all");
    let report = place.doctor(&["--", &text]);
    report.finds("problem", "program", "not an ELF file");
    let itself = place.path("itself");
    let script = format!("#!{itself}\n");
    let report = place.doctor(&["--", &place.executable("itself", script.as_bytes())]);
    report.finds("problem", "program", "scripts that lead to scripts");
    assert_eq!(place.doctor(&["--colour"]).code, Some(2));
}
