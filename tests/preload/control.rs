//! Risk: a running program cannot be seen or reached from outside, or is
//! disturbed by it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU64;

use serde_json::Value;
use vramalloc_core::control::{ControlPage, LENGTH, PageOwner, file_name};
use vramalloc_tests::outside::{Place, has_ended, said, until};
use vramalloc_tests::stage::{Kind, Run};

#[test]
fn a_running_program_is_seen_and_leaves_nothing() {
    let place = Place::new();
    let mut program = place.talk("limit:1G");
    let empty = place.go(&["status"]);
    assert_eq!((empty.code, &*empty.out), (0, ""), "{empty:?}");
    program.tell("+100M").unwrap();
    program.tell("+3M").unwrap();
    program.tell("-0").unwrap();
    let seen = place.status(program.pid()).unwrap();
    assert_eq!(seen["program"], "steps.dynamic");
    assert_eq!(seen["pid_is_of_container"], false);
    let device = &seen["devices"][0];
    assert_eq!(device["device_name"], "Simulated H200");
    assert_eq!(
        device["device_uuid"],
        "73696d75-6c61-7465-642d-677000000000"
    );
    assert_eq!(device["limit_bytes"], 1 << 30);
    assert_eq!(device["live_bytes"]["current"], 3 << 20);
    assert_eq!(device["live_bytes"]["peak"], 103 << 20);
    assert!(device["reserved_bytes"]["current"].as_u64() >= Some(103 << 20));
    let table = place.go(&["status"]).out;
    let row = table.lines().nth(1).unwrap();
    for part in ["steps.dynamic", "3.0 MiB", "103.0 MiB", "1.0 GiB"] {
        assert!(row.contains(part), "{table}");
    }
    assert!(program.end().success());
    assert_eq!(place.left(), [""; 0]);
    assert!(!place.private().exists());
}

/// What CUDA gave past the pool stands beside what the pool has, also where
/// that has nothing.
#[test]
fn a_running_program_is_seen_that_only_goes_past_the_pool() {
    let place = Place::new();
    let mut program = place.talk("limit:1G");
    program.tell("v64M").unwrap();
    let told = |place: &Place, pid| {
        let device = &place.status(pid).unwrap()["devices"][0];
        ["live_bytes", "reserved_bytes", "past_pool_bytes"]
            .map(|key| device[key]["current"].as_u64().unwrap())
    };
    assert_eq!(told(&place, program.pid()), [0, 0, 64 << 20]);
    let table = place.go(&["status"]).out;
    let row = table.lines().nth(1).unwrap();
    assert!(
        table.contains("PAST POOL") && row.contains("64.0 MiB"),
        "{table}"
    );
    for step in ["-0", "v2M"] {
        program.tell(step).unwrap();
    }
    assert_eq!(told(&place, program.pid()), [0, 0, 2 << 20]);
    let device = &place.status(program.pid()).unwrap()["devices"][0];
    assert_eq!(device["past_pool_bytes"]["peak"], 64 << 20);
    let said = place.order(&mut program, &["limit", "1M"]);
    let beyond = "device 0: 0 B are reserved, and 2.0 MiB are past the pool; no more is taken";
    assert!(said.out.contains(beyond), "{said:?}");
    assert!(program.end().success());
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn a_running_program_is_trimmed() {
    let place = Place::new();
    let mut program = place.talk("");
    for step in ["+100M", "-0"] {
        program.tell(step).unwrap();
    }
    let said = place.order(&mut program, &["trim"]);
    assert_eq!(said.out, "100.0 MiB went back to the driver\n", "{said:?}");
    let device = &place.status(program.pid()).unwrap()["devices"][0];
    assert_eq!(device["reserved_bytes"]["current"], 0);
    program.tell("+100M").unwrap();
    assert!(program.end().success());
}

/// Work that lasts for an hour is not waited for, and a capture stays valid.
#[test]
fn a_program_that_is_busy_is_not_made_to_wait() {
    let place = Place::new();
    let mut program = place.talk("");
    for step in ["+100M", "-0", "w3600000000000"] {
        program.tell(step).unwrap();
    }
    let owed = "0 B went back to the driver; 100.0 MiB more will when it next frees\n";
    let said = place.order(&mut program, &["trim"]);
    assert_eq!(said.out, owed, "{said:?}");
    program.kill();
    let mut program = place.talk("");
    for step in ["+100M", "-0", "c"] {
        program.tell(step).unwrap();
    }
    let said = place.order(&mut program, &["trim"]);
    assert_eq!(said.out, owed, "{said:?}");
    assert_eq!(program.tell("c").unwrap(), "capture: 0\n");
    // What is freed next gives it back.
    for step in ["+200M", "-1"] {
        program.tell(step).unwrap();
    }
    let device = &place.status(program.pid()).unwrap()["devices"][0];
    assert_eq!(device["reserved_bytes"]["current"], 0, "{device}");
}

#[test]
fn a_running_program_is_limited() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+100M").unwrap();
    let said = place.order(&mut program, &["limit", "64M"]);
    assert_eq!(
        said.out,
        "the limit is 64MiB per device\n\
         device 0: 100.0 MiB are reserved; no more is taken until that is below the limit\n",
        "{said:?}"
    );
    assert_eq!(program.tell("+10M").unwrap(), "1: 2\n");
    let said = place.order(&mut program, &["limit", "none"]);
    assert_eq!(said.out, "no limit is in force\n");
    assert_eq!(program.tell("+10M").unwrap(), "2: 0\n");
    assert!(program.end().success());
    let file = fs::read_dir(&program.folder)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let stats: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
    assert_eq!(stats["options"]["limit"]["origin"], "vramalloc limit");
    assert_eq!(stats["control"], "on");
}

