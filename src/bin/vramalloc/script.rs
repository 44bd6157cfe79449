//! A program that is a file of Python: `vramalloc run train.py`, or an application in one
//! (`app.pyz`).
//!
//! Whoever types that means `python train.py`. A program that is found in `PATH`, or
//! that is named with a folder and begins with `#!`, is started as it is: it says itself
//! what runs it. A text that does not say so is for the shell, as everywhere.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

/// The interpreter that a Python package started this command with.
pub(super) const VARIABLE: &str = "VRAMALLOC_PYTHON";

/// The interpreters that are looked for in `PATH`; that of an active environment
/// comes first there.
const NAMES: &[&str] = &["python3", "python"];

/// The program with its arguments as it is to be started: a file of Python has its
/// interpreter in front.
///
/// # Errors
/// One line that says what is missing.
pub(super) fn interpreted(program: &[OsString]) -> Result<Vec<OsString>, String> {
    let Some(name) = program.first().filter(|name| is_named_so(name)) else {
        return Ok(program.to_vec());
    };
    let path = Path::new(name);
    let is_plain = path.components().count() == 1 && !has_slash(name);
    let runs_itself = match is_plain {
        true => !path.is_file() && in_path(path).is_some(),
        false => path.is_file() && is_executable(path) && begins_so(path),
    };
    if runs_itself {
        return Ok(program.to_vec());
    }
    if !path.is_file() {
        let also = if is_plain {
            ", nor such a program in PATH"
        } else {
            ""
        };
        let name = path.display();
        return Err(format!(
            "cannot start {name}: there is no such file here{also}"
        ));
    }
    let mut whole = vec![interpreter().ok_or_else(|| {
        format!(
            "cannot start {0}: neither python3 nor python is in PATH; name the interpreter: \
             vramalloc run /path/to/python {0}",
            path.display()
        )
    })?];
    whole.extend_from_slice(program);
    Ok(whole)
}

/// The command with the shell in front, if the system does not know what runs the program,
/// and that is a text.
pub(super) fn by_shell(command: &Command, error: &io::Error) -> Option<Command> {
    if Errno::from_io_error(error) != Some(Errno::NOEXEC) {
        return None;
    }
    let name = command.get_program();
    let path = if has_slash(name) {
        PathBuf::from(name)
    } else {
        in_path(Path::new(name))?
    };
    if !is_text(&path) {
        return None;
    }
    let mut shell = Command::new("/bin/sh");
    shell.arg(path).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    Some(shell)
}

/// Why a program that the system does not find is not found.
pub(super) fn not_found(name: &str) -> String {
    let is_there = Path::new(name).is_file();
    match (has_slash(OsStr::new(name)), is_there) {
        (false, false) => "there is no such program in PATH".to_owned(),
        (false, true) => {
            format!("there is no such program in PATH; for the file here say ./{name}")
        }
        (true, false) => "there is no such file".to_owned(),
        (true, true) => "it is there, and what runs it is not: the interpreter of its first line, \
                         or its loader"
            .to_owned(),
    }
}

/// Why a program that is there is not started.
pub(super) fn not_started(name: &str, error: &io::Error) -> String {
    let path = Path::new(name);
    if !has_slash(OsStr::new(name)) && ![".", ".."].contains(&name) {
        // It lies somewhere in PATH.
        return error.to_string();
    }
    if path.is_dir() {
        return format!(
            "it is a folder; for an application of Python say vramalloc run python3 {name}"
        );
    }
    if path.is_file() && !is_executable(path) {
        return "it may not be executed; name what runs it, or allow it (chmod +x)".to_owned();
    }
    error.to_string()
}

/// Whether somebody who types this as a subcommand means a program that is to be run.
pub(super) fn is_program(name: &str) -> bool {
    Path::new(name).is_file() || is_named_so(OsStr::new(name)) || in_path(Path::new(name)).is_some()
}

fn is_named_so(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "py" || extension == "pyz")
}

fn has_slash(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}

fn interpreter() -> Option<OsString> {
    let named = env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let found = || {
        NAMES
            .iter()
            .find(|name| in_path(Path::new(name)).is_some())
            .map(OsString::from)
    };
    named.or_else(found)
}

/// The program of this name in `PATH`.
fn in_path(name: &Path) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    let mut places = env::split_paths(&folders).map(|folder| folder.join(name));
    places.find(|place| place.is_file() && is_executable(place))
}

fn is_executable(path: &Path) -> bool {
    let found = path.metadata();
    found.is_ok_and(|found| found.permissions().mode() & 0o111 != 0)
}

/// Whether a file begins as a text does.
fn is_text(path: &Path) -> bool {
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(512).read_to_end(&mut begin));
    read.is_ok() && !begin.contains(&0)
}

/// Whether a file names its interpreter.
fn begins_so(path: &Path) -> bool {
    let mut first = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == *b"#!"
}
