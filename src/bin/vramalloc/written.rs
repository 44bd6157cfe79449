//! Which statistics files a run wrote.
//!
//! A run may be many processes, of programs and ids that the command does not
//! know. It looks at all files that fit the pattern, before and after:
//! statistics are renamed into place, so a file that was written in between
//! is a new one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What tells one file from a later one of the same name.
type Identity = (u64, i64, i64);

/// The files that fit a pattern at one moment.
pub(super) struct Files {
    pattern: String,
    found: BTreeMap<PathBuf, Identity>,
}

impl Files {
    /// The files that fit `pattern` (absolute) now.
    pub(super) fn now(pattern: &str) -> Files {
        let mut found = BTreeMap::new();
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
        collect(Path::new("/"), &parts, &mut found);
        Files {
            pattern: pattern.to_owned(),
            found,
        }
    }

    /// The files that were written since, that of process `pid` first.
    pub(super) fn written_since(&self, pid: u32) -> Vec<PathBuf> {
        let pid = pid.to_string();
        let mut written: Vec<PathBuf> = Files::now(&self.pattern)
            .found
            .into_iter()
            .filter(|(path, identity)| self.found.get(path) != Some(identity))
            .map(|(path, _)| path)
            .collect();
        written.sort_by_key(|path| !fits(&self.pattern, &path.to_string_lossy(), Some(&pid)));
        written
    }
}

/// Follows a pattern's parts down from `directory`.
fn collect(directory: &Path, parts: &[&str], found: &mut BTreeMap<PathBuf, Identity>) {
    let Some((part, rest)) = parts.split_first() else {
        return;
    };
    if !part.contains('%') {
        return visit(directory.join(part), rest, found);
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        if fits(part, &entry.file_name().to_string_lossy(), None) {
            visit(entry.path(), rest, found);
        }
    }
}

fn visit(path: PathBuf, rest: &[&str], found: &mut BTreeMap<PathBuf, Identity>) {
    if !rest.is_empty() {
        return collect(&path, rest, found);
    }
    if let Ok(metadata) = fs::metadata(&path)
        && metadata.is_file()
    {
        let identity = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
        found.insert(path, identity);
    }
}

/// Whether a name can have come from a pattern; with `pid`, from a process of
/// this id.
fn fits(pattern: &str, name: &str, pid: Option<&str>) -> bool {
    let Some((before, code)) = pattern.split_once('%') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(before) else {
        return false;
    };
    let (code, rest) = code.split_at(code.len().min(1));
    match (code, pid) {
        ("%", _) => name
            .strip_prefix('%')
            .is_some_and(|name| fits(rest, name, pid)),
        ("p", Some(pid)) => name
            .strip_prefix(pid)
            .is_some_and(|name| fits(rest, name, Some(pid))),
        (code, pid) => {
            let longest = match code {
                "p" => name.find(|c: char| !c.is_ascii_digit()),
                _ => name.find('/'),
            };
            let longest = longest.unwrap_or(name.len());
            (0..=longest)
                .filter_map(|end| name.get(end..))
                .any(|name| fits(rest, name, pid))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_pattern_gives() {
        let pattern = "vramalloc.%e.%p.json";
        assert!(fits(pattern, "vramalloc.python3.12.42.json", None));
        assert!(fits(pattern, "vramalloc.python3.12.42.json", Some("42")));
        assert!(!fits(pattern, "vramalloc.python3.12.42.json", Some("12")));
        assert!(!fits(pattern, "vramalloc.python3.x.json", None));
        assert!(!fits(pattern, ".vramalloc.a.1.json.1.tmp", None));
        assert!(fits("/t/100%%.%r/%h", "/t/100%.3/node", None));
        assert!(!fits("/t/%r", "/t/3/node", None));
        assert!(fits("ü%e", "üö", None));
    }
}
