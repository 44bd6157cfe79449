//! What was found, by build id, in the user's cache folder.
//!
//! Invariant: nothing depends on it. A file that is missing, cut off or damaged
//! counts as empty, and one that cannot be written is not. Files are replaced as
//! a whole, so processes that write one at the same time leave that of one of
//! them. Cost: bounded, by [`MOST_PLACES`] in a file and [`MOST_BYTES`] in all.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use vramalloc_core::stats::write_whole;

use super::{Function, Functions, SourceLine};

/// Which form the files have; those of another are not read.
const VERSION: u32 = 1;

/// The most addresses that are kept of a file.
const MOST_PLACES: usize = 1 << 17;

/// The most bytes that all files have, and that one may have to be read.
const MOST_BYTES: u64 = 64 << 20;

/// The longest build id, in digits.
const LONGEST_ID: usize = 128;

/// The files that names came from: size, and when each was changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) file: Option<(u64, i64, i64)>,
    /// The installed debug information.
    pub(super) debug: Option<(u64, i64, i64)>,
}

/// What is known of one build.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Known {
    pub(super) stamp: Stamp,
    /// By address, the innermost first; none for an address without a name.
    pub(super) functions: BTreeMap<u64, Functions>,
}

/// A cache file: each function stands in it once.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    stamp: Stamp,
    functions: Vec<WrittenFunction>,
    places: Vec<(u64, Vec<usize>)>,
}

#[derive(Serialize, Deserialize)]
struct WrittenFunction {
    name: String,
    #[serde(default, skip_serializing_if = "is_false")]
    near: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<(String, u32)>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "so serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A folder of the user.
pub(super) struct NameCache {
    folder: PathBuf,
}

impl NameCache {
    /// `None` if the environment names none.
    pub(super) fn of_user() -> Option<NameCache> {
        let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
        // A relative one is to be ignored.
        let given = of("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let home = || of("HOME").filter(|path| path.is_absolute());
        let folder = given.or_else(|| Some(home()?.join(".cache")))?;
        Some(NameCache {
            folder: folder.join("vramalloc/symbols"),
        })
    }

    fn path(&self, build_id: &str) -> Option<PathBuf> {
        let is_id = build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = (2..=LONGEST_ID).contains(&build_id.len());
        (is_id && fits).then(|| self.folder.join(format!("{build_id}.json")))
    }

    /// What is known of a build.
    pub(super) fn read(&self, build_id: &str) -> Option<Known> {
        let path = self.path(build_id)?;
        let fits = fs::metadata(&path).ok()?.len() <= MOST_BYTES;
        Known::parse(&fs::read(path).ok().filter(|_| fits)?)
    }

    /// Keeps what is known; if that is too much, what was asked last.
    pub(super) fn write(&self, build_id: &str, known: &Known, asked: &[u64]) {
        let Some(path) = self.path(build_id) else {
            return;
        };
        let text = match known.functions.len() {
            0..=MOST_PLACES => known.to_text(known.functions.keys()),
            _ => known.to_text(asked.iter().take(MOST_PLACES)),
        };
        // Without the cache it takes longer, which is all.
        let _ = fs::create_dir_all(&self.folder)
            .and_then(|()| write_whole(&path, |out| out.write_all(text.as_bytes())));
        self.shrink();
    }

    /// Removes the files that were written longest ago, while all are too large.
    fn shrink(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((metadata.modified().ok()?, metadata.len(), entry.path()))
            })
            .collect();
        files.sort_unstable();
        let mut sum: u64 = files.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in files {
            if sum <= MOST_BYTES {
                break;
            }
            let _ = fs::remove_file(path);
            sum = sum.saturating_sub(size);
        }
    }
}

