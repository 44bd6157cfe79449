//! Process ids, which mean another process in each namespace of them: the
//! processes of a container have ids of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, test_kill_process};

/// Whether there is a process with this id here.
pub(super) fn exists(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// The number of the namespace of this process; nothing without `/proc`.
pub(super) fn own_namespace() -> Option<u64> {
    namespace(Path::new("/proc/self"))
}

fn namespace(process: &Path) -> Option<u64> {
    let link = fs::read_link(process.join("ns/pid")).ok()?;
    let number = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// The ids here of the processes in other namespaces, by the namespace and the
/// id there. Those that this process may not look into are left out, and all
/// are if `/proc` does not number processes as they are numbered here.
pub(super) fn of_others() -> BTreeMap<(u64, u64), u64> {
    let is_own = fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()));
    let entries = is_own.then(|| fs::read_dir("/proc").ok()).flatten();
    let entries = entries.into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| {
        let here = entry.file_name().to_str()?.parse().ok()?;
        let there = innermost(&fs::read_to_string(entry.path().join("status")).ok()?)?;
        Some(((namespace(&entry.path())?, there), here))
    });
    ids.collect()
}

/// The id that a process has in its own namespace, by its `status`.
fn innermost(status: &str) -> Option<u64> {
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_in_a_container_is_the_last_one() {
        assert_eq!(innermost("Pid:\t900\nNSpid:\t900\t17\t1\nX:\t2\n"), Some(1));
        assert_eq!(innermost("NSpid:\t900\n"), Some(900));
        assert_eq!(innermost("Pid:\t900\n"), None);
    }
}
