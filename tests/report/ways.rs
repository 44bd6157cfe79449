//! Which files are read, and in which form the answer comes.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use vramalloc_tests::stage;

use crate::{arena, directory, flat, one_process, report};

/// A file, older than now by so many seconds.
fn written(directory: &std::path::Path, name: &str, pid: u64, age_s: u64) {
    let mut value = one_process(&[arena()]);
    value["pid"] = pid.into();
    let path = directory.join(name);
    fs::write(&path, value.to_string()).unwrap();
    let time = SystemTime::now() - Duration::from_secs(age_s);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
fn without_a_file_the_newest_one_is_read_and_named() {
    let place = directory(&[("other.json", "{}"), ("vramalloc.x.json", "{}")]);
    let answer = report(&place, &[]);
    assert_eq!(answer.code, Some(2));
    let pattern = "(vramalloc.%e.%p.json)";
    assert!(answer.errors.contains(pattern), "{}", answer.errors);
    written(&place, "vramalloc.train.1.json", 1, 500);
    written(&place, "vramalloc.train.2.json", 2, 200);
    // Beside one of another process.
    written(&place, "vramalloc.train.3.1.json", 3, 100);
    written(&place, "vramalloc.train.4.json", 4, 300);
    let answer = report(&place, &[]);
    assert_eq!(answer.code, Some(0), "{}", answer.errors);
    assert!(
        answer.out.starts_with("train (process 3 on"),
        "{}",
        answer.out
    );
    let expected = "vramalloc: vramalloc.train.3.1.json, written 100 s ago\n";
    assert_eq!(answer.errors, expected);
    let answer = report(&place, &["--value", "/pid"]);
    assert_eq!(answer.out, "3\n");
}

/// Runs the command with the statistics of a process on its standard input.
fn piped(mut command: Command, pause: Duration) -> std::process::Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = one_process(&[arena()]).to_string();
    let writing = thread::spawn(move || {
        let (first, rest) = text.split_at(100);
        input.write_all(first.as_bytes()).unwrap();
        thread::sleep(pause);
        input.write_all(rest.as_bytes()).unwrap();
    });
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    output
}

#[test]
fn a_dash_is_standard_input() {
    let mut command = Command::new(stage::command());
    command.args(["report", "--json", "-"]);
    let output = piped(command, Duration::ZERO);
    assert!(output.stderr.is_empty(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["processes"][0]["process"]["pid"], 42);
    assert_eq!(told["processes"][0]["file"], "-");
}

/// Who waits sees on a terminal what for, and in a file nothing.
#[test]
fn what_takes_longer_than_a_second_has_a_bar_on_a_terminal() {
    let told = |script: &str, pause: u64| {
        let mut command = Command::new("sh");
        let folder = directory(&[]);
        command.args(["-c", script]).current_dir(folder);
        command
            .env("TERM", "xterm")
            .env("VRAMALLOC", stage::command());
        let output = piped(command, Duration::from_millis(pause));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // The terminal is the command's, its input is not.
    let on_terminal = "mkfifo input; exec 3<&0; cat <&3 >input & \
                       script -qec '\"$VRAMALLOC\" report - <input' /dev/null </dev/null";
    let slow = told(on_terminal, 1800);
    assert!(slow.contains("reading") && slow.contains("train"), "{slow}");
    let quick = told(on_terminal, 0);
    assert!(
        !quick.contains("reading") && quick.contains("train"),
        "{quick}"
    );
    let elsewhere = told("\"$VRAMALLOC\" report - 2>&1", 1800);
    assert!(!elsewhere.contains("reading") && elsewhere.contains("train"));
}

#[test]
fn the_table_and_the_counts_stand_behind_a_flag() {
    let place = directory(&[("s.json", &one_process(&[arena()]).to_string())]);
    let plain = report(&place, &["s.json"]).out;
    let whole = report(&place, &["--table", "s.json"]).out;
    for part in ["PyTorch CUDA memory summary", "what was counted"] {
        assert!(!plain.contains(part) && whole.contains(part), "{part}");
    }
    let flat = flat(&plain);
    let summary = flat.find("used at most").unwrap();
    assert!(summary < flat.find("what it means").unwrap(), "{plain}");
}

/// Nor does PyTorch's own.
#[test]
fn the_table_cuts_no_number() {
    let mut told = one_process(&[arena()]);
    told["arenas"][0]["memory_stats"]["num_alloc_retries"] = (1_u64 << 62).into();
    let place = directory(&[("s.json", &told.to_string())]);
    let out = report(&place, &["--table", "s.json"]).out;
    let line = out.lines().find(|line| line.contains("cudaMalloc retries"));
    assert!(line.unwrap().ends_with(": 4611686018427387904  |"), "{out}");
}

#[test]
fn as_json_all_files_are_told_together() {
    let mut failed = arena();
    failed.device = 1;
    failed.stats.ooms = 2;
    failed.stats.limit_ooms = 1;
    failed.stats.raisable_ooms = 1;
    failed.stats.limit_needed = vramalloc_core::Bytes::gib(9);
    let good = one_process(&[arena(), failed]).to_string();
    let place = directory(&[("a.json", &good), ("b.json", &good), ("bad.json", "{")]);
    let answer = report(&place, &["--json", "a.json", "bad.json", "b.json"]);
    assert_eq!(answer.code, Some(2));
    assert!(
        answer.errors.starts_with("vramalloc: bad.json: "),
        "{}",
        answer.errors
    );
    let told: Value = serde_json::from_str(&answer.out).unwrap();
    let [first, second] = told["processes"].as_array().unwrap().as_slice() else {
        panic!("{told}");
    };
    assert_eq!([&first["file"], &second["file"]], ["a.json", "b.json"]);
    let devices = first["process"]["devices"].as_array().unwrap();
    let [device, other] = devices.as_slice() else {
        panic!("{first}");
    };
    for (key, value) in [
        ("/live_bytes/peak", 1536 << 20),
        ("/limit_bytes", 8 << 30),
        ("/device_total_bytes", 16_u64 << 30),
        ("/requests", 4),
        ("/driver_memory_calls", 5),
        ("/out_of_memory", 0),
    ] {
        assert_eq!(device.pointer(key), Some(&value.into()), "{key}");
    }
    assert_eq!(other["out_of_memory"], 2);
    assert_eq!(first["advice"][0]["option"], "limit");
    assert_eq!(first["advice"][0]["device"], 1);
}
