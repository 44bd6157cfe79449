//! Risk: what others do to a process's page, or it does to itself, ends or
//! hangs it, or keeps it from being seen for ever.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;

use vramalloc_tests::outside::{Place, Talk, has_ended, said, until};
use vramalloc_tests::stage::{self, Kind, Run};

const SIGSYS: i32 = 31;

fn disturbed(place: &Place) -> Run {
    Run::preloaded("disturbed", Kind::Dynamic).env("VRAMALLOC_IPC_DIR", &place.0.to_string_lossy())
}

/// Whoever may write to the page may also cut it off, while the process writes.
#[test]
fn a_page_that_is_cut_off_or_removed_is_made_anew() {
    let removed = |place: &Place| fs::remove_dir_all(place.private()).unwrap();
    let cut_off = |place: &Place| {
        let page = place.private().join(&place.left()[0]);
        File::options()
            .write(true)
            .open(page)
            .unwrap()
            .set_len(0)
            .unwrap();
    };
    let disturb: [&(dyn Fn(&Place) + Sync); 2] = [&removed, &cut_off];
    std::thread::scope(|scope| {
        for disturb in disturb {
            scope.spawn(move || {
                let place = Place::new();
                let mut program = place.talk("");
                program.tell("+3M").unwrap();
                assert!(place.status(program.pid()).is_some());
                assert_eq!(place.order(&mut program, &["trim"]).code, 0);
                disturb(&place);
                assert_eq!(program.tell("+100M").unwrap(), "1: 0\n");
                assert_eq!(place.status(program.pid()), None);
                until(|| {
                    program.tell("i").unwrap();
                    place.status(program.pid()).is_some()
                });
                let said = place.order(&mut program, &["trim"]);
                assert_eq!(said.code, 0, "{said:?}");
                assert!(program.end().success());
                assert!(!place.private().exists());
            });
        }
    });
}

/// What could not be had once may be had later.
#[test]
fn a_page_that_could_not_be_made_is_made_later() {
    let place = Place::new();
    let later = Place(place.0.join("later"));
    let mut program = later.talk("");
    program.tell("+3M").unwrap();
    fs::create_dir(&later.0).unwrap();
    until(|| {
        program.tell("i").unwrap();
        later.status(program.pid()).is_some()
    });
}

/// A filter of system calls ends the program at one that it does not make.
#[test]
fn a_program_that_sandboxes_itself_is_let_be() {
    for (how, took) in [
        ("before", &["took 3 MiB"][..]),
        ("after", &["took 3 MiB", "took 100 MiB"]),
    ] {
        let place = Place::new();
        let outcome = disturbed(&place).arg(how).conf("stats:stderr").go();
        assert_eq!(outcome.code(), 0, "{}", outcome.what);
        assert_eq!(outcome.stdout.lines().collect::<Vec<_>>(), took);
        let off = "\"control\": \"off: system calls are filtered (seccomp)\"";
        assert!(outcome.stderr.contains(off), "{}", outcome.stderr);
        // What it could not remove goes with the next look.
        assert_eq!(place.left().len(), usize::from(how == "after"));
        assert_eq!(place.status(0), None);
        assert_eq!(place.left(), [""; 0]);
    }
}

/// One that can open no file is let be at its end, too, unless statistics are asked
/// for.
#[test]
fn a_program_in_a_strict_sandbox_ends_as_bare() {
    for kind in Kind::each() {
        let strict = |run: Run| run.arg("strict").env("SIM_CUDA_REPORT", "").go();
        strict(Run::bare("disturbed", kind)).quiet(0);
        for conf in ["", "stats:off", "thread_cache:0"] {
            let outcome = strict(Run::preloaded("disturbed", kind).conf(conf));
            outcome.quiet(0);
            assert_eq!(outcome.stdout, "took 3 MiB\ntook 100 MiB\n");
        }
        let asked = Run::preloaded("disturbed", kind).conf("stats:x.json");
        assert_eq!(strict(asked).code(), -SIGSYS);
    }
}

