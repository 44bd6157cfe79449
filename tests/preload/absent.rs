//! Risk: what is missing below us is missing worse with us.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use vramalloc_tests::stage::{Kind, Outcome, Run, fresh_folder, library, simulated_cuda};

/// A folder with only these libraries of the simulated CUDA.
fn only(libraries: &[&str]) -> PathBuf {
    let folder = fresh_folder();
    for library in libraries {
        symlink(simulated_cuda().join(library), folder.join(library)).unwrap();
    }
    folder
}

fn both(program: &'static str, kind: Kind, change: impl Fn(Run) -> Run) -> [Outcome; 2] {
    [Run::bare(program, kind), Run::preloaded(program, kind)].map(|run| change(run).go())
}

#[track_caller]
fn same([bare, preloaded]: &[Outcome; 2]) {
    assert_eq!(preloaded.code(), bare.code(), "{}", preloaded.what);
    assert_eq!(preloaded.stdout, bare.stdout, "{}", preloaded.what);
    assert_eq!(preloaded.said(), bare.said(), "{}", preloaded.what);
}

#[test]
fn without_a_driver_all_is_as_without_us() {
    let folder = only(&["libcudart.so.13"]);
    for kind in Kind::each() {
        for program in ["basics", "nothing", "constructor", "oom"] {
            let outcomes = both(program, kind, |run| {
                run.env("LD_LIBRARY_PATH", &folder.to_string_lossy())
            });
            same(&outcomes);
            assert!(outcomes[1].written.is_empty(), "{}", outcomes[1].what);
        }
    }
}

#[test]
fn without_a_runtime_the_others_run() {
    let folder = only(&["libcuda.so.1"]);
    for kind in [Kind::Static, Kind::Driver, Kind::Resolver] {
        let outcomes = both("basics", kind, |run| {
            run.env("LD_LIBRARY_PATH", &folder.to_string_lossy())
        });
        same(&outcomes);
        outcomes[1].quiet(0).stats();
    }
}

#[test]
fn without_a_device_all_is_as_without_us() {
    for kind in Kind::each() {
        same(&both("basics", kind, |run| {
            run.env("SIM_CUDA_DEVICES", "0")
        }));
    }
}

#[test]
fn a_driver_too_old_for_the_runtime_is_refused_by_the_runtime() {
    for kind in [Kind::Dynamic, Kind::Static] {
        let outcomes = both("basics", kind, |run| run.env("SIM_CUDA_VERSION", "11040"));
        same(&outcomes);
        assert_eq!(outcomes[1].code(), 1);
    }
}

/// What we could use but an older driver lacks.
#[test]
fn a_driver_that_lacks_newer_functions_serves_as_well() {
    let lacks = "cuCtxRecordEvent,cuThreadExchangeStreamCaptureMode,cuCtxGetId,\
                 cuCtxGetDevice_v2,cuStreamGetCaptureInfo_v2,cuStreamGetCaptureInfo_v3";
    for kind in Kind::each() {
        let outcomes = both("basics", kind, |run| run.env("SIM_CUDA_LACKS", lacks));
        same(&outcomes);
        outcomes[1].quiet(0).no_violations().stats();
    }
}

/// An error that is not out of memory reaches the program as it is.
#[test]
fn an_error_of_the_driver_is_passed_on() {
    let always: Vec<_> = (1..100).map(|n| format!("cuMemAlloc_v2:{n}:719")).collect();
    for kind in Kind::each() {
        let outcomes = both("constructor", kind, |run| {
            run.env("SIM_CUDA_FAULT", &always.join(","))
        });
        same(&outcomes);
        let told = &outcomes[1].stderr;
        assert!(told.contains(": 719 ("), "{told}");
    }
}

/// What a program reads in a file of its own process, under the preload.
fn own(program: &Path, file: &str) -> Vec<u8> {
    let output = Command::new(program)
        .arg(format!("/proc/self/{file}"))
        .env("LD_PRELOAD", library())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn maps_us(program: &Path) -> bool {
    let maps = String::from_utf8(own(program, "maps")).unwrap();
    maps.contains("libvramalloc")
}

/// Whether the program runs with other rights than its user's.
fn is_raised(program: &Path) -> bool {
    let status = String::from_utf8(own(program, "status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("Uid:"));
    let mut users = line.unwrap().split_whitespace().skip(1);
    let (real, effective) = (users.next(), users.next());
    real != effective
}

/// The loader ignores a preload by path in a program that runs with others'
/// rights, and we do nothing about it.
#[test]
fn a_set_user_id_program_is_left_to_the_loader() {
    const NOBODY: u32 = 65_534;
    let folder = fresh_folder();
    let [plain, raised] = ["plain", "raised"].map(|name| folder.join(name));
    for copy in [&plain, &raised] {
        fs::copy("/bin/cat", copy).unwrap();
    }
    assert!(maps_us(&plain), "the library is not preloaded at all");
    if chown(&raised, Some(NOBODY), None).is_err() {
        println!("not root: no program can be made to run with others' rights");
        return;
    }
    fs::set_permissions(&raised, fs::Permissions::from_mode(0o4755)).unwrap();
    if !is_raised(&raised) {
        println!("{folder:?} is mounted so that it lends no rights");
        return;
    }
    assert!(!maps_us(&raised), "a program with others' rights maps us");
}
