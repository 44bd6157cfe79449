//! Where the statistics go.
//!
//! Owns the file pattern. Invariant: what is substituted into a pattern never
//! changes the directory, a file appears under its name only when it is
//! complete, and what is not a regular file (a device, a pipe) is written to
//! and never replaced. Cost: one file per process, at its end.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Process;

/// Bytes of host memory for what is not yet written: a text can be large, at
/// the end of a process that may have little left.
const BUFFER: usize = 64 << 10;

/// The choice of the option `stats`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatsTarget {
    /// Nowhere.
    Off,
    /// To standard error.
    Stderr,
    /// To the file of this pattern: `%e` program, `%p` process id, `%h` host,
    /// `%r` rank, `%%` a percent sign.
    File(String),
}

impl Default for StatsTarget {
    fn default() -> StatsTarget {
        StatsTarget::File("vramalloc.%e.%p.json".to_owned())
    }
}

impl fmt::Display for StatsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StatsTarget::Off => "off",
            StatsTarget::Stderr => "stderr",
            StatsTarget::File(pattern) => pattern,
        })
    }
}

impl StatsTarget {
    /// The choice that `text` makes; none where it is empty or holds a `%`
    /// that is followed by none of `e`, `p`, `h`, `r`, `%`.
    #[must_use]
    pub fn read(text: &str) -> Option<StatsTarget> {
        match text {
            "off" => return Some(StatsTarget::Off),
            "stderr" => return Some(StatsTarget::Stderr),
            _ => {}
        }
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            let readable = match c {
                '%' => matches!(rest.next(), Some('e' | 'p' | 'h' | 'r' | '%')),
                '\0' => false,
                _ => true,
            };
            if !readable {
                return None;
            }
        }
        (!text.is_empty()).then(|| StatsTarget::File(text.to_owned()))
    }

    /// The file that `process` writes, if it writes one.
    #[must_use]
    pub fn path(&self, process: &Process) -> Option<PathBuf> {
        let StatsTarget::File(pattern) = self else {
            return None;
        };
        let mut path = String::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                path.push(c);
                continue;
            }
            match rest.next() {
                Some('e') => path.push_str(&as_name(&process.program)),
                Some('p') => path.push_str(&process.pid.to_string()),
                Some('h') => path.push_str(&as_name(&process.host)),
                Some('r') => path.push_str(&as_name(&process.rank)),
                Some(other) => path.push(other),
                None => {}
            }
        }
        Some(PathBuf::from(path))
    }

    /// Has the text written to where it belongs and says which file that was.
    ///
    /// # Errors
    /// What the system answers, with the file's name in front.
    pub fn deliver(
        &self,
        process: &Process,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Option<PathBuf>> {
        if *self == StatsTarget::Stderr {
            return buffered(io::stderr().lock(), write).map(|()| None);
        }
        let Some(path) = self.path(process) else {
            return Ok(None);
        };
        write_whole(&path, write)?;
        Ok(Some(path))
    }
}

/// A text that is one plain part of a file name.
fn as_name(text: &str) -> String {
    text.chars()
        .map(|c| if c == '/' || c.is_control() { '_' } else { c })
        .collect()
}

/// Has a file written under a temporary name in the same directory, then
/// renames it: a reader sees all of it or none. What is no regular file is
/// written to as it is.
///
/// # Errors
/// What the system or `write` answers, with the file's name in front.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    written(path, write)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Passes on what is written, in pieces of [`BUFFER`] where it is more.
fn buffered(
    to: impl Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER, to);
    write(&mut out)?;
    out.flush()
}

fn written(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return buffered(OpenOptions::new().append(true).open(path)?, write);
    }
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
    let process = std::process::id();
    let temporary = path.with_file_name(format!(".{}.{process}.tmp", name.to_string_lossy()));
    let written = create(&temporary)
        .and_then(|file| buffered(file, write))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // Best effort: the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Makes a file that nobody else has open.
fn create(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Left behind by a process of the same id that was killed.
            fs::remove_file(path)?;
            File::create_new(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> Process {
        Process {
            program: "py/th\non3".to_owned(),
            pid: 42,
            host: "node/7".to_owned(),
            rank: "3".to_owned(),
            ..Process::default()
        }
    }

    fn put(text: &str) -> impl FnOnce(&mut dyn Write) -> io::Result<()> {
        move |out| out.write_all(text.as_bytes())
    }

    /// What was passed on, piece by piece.
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

    #[test]
    fn patterns() {
        let path = |text: &str| StatsTarget::read(text).and_then(|t| t.path(&process()));
        assert_eq!(
            path("/tmp/%e.%p/%h-%r.100%%"),
            Some(PathBuf::from("/tmp/py_th_on3.42/node_7-3.100%"))
        );
        assert_eq!(path("off"), None);
        assert_eq!(path("stderr"), None);
        for bad in ["", "%", "a%x", "100%", "%p%"] {
            assert_eq!(StatsTarget::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is_left() {
        let directory =
            std::env::temp_dir().join(format!("vramalloc.target.{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("s.json");
        let target = StatsTarget::read(file.to_str().unwrap()).unwrap();
        for text in ["first, longer", "second"] {
            assert_eq!(
                target.deliver(&process(), put(text)).unwrap(),
                Some(file.clone())
            );
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        let target = StatsTarget::read("/dev/null").unwrap();
        target.deliver(&process(), put("text")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn an_error_names_the_file() {
        let target = StatsTarget::read("/nowhere/at/all.json").unwrap();
        let error = target.deliver(&process(), put("text")).unwrap_err();
        assert!(
            error.to_string().starts_with("/nowhere/at/all.json: "),
            "{error}"
        );
    }
}
