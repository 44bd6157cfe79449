//! Where a result goes that is no text to read: a file that was named, or standard output;
//! and whether a program can make the files that it is told to.
//!
//! Invariant: a file that a program wrote, statistics or a recording, is never overwritten,
//! nor what the result is made of; and what is written is there as a whole or not at all.

use std::fs::{self, File};
use std::io::{Read, Write, stdout};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, access};
use vramalloc_core::recording::is_recording;
use vramalloc_core::stats::write_whole;

use super::output::{NOT_WRITTEN, is_stream, of_file, printed, say};

/// How many bytes are read of a file to tell what it is.
const START: u64 = 256;

/// Checks that nothing is lost if a result is written to `target`, before what it is made of
/// (`sources`) is read; `result`: what should get another name, or an option.
///
/// # Errors
/// What would be lost.
pub(crate) fn check<'a>(
    target: &Path,
    sources: impl IntoIterator<Item = &'a Path>,
    result: &str,
) -> Result<(), String> {
    if is_stream(target) {
        return Ok(());
    }
    let mut sources = sources.into_iter();
    let lost = match (sources.find(|source| same(target, source)), kept(target)) {
        (Some(source), _) => of_file(source, "would be overwritten"),
        (None, Some(kind)) => of_file(target, format_args!("is {kind}")),
        (None, None) => return Ok(()),
    };
    Err(format!("{lost}; give {result} another name"))
}

/// Writes a result. Returns the exit status.
pub(crate) fn write(target: &Path, bytes: &[u8]) -> u8 {
    if is_stream(target) {
        // As it is: it is no text with colours.
        let mut out = stdout().lock();
        return printed(out.write_all(bytes).and_then(|()| out.flush()));
    }
    match write_whole(target, |out| out.write_all(bytes)) {
        Ok(()) => 0,
        Err(error) => {
            say(error);
            NOT_WRITTEN
        }
    }
}

/// What a program has written there, if one has.
fn kept(path: &Path) -> Option<&'static str> {
    // To open what is no plain file can do something, or wait.
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let mut start = Vec::new();
    let file = File::open(path).ok()?;
    file.take(START).read_to_end(&mut start).ok()?;
    let text = String::from_utf8_lossy(&start);
    let is_statistics = text.contains("\"schema\"") && text.contains("\"library_version\"");
    match is_recording(&start) {
        true => Some("a recording"),
        false => is_statistics.then_some("a file of statistics"),
    }
}

/// The folder of a file, in words.
pub(crate) fn folder(pattern: &Path) -> String {
    match directory(pattern) {
        here if here == Path::new(".") => "the working directory".to_owned(),
        folder => folder.display().to_string(),
    }
}

/// Why no file of such a name can be made, as far as the name is known: each process fills
/// in what a `%` stands for.
pub(crate) fn refused(pattern: &Path) -> Option<String> {
    let (folder, shown) = (directory(pattern), folder(pattern));
    // What is there already, like a pipe, is written to where no file can be made beside it.
    if shown.contains('%') || fs::metadata(pattern).is_ok_and(|found| !found.is_dir()) {
        return None;
    }
    // A folder that was deleted has no link, and can be entered and written to by name.
    let is_there = |found: fs::Metadata| found.is_dir() && found.nlink() > 0;
    if !fs::metadata(folder).is_ok_and(is_there) {
        return Some(format!("{shown} is not a directory"));
    }
    let allowed = access(folder, Access::WRITE_OK | Access::EXEC_OK);
    let error = allowed.err()?;
    Some(format!("no file can be made in {shown} ({error})"))
}

fn directory(pattern: &Path) -> &Path {
    match pattern.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// Whether two names are one file's.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_can_be_written_and_what_cannot_be_made_is_refused() {
        let at = |name: &str| refused(Path::new(name));
        // The folder of open files takes no others.
        for there in ["/dev/null", "/proc/self/fd/2", "x.json", "%h/x.json"] {
            assert_eq!(at(there), None, "{there}");
        }
        assert_eq!(at("/none/x"), Some("/none is not a directory".to_owned()));
        assert!(at("/dev/null/x").is_some_and(|why| why.contains("not a directory")));
        let gone = std::env::temp_dir().join(format!("vramalloc.gone.{}", std::process::id()));
        fs::create_dir(&gone).unwrap();
        let file = File::open(&gone).unwrap();
        fs::remove_dir(&gone).unwrap();
        let name = format!("/proc/self/fd/{}/x", std::os::fd::AsRawFd::as_raw_fd(&file));
        assert!(at(&name).is_some_and(|why| why.ends_with("not a directory")));
    }
}