#[test]
fn a_running_program_writes_its_statistics() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let said = place.order(&mut program, &["dump"]);
    let path = Path::new(said.out.trim_end());
    assert!(path.starts_with(&program.folder), "{said:?}");
    let stats: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(stats["final"], false);
    assert_eq!(stats["totals"]["allocations"], 1);
    let mut silent = place.talk("stats:off");
    silent.tell("+3M").unwrap();
    let said = place.order(&mut silent, &["dump"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.errors.contains("the option stats is off there"),
        "{said:?}"
    );
}

/// An order that no call serves is withdrawn, and not served by a later one.
#[test]
fn an_order_without_a_call_is_withdrawn() {
    let place = Place::new();
    let mut program = place.talk("");
    for step in ["+100M", "-0"] {
        program.tell(step).unwrap();
    }
    let pid = program.pid().to_string();
    let said = place.go(&["trim", &pid, "--wait", "1"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.errors
            .contains("made no call that could serve it for 1 s"),
        "{said:?}"
    );
    program.tell("i").unwrap();
    let device = &place.status(program.pid()).unwrap()["devices"][0];
    assert_eq!(device["reserved_bytes"]["current"], 100 << 20);
}

#[test]
fn the_thread_of_the_statistics_serves_a_program_that_makes_no_call() {
    let place = Place::new();
    let mut program = place.talk("stats_interval_s:86400");
    for step in ["+100M", "-0"] {
        program.tell(step).unwrap();
    }
    let pid = program.pid().to_string();
    let said = place.go(&["trim", &pid]);
    assert_eq!(said.out, "100.0 MiB went back to the driver\n", "{said:?}");
}

/// Each is served, one after the other.
#[test]
fn several_may_order_at_once() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let pid = program.pid().to_string();
    let sizes = ["32M", "48M", "64M"];
    let mut children = sizes.map(|size| {
        let mut command = place.command(&["limit", &pid, size, "--wait", "60"]);
        command.spawn().unwrap()
    });
    until(|| {
        program.tell("i").unwrap();
        children.iter_mut().all(has_ended)
    });
    for (child, size) in children.into_iter().zip(sizes) {
        let said = said(child.wait_with_output().unwrap());
        let size = size.replace('M', "MiB");
        assert_eq!(
            said.out,
            format!("the limit is {size} per device\n"),
            "{said:?}"
        );
    }
}

#[test]
fn who_cannot_be_reached_is_told_why() {
    let place = Place::new();
    let refused = |pid: u32, why: &str| {
        for order in [&["trim"][..], &["dump"], &["limit", "8G"], &["status"]] {
            let pid = pid.to_string();
            let mut arguments = vec![order[0], &pid];
            arguments.extend(&order[1..]);
            let said = place.go(&arguments);
            assert_eq!(said.code, 2, "{said:?}");
            assert!(said.errors.contains(why), "{why}: {said:?}");
            assert_eq!(said.errors.lines().count(), 1, "{said:?}");
        }
    };
    let mut off = place.talk("control:off");
    off.tell("+3M").unwrap();
    refused(off.pid(), "the option control is off in process");
    assert_eq!(place.left(), [""; 0]);
    let idle = place.talk("");
    refused(idle.pid(), "has not asked for CUDA memory so far");
    let elsewhere = Place::new();
    let mut other = elsewhere.talk("");
    other.tell("+3M").unwrap();
    refused(other.pid(), "set VRAMALLOC_IPC_DIR to that");
    refused(std::process::id(), "does not run under vramalloc");
    let mut gone = place.talk("");
    gone.kill();
    refused(gone.pid(), "there is no process");
    let mut sleep = Command::new("sleep");
    // Only root can have a process of another user.
    if let Ok(mut another) = sleep.arg("1000").uid(12_345).spawn() {
        refused(another.id(), "belongs to another user");
        another.kill().unwrap();
        another.wait().unwrap();
    }
    let said = place.go(&["limit", &off.pid().to_string(), "8Q"]);
    assert_eq!(said.code, 2);
    assert!(said.errors.contains("accepted: a size such as"), "{said:?}");
    assert!(place.go(&["trim", "no-number"]).errors.contains("invalid"));
}

