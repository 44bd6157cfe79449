//! Runs a program as if it ran without the command: signals reach it, and its
//! exit status is returned.
//!
//! Invariant: a signal is only sent while the child has not been reaped, so it
//! cannot reach another process with the same id.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::{fs, io, thread};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::siginfo::Cause;

/// The signals that are passed on.
const PASSED_ON: &[i32] = &[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// A child that ended.
pub(super) struct Ended {
    /// Its process id.
    pub(super) pid: u32,
    /// How it ended.
    pub(super) status: ExitStatus,
}

impl Ended {
    /// The status as a shell reports it: 128 plus the number for a signal.
    pub(super) fn code(&self) -> u8 {
        let code = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 1,
        };
        u8::try_from(code & 0xff).unwrap_or(1)
    }
}

/// Runs `command` to its end.
///
/// # Errors
/// Why it could not be started.
pub(super) fn run(command: &mut Command) -> io::Result<Ended> {
    // Handlers are installed before the child starts, so that no signal is
    // lost. A signal that is ignored stays ignored, here and (by inheritance)
    // in the child: nohup.
    let ignored = ignored();
    let handled = PASSED_ON
        .iter()
        .filter(|&&signal| ignored & (1 << (signal - 1)) == 0)
        // If this is ignored, the system reaps children by itself and their
        // status is lost.
        .chain(&[SIGCHLD]);
    let mut signals = SignalsInfo::<WithOrigin>::new(handled)?;
    let handle = signals.handle();

    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let passing = thread::spawn(move || {
        for sent in signals.forever() {
            if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(sent.signal))
                && signal != Signal::CHILD
                && !was_typed(&sent)
            {
                // The child may have ended: then the signal has no receiver.
                let _ = kill_process(pid, signal);
            }
        }
    });
    if let Some(pid) = pid {
        // Waits without reaping the child; an interrupted wait goes on.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(
            waitid(WaitId::Pid(pid), ended),
            Err(rustix::io::Errno::INTR)
        ) {}
    }
    handle.close();
    let _ = passing.join();
    Ok(Ended {
        pid: child.id(),
        status: child.wait()?,
    })
}

/// Whether the child has had this signal already: the terminal sends what is typed there to
/// every process of its foreground group. What a process sends is for us alone.
fn was_typed(sent: &Origin) -> bool {
    matches!(sent.signal, SIGINT | SIGQUIT) && sent.cause == Cause::Kernel
}

/// The signals that this process ignores, bit `n - 1` for signal `n`.
fn ignored() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0)
}
