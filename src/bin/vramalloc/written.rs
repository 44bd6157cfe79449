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
    let fits = |name: &Path| fits(part, &name.to_string_lossy(), None);
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
/// with this id. Tries all ways to read the name at once, so that no pattern
/// takes longer than its length times the name's.
pub(crate) fn fits(pattern: &str, name: &str, pid: Option<&str>) -> bool {
    let name = name.as_bytes();
    // For each length, whether the pattern up to here can have given the name's
    // first bytes of that length.
    let mut reached = vec![false; name.len() + 1];
    if let Some(start) = reached.first_mut() {
        *start = true;
    }
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        let code = if c == '%' { rest.next() } else { None };
        reached = match (c, code, pid) {
            ('%', Some('p'), Some(pid)) => after_text(&reached, name, pid),
            ('%', Some('p'), None) => after_any(&reached, name, |byte| byte.is_ascii_digit()),
            ('%', Some('e' | 'h' | 'r'), _) => after_any(&reached, name, |byte| byte != b'/'),
            (c, code, _) => after_text(&reached, name, code.unwrap_or(c).encode_utf8(&mut [0; 4])),
        };
    }
    reached.last().copied().unwrap_or(false)
}

/// The lengths that can be reached by adding `text`.
fn after_text(reached: &[bool], name: &[u8], text: &str) -> Vec<bool> {
    let mut next = vec![false; reached.len()];
    for (start, _) in reached.iter().enumerate().filter(|(_, reached)| **reached) {
        let here = name.get(start..).unwrap_or_default();
        if here.starts_with(text.as_bytes())
            && let Some(end) = next.get_mut(start + text.len())
        {
            *end = true;
        }
    }
    next
}

/// The lengths that can be reached by adding any number of bytes that all fit.
fn after_any(reached: &[bool], name: &[u8], fits: impl Fn(u8) -> bool) -> Vec<bool> {
    let mut inside = false;
    let mut next = Vec::with_capacity(reached.len());
    for (place, &here) in reached.iter().enumerate() {
        let last = place.checked_sub(1).and_then(|last| name.get(last));
        inside = here || inside && last.is_some_and(|&byte| fits(byte));
        next.push(inside);
    }
    next
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
