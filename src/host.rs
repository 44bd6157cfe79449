//! How much memory the host has for this process: read once, from a few small
//! files below `/proc` and `/sys`.

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
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limits_of(root, line));
    Some(limits.fold(Bytes::kib(kib), Bytes::min))
}

/// The limits of a control group and of the groups around it. A line reads
/// `number:controllers:path`; version 2 of control groups has no controllers.
fn limits_of(root: &Path, line: &str) -> Vec<Bytes> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let (folder, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let folder = root.join(folder);
    let mut group: PathBuf = folder.join(path.trim_start_matches('/'));
    let mut limits = Vec::new();
    loop {
        let text = fs::read_to_string(group.join(file)).unwrap_or_default();
        // `max` is not a number: no limit.
        limits.extend(text.trim().parse().ok().map(Bytes::new));
        if group == folder || !group.pop() || !group.starts_with(&folder) {
            return limits;
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
        "MemTotal:       16777216 kB\nMemFree:         1000 kB\n",
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
