//! Whatever step of the control channel a process is stopped or killed at, on
//! either side: nobody hangs, reads a page as whole that is not, or is kept from
//! what comes next.
//!
//! The debug builds of the library and of the command count their steps: system
//! calls, and words that they write. `FAULTS=all` takes every step; otherwise
//! it is a selection of those of the program.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use vramalloc_tests::outside::{Place, Talk, has_ended, said, until};

use crate::{all, side_by_side};

/// More steps than there are.
const MOST: u64 = 1000;

/// Whether a process is stopped.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state == Some('T')
}

/// What `status` says of all processes, at once.
fn seen(place: &Place) -> Vec<Value> {
    let began = Instant::now();
    let status = place.go(&["status", "--json"]);
    assert_eq!(status.code, 0, "{status:?}");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "it takes too long"
    );
    serde_json::from_str(&status.out).unwrap()
}

/// What may be read of the program: nothing, or the figures after one of its
/// steps. Its page is signed as a whole, or not there.
fn check(process: &Value, pid: u32) {
    assert_eq!(process["pid"], pid);
    assert_eq!(process["program"], "steps.dynamic");
    let Some(device) = process["devices"].get(0) else {
        return;
    };
    assert_eq!(device["device_name"], "Simulated H200");
    let mib = |key: &str| device[key]["current"].as_u64().unwrap() >> 20;
    let figures = (mib("live_bytes"), mib("reserved_bytes"));
    assert!(
        [(100, 100), (0, 100), (0, 0)].contains(&figures),
        "{figures:?}"
    );
}

/// A program that allocates, frees, serves an order and ends is stopped at its
/// N-th step; returns whether it has as many.
fn stopped_at(n: u64) -> bool {
    let place = Place::new();
    let run = place.run("").preload_debug();
    let mut program = Talk::to(run.env("CONTROL_STOPPED_AT", &n.to_string()));
    let pid = program.pid();
    // It cannot be told when it stops, so nobody waits for it to answer.
    for step in ["+100M", "-0", "i"] {
        program.begin(step);
    }
    let order = ["trim", &pid.to_string(), "--wait", "1"];
    let mut sender = None;
    let mut asked = Instant::now();
    let ended = loop {
        if is_stopped(pid) {
            break false;
        }
        if program.has_ended() {
            break true;
        }
        if sender.is_none() && !seen(&place).is_empty() {
            sender = Some(place.command(&order).spawn().unwrap());
        }
        if sender.as_mut().is_some_and(has_ended) {
            program.close();
        } else if asked.elapsed() > Duration::from_millis(5) {
            asked = Instant::now();
            program.begin("i");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    for process in seen(&place) {
        check(&process, pid);
    }
    // An order comes to its end whatever its process does.
    let mut late = place.command(&order).spawn().unwrap();
    until(|| has_ended(&mut late));
    if let Some(mut sender) = sender {
        until(|| has_ended(&mut sender));
        let said = said(sender.wait_with_output().unwrap());
        assert!([0, 1, 2].contains(&said.code), "step {n}: {said:?}");
    }
    program.kill();
    assert_eq!(seen(&place), [Value::Null; 0], "step {n}");
    assert_eq!(place.left(), [""; 0], "step {n}");
    !ended
}

#[test]
#[ignore = "a step of its own: ci/faults"]
fn a_program_that_is_stopped_and_killed_at_any_step_harms_nobody() {
    let step = if all() { 1 } else { 7 };
    let numbers: Vec<u64> = (1..MOST).step_by(step).collect();
    let stopped = std::sync::atomic::AtomicU64::new(0);
    let over = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    side_by_side(&numbers, |&n| {
        if over.load(order) {
            return;
        }
        // On a busy machine a run can end with fewer steps: its order came too late.
        if (0..3).any(|_| stopped_at(n)) {
            stopped.fetch_add(1, order);
        } else {
            over.store(true, order);
        }
    });
    let stopped = stopped.into_inner();
    println!("stopped at {stopped} steps");
    assert!(
        over.into_inner() && stopped > 100 / step as u64,
        "{stopped}"
    );
}

/// The next one is served, whatever the one before it left; and what it left is
/// served as a whole or not at all.
#[test]
#[ignore = "a step of its own: ci/faults"]
fn a_sender_that_is_killed_at_any_step_keeps_nobody_from_sending() {
    let place = Place::new();
    let mut program = Talk::to(place.run("").preload_debug());
    program.tell("+3M").unwrap();
    let pid = program.pid().to_string();
    // While the program serves, and while it does not: then it is withdrawn.
    for serves in [true, false] {
        let mut n = 1;
        loop {
            let mut sender = place.command(&["limit", &pid, "1G", "--wait", "1"]);
            let mut sender = sender
                .env("CONTROL_KILLED_AT", n.to_string())
                .spawn()
                .unwrap();
            until(|| {
                if serves {
                    program.tell("i").unwrap();
                }
                has_ended(&mut sender)
            });
            let first = said(sender.wait_with_output().unwrap());
            let next = place.order(&mut program, &["trim"]);
            assert_eq!(next.code, 0, "step {n}: {next:?}");
            let limit = &place.status(program.pid()).unwrap()["devices"][0]["limit_bytes"];
            assert!(limit.is_null() || limit == 1 << 30, "step {n}: {limit}");
            let back = place.order(&mut program, &["limit", "none"]);
            assert_eq!(back.out, "no limit is in force\n", "step {n}");
            // It was not killed.
            if first.code >= 0 {
                assert_eq!(first.code, i32::from(!serves), "{first:?}");
                break;
            }
            n += 1;
        }
        println!("killed at {} steps", n - 1);
        assert!(n > 5);
    }
}

/// Programs that are killed at any time while others read: a page that is read
/// is whole.
#[test]
#[ignore = "a step of its own: ci/faults"]
fn programs_that_are_killed_at_any_time_are_read_whole_or_not_at_all() {
    let place = Place::new();
    let rounds = if all() { 200 } else { 20 };
    for round in 0..rounds {
        let mut program = Talk::to(place.run(""));
        program.tell("+100M").unwrap();
        let pid = program.pid();
        let mut killer = Command::new("sh");
        let after = format!("sleep 0.0{}; kill -9 {pid}", round % 10);
        let mut killer = killer.args(["-c", &after]).spawn().unwrap();
        let mut steps = ["-0", "+100M"].into_iter().cycle();
        let mut blocks = 0;
        while !program.has_ended() {
            let step = match steps.next() {
                Some("-0") => format!("-{blocks}"),
                _ => {
                    blocks += 1;
                    "+100M".to_owned()
                }
            };
            program.begin(&step);
            for process in seen(&place) {
                check(&process, pid);
            }
        }
        killer.wait().unwrap();
        assert_eq!(seen(&place), [Value::Null; 0]);
        assert_eq!(place.left(), [""; 0]);
    }
}
