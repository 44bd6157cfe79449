//! Files that appear under their names only when they are complete.
//!
//! Invariant: a reader sees all of a file or nothing, except of a file that the
//! user named in full and that cannot be replaced. Under a name with the
//! process id in it, a process never replaces another process's file. Something
//! that is not a regular file is written to as it is, and never replaced.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::target::There;

/// The size of the write buffer: a text can be large, at the end of a process
/// that may have little memory left.
const BUFFER: usize = 64 << 10;

/// What identifies a file, and its contents at one moment.
type Identity = (u64, u64, i64, i64);

/// The files that a process has written under names of its own, and may
/// replace, by the names that it asked for.
#[derive(Debug, Default)]
pub struct Own(BTreeMap<PathBuf, (PathBuf, Identity)>);

impl Own {
    /// No files yet.
    #[must_use]
    pub const fn new() -> Own {
        Own(BTreeMap::new())
    }

    /// Moves the temporary file to `path`, or to a name beside it if a file of
    /// that name is not this process's. Returns the name.
    pub(super) fn put(&mut self, temporary: &Path, path: &Path) -> io::Result<PathBuf> {
        let mine = self.0.iter().find_map(|(asked, (at, file))| {
            // The folder may have been renamed since.
            let at = path.with_file_name(at.file_name()?);
            let same = asked.file_name() == path.file_name();
            (same && identity(&at).as_ref() == Some(file)).then_some(at)
        });
        let at = match mine {
            Some(at) => {
                fs::rename(temporary, &at)?;
                at
            }
            None => add(temporary, path)?,
        };
        if let Some(file) = identity(&at) {
            self.0.insert(path.to_owned(), (at.clone(), file));
        }
        Ok(at)
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}

/// Moves the file to the first free name among `path` and those beside it.
fn add(temporary: &Path, path: &Path) -> io::Result<PathBuf> {
    for number in 0..MOST {
        let at = beside(path, number);
        let added = match fs::hard_link(temporary, &at) {
            Ok(()) => fs::remove_file(temporary),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
            // Not every file system has hard links. On one without them, an
            // empty file reserves the name for a moment.
            Err(_) => File::create_new(&at).and_then(|_| fs::rename(temporary, &at)),
        };
        match added {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            added => return added.map(|()| at),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// How many names are tried.
const MOST: u32 = 10_000;

/// The name for a file if `number` names are taken already: `train.42.json`,
/// `train.42.1.json`, and so on.
#[must_use]
pub fn beside(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    path.with_extension(format!("{number}.{extension}").trim_end_matches('.'))
}

/// Writes a file under a temporary name in the same directory, then renames it:
/// a reader sees all of it or nothing. Something that is not a regular file is
/// written to as it is.
///
/// # Errors
/// What the system or `write` answers, with the file's name in front.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let open = |there: There<'_>| match there {
        There::At(path) | There::Open(path, _) => OpenOptions::new().append(true).open(path),
        There::StandardError => Err(ErrorKind::Unsupported.into()),
    };
    let written = as_named(path, open, write).map_err(|error| naming(path, &error));
    written.map(|_| ())
}

pub(super) fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Writes through a buffer of [`BUFFER`] bytes.
pub(super) fn buffered(
    to: impl Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER, to);
    write(&mut out)?;
    out.flush()
}

/// Writes to a name that the user gave in full. Returns the name if it is now a
/// regular file's.
pub(super) fn as_named<W: Write>(
    path: &Path,
    open: impl FnOnce(There<'_>) -> io::Result<W>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<Option<PathBuf>> {
    let at = match behind(path) {
        Ok(at) if fs::metadata(&at).is_ok_and(|found| !found.is_file()) => {
            return buffered(open(There::At(path))?, write).map(|()| None);
        }
        Ok(at) => at,
        Err(there) => return buffered(open(there)?, write).map(|()| None),
    };
    match create(&at) {
        Ok(made) => finish(made, write, |temporary| replace(temporary, &at))?,
        Err(error) if is_in_the_way(&error) => {
            let there = emptied(&at).map_err(|_| error)?;
            buffered(there, write)?;
        }
        Err(error) => return Err(error),
    }
    Ok(Some(path.to_owned()))
}

/// Moves the file to its name. If the file there cannot be replaced, because it
/// is a mount point or another user's, its contents are overwritten.
fn replace(temporary: &Path, at: &Path) -> io::Result<()> {
    match fs::rename(temporary, at) {
        Err(error) if is_in_the_way(&error) => {
            let mut there = emptied(at).map_err(|_| error)?;
            io::copy(&mut File::open(temporary)?, &mut there)?;
            fs::remove_file(temporary)
        }
        renamed => renamed,
    }
}

/// Whether the folder refuses a new file, or the file there cannot be replaced.
fn is_in_the_way(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::ResourceBusy
            | ErrorKind::CrossesDevices
    )
}

/// Opens an existing file and empties it.
fn emptied(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).truncate(true).open(path)
}