/// The child has no page and keeps none of its parent's alive; nor does what a
/// process becomes.
#[test]
fn a_page_is_its_process_s_alone() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let said = program.tell("f").unwrap();
    let child = said.trim_end().strip_prefix("child: ").unwrap().to_owned();
    assert!(place.status(program.pid()).is_some());
    assert_eq!(place.status(child.parse().unwrap()), None);
    program.kill();
    assert_eq!(place.left().len(), 1);
    assert_eq!(place.status(program.pid()), None);
    assert_eq!(place.left(), [""; 0]);
    assert!(Path::new(&format!("/proc/{child}")).exists());
    Command::new("kill").args(["-9", &child]).status().unwrap();

    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    program.begin("e/bin/cat");
    until(|| place.status(program.pid()).is_none());
    assert_eq!(place.left(), [""; 0]);
    assert!(!program.has_ended());
}

/// What a killed process leaves goes with the next one that makes a page.
#[test]
fn a_crash_is_cleaned_up_by_the_next_process() {
    let place = Place::new();
    for _ in 0..2 {
        let mut program = place.talk("");
        program.tell("+3M").unwrap();
        program.kill();
        assert_eq!(place.left().len(), 1);
    }
}

/// A page of this owner, as a process would make it.
fn plant(place: &Place, key: &str, pid: u32) -> PathBuf {
    let private = place.private();
    let _ = fs::DirBuilder::new().mode(0o700).create(&private);
    let cells: Vec<_> = (0..LENGTH / 8).map(|_| Default::default()).collect();
    let link = fs::read_link("/proc/self/ns/pid").unwrap();
    let number = link
        .to_str()
        .unwrap()
        .trim_matches(|c: char| !c.is_ascii_digit());
    let owner = PageOwner {
        pid: pid.into(),
        namespace: number.parse().unwrap(),
        ..PageOwner::default()
    };
    ControlPage::new(&cells[..]).sign(&owner).unwrap();
    let words = cells.into_iter().map(AtomicU64::into_inner);
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    let path = private.join(file_name(key));
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    file.unwrap().write_all(&bytes).unwrap();
    path
}

/// Of two pages with one process id, that is meant whose process lives. A lock
/// alone makes no process: a child may hold the file by chance.
#[test]
fn an_id_that_is_used_again_is_its_new_process_s() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    plant(&place, "stale", program.pid());
    assert_eq!(place.left().len(), 2);
    assert_eq!(
        place.status(program.pid()).unwrap()["program"],
        "steps.dynamic"
    );
    assert_eq!(place.left().len(), 1);

    let gone = {
        let mut gone = place.talk("");
        gone.kill();
        gone.pid()
    };
    let path = plant(&place, "held", gone);
    let mut holder = crate::orders::hold(&path);
    assert_eq!(place.status(gone), None);
    // It goes with its lock.
    assert_eq!(place.left().len(), 2);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(place.status(gone), None);
    assert_eq!(place.left().len(), 1);
}

#[test]
fn a_planted_page_or_folder_is_not_believed() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let names = place.left();
    let own = place.private().join(&names[0]);
    let alias = place.private().join(file_name("alias"));
    symlink(&own, &alias).unwrap();
    fs::create_dir(place.private().join(file_name("folder"))).unwrap();
    assert!(place.status(program.pid()).is_some());
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&own, 0o644);
    assert_eq!(place.status(program.pid()), None);
    mode(&own, 0o600);
    mode(&place.private(), 0o755);
    let said = place.go(&["status"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.errors.contains("open to others"), "{said:?}");
}

/// No page is no harm, and the statistics say why there is none.
#[test]
fn a_process_without_a_page_runs_as_it_would() {
    let place = Place::new();
    let run = |conf: &str, folder: &str| {
        let run = Run::preloaded("steps", Kind::Dynamic)
            .args(["+3M", "-0"])
            .conf(conf);
        let outcome = run.env("VRAMALLOC_IPC_DIR", folder).go();
        outcome.quiet(0);
        outcome.stats()["control"].as_str().unwrap().to_owned()
    };
    let here = place.0.to_string_lossy();
    assert_eq!(run("control:off", &here), "off: the option control");
    let missing = run("", "/no/such/folder");
    assert!(
        missing.starts_with("off: /no/such/folder: No such file"),
        "{missing}"
    );
    fs::write(place.private(), "").unwrap();
    let planted = run("", &here);
    assert!(planted.starts_with("off: "), "{planted}");
    // A file system that is full, where there may be one.
    let full = place.0.join("full");
    fs::create_dir(&full).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4k", "none"])
        .arg(&full)
        .status();
    if mount.is_ok_and(|status| status.success()) {
        let why = run("", &full.to_string_lossy());
        Command::new("umount").arg(&full).status().unwrap();
        assert!(why.contains("No space left on device"), "{why}");
    }
}

/// A program may close what it did not open.
#[test]
fn a_program_that_closes_all_descriptors_is_seen_all_the_same() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap();
    let private = place.private();
    for entry in descriptors {
        let stands_for = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert!(
            !stands_for.starts_with(&private),
            "{}",
            stands_for.display()
        );
    }
    assert!(place.status(program.pid()).is_some());
}
