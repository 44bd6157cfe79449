//! Risk: what is missing below us is missing worse with us.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::stage::{Kind, Outcome, Run, fresh_folder, simulated_cuda};

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
    for kind in Kind::ALL {
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
    for kind in Kind::ALL {
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
    for kind in Kind::ALL {
        let outcomes = both("basics", kind, |run| run.env("SIM_CUDA_LACKS", lacks));
        same(&outcomes);
        outcomes[1].quiet(0).no_violations().stats();
    }
}

/// An error that is not out of memory reaches the program as it is.
#[test]
fn an_error_of_the_driver_is_passed_on() {
    let always: Vec<_> = (1..100).map(|n| format!("cuMemAlloc_v2:{n}:719")).collect();
    for kind in Kind::ALL {
        let outcomes = both("constructor", kind, |run| {
            run.env("SIM_CUDA_FAULT", &always.join(","))
        });
        same(&outcomes);
        let told = &outcomes[1].stderr;
        assert!(told.contains(": 719 ("), "{told}");
    }
}
