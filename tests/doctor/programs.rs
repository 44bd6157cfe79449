//! What is found of a program: of each kind, and of those that cannot be entered.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use vramalloc_tests::stage::{build, built, library};

use crate::place::{Place, program};

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
fn transports_are_named_where_memory_is_mapped() {
    let place = Place::new("transports");
    let linked = place.shared("libucp.so.0", "int ucp(void) { return 0; }");
    let opened = place.shared("libibverbs.so.1", "int verbs(void) { return 0; }");
    let (source, program) = (place.path("program.c"), place.path("program"));
    let text = format!(
        "#include <dlfcn.h>\nint ucp(void);\n\
         int main(void) {{ return ucp() || !dlopen(\"{opened}\", RTLD_NOW); }}"
    );
    fs::write(&source, text).unwrap();
    let rpath = format!("-Wl,-rpath,{}", place.path(""));
    build(Command::new("gcc").args(["-o", &program, &source, &linked, &rpath, "-ldl"]));
    place.doctor(&["--", &program]).has_no("network");
    let place = place.env("VRAMALLOC_STRATEGY", "mapped");
    let report = place.doctor(&["--", &program]);
    report.no_problem();
    report.finds("note", "network", "libucp.so.0 (UCX)");
    report.finds("note", "network", "libibverbs.so.1 (ibverbs)");
    // What is loaded only while it runs, only a trial sees.
    let report = place.doctor(&["--no-trial", "--", &program]);
    let found = report.finds("note", "network", "UCX");
    assert!(!found.contains("ibverbs"), "{found}");
}

#[test]
fn pauses_are_told() {
    let place = Place::new("pauses").env("VRAMALLOC_STRATEGY", "mapped");
    let program = program("api_pause.dynamic");
    let report = place.doctor(&["--", &program, "left", "true"]);
    report.no_problem();
    let told = report.finds("ok", "pauses", "region cache): Its memory was paused once");
    assert!(told.contains("nothing was copied"), "{told}");
    report.finds("note", "pauses", "region cache): It was paused when");
    let report = place.doctor(&["--", &program, "refusals"]);
    let told = report.finds("ok", "pauses", "and resumed once");
    assert!(told.contains("were copied to the host"), "{told}");
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
        let verdict = "no allocation of script was seen in this run before it ended with status 3";
        script.finds("note", "verdict", verdict);
        assert!(script.errors.contains("said"));

        let python = place.doctor(&["--", "python3", "-c", "pass"]);
        python.no_problem();
        python.finds("note", "cuda", "loads or starts while it runs");
        python.finds(
            "ok",
            "verdict",
            "nothing to do: no CUDA was seen in this run of python3",
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
    report.finds(
        "ok",
        "verdict",
        "2 allocations of families.driver went past the pool",
    );
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
