//! `vramalloc report`: what it says of files, and of programs that wrote them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot set its stage has failed"
)]

mod advice;
mod counts;
mod failed;
mod files;
mod merge;
mod past;
mod spread;
mod table;
mod ways;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use vramalloc_core::Bytes;
use vramalloc_core::config::{Host, load};
use vramalloc_core::stats::{
    ArenaReport, CallCount, ClassCount, FamilyReport, ImportReport, Process, Report,
};
use vramalloc_tests::stage;

/// What the command answered.
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) errors: String,
}

/// `vramalloc report` with these arguments, in a directory.
pub(crate) fn report(directory: &Path, arguments: &[&str]) -> Answer {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(stage::command())
        .arg("report")
        .args(arguments)
        .env_clear()
        .current_dir(directory)
        .output()
        .unwrap();
    Answer {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        errors: String::from_utf8(stderr).unwrap(),
    }
}

/// A directory with these files.
pub(crate) fn directory(files: &[(&str, &str)]) -> PathBuf {
    let directory = stage::fresh_folder();
    for (name, text) in files {
        fs::write(directory.join(name), text).unwrap();
    }
    directory
}

/// The report of one file with this text, which has no fault.
#[track_caller]
pub(crate) fn report_of(text: &str) -> String {
    let answer = report(&directory(&[("s.json", text)]), &["--table", "s.json"]);
    assert_eq!((answer.code, answer.errors.as_str()), (Some(0), ""));
    answer.out
}

/// A text on one line, with single blanks.
pub(crate) fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An arena in which a little happened.
pub(crate) fn arena() -> ArenaReport {
    let mut arena = ArenaReport {
        device_name: Some("Model \u{1b}[31m".to_owned()),
        device_total: Some(Bytes::gib(16)),
        not_mapped: Some("strategy:auto_growth"),
        ..ArenaReport::default()
    };
    arena.stats.live.add(Bytes::mib(1536));
    arena.stats.hits = 3;
    arena.stats.misses = 1;
    arena.stats.wait_ns = 1_500_000;
    arena.stats.classes[3] = ClassCount {
        allocations: 4,
        ..ClassCount::default()
    };
    arena.calls.alloc = CallCount {
        calls: 5,
        ..CallCount::default()
    };
    arena
}

/// Statistics of a process that ran for ten seconds.
pub(crate) fn statistics(process: Process, arenas: &[ArenaReport]) -> Value {
    statistics_past(process, arenas, &[], &[])
}

/// The same with memory that went past the pool, or came from elsewhere.
pub(crate) fn statistics_past(
    process: Process,
    arenas: &[ArenaReport],
    families: &[FamilyReport],
    imports: &[ImportReport],
) -> Value {
    let environment = [("VRAMALLOC_LIMIT", "8G"), ("VRAMALLOC_CONF", "nothing:1")];
    Report {
        process: &Process {
            program: "train".to_owned(),
            started: UNIX_EPOCH + Duration::from_secs(1000),
            ended: UNIX_EPOCH + Duration::from_secs(1010),
            ..process
        },
        loaded: &load(
            environment.map(|(name, value)| (name.into(), value.into())),
            Host::default(),
        ),
        last: true,
        doors: &["cudaMalloc"],
        lanes: "unused",
        control: "unused",
        recording: None,
        families,
        libraries: &[],
        elsewhere: &[],
        imports,
        arenas,
        snapshots: None,
        stacks: None,
    }
    .to_json()
}

/// The same of process 42.
pub(crate) fn one_process(arenas: &[ArenaReport]) -> Value {
    let process = Process {
        pid: 42,
        ..Process::default()
    };
    statistics(process, arenas)
}
