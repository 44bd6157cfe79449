//! Where the statistics go.
//!
//! Owns the file pattern. Invariant: what is substituted into a pattern never
//! changes the directory. A file under a name with the process id in it belongs
//! to one process; another's file of that name is not replaced. Under a name
//! that others can guess nothing is opened or followed; something that is not a
//! regular file (a device, a pipe) is written to only if the user named it in
//! full. Cost: one file per process, at its end.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Process;
use super::file::{Own, as_named, buffered, naming, whole};
use crate::config::StatsTarget;

/// Whether the name of a pattern's file depends on the process: on its id, or
/// (unless `on_pid_alone`) on any property.
fn depends(pattern: &str, on_pid_alone: bool) -> bool {
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        let code = if c == '%' { rest.next() } else { None };
        if code == Some('p') || code.is_some_and(|code| code != '%') && !on_pid_alone {
            return true;
        }
    }
    false
}

/// The file of a pattern that `process` writes. If another process's file has
/// this name, it writes one [`beside`](super::beside) it.
#[must_use]
pub fn file_of(pattern: &str, process: &Process) -> PathBuf {
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
    PathBuf::from(path)
}

/// Calls `write` and brings the text to the target. Returns the regular file
/// that it is in now, if any. `open` opens a target that is not created here.
///
/// # Errors
/// What the system answers, with the file's name in front.
pub fn deliver<W: Write>(
    target: &StatsTarget,
    process: &Process,
    own: &mut Own,
    open: impl FnOnce(There<'_>) -> io::Result<W>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<Option<PathBuf>> {
    let pattern = match target {
        StatsTarget::Off => return Ok(None),
        StatsTarget::Stderr => {
            let out = open(There::StandardError)?;
            return buffered(out, write).map(|()| None);
        }
        StatsTarget::File(pattern) => pattern,
    };
    let path = file_of(pattern, process);
    let delivered = if !depends(pattern, false) {
        as_named(&path, open, write)
    } else if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
        Err(io::Error::other("it is there and no regular file"))
    } else if depends(pattern, true) {
        whole(&path, write, |temporary| own.put(temporary, &path)).map(Some)
    } else {
        whole(&path, write, |temporary| fs::rename(temporary, &path)).map(|()| Some(path.clone()))
    };
    delivered.map_err(|error| naming(&path, &error))
}

