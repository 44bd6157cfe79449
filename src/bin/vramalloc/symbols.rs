//! The names of functions, by file and address.
//!
//! A program's statistics name places in its code by file, build id and
//! address; what these are called is found here, after the program has ended. A
//! file is read only if it is still the one that the program ran. Cost: that of
//! the tables (`tables`), once for all addresses of a file; what was found is
//! kept in the user's cache folder, so that it is found again without the file.

pub(crate) mod cache;
mod names;
mod source;
pub(crate) mod tables;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use self::cache::{Known, NameCache, Stamp};
use self::source::Source;
use self::tables::{Around, Tables};

pub(crate) use self::names::{brief, demangled};

/// A function, and the line in it, if that is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Function {
    pub(crate) name: Rc<str>,
    /// Whether the address is only known to come after the start of it.
    pub(crate) is_near: bool,
    pub(crate) at: Option<SourceLine>,
}

/// A line of a source file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SourceLine {
    pub(crate) file: Rc<str>,
    pub(crate) line: u32,
}

/// A file that a program ran.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Binary {
    pub(crate) file: PathBuf,
    /// In hexadecimal digits; `None` if it has none, or the statistics do not
    /// say.
    pub(crate) build_id: Option<String>,
}

/// Finds names. Owns what it has to say about files that it could not use.
pub(crate) struct Symbols {
    /// Whether files are read at all.
    reads: bool,
    cache: Option<NameCache>,
    replaced: Vec<PathBuf>,
    missing: Vec<PathBuf>,
}

/// The functions at an address, the innermost first; none if unknown.
pub(crate) type Functions = Rc<[Function]>;

/// Why a file gives no names.
#[derive(PartialEq, Eq, Debug)]
enum Refused {
    Missing,
    Replaced,
}