impl Known {
    /// Reads a cache file; `None` if it is none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Known> {
        let written: Written = serde_json::from_slice(bytes).ok()?;
        if written.version != VERSION {
            return None;
        }
        let function = |written: &WrittenFunction| Function {
            name: written.name.as_str().into(),
            is_near: written.near,
            at: written.at.as_ref().map(|(file, line)| SourceLine {
                file: file.as_str().into(),
                line: *line,
            }),
        };
        let known: Vec<Function> = written.functions.iter().map(function).collect();
        let function = |&number: &usize| known.get(number).cloned();
        let place = |(address, numbers): &(u64, Vec<usize>)| {
            let functions: Option<Functions> = numbers.iter().map(function).collect();
            Some((*address, functions?))
        };
        let functions: Option<BTreeMap<_, _>> = written.places.iter().map(place).collect();
        Some(Known {
            functions: functions?,
            stamp: written.stamp,
        })
    }

    /// The text of a cache file with these addresses.
    fn to_text<'a>(&self, addresses: impl Iterator<Item = &'a u64>) -> String {
        let mut numbers: HashMap<&Function, usize> = HashMap::new();
        let mut functions = Vec::new();
        let mut number = |function| {
            *numbers.entry(function).or_insert_with(|| {
                let at = function.at.as_ref();
                functions.push(WrittenFunction {
                    name: function.name.to_string(),
                    near: function.is_near,
                    at: at.map(|at| (at.file.to_string(), at.line)),
                });
                functions.len() - 1
            })
        };
        let place = |&address: &u64| {
            let here = self.functions.get(&address)?;
            Some((address, here.iter().map(&mut number).collect()))
        };
        let places = addresses.filter_map(place).collect();
        let written = Written {
            version: VERSION,
            stamp: self.stamp.clone(),
            functions,
            places,
        };
        // Texts and numbers can always be written.
        serde_json::to_string(&written).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let function = |name: &str, line: Option<u32>| Function {
            name: name.into(),
            is_near: line.is_none(),
            at: line.map(|line| SourceLine {
                file: "/a/b.c".into(),
                line,
            }),
        };
        Known {
            stamp: Stamp {
                file: Some((1, 2, 3)),
                debug: None,
            },
            functions: BTreeMap::from([
                (
                    16,
                    [function("inner", Some(4)), function("outer", Some(5))].into(),
                ),
                (32, Functions::default()),
                (48, [function("outer", Some(5))].into()),
                (u64::MAX, [function("near", None)].into()),
            ]),
        }
    }

    /// A cache in a fresh folder.
    fn cache(name: &str) -> NameCache {
        let id = std::process::id();
        let folder = std::env::temp_dir().join(format!("vramalloc-cache-{name}-{id}"));
        let _ = fs::remove_dir_all(&folder);
        NameCache { folder }
    }

    #[test]
    fn what_is_written_is_read() {
        let cache = cache("read");
        assert_eq!(cache.read("ab12"), None);
        cache.write("ab12", &known(), &[]);
        assert_eq!(cache.read("ab12"), Some(known()));
        for name in ["../ab", "", "a", "xy", &"a".repeat(LONGEST_ID + 1)] {
            cache.write(name, &known(), &[]);
            assert_eq!(cache.read(name), None);
        }
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1);
        fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[test]
    fn a_file_that_was_cut_off_counts_as_empty() {
        let text = known().to_text(known().functions.keys());
        assert_eq!(Known::parse(text.as_bytes()), Some(known()));
        for length in 0..text.len() {
            assert_eq!(Known::parse(&text.as_bytes()[..length]), None);
        }
        assert_eq!(
            Known::parse(text.replace("[0,1]", "[0,9]").as_bytes()),
            None
        );
        assert_eq!(
            Known::parse(text.replace("\"version\":1", "\"version\":2").as_bytes()),
            None
        );
    }

    #[test]
    fn the_oldest_files_go_when_all_are_too_large() {
        let cache = cache("shrink");
        fs::create_dir_all(&cache.folder).unwrap();
        let age = |hours: u64| SystemTime::now() - std::time::Duration::from_secs(hours * 3600);
        for (name, hours) in [("old", 3), ("older", 4), ("new", 1)] {
            let file = fs::File::create(cache.folder.join(name)).unwrap();
            file.set_len(MOST_BYTES / 2).unwrap();
            file.set_modified(age(hours)).unwrap();
        }
        cache.write("ab12", &known(), &[]);
        let left = |name: &str| cache.folder.join(name).exists();
        assert!(!left("older") && !left("old") && left("new") && left("ab12.json"));
        fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[test]
    fn of_too_many_addresses_those_asked_last_are_kept() {
        let cache = cache("many");
        let mut known = known();
        let more = (0..).map(|at| (at, Functions::default())).take(MOST_PLACES);
        known.functions.extend(more);
        cache.write("ab12", &known, &[u64::MAX, 7]);
        let kept = cache.read("ab12").unwrap();
        assert_eq!(
            kept.functions.into_keys().collect::<Vec<_>>(),
            [7, u64::MAX]
        );
        fs::remove_dir_all(&cache.folder).unwrap();
    }
}