/// A target that is written to as it is.
#[derive(Copy, Clone, Debug)]
pub enum There<'a> {
    /// Standard error.
    StandardError,
    /// The open file that the path stands for, and its descriptor.
    Open(&'a Path, i32),
    /// The file at this path.
    At(&'a Path),
}

/// A file name has 255 bytes at the most; a name that stands in one, about so many.
const MOST_OF_NAME: usize = 96;

/// A text as a part of a file name: without slashes and control characters, and cut where
/// it is long.
fn as_name(text: &str) -> String {
    text.char_indices()
        .take_while(|(at, _)| *at < MOST_OF_NAME)
        .map(|(_, c)| if c == '/' || c.is_control() { '_' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::ErrorKind;

    use super::super::beside;
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

    #[test]
    fn patterns() {
        let path = |pattern: &str| file_of(pattern, &process());
        assert_eq!(
            path("/tmp/%e.%p/%h-%r.100%%"),
            PathBuf::from("/tmp/py_th_on3.42/node_7-3.100%")
        );
        let long = Process {
            program: "ä".repeat(127),
            ..process()
        };
        let cut = format!("{}.42", "ä".repeat(48));
        assert_eq!(file_of("%e.%p", &long), PathBuf::from(cut));
        let within = |folder: &str, text: &str| {
            let target = StatsTarget::read(text).unwrap();
            match target.within(Path::new(folder)) {
                StatsTarget::File(pattern) => Some(path(&pattern)),
                StatsTarget::Off | StatsTarget::Stderr => None,
            }
        };
        assert_eq!(within("/50%e", "s.%p"), Some("/50%e/s.42".into()));
        assert_eq!(within("/", "s"), Some("/s".into()));
        assert_eq!(within("/a", "/s"), Some("/s".into()));
        assert_eq!(within("", "s"), Some("s".into()));
        assert_eq!(within("/a", "off"), None);
        assert_eq!(within("/a", "stderr"), None);
        assert_eq!(within("/a", "./on"), Some("/a/./on".into()));
        for bad in [
            "", "%", "a%x", "100%", "%p%", "-", "on", "OFF", "Stdout", "0", "1",
        ] {
            assert_eq!(StatsTarget::read(bad), None, "{bad}");
        }
    }

    /// A folder of the test's own.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let name = format!("vramalloc.target.{test}.{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        /// The process writes this to the file of a pattern.
        fn deliver(&self, own: &mut Own, pattern: &str, text: &str) -> io::Result<PathBuf> {
            let pattern = self.0.join(pattern);
            let target = StatsTarget::read(pattern.to_str().unwrap()).unwrap();
            let to = deliver(&target, &process(), own, opened, put(text))?;
            Ok(to.unwrap_or_default())
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap()
        }

        fn count(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn opened(there: There<'_>) -> io::Result<File> {
        match there {
            There::At(path) | There::Open(path, _) => OpenOptions::new().append(true).open(path),
            There::StandardError => Err(ErrorKind::Unsupported.into()),
        }
    }

    #[test]
    fn a_process_replaces_its_own_file_and_no_other_of_its_name() {
        let folder = Folder::new("beside");
        // Two processes that do not know of each other, as in two containers.
        let (mut one, mut other) = (Own::new(), Own::new());
        for text in ["one", "one again"] {
            folder.deliver(&mut one, "%p.json", text).unwrap();
            let to = folder.deliver(&mut other, "%p.json", "other").unwrap();
            assert_eq!(to, folder.0.join("42.1.json"));
            assert_eq!(folder.read("42.json"), text);
            assert_eq!(folder.read("42.1.json"), "other");
            assert_eq!(folder.count(), 2);
        }
        // A file that was edited is not the process's any more.
        fs::write(folder.0.join("42.1.json"), "edited").unwrap();
        let to = folder.deliver(&mut other, "%p.json", "last").unwrap();
        assert_eq!(to, folder.0.join("42.2.json"));
        assert_eq!(folder.read("42.1.json"), "edited");
        // Its file is still its own if the folder was renamed.
        fs::create_dir(folder.0.join("start")).unwrap();
        folder.deliver(&mut one, "start/%p.json", "one").unwrap();
        fs::rename(folder.0.join("start"), folder.0.join("end")).unwrap();
        let to = folder.deliver(&mut one, "end/%p.json", "last").unwrap();
        assert_eq!(to, folder.0.join("end/42.json"));
        // A name that is not one process's belongs to the last that writes it.
        for (own, text) in [(&mut one, "first"), (&mut other, "second")] {
            folder.deliver(own, "rank%r.json", text).unwrap();
            assert_eq!(folder.read("rank3.json"), text);
        }
        let plain = |n| beside(Path::new("/a/b"), n);
        assert_eq!((plain(0), plain(2)), ("/a/b".into(), "/a/b.2".into()));
    }

    #[test]
    fn many_threads_write_whole_files_under_one_name() {
        let folder = Folder::new("threads");
        let text = |thread: u32| thread.to_string().repeat(100_000);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let folder = &folder;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let own = &mut Own::new();
                        folder.deliver(own, "s.json", &text(thread)).unwrap();
                        let read = folder.read("s.json");
                        assert!((0..4).any(|thread| read == text(thread)));
                    }
                });
            }
        });
        assert_eq!(folder.count(), 1);
    }

    #[test]
    fn what_stands_under_a_name_that_can_be_guessed_is_not_followed() {
        use std::os::unix::fs::symlink;
        let folder = Folder::new("guessed");
        let own = &mut Own::new();
        let target = folder.0.join("target");
        fs::write(&target, "kept").unwrap();
        symlink(&target, folder.0.join("42.json")).unwrap();
        symlink("/dev/null", folder.0.join("py_th_on3.json")).unwrap();
        for pattern in ["%p.json", "%e.json"] {
            let error = folder.deliver(own, pattern, "text").unwrap_err();
            assert!(error.to_string().ends_with("no regular file"), "{error}");
        }
        assert_eq!(folder.read("target"), "kept");
        assert_eq!(folder.count(), 3);
        // A user who names it in full means it.
        folder.deliver(own, "py_th_on3.json", "text").unwrap();
        assert_eq!(folder.count(), 3);
        // A link to a file, even to one that does not exist yet, stays too.
        for target in ["target", "made"] {
            symlink(target, folder.0.join("named")).unwrap();
            folder.deliver(own, "named", target).unwrap();
            assert_eq!(folder.read(target), target);
            assert!(folder.0.join("named").is_symlink());
            fs::remove_file(folder.0.join("named")).unwrap();
        }
        // An open file is written to, and its name is not replaced.
        let file = File::create(folder.0.join("open")).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        symlink(format!("/proc/self/fd/{descriptor}"), folder.0.join("link")).unwrap();
        for text in ["one ", "two"] {
            folder.deliver(own, "link", text).unwrap();
        }
        assert_eq!(folder.read("open"), "one two");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is_left() {
        let folder = Folder::new("replaced");
        for text in ["first, longer", "second"] {
            let to = folder.deliver(&mut Own::new(), "s.json", text).unwrap();
            assert_eq!(to, folder.0.join("s.json"));
            assert_eq!(folder.read("s.json"), text);
        }
        assert_eq!(folder.count(), 1);
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        let target = StatsTarget::read("/dev/null").unwrap();
        let own = &mut Own::new();
        deliver(&target, &process(), own, opened, put("text")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn an_error_names_the_file() {
        let target = StatsTarget::read("/nowhere/at/all.json").unwrap();
        let own = &mut Own::new();
        let error = deliver(&target, &process(), own, opened, put("text")).unwrap_err();
        assert!(
            error.to_string().starts_with("/nowhere/at/all.json: "),
            "{error}"
        );
    }
}
