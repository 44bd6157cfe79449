//! What `vramalloc run` leaves of a program that does not come to its end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::Value;
use vramalloc_tests::stage::{built, command, library, simulated_cuda};

use crate::{Place, output};

/// `vramalloc run --report` of a program of tests/programs.
fn run(place: &Place, options: &[&str], program: &str, arguments: &[&str]) -> Command {
    let mut run = place.command(&["run", "--report", "--library"]);
    run.arg(library())
        .args(options)
        .arg("--")
        .arg(built().join("target/programs").join(program))
        .args(arguments)
        .env("LD_LIBRARY_PATH", simulated_cuda());
    run
}

/// The statistics that the run left; `None` if there are none.
fn left(place: &Place) -> Option<Value> {
    let files = fs::read_dir(&place.directory).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let file = files.find(|path| path.extension() == Some("json".as_ref()))?;
    Some(serde_json::from_slice(&fs::read(file).unwrap()).unwrap())
}

#[test]
fn statistics_are_written_meanwhile_where_that_replaces_a_file() {
    let place = Place::new("meanwhile");
    fs::write(place.path("there.json"), "{}").unwrap();
    std::os::unix::fs::symlink("there.json", place.path("link")).unwrap();
    let interval = |options: &[&str], conf: &str| {
        let mut run = place.run(options, "echo $VRAMALLOC_STATS_INTERVAL_S");
        run.env("VRAMALLOC_CONF", conf);
        output(run).1.trim().to_owned()
    };
    for (options, conf, expected) in [
        (&[][..], "", "10"),
        (&["--stats", "new.json"], "", "10"),
        (&["--stats", "there.json"], "", "10"),
        (&["--stats", "link"], "", ""),
        (&["--stats", "/dev/stdout"], "", ""),
        (&["--stats", "/dev/null"], "", ""),
        (&["--stats", "stderr"], "", ""),
        (&["--stats", "off"], "", ""),
        (&["--option", "stats_interval_s=7"], "", "7"),
        (&[], "stats_interval_s:60", ""),
    ] {
        assert_eq!(interval(options, conf), expected, "{options:?} {conf}");
    }
}

#[test]
fn a_killed_program_leaves_statistics() {
    let place = Place::new("killed");
    let (code, _, errors) = output(run(&place, &[], "exit_paths.driver", &["killed"]));
    assert_eq!(code, Some(137), "{errors}");
    let statistics = left(&place).unwrap();
    assert_eq!(statistics["final"], false);
    assert_eq!(statistics["totals"]["allocations"], 16);
    assert_eq!(statistics["options"]["stats_interval_s"]["value"], "10");
    assert!(errors.contains("ended by signal 9"), "{errors}");
    assert!(errors.contains(" s before the end"), "{errors}");

    // Who does not want that has it not.
    let place = Place::new("killed_without");
    let options = ["--option", "stats_interval_s=0"];
    let (code, _, errors) = output(run(&place, &options, "exit_paths.driver", &["killed"]));
    assert_eq!((code, left(&place)), (Some(137), None), "{errors}");
    assert!(
        errors.contains("signal 9 and wrote no statistics"),
        "{errors}"
    );
}

#[test]
fn a_terminated_run_leaves_statistics_and_says_what_they_say() {
    let place = Place::new("terminated");
    let mut run = run(&place, &[], "steps.driver", &["+100M", "m60000"]);
    let child = run
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It is written a second after the program's first call.
    while left(&place).is_none() {
        thread::sleep(Duration::from_millis(50));
    }
    let kill = Command::new("kill").arg(child.id().to_string()).status();
    assert!(kill.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(143), "{errors}");
    assert!(errors.contains("used at most    100.0 MiB"), "{errors}");
    let next = format!("next            {} report ", command());
    assert!(errors.contains(&next), "{errors}");
    assert!(errors.lines().count() <= 10, "{errors}");
}

/// As a program that was started without the command, and whose parent kills it.
#[test]
fn a_program_ends_with_a_run_that_is_killed() {
    let place = Place::new("killed_run");
    let mut run = place.command(&["run", "--library"]);
    run.arg(library())
        .args(["--", "sh", "-c", "echo started; exec sleep 60"]);
    let mut child = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    let start = Instant::now();
    child.kill().unwrap();
    // The pipe is open as long as the program is there.
    out.read_to_string(&mut line).unwrap();
    assert!(start.elapsed() < Duration::from_secs(30));
    child.wait().unwrap();
}