/// Follows a name's links to the file, which need not exist. Returns an error
/// for an open file (`/dev/fd/3`, `/dev/stdout`), which must not be replaced.
fn behind(path: &Path) -> Result<PathBuf, There<'_>> {
    /// The number of links that the system follows.
    const LINKS: u32 = 40;
    let mut at = path.to_owned();
    for _ in 0..LINKS {
        // The system cannot follow it where the first thread has ended.
        let folders = ["/proc/self/fd", "/dev/fd"];
        let file = folders
            .iter()
            .find_map(|folder| at.strip_prefix(folder).ok());
        if let Some(file) = file
            && let Some(number) = file.to_str().and_then(|number| number.parse().ok())
        {
            return Err(There::Open(path, number));
        }
        let Ok(next) = fs::read_link(&at) else {
            return Ok(at);
        };
        let folder =
            path::absolute(&at).and_then(|at| fs::canonicalize(at.parent().unwrap_or(&at)));
        let folder = folder.map_err(|_| There::At(path))?;
        if folder.starts_with("/proc") {
            let ours = fs::canonicalize("/proc/self/fd").is_ok_and(|ours| ours == folder);
            let number = at.file_name().and_then(|name| name.to_str()?.parse().ok());
            return Err(match number {
                Some(number) if ours => There::Open(path, number),
                _ => There::At(path),
            });
        }
        at = folder.join(next);
    }
    Ok(at)
}

/// Writes a file under a temporary name in the folder of `path`, then calls
/// `put` to move it to its place.
pub(super) fn whole<R>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    put: impl FnOnce(&Path) -> io::Result<R>,
) -> io::Result<R> {
    finish(create(path)?, write, put)
}

fn finish<R>(
    (temporary, file): (PathBuf, File),
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    put: impl FnOnce(&Path) -> io::Result<R>,
) -> io::Result<R> {
    let result = buffered(file, write).and_then(|()| put(&temporary));
    if result.is_err() {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Creates a file beside `path` that no other process has open. A process of
/// the same id may be writing there (in another container), or have been killed
/// while it did.
fn create(path: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if path.file_name().is_none() {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "not the name of a file",
        ));
    }
    for _ in 0..MOST {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let temporary = path.with_file_name(format!(".vramalloc.{process}.{number}.tmp"));
        match File::create_new(&temporary) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return Ok((temporary, beyond_standard(made?)?)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// The file by a number above that of standard error: what the program prints to one that
/// it has closed is not for the file.
fn beyond_standard(file: File) -> io::Result<File> {
    const STANDARD_ERROR: RawFd = 2;
    if file.as_raw_fd() > STANDARD_ERROR {
        return Ok(file);
    }
    let mut moved = file.try_clone()?;
    drop(file);
    moved.set_len(0)?;
    moved.rewind()?;
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the sizes of the writes.
    #[derive(Default)]
    struct Pieces(Vec<usize>);

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn little_is_kept_of_a_long_text_and_a_short_one_is_one_piece() {
        let lines = |count| {
            let mut pieces = Pieces::default();
            buffered(&mut pieces, |out| {
                (0..count).try_for_each(|_| out.write_all(&[b'x'; 100]))
            })
            .unwrap();
            pieces.0
        };
        assert_eq!(lines(600), [60_000]);
        let long = lines(100_000);
        assert!(long.iter().all(|&piece| piece <= BUFFER));
        assert!(long.len() < 200);
        assert_eq!(long.iter().sum::<usize>(), 10_000_000);
    }

    #[test]
    fn a_file_appears_when_it_is_complete_and_not_at_all_where_it_cannot_be() {
        let name = format!("vramalloc.target.whole.{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("s.json");
        let names = || fs::read_dir(&directory).unwrap().count();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let failed = write_whole(&file, |out| {
            out.write_all(&vec![b'x'; 3 * BUFFER])?;
            Err(full())
        });
        assert_eq!(failed.unwrap_err().kind(), full().kind());
        assert_eq!(names(), 0);
        write_whole(&file, |out| {
            out.write_all(&vec![b'x'; 3 * BUFFER])?;
            assert!(!file.exists());
            assert_eq!(names(), 1);
            out.write_all(b"end")
        })
        .unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), 3 * BUFFER as u64 + 3);
        assert_eq!(names(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }
}
