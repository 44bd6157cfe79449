//! The dynamic loader's cache, `/etc/ld.so.cache`: which file has a library
//! name.
//!
//! Invariant: whatever the file holds, a look-up returns texts of the file or
//! nothing. Cost: read once; a look-up goes through all entries.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The start of the table in the form that glibc has written since 2.2, alone
/// or after a table in the older form. Offsets count from here.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";

/// The offset of the number of entries, the offset of the entries, and the size
/// of an entry.
const COUNT: usize = 20;
const ENTRIES: usize = 48;
const ENTRY: usize = 24;

/// The offsets in an entry at which the offsets of name and path are.
const NAME: usize = 4;
const PATH: usize = 8;

/// The loader's cache.
#[derive(Default)]
pub(crate) struct Cache {
    table: Vec<u8>,
}

impl Cache {
    /// The cache of this machine; empty if there is none.
    pub(crate) fn of_machine() -> Cache {
        Cache::new(&fs::read("/etc/ld.so.cache").unwrap_or_default())
    }

    /// Reads the cache in a file's bytes.
    pub(crate) fn new(bytes: &[u8]) -> Cache {
        let table = memchr::memmem::find(bytes, MAGIC).and_then(|start| bytes.get(start..));
        Cache {
            table: table.unwrap_or_default().to_owned(),
        }
    }

    /// The files with this name, in the order in which the loader prefers them:
    /// one for each machine and each of its variants.
    pub(crate) fn files<'a>(&'a self, name: &'a OsStr) -> impl Iterator<Item = PathBuf> + 'a {
        let count = self.number(COUNT).unwrap_or(0);
        (0..count)
            .map_while(|n| {
                let entry = ENTRIES.checked_add(n.checked_mul(ENTRY)?)?;
                let text = |offset| self.text(self.number(entry.checked_add(offset)?)?);
                // Stops at the first entry that lies outside the file.
                self.number(entry)?;
                Some(text(NAME).zip(text(PATH)))
            })
            .flatten()
            .filter(move |(found, _)| *found == name.as_bytes())
            .map(|(_, path)| Path::new(OsStr::from_bytes(path)).to_owned())
    }

    fn number(&self, at: usize) -> Option<usize> {
        let bytes = self.table.get(at..at.checked_add(4)?)?;
        let number = u32::from_ne_bytes(bytes.try_into().ok()?);
        usize::try_from(number).ok()
    }

    fn text(&self, at: usize) -> Option<&[u8]> {
        let rest = self.table.get(at..)?;
        rest.get(..memchr::memchr(0, rest)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a cache of these names and paths.
    fn cache(files: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let start = ENTRIES + files.len() * ENTRY;
        let mut add = |text: &str| {
            let at = u32::try_from(start + strings.len()).unwrap();
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at.to_ne_bytes()
        };
        let mut entries = Vec::new();
        for (name, path) in files {
            entries.extend([0; 4]);
            entries.extend(add(name));
            entries.extend(add(path));
            entries.extend([0; 12]);
        }
        let mut bytes = b"ld.so-1.7.0\0an older table".to_vec();
        bytes.extend(MAGIC);
        bytes.extend(u32::try_from(files.len()).unwrap().to_ne_bytes());
        bytes.resize(bytes.len() + ENTRIES - COUNT - 4, 0);
        bytes.extend(entries);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn names_lead_to_their_files_in_order() {
        let bytes = cache(&[
            ("libcuda.so.1", "/usr/lib/a/libcuda.so.1"),
            ("libc.so.6", "/lib/libc.so.6"),
            ("libcuda.so.1", "/usr/lib32/libcuda.so.1"),
        ]);
        let cache = Cache::new(&bytes);
        let found = |name: &str| cache.files(OsStr::new(name)).collect::<Vec<_>>();
        let paths = ["/usr/lib/a/libcuda.so.1", "/usr/lib32/libcuda.so.1"];
        assert_eq!(found("libcuda.so.1"), paths.map(PathBuf::from));
        assert!(found("libcuda.so").is_empty());
        assert!(found("").is_empty());
    }

    #[test]
    fn a_cut_cache_leads_nowhere_else() {
        let bytes = cache(&[("a", "/a"), ("b", "/b")]);
        for length in 0..bytes.len() {
            let cache = Cache::new(&bytes[..length]);
            for (name, path) in [("a", "/a"), ("b", "/b")] {
                let mut found = cache.files(OsStr::new(name));
                assert!(found.all(|found| found == Path::new(path)), "{length}");
            }
        }
    }

    #[test]
    fn this_machines_cache_is_read() {
        let cache = Cache::of_machine();
        // A machine with another C library has no cache of this form.
        if !cache.table.is_empty() {
            assert!(cache.files(OsStr::new("libc.so.6")).next().is_some());
        }
    }
}
