//! `vramalloc-probe`, the process that asks NVIDIA's libraries, so that no foreign code is
//! loaded here: where it is, and what it says is in use of devices, by whomever.
//!
//! Owns the process while somebody watches. Invariant: nobody waits for it without an
//! end. Cost: a process, which asks once for each look.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use vramalloc_core::Bytes;

/// The program's name.
pub(super) const PROBE: &str = "vramalloc-probe";

/// Where it also may be, relative to the directory of the command.
pub(super) const APART: &str = "../libexec/vramalloc";

/// The path of the probe: beside the command or the library, or where an
/// installation keeps what only other programs start.
pub(super) fn find(library: Option<&Path>) -> Option<PathBuf> {
    let command = env::current_exe().ok();
    let beside = command.as_deref().and_then(Path::parent);
    let apart = beside.map(|directory| directory.join(APART));
    [beside, library.and_then(Path::parent), apart.as_deref()]
        .into_iter()
        .flatten()
        .map(|directory| directory.join(PROBE))
        .find(|probe| probe.is_file())
}

/// What is in use of each device, by its UUID.
pub(super) type InUse = BTreeMap<u128, Bytes>;

/// A probe that is asked again and again. It ends with this.
pub(super) struct Asker {
    ask: Sender<()>,
    answers: Receiver<InUse>,
    newest: InUse,
}

impl Asker {
    /// Starts a probe and asks it; none where there is no probe.
    pub(super) fn start(library: Option<&Path>) -> Option<Asker> {
        let probe = find(library)?;
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        ask.send(()).ok()?;
        let talk = move || talk(&probe, &asked, &answer);
        thread::Builder::new()
            .name("probe".into())
            .spawn(talk)
            .ok()?;
        Some(Asker {
            ask,
            answers,
            newest: InUse::new(),
        })
    }

    /// The first answer; nothing if it does not come in this time.
    pub(super) fn first(&self, most: Duration) -> InUse {
        self.answers.recv_timeout(most).unwrap_or_default()
    }

    /// The newest answer so far, and asks for another one.
    pub(super) fn newest(&mut self) -> InUse {
        if let Some(answer) = self.answers.try_iter().last() {
            self.newest = answer;
            // Where the probe has ended, there is no newer one.
            let _ = self.ask.send(());
        }
        self.newest.clone()
    }
}

/// Passes on what is asked and what is answered, until nobody asks any more or the probe
/// has no answer.
fn talk(probe: &Path, asked: &Receiver<()>, answer: &Sender<InUse>) {
    let mut command = Command::new(probe);
    command.arg("--memory").env_remove("LD_PRELOAD");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return;
    };
    if let (Some(mut orders), Some(out)) = (child.stdin.take(), child.stdout.take()) {
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        while asked.recv().is_ok() && orders.write_all(b"\n").is_ok() {
            let told = read(&mut lines);
            if told.is_none_or(|told| answer.send(told).is_err()) {
                break;
            }
        }
    }
    // Its input is closed: it ends.
    let _ = child.wait();
}

/// Reads an answer; none where NVML has none.
fn read(lines: &mut impl Iterator<Item = String>) -> Option<InUse> {
    let mut in_use = InUse::new();
    loop {
        let line = lines.next()?;
        let words: Vec<&str> = line.split(' ').collect();
        match *words.as_slice() {
            ["memory", uuid, _total, used] => {
                if let (Some(uuid), Ok(used)) = (number(uuid), used.parse()) {
                    in_use.insert(uuid, Bytes::new(used));
                }
            }
            ["end"] => return Some(in_use),
            _ => return None,
        }
    }
}

/// The number that a UUID is, as NVML writes it.
fn number(uuid: &str) -> Option<u128> {
    let digits = uuid.strip_prefix("GPU-")?.replace('-', "");
    u128::from_str_radix(&digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_far_as_they_are_answers() {
        let read = |text: &str| read(&mut text.lines().map(str::to_owned));
        let text = "memory GPU-00000000-0000-0000-0000-00000000002a 100 60\n\
                    memory MIG-1 5 5\nmemory GPU-1 100 x\nend\nmemory GPU-2 3 3";
        assert_eq!(read(text), Some(InUse::from([(42, Bytes::new(60))])));
        assert_eq!(read("end"), Some(InUse::new()));
        for wrong in ["", "failed nvmlInit_v2 9", "memory GPU-2 3 3"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
