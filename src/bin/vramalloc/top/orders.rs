//! Orders to processes, as the subcommands `dump` and `trim` send them: by this
//! command, run once more.
//!
//! A process of its own, since the lock of a page that an order stands under would
//! end when this one, which looks at all pages again and again, closes the page.
//! Invariant: none of them outlives this command, so no order does.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use vramalloc_core::control::OrderKind;

use super::super::look::{Watched, WatchedId};

/// In seconds, how long a process has to make a call that serves an order.
const WAIT: &str = "10";

/// The orders that are on their way.
#[derive(Default)]
pub(super) struct Orders(Vec<Sent>);

struct Sent {
    to: WatchedId,
    kind: OrderKind,
    child: Child,
}

/// An order that came to its end.
pub(super) struct Answer {
    pub(super) from: WatchedId,
    pub(super) kind: OrderKind,
    /// What the process said, or why it was not done.
    pub(super) said: Result<String, String>,
}

impl Orders {
    /// Sends one.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) fn send(&mut self, kind: OrderKind, to: &Watched) -> Result<(), String> {
        let (id, pid) = (to.identity(), to.shown_id());
        if self.0.iter().any(|sent| sent.to == id) {
            return Err(format!("process {pid} has not answered so far"));
        }
        let name = match kind {
            OrderKind::Trim => "trim",
            OrderKind::Dump | OrderKind::Limit => "dump",
        };
        // This very program, also if its file was replaced.
        let child = Command::new("/proc/self/exe")
            .arg0("vramalloc")
            .args(["--color=never", name, &pid.to_string(), "--wait", WAIT])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("vramalloc {name} cannot be run: {error}"))?;
        self.0.push(Sent {
            to: id,
            kind,
            child,
        });
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The answers that have come.
    pub(super) fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.0.retain_mut(|sent| {
            let said = match sent.child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => said(&mut sent.child, status),
                Err(error) => Err(error.to_string()),
            };
            let (from, kind) = (sent.to, sent.kind);
            answers.push(Answer { from, kind, said });
            false
        });
        answers
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        for sent in &mut self.0 {
            // It may just have ended.
            let _ = sent.child.kill();
            let _ = sent.child.wait();
        }
    }
}

/// The line that it printed.
fn said(child: &mut Child, status: ExitStatus) -> Result<String, String> {
    let mut text = Vec::new();
    let read = match (status.success(), &mut child.stdout, &mut child.stderr) {
        (true, Some(out), _) => out.read_to_end(&mut text),
        (_, _, Some(errors)) => errors.read_to_end(&mut text),
        _ => Ok(0),
    };
    // What was read before an error is used all the same.
    let _ = read;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_end_matches('\n');
    if status.success() {
        return Ok(text.to_owned());
    }
    match text.trim_start_matches("vramalloc: ") {
        "" => Err(format!("the order was not done: {status}")),
        why => Err(why.to_owned()),
    }
}
