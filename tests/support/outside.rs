//! A running program, and how others of its user see it, by the command.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::stage::{Kind, Run, command, fresh_folder};

/// A place of its own for the pages of a test.
pub struct Place(pub PathBuf);

/// How the command ended, and what it printed.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub errors: String,
}

impl Default for Place {
    fn default() -> Place {
        Place::new()
    }
}

impl Place {
    pub fn new() -> Place {
        Place(fresh_folder())
    }

    /// The user's private folder here.
    pub fn private(&self) -> PathBuf {
        let user = fs::metadata("/proc/self").unwrap().uid();
        self.0.join(format!("vramalloc-{user}"))
    }

    /// The names of what lies there.
    pub fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.private()).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    pub fn run(&self, conf: &str) -> Run {
        Run::preloaded("steps", Kind::Dynamic)
            .env("VRAMALLOC_IPC_DIR", &self.0.to_string_lossy())
            .conf(conf)
    }

    pub fn talk(&self, conf: &str) -> Talk {
        Talk::to(self.run(conf))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut run = Command::new(command());
        run.args(arguments)
            .env_clear()
            .env("VRAMALLOC_IPC_DIR", &self.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        run
    }

    pub fn go(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments).output().unwrap())
    }

    /// An order that the program serves: it asks what is free until then.
    pub fn order(&self, program: &mut Talk, order: &[&str]) -> Said {
        self.order_during("i", program, order)
    }

    /// An order that the program serves by this step, which it does until then.
    pub fn order_during(&self, step: &str, program: &mut Talk, order: &[&str]) -> Said {
        let pid = program.pid().to_string();
        let mut arguments = vec![order[0], &pid];
        arguments.extend(&order[1..]);
        let mut child = self.command(&arguments).spawn().unwrap();
        until(|| program.tell(step).is_none() || has_ended(&mut child));
        said(child.wait_with_output().unwrap())
    }

    /// What `status` says of a process.
    pub fn status(&self, pid: u32) -> Option<Value> {
        let status = self.go(&["status", "--json"]);
        assert_eq!(status.code, 0, "{status:?}");
        let all: Vec<Value> = serde_json::from_str(&status.out).unwrap();
        all.into_iter().find(|process| process["pid"] == pid)
    }
}

pub fn said(output: Output) -> Said {
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn has_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

/// Fails if it takes too long.
#[track_caller]
pub fn until(mut done: impl FnMut() -> bool) {
    const LONGEST: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut pause = Duration::from_millis(1);
    while !done() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(pause);
        // What asks may be another process each time.
        pause = (pause * 2).min(LONGEST);
    }
}

/// A program that is told what to do while it runs: `tests/programs/steps.c`,
/// which reads its steps from standard input. It is killed at the end of the
/// test.
pub struct Talk {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    /// Its working directory.
    pub folder: PathBuf,
}

impl Talk {
    /// Starts it.
    pub fn to(run: Run) -> Talk {
        Talk::with(run.arg("stdin"))
    }

    /// Starts a program that takes lines of its own kind.
    pub fn with(run: Run) -> Talk {
        let (mut command, folder, _) = run.prepared(&fresh_folder());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Talk {
            to: child.stdin.take(),
            from: BufReader::new(child.stdout.take().unwrap()),
            child,
            folder,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it do a step, and returns what it printed then; nothing if it ended.
    pub fn tell(&mut self, step: &str) -> Option<String> {
        self.begin(step);
        let mut said = String::new();
        loop {
            let start = said.len();
            if self.from.read_line(&mut said).unwrap() == 0 {
                return None;
            }
            if &said[start..] == ".\n" {
                said.truncate(start);
                return Some(said);
            }
        }
    }

    /// The next line that it prints; empty if it ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line
    }

    /// Has it do a step, and does not wait for that.
    pub fn begin(&mut self, step: &str) {
        // It may have been killed.
        let _ = self.to.as_mut().map(|to| writeln!(to, "{step}"));
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// There are no more steps.
    pub fn close(&mut self) {
        drop(self.to.take());
    }

    /// Lets it come to its end.
    pub fn end(&mut self) -> ExitStatus {
        self.close();
        self.child.wait().unwrap()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
