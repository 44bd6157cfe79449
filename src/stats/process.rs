//! The process that writes the statistics. Reading it takes five small reads
//! below `/proc`, once per process.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The variables in which launchers set a process's rank; the first that is set
/// counts.
const RANKS: &[&str] = &["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"];

/// A process as the statistics name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// File name of the executable.
    pub program: String,
    /// Its arguments, the program's own name first.
    pub command_line: Vec<String>,
    /// Process id.
    pub pid: u32,
    /// Name of the machine.
    pub host: String,
    /// Rank in a parallel job; `0` if no launcher set one.
    pub rank: String,
    /// When the process began, or when counting began if the system does not
    /// say.
    pub started: SystemTime,
    /// When the statistics were taken.
    pub ended: SystemTime,
}

impl Default for Process {
    fn default() -> Process {
        Process {
            program: String::new(),
            command_line: Vec::new(),
            pid: 0,
            host: String::new(),
            rank: "0".to_owned(),
            started: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH,
        }
    }
}

impl Process {
    /// This process, now, with this rank. What the system does not say stays empty;
    /// the start is then `counted`.
    #[must_use]
    pub fn current(counted: SystemTime, rank: String) -> Process {
        let started = began().map_or(counted, |began| began.min(counted));
        let program = executable()
            // A process in a chroot may have no `/proc`.
            .or_else(|| std::env::args_os().next().map(PathBuf::from))
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_default();
        let command_line = fs::read("/proc/thread-self/cmdline").unwrap_or_default();
        let command_line = command_line.strip_suffix(b"\0").unwrap_or(&command_line);
        Process {
            program,
            command_line: command_line
                .split(|&b| b == 0)
                .map(|argument| String::from_utf8_lossy(argument).into_owned())
                .collect(),
            pid: std::process::id(),
            host: fs::read_to_string("/proc/sys/kernel/hostname")
                .map(|name| name.trim().to_owned())
                .unwrap_or_default(),
            rank,
            started,
            ended: SystemTime::now(),
        }
    }
}

/// The program's file, also where it was removed, or replaced, while it runs.
#[must_use]
pub fn executable() -> Option<PathBuf> {
    // Of this thread: of the process there is none once its first thread has ended.
    let path = fs::read_link("/proc/thread-self/exe").ok()?;
    let was = path
        .to_str()
        .and_then(|path| path.strip_suffix(" (deleted)"));
    match was {
        Some(was) if !path.exists() => Some(PathBuf::from(was)),
        _ => Some(path),
    }
}

/// The rank that a launcher set, by its variables.
pub fn rank(variable: impl Fn(&str) -> Option<String>) -> String {
    RANKS
        .iter()
        .filter_map(|name| variable(name))
        .find(|rank| !rank.is_empty())
        .unwrap_or_else(|| "0".to_owned())
}

/// When this process began, to a hundredth of a second.
fn began() -> Option<SystemTime> {
    // Linux counts in hundredths of a second there, whatever the kernel's
    // clock.
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may contain anything; the 22nd field is the time.
    let (_, fields) = stat.rsplit_once(')')?;
    let start: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let now: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let now = Duration::try_from_secs_f64(now).ok()?;
    let age = now.checked_sub(Duration::from_millis(start.checked_mul(10)?))?;
    SystemTime::now().checked_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_is_set_counts() {
        let environment = |name: &str| match name {
            "RANK" => Some(String::new()),
            "SLURM_PROCID" => Some("5".to_owned()),
            "PMI_RANK" => Some("6".to_owned()),
            _ => None,
        };
        assert_eq!(rank(environment), "5");
        assert_eq!(rank(|_| None), "0");
    }

    #[test]
    fn this_process_is_known() {
        let process = Process::current(SystemTime::now(), "3".to_owned());
        assert_eq!(process.rank, "3");
        assert_eq!(process.pid, std::process::id());
        assert!(!process.program.is_empty());
        assert!(!process.host.is_empty());
        assert!(!process.command_line.is_empty());
        assert!(process.started <= process.ended);
    }
}
