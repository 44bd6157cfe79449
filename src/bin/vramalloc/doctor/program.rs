//! What a program is: the file that runs in the end, and how it calls CUDA.
//!
//! Cost: the program and every library that it needs are read once.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::image::Image;
use super::loader::{Closure, Loaded};

/// The number of scripts that the kernel follows from one to the next.
const MOST_SCRIPTS: usize = 4;

/// The most that the kernel reads of a script's first line.
const FIRST_LINE: u64 = 256;

/// Programs that load or start other programs as their arguments say. A version
/// may follow the name.
const TOLD: &[&str] = &[
    "python", "pypy", "bash", "dash", "sh", "zsh", "ksh", "fish", "busybox", "perl", "ruby",
    "node", "julia", "R", "Rscript", "java", "lua", "php", "octave", "matlab", "env", "nice",
    "nohup", "setsid", "time", "timeout", "taskset", "numactl", "xargs", "make", "mpirun",
    "mpiexec", "srun", "strace", "gdb",
];

/// Set-user-id and set-group-id.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2010;

/// A program as it would be started.
pub(crate) struct Program {
    /// The file that was named.
    pub(crate) path: PathBuf,
    /// The interpreters of the scripts on the way; the last one is the file
    /// that runs. Empty if the program is not a script.
    pub(crate) interpreters: Vec<PathBuf>,
    /// The file that runs.
    pub(crate) file: Loaded,
}

/// Whether a name leads to a file, and not through `PATH`.
fn is_file(name: &OsStr) -> bool {
    name.as_bytes().contains(&b'/') && Path::new(name).is_file()
}

impl Program {
    /// The program of this name, found as a shell finds it.
    ///
    /// # Errors
    /// One line that says why it could not run.
    pub(crate) fn find(name: &OsStr) -> Result<Program, String> {
        let shown = name.to_string_lossy().into_owned();
        let path = in_path(name).ok_or_else(|| match is_file(name) {
            true => {
                format!("{shown} may not be executed; name what runs it, or allow it (chmod +x)")
            }
            false => format!("there is no program {shown}; look at its name and at PATH"),
        })?;
        let mut runs = path.clone();
        let mut interpreters = Vec::new();
        while let Some(next) = interpreter_of(&runs)? {
            runs = in_path(&next).ok_or_else(|| {
                let script = runs.display();
                let next = next.to_string_lossy();
                format!("{script} is a script for {next}, which there is not")
            })?;
            interpreters.push(runs.clone());
            if interpreters.len() > MOST_SCRIPTS {
                return Err(format!("{shown}: scripts that lead to scripts"));
            }
        }
        let image = Image::open(&runs).map_err(|error| format!("{}: {error}", runs.display()))?;
        Ok(Program {
            path,
            interpreters,
            file: Loaded::new(runs, image),
        })
    }

    /// Whether it loads or starts what its arguments say, so that the file does
    /// not tell what will be in the process.
    pub(crate) fn is_told(&self) -> bool {
        let path = &self.file.path;
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        [path, &real].iter().any(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let version = |c: char| c.is_ascii_digit() || c == '.' || c == '-';
            TOLD.contains(&name.trim_end_matches(version))
        })
    }

    /// Why the loader ignores `LD_PRELOAD` when this process starts the
    /// program; `None` if it does not.
    pub(crate) fn privileged(&self) -> Option<String> {
        let metadata = fs::metadata(&self.file.path).ok()?;
        let user = rustix::process::getuid().as_raw();
        let group = rustix::process::getgid().as_raw();
        if metadata.mode() & SET_USER != 0 && metadata.uid() != user {
            return Some(format!("set-user-id, to user {}", metadata.uid()));
        }
        if metadata.mode() & SET_GROUP == SET_GROUP && metadata.gid() != group {
            return Some(format!("set-group-id, to group {}", metadata.gid()));
        }
        let mut value = [0; 64];
        let capable =
            rustix::fs::getxattr(&self.file.path, "security.capability", &mut value[..]).is_ok();
        (capable && user != 0).then(|| "given capabilities of its own".to_owned())
    }
}

/// The file that a shell would run for `name`.
fn in_path(name: &OsStr) -> Option<PathBuf> {
    let runs = |path: PathBuf| {
        let runs = fs::metadata(&path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
        runs.then_some(path)
    };
    if name.as_bytes().contains(&b'/') {
        return runs(PathBuf::from(name));
    }
    env::split_paths(&env::var_os("PATH")?).find_map(|directory| runs(directory.join(name)))
}

/// The interpreter of a file, if the file is a script.
fn interpreter_of(path: &Path) -> Result<Option<OsString>, String> {
    let mut start = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FIRST_LINE).read_to_end(&mut start))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(interpreter(&start))
}

/// The interpreter that a script's first line names; after `env`, the program
/// that `env` looks for.
pub(crate) fn interpreter(start: &[u8]) -> Option<OsString> {
    let line = start.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace() || *byte == 0)
        .filter(|word| !word.is_empty());
    let first = words.next()?;
    let program = match first.rsplit(|&byte| byte == b'/').next() {
        Some(b"env") => words
            .find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
            .unwrap_or(first),
        _ => first,
    };
    Some(OsStr::from_bytes(program).to_owned())
}

/// How a program and its libraries call CUDA: names of files, the program's own
/// first.
#[derive(Default)]
pub(crate) struct Ways {
    /// Linked to a shared runtime.
    pub(crate) shared: Vec<String>,
    /// With a runtime linked in.
    pub(crate) inside: Vec<String>,
    /// Looking for a shared runtime by its name, while running.
    pub(crate) by_name: Vec<String>,
    /// Calling the driver alone.
    pub(crate) driver: Vec<String>,
    /// The functions that take memory past the pool, in any of these files.
    pub(crate) past: BTreeSet<&'static str>,
}

impl Ways {
    /// The ways of a program and everything that it needs.
    pub(crate) fn of(closure: &Closure) -> Ways {
        let mut ways = Ways::default();
        for file in &closure.files {
            let image = &file.image;
            if image.is_runtime() || image.is_driver() {
                continue;
            }
            let needs = |prefix: &str| image.needed.iter().any(|name| name.starts_with(prefix));
            let shared = needs("libcudart");
            let way = match () {
                () if image.runtime_inside => &mut ways.inside,
                () if shared => &mut ways.shared,
                () if image.mentions_runtime => &mut ways.by_name,
                () if needs("libcuda.so") || image.mentions_driver => &mut ways.driver,
                () => continue,
            };
            way.push(file.name());
            ways.past.extend(&image.past);
            if image.runtime_inside && shared {
                ways.shared.push(file.name());
            }
        }
        ways
    }

    /// Whether anything calls CUDA.
    pub(crate) fn any(&self) -> bool {
        [&self.shared, &self.inside, &self.by_name, &self.driver]
            .iter()
            .any(|way| !way.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_of_scripts() {
        for (line, expected) in [
            ("#!/bin/sh\necho", Some("/bin/sh")),
            ("#! /usr/bin/python3 -u\n", Some("/usr/bin/python3")),
            ("#!/usr/bin/env python3", Some("python3")),
            ("#!/usr/bin/env -S A=1 python3 -u\r\n", Some("python3")),
            ("#!/usr/bin/env", Some("/usr/bin/env")),
            ("#!\n/bin/sh", None),
            ("#!", None),
            ("", None),
            ("\u{7f}ELF", None),
        ] {
            let expected = expected.map(OsString::from);
            assert_eq!(interpreter(line.as_bytes()), expected, "{line:?}");
        }
    }
}