impl Symbols {
    /// With the user's cache.
    pub(crate) fn new() -> Symbols {
        Symbols {
            reads: true,
            cache: NameCache::of_user(),
            replaced: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// That reads no file, for input that may name any.
    pub(crate) fn none() -> Symbols {
        Symbols {
            reads: false,
            cache: None,
            replaced: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// The functions at some addresses, which are sorted. `began`: when the
    /// program began, in seconds since 1970; a file without build id that was
    /// changed later is not the one that it ran.
    pub(crate) fn functions(
        &mut self,
        binary: &Binary,
        addresses: &[u64],
        began: Option<u64>,
    ) -> Vec<Functions> {
        if !self.reads || addresses.is_empty() {
            return vec![Functions::default(); addresses.len()];
        }
        let cache = self.cache.as_ref().zip(binary.build_id.as_deref());
        let mut known = cache
            .and_then(|(cache, id)| cache.read(id))
            .unwrap_or_default();
        let stamp = stamp(binary);
        // What is installed now may know more than what was asked before.
        let is_newer = stamp.file.is_some() && stamp != known.stamp;
        let asked: Vec<u64> = match is_newer {
            true => addresses.to_vec(),
            false => {
                let unknown = |address: &&u64| !known.functions.contains_key(address);
                addresses.iter().filter(unknown).copied().collect()
            }
        };
        if !asked.is_empty() {
            match look_up(binary, &asked, began) {
                Ok(found) => {
                    if is_newer {
                        known = Known {
                            stamp,
                            ..Known::default()
                        };
                    }
                    known.functions.extend(asked.into_iter().zip(found));
                    if let Some((cache, id)) = cache {
                        cache.write(id, &known, addresses);
                    }
                }
                Err(why) => self.refused(binary, &why, &known, addresses),
            }
        }
        let of = |address| known.functions.get(address).cloned().unwrap_or_default();
        addresses.iter().map(of).collect()
    }

    fn refused(&mut self, binary: &Binary, why: &Refused, known: &Known, addresses: &[u64]) {
        let is_known = |address| known.functions.contains_key(address);
        if addresses.iter().all(is_known) {
            return;
        }
        let files = match why {
            Refused::Missing => &mut self.missing,
            Refused::Replaced => &mut self.replaced,
        };
        if !files.contains(&binary.file) {
            files.push(binary.file.clone());
        }
    }

    /// What is to be said about the files, one sentence each.
    pub(crate) fn notes(&self) -> Vec<String> {
        let base = |file: &PathBuf| {
            let name = file.file_name().unwrap_or(file.as_os_str());
            name.to_string_lossy().into_owned()
        };
        let mut notes: Vec<String> = (self.replaced.iter())
            .map(|file| {
                let file = file.display();
                format!("{file} was replaced since, so its functions have no names here.")
            })
            .collect();
        if !self.missing.is_empty() {
            let files: Vec<String> = self.missing.iter().map(base).collect();
            notes.push(format!(
                "Not here, so without names of functions: {}.",
                files.join(", ")
            ));
        }
        notes
    }
}

/// What distinguishes the files that names come from from later ones.
fn stamp(binary: &Binary) -> Stamp {
    let of = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        let changed = (metadata.mtime(), metadata.mtime_nsec());
        Some((metadata.len(), changed.0, changed.1))
    };
    let id = binary.build_id.as_deref();
    Stamp {
        file: of(&binary.file),
        debug: id.and_then(source::by_build_id).and_then(|path| of(&path)),
    }
}

/// Looks addresses up in a file, and in the one that has its debug information.
fn look_up(
    binary: &Binary,
    addresses: &[u64],
    began: Option<u64>,
) -> Result<Vec<Functions>, Refused> {
    let path = &*binary.file;
    let file = tables::open(path).map_err(|_| Refused::Missing)?;
    let changed = file.metadata().map_or(0, |metadata| metadata.ctime());
    let tables = tables::read(file, addresses).map_err(|_| Refused::Missing)?;
    let is_it = match (&binary.build_id, &tables.build_id) {
        (Some(ran), found) => found.as_ref() == Some(ran),
        (None, _) => began.is_none_or(|began| u64::try_from(changed).unwrap_or(0) <= began),
    };
    if !is_it {
        return Err(Refused::Replaced);
    }
    let debug = debug_of(path, &tables, addresses);
    let (lines_in, lines_of) = match &debug {
        Some((path, debug)) if debug.has_lines => (&**path, debug),
        _ => (path, &tables),
    };
    let shared = lines_of.shared_link.as_ref();
    let shared = shared.and_then(|link| {
        let files = source::linked(lines_in, link);
        files.into_iter().find(|file| file.is_file())
    });
    let source = lines_of
        .has_lines
        .then(|| Source::open(lines_in, shared.as_deref()))
        .flatten();
    let around = match debug {
        Some((_, debug)) if debug.has_all && !tables.has_all => debug.around,
        _ => tables.around,
    };
    let one = |(&address, around): (&u64, Option<Around>)| {
        let functions = source.as_ref().map(|source| source.functions(address));
        with_name(functions.unwrap_or_default(), around)
    };
    Ok(addresses.iter().zip(around).map(one).collect())
}

/// The file with what was stripped, if it is of the same build.
fn debug_of(path: &Path, tables: &Tables, addresses: &[u64]) -> Option<(PathBuf, Tables)> {
    if tables.has_all && tables.has_lines {
        return None;
    }
    let id = tables.build_id.as_deref()?;
    let by_link = |link: &String| source::linked(path, link);
    let linked = tables.debug_link.as_ref().map(by_link).unwrap_or_default();
    let mut files = source::by_build_id(id).into_iter().chain(linked);
    files.find_map(|path| {
        let debug = tables::read(tables::open(&path).ok()?, addresses).ok()?;
        (debug.build_id.as_deref() == Some(id)).then_some((path, debug))
    })
}

/// Lines name the functions that were inlined; the symbol names the one that
/// they are in.
fn with_name(mut functions: Vec<Function>, around: Option<Around>) -> Functions {
    match (functions.last_mut(), around) {
        (None, Some(around)) => functions.push(Function {
            name: around.name,
            is_near: !around.is_inside,
            at: None,
        }),
        (Some(outer), Some(around)) if outer.name.is_empty() => outer.name = around.name,
        _ => {}
    }
    functions.into()
}
