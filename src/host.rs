//! How much memory the host has for this process, and how much of it is left: read
//! from a few small files below `/proc` and `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::address::Bytes;

/// The host's memory, or the lowest limit of the process's control groups.
/// Returns `None` if the system does not say.
#[must_use]
pub fn memory() -> Option<Bytes> {
    memory_below(Path::new("/"))
}

fn memory_below(root: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = kib_of(&text, "MemTotal:")?;
    let groups = groups_of(root);
    let limits = groups
        .iter()
        .filter_map(|(group, files)| number_in(&group.join(files.limit)));
    Some(limits.fold(total, Bytes::min))
}

/// Memory that the process can still take: what the host has available, or the least
/// that one of the process's control groups leaves. What they keep of files goes first.
/// Returns `None` if the system does not say.
#[must_use]
pub fn available() -> Option<Bytes> {
    available_below(Path::new("/"))
}

fn available_below(root: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let host = kib_of(&text, "MemAvailable:")?;
    let groups = groups_of(root);
    let left = groups.iter().filter_map(|(group, files)| {
        let limits = [files.limit, files.throttled];
        let limits = limits
            .iter()
            .filter_map(|file| number_in(&group.join(file)));
        let limit = limits.min()?;
        let used = number_in(&group.join(files.used))?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let of_files = lines
            .filter(|(name, _)| files.of_files.contains(name))
            .filter_map(|(_, number)| number.trim().parse().ok().map(Bytes::new))
            .fold(Bytes::ZERO, Bytes::saturating_add);
        Some(limit.saturating_sub(used.saturating_sub(of_files)))
    });
    Some(left.fold(host, Bytes::min))
}

/// A number of `/proc/meminfo`, which is in KiB.
fn kib_of(text: &str, name: &str) -> Option<Bytes> {
    let number = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = number.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::kib(kib))
}

/// The number in a file; none where there is none, or a word: `max` is no limit.
fn number_in(path: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(path).ok()?;
    text.trim().parse().ok().map(Bytes::new)
}

/// What the files of a control group are called.
#[derive(Copy, Clone)]
struct GroupFiles {
    folder: &'static str,
    limit: &'static str,
    /// Beyond this the system slows the group down, until it has written out what it can:
    /// of page-locked memory nothing.
    throttled: &'static str,
    used: &'static str,
    /// Names in `memory.stat` of what is kept of files.
    of_files: [&'static str; 2],
}

const VERSION_1: GroupFiles = GroupFiles {
    folder: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    throttled: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    of_files: ["total_active_file", "total_inactive_file"],
};

const VERSION_2: GroupFiles = GroupFiles {
    folder: "sys/fs/cgroup",
    limit: "memory.max",
    throttled: "memory.high",
    used: "memory.current",
    of_files: ["active_file", "inactive_file"],
};

/// The control groups of the process that can limit its memory, and those around them.
fn groups_of(root: &Path) -> Vec<(PathBuf, GroupFiles)> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    text.lines()
        .flat_map(|line| groups_in(root, line))
        .collect()
}

/// A control group and the groups around it. A line reads `number:controllers:path`;
/// version 2 of control groups has no controllers.
fn groups_in(root: &Path, line: &str) -> Vec<(PathBuf, GroupFiles)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let files = match controllers {
        "" => VERSION_2,
        _ if controllers.split(',').any(|name| name == "memory") => VERSION_1,
        _ => return Vec::new(),
    };
    let folder = root.join(files.folder);
    let mut group: PathBuf = folder.join(path.trim_start_matches('/'));
    let mut groups = Vec::new();
    loop {
        groups.push((group.clone(), files));
        if group == folder || !group.pop() || !group.starts_with(&folder) {
            return groups;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, removed with the value.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let id = std::process::id();
            let root = std::env::temp_dir().join(format!("vramalloc.host.{name}.{id}"));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:         1000 kB\nMemAvailable:    8388608 kB\n",
    );

    #[test]
    fn a_control_group_or_one_around_it_may_leave_less() {
        let tree = Tree::new(
            "second",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/jobs/one\n"),
                ("sys/fs/cgroup/jobs/one/memory.max", "max\n"),
                ("sys/fs/cgroup/jobs/memory.max", "4294967296\n"),
            ],
        );
        assert_eq!(memory_below(&tree.0), Some(Bytes::gib(4)));
    }

    #[test]
    fn what_is_left_is_the_least_that_the_host_or_a_group_leaves() {
        let stat = "anon 5\nactive_file 1073741824\ninactive_file 1073741824\nactive_filex 7\n";
        let tree = Tree::new(
            "left",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/jobs/one\n"),
                ("sys/fs/cgroup/jobs/one/memory.max", "max\n"),
                ("sys/fs/cgroup/jobs/memory.max", "8589934592\n"),
                ("sys/fs/cgroup/jobs/memory.current", "6442450944\n"),
                ("sys/fs/cgroup/jobs/memory.stat", stat),
            ],
        );
        assert_eq!(available_below(&tree.0), Some(Bytes::gib(4)));
        let slowed = ("sys/fs/cgroup/jobs/memory.high", "7516192768\n");
        fs::write(tree.0.join(slowed.0), slowed.1).unwrap();
        assert_eq!(available_below(&tree.0), Some(Bytes::gib(3)));
        let tree = Tree::new("left.host", &[MEMINFO]);
        assert_eq!(available_below(&tree.0), Some(Bytes::gib(8)));
        assert_eq!(available_below(Path::new("/nowhere/at/all")), None);
        assert!(available() > Some(Bytes::ZERO) && available() <= memory());
    }

    #[test]
    fn what_is_left_in_the_first_version() {
        let folder = "sys/fs/cgroup/memory/a";
        let tree = Tree::new(
            "left.first",
            &[
                MEMINFO,
                ("proc/self/cgroup", "4:memory:/a\n"),
                (&format!("{folder}/memory.limit_in_bytes"), "2147483648\n"),
                (&format!("{folder}/memory.usage_in_bytes"), "2147483648\n"),
                (
                    &format!("{folder}/memory.stat"),
                    "active_file 5\ntotal_active_file 1048576\ntotal_inactive_file 1048576\n",
                ),
            ],
        );
        assert_eq!(available_below(&tree.0), Some(Bytes::mib(2)));
    }

    #[test]
    fn also_in_the_first_version() {
        let tree = Tree::new(
            "first",
            &[
                MEMINFO,
                (
                    "proc/self/cgroup",
                    "5:cpu:/a\n4:hugetlb,memory:/a/b\n0::/\n",
                ),
                (
                    "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                    "1073741824\n",
                ),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n"),
            ],
        );
        assert_eq!(memory_below(&tree.0), Some(Bytes::gib(1)));
    }

    #[test]
    fn without_groups_it_is_all_there_is() {
        let tree = Tree::new("none", &[MEMINFO]);
        assert_eq!(memory_below(&tree.0), Some(Bytes::gib(16)));
        assert_eq!(memory_below(Path::new("/nowhere/at/all")), None);
        assert!(memory() > Some(Bytes::mib(64)));
    }
}