/// Nor in between, nor because it was started by `vramalloc run`, which names a file.
#[test]
fn a_program_in_a_strict_sandbox_runs_as_bare() {
    let place = Place::new();
    let run = disturbed(&place).arg("sealed").env("SIM_CUDA_REPORT", "");
    let took = "took 3 MiB\ntook 100 MiB\n";
    let outcome = run.env("VRAMALLOC_STATS_INTERVAL_S", "1").go();
    assert_eq!((outcome.code(), &*outcome.stdout), (0, took));
    let output = Command::new(stage::command())
        .args([
            "run",
            "--library",
            &stage::library().to_string_lossy(),
            "--",
        ])
        .arg(stage::built().join("target/programs/disturbed.dynamic"))
        .arg("sealed")
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("SIM_CUDA_REPORT", "")
        .env("VRAMALLOC_IPC_DIR", &place.0)
        .current_dir(&place.0)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), took);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
}

/// What the program has for each thread takes no room from the work of ours.
#[test]
fn a_program_with_much_for_each_thread_is_told_of_in_between() {
    let place = Place::new();
    let run = disturbed(&place).arg("idle").conf("stats_interval_s:1");
    let outcome = run.go();
    outcome.quiet(0);
    assert_eq!(outcome.stats()["final"], true);
}

/// Only then is its number no thread's.
#[test]
fn a_program_whose_first_thread_has_ended_is_reached() {
    let place = Place::new();
    let mut program = Talk::with(disturbed(&place).arg("leader"));
    assert_eq!(program.line(), "took 3 MiB\n");
    assert_eq!(program.line(), "took 100 MiB\n");
    let status = place.status(program.pid()).unwrap();
    let reserved = &status["devices"][0]["reserved_bytes"]["current"];
    assert!(reserved.as_u64().unwrap() >= 100 << 20, "{status}");
    assert!(program.end().success());
    assert_eq!(place.left(), [""; 0]);
}

/// A copy with its parent's number neither comes to the parent's page nor
/// removes it.
#[test]
fn a_copy_with_the_same_number_leaves_the_page() {
    // Only root can make such namespaces.
    let unshare = Command::new("unshare").args(["-p", "-f", "true"]).status();
    if !unshare.is_ok_and(|status| status.success()) {
        return;
    }
    let place = Place::new();
    let run = disturbed(&place).before("set -- unshare -p -f \"$@\"");
    let mut program = Talk::with(run.arg("copy"));
    assert_eq!(program.line(), "took 100 MiB\n");
    assert_eq!(program.line(), "the copy ended: 0\n");
    assert_eq!(place.left().len(), 1);
    assert!(program.end().success());
    assert_eq!(place.left(), [""; 0]);
}

/// A reader who takes his time keeps the thread that writes, and no other.
#[test]
fn an_order_to_write_is_refused_while_another_thread_writes() {
    const NONBLOCK: i32 = 0o4000;
    let place = Place::new();
    let fifo = place.0.join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    // Whoever writes to it waits: it is full, and nobody reads.
    let mut full = File::options();
    let full = full
        .read(true)
        .write(true)
        .custom_flags(NONBLOCK)
        .open(&fifo);
    let mut full = full.unwrap();
    while full.write(&[b'x'; 4096]).is_ok() {}
    let run = disturbed(&place).args(["dump", &fifo.to_string_lossy()]);
    let mut program = Talk::with(run);
    assert_eq!(program.line(), "took 3 MiB\n");
    let pid = program.pid().to_string();
    // The other thread may not have begun yet.
    until(|| {
        let order = ["dump", &pid, "--wait", "5"];
        let mut order = place.command(&order).spawn().unwrap();
        until(|| {
            program.begin("");
            has_ended(&mut order)
        });
        let said = said(order.wait_with_output().unwrap());
        said.errors
            .contains("another thread is writing the statistics")
    });
}
