//! A bar for what takes longer than a second, on a terminal only.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressBarIter, ProgressDrawTarget, ProgressStyle};

/// Nobody wonders before.
const AFTER: Duration = Duration::from_secs(1);

/// What a bar is like, where the end is known and where not.
const BAR: &str = "{msg} {bar:24} {bytes} of {total_bytes}";
const SPINNER: &str = "{msg} {spinner} {elapsed}";

/// A bar, from now until it is dropped. Owns a thread that waits for its time.
pub(super) struct Progress {
    bar: ProgressBar,
    waiting: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Of reading these files; standard input has no known end.
    pub(super) fn reading<'a>(files: impl Iterator<Item = &'a Path>) -> Progress {
        let lengths = files.map(|file| Some(file.metadata().ok()?.len()));
        Progress::new("reading", lengths.sum())
    }

    /// Of something, with its length in bytes where that is known.
    pub(super) fn new(what: &'static str, length: Option<u64>) -> Progress {
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(if length.is_some() { BAR } else { SPINNER });
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        let shown = bar.clone();
        let waiting = io::stderr().is_terminal().then(|| {
            let (ended, end) = channel();
            let waits = thread::spawn(move || {
                if end.recv_timeout(AFTER) == Err(RecvTimeoutError::Timeout) {
                    shown.set_draw_target(ProgressDrawTarget::stderr());
                    shown.enable_steady_tick(Duration::from_millis(100));
                }
            });
            (ended, waits)
        });
        Progress { bar, waiting }
    }

    /// A file's contents.
    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.all(File::open(path)?)
    }

    /// What comes on standard input.
    pub(super) fn read_input(&self) -> io::Result<Vec<u8>> {
        self.all(io::stdin().lock())
    }

    /// A file, which the bar follows.
    pub(super) fn open(&self, path: &Path) -> io::Result<ProgressBarIter<File>> {
        Ok(self.bar.wrap_read(File::open(path)?))
    }

    fn all(&self, from: impl Read) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.bar.wrap_read(from).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((ended, waits)) = self.waiting.take() {
            drop(ended);
            // A bar that cannot be shown is missing.
            let _ = waits.join();
        }
        self.bar.finish_and_clear();
    }
}
