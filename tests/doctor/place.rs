//! Where the doctor is asked, and what it finds.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vramalloc_tests::stage::{build, built, command, folder, library};

pub(crate) fn program(name: &str) -> String {
    let path = built().join("target/programs").join(name);
    path.to_str().unwrap().to_owned()
}

/// A directory of the test's own, and the command in it.
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    environment: Vec<(String, String)>,
}

impl Place {
    /// On a machine with the simulated CUDA.
    pub(crate) fn new(test: &str) -> Place {
        let sim = built().join("target/sim");
        Place::without_cuda(test).env("LD_LIBRARY_PATH", sim.to_str().unwrap())
    }

    /// On a machine without any CUDA.
    pub(crate) fn without_cuda(test: &str) -> Place {
        let directory = folder(&format!("doctor/{test}"));
        Place {
            directory,
            environment: Vec::new(),
        }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Place {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    /// A file that may be run.
    pub(crate) fn executable(&self, name: &str, contents: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A shared library of C.
    pub(crate) fn shared(&self, name: &str, source: &str) -> String {
        let (path, file) = (self.path(name), self.path("source.c"));
        fs::write(&file, source).unwrap();
        build(Command::new("gcc").args(["-shared", "-fPIC", "-o", &path, &file]));
        path
    }

    pub(crate) fn doctor(&self, arguments: &[&str]) -> Report {
        self.doctor_of(&library(), arguments)
    }

    /// With this library in place of the one under test.
    pub(crate) fn doctor_of(&self, library: &Path, arguments: &[&str]) -> Report {
        let mut command = Command::new(command());
        command
            .args(["doctor", "-v", "--library"])
            .arg(library)
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs(self.environment.iter().cloned())
            .current_dir(&self.directory);
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().unwrap();
        let report = Report {
            code: status.code(),
            text: findings(&String::from_utf8(stdout).unwrap()),
            errors: String::from_utf8_lossy(&stderr).into_owned(),
        };
        for line in report.text.lines() {
            let level = line.split_whitespace().next();
            assert!(matches!(level, Some("ok" | "note" | "problem")), "{line}");
        }
        let problems = report
            .text
            .lines()
            .filter(|line| line.starts_with("problem"));
        let expected = i32::from(problems.count() > 0);
        assert!(
            matches!(report.code, Some(2)) || report.code == Some(expected),
            "{report:?}"
        );
        report
    }
}

/// The findings, a line each, without the words that are explained below.
fn findings(text: &str) -> String {
    let text = text.split("\n\nwords\n").next().unwrap_or_default();
    let text = text.trim_end().replace(&format!("\n{:18}", ""), " ");
    match text.is_empty() {
        true => text,
        false => text + "\n",
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
    pub(crate) errors: String,
}

impl Report {
    /// The one finding of this level on this subject that holds these words.
    #[track_caller]
    pub(crate) fn finds(&self, level: &str, subject: &str, words: &str) -> &str {
        let start = format!("{level:<9}{subject:<9}");
        let mut found = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix(&*start))
            .filter(|line| line.contains(words));
        let first = found.next();
        assert!(
            first.is_some() && found.next().is_none(),
            "{level} {subject}: {words}: {self:#?}"
        );
        first.unwrap()
    }

    #[track_caller]
    pub(crate) fn has_no(&self, words: &str) {
        assert!(!self.text.contains(words), "{words}: {self:#?}");
    }

    #[track_caller]
    pub(crate) fn no_problem(&self) {
        assert_eq!(self.code, Some(0), "{self:#?}");
    }
}
