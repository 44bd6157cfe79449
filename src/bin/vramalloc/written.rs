//! Which statistics files a run wrote.
//!
//! A run may be many processes, of programs and ids that the command does not
//! know. It compares all files that fit the pattern before and after:
//! statistics are renamed into place, so a file that was written in between is
//! a new one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use regex::Regex;
use vramalloc_core::stats::beside;

/// What distinguishes a file from a later one of the same name.
type Identity = (u64, i64, i64);

/// The files that fit a pattern at one moment.
pub(crate) struct Files {
    pattern: String,
    found: BTreeMap<PathBuf, Identity>,
}

impl Files {
    /// The files that fit `pattern` now.
    pub(crate) fn now(pattern: &str) -> Files {
        let mut found = BTreeMap::new();
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
        let from = if pattern.starts_with('/') { "/" } else { "" };
        collect(Path::new(from), &parts, &mut found);
        Files {
            pattern: pattern.to_owned(),
            found,
        }
    }

    /// The files that were written since, those of process `pid` first.
    pub(crate) fn written_since(&self, pid: u32) -> Vec<PathBuf> {
        let mut written: Vec<PathBuf> = Files::now(&self.pattern)
            .found
            .into_iter()
            .filter(|(path, identity)| self.found.get(path) != Some(identity))
            .map(|(path, _)| path)
            .collect();
        written.sort_by_key(|path| !self.is_of(path, pid));
        written
    }

    /// The file that was written last, and when.
    pub(crate) fn newest(&self) -> Option<(PathBuf, SystemTime)> {
        let times = self.found.iter().map(|(path, &(_, seconds, ns))| {
            let since = Duration::new(seconds.try_into().unwrap_or(0), ns.try_into().unwrap_or(0));
            (path.clone(), UNIX_EPOCH + since)
        });
        times.max_by_key(|&(_, time)| time)
    }

    /// Whether the names of the files tell of which process they are.
    pub(crate) fn tell_process(&self) -> bool {
        self.pattern.replace("%%", "").contains("%p")
    }

    /// Whether a file can be of process `pid`.
    pub(crate) fn is_of(&self, path: &Path, pid: u32) -> bool {
        let pid = pid.to_string();
        let fits = |path: &Path| fits(&self.pattern, &path.to_string_lossy(), Some(&pid));
        fits(path) || taken(path).is_some_and(|path| fits(&path))
    }
}

/// Collects the files below `directory` that fit the parts of a pattern.
fn collect(directory: &Path, parts: &[&str], found: &mut BTreeMap<PathBuf, Identity>) {
    let Some((part, rest)) = parts.split_first() else {
        return;
    };
    if !part.contains('%') {
        return visit(directory.join(part), rest, found);
    }
    let here = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let form = form(part, None);
    let form = form.as_ref();
    let fits = |name: &Path| form.is_some_and(|form| form.is_match(&name.to_string_lossy()));
    let entries = fs::read_dir(here).into_iter().flatten().flatten();
    for name in entries.map(|entry| PathBuf::from(entry.file_name())) {
        let stands_beside = rest.is_empty() && taken(&name).is_some_and(|name| fits(&name));
        if fits(&name) || stands_beside {
            visit(directory.join(name), rest, found);
        }
    }
}

/// The name that was taken when a file was written beside it: `a.42.json` of
/// `a.42.1.json`.
fn taken(path: &Path) -> Option<PathBuf> {
    let extension = path.extension()?.to_string_lossy();
    let stem = path.with_extension("");
    let number = stem.extension()?.to_str()?.parse().ok()?;
    let name = stem.with_extension(&*extension);
    (beside(&name, number) == path).then_some(name)
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

/// Whether a name can have come from a pattern; with `pid`, from the process
/// with this id.
pub(crate) fn fits(pattern: &str, name: &str, pid: Option<&str>) -> bool {
    form(pattern, pid).is_some_and(|form| form.is_match(name))
}

/// The form of the names that come from a pattern; `None` if it is too long.
fn form(pattern: &str, pid: Option<&str>) -> Option<Regex> {
    let mut form = "^".to_owned();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        let code = if c == '%' { rest.next() } else { None };
        match (c, code, pid) {
            ('%', Some('p'), Some(pid)) => form += &regex::escape(pid),
            ('%', Some('p'), None) => form += "[0-9]*",
            ('%', Some('e' | 'h' | 'r'), _) => form += "[^/]*",
            (c, code, _) => form += &regex::escape(&code.unwrap_or(c).to_string()),
        }
    }
    Regex::new(&(form + "$")).ok()
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
        let taken = |name: &str| taken(Path::new(name));
        assert_eq!(taken("/t/7.1.json"), Some("/t/7.json".into()));
        assert_eq!(taken("/t/7.x.json").or(taken("/t/7.json")), None);
        let files = Files::now("/no/such/%p.json");
        assert!(files.is_of(Path::new("/no/such/7.3.json"), 7));
        assert!(!files.is_of(Path::new("/no/such/7.3.json"), 3));
        assert!(fits("ü%e", "üö", None));
        assert!(fits("%e%e%p", "", None) && !fits("%e", "a/b", None));
        assert!(fits("%p-%p", "42-42", Some("42")) && !fits("%p-%p", "42-43", Some("42")));
        // The many ways to read a name are not tried one by one.
        assert!(!fits(
            &format!("{}b", "%e".repeat(40)),
            &"a".repeat(200),
            None
        ));
    }
}
