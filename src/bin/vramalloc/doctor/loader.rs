//! Where the dynamic loader would find a library.
//!
//! Repeats the loader's search: the directories named by a file and by the
//! files that need it (`DT_RPATH`), `LD_LIBRARY_PATH`, the directories named by
//! the file alone (`DT_RUNPATH`), the cache, the standard directories. Cost: a
//! file is opened for each candidate.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::cache::Cache;
use super::image::{Image, Machine};

/// The standard directories of the loaders of all common distributions.
const STANDARD: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// More libraries than any program needs; a guard against a loop.
const MOST_LOADED: usize = 10_000;

/// A file that the loader would map.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its contents.
    pub(crate) image: Image,
    /// The `DT_RPATH` of the file and of those that need it, nearest first.
    rpaths: Vec<PathBuf>,
}

impl Loaded {
    /// A file with which the loader starts, or that is loaded by its name.
    pub(crate) fn new(path: PathBuf, image: Image) -> Loaded {
        Loaded::below(&[], path, image)
    }

    /// A file that another one needs.
    fn below(inherited: &[PathBuf], path: PathBuf, image: Image) -> Loaded {
        let mut rpaths = match (&image.runpath, &image.rpath) {
            (None, Some(rpath)) => directories(OsStr::new(rpath), &path),
            _ => Vec::new(),
        };
        rpaths.extend_from_slice(inherited);
        Loaded {
            path,
            image,
            rpaths,
        }
    }

    /// The file's name without its directory.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }
}

/// A program and everything that it needs.
pub(crate) struct Closure {
    /// The program itself, then the libraries, nearest first.
    pub(crate) files: Vec<Loaded>,
    /// The names that were not found, each with the file that needs it.
    pub(crate) missing: Vec<(String, String)>,
}

/// The loader's search.
pub(crate) struct Loader {
    library_path: OsString,
    cache: Cache,
}

impl Loader {
    /// The search on this machine, with this `LD_LIBRARY_PATH`.
    pub(crate) fn new(library_path: Option<OsString>) -> Loader {
        Loader {
            library_path: library_path.unwrap_or_default(),
            cache: Cache::of_machine(),
        }
    }

    /// The file that `from` gets if it asks for `name`.
    pub(crate) fn find(&self, name: &OsStr, from: &Loaded) -> Option<Loaded> {
        let machine = from.image.machine;
        let load = |path: PathBuf| fitting(&path, machine).map(|image| (path, image));
        let (path, image) = if name.as_bytes().contains(&b'/') {
            load(expanded(name, &from.path))?
        } else {
            self.candidates(name, from).find_map(load)?
        };
        Some(Loaded::below(&from.rpaths, path, image))
    }

    /// The candidates, in the order of the search.
    fn candidates<'a>(
        &'a self,
        name: &'a OsStr,
        from: &'a Loaded,
    ) -> impl Iterator<Item = PathBuf> + 'a {
        let library_path = match self.library_path.is_empty() {
            true => Vec::new(),
            false => directories(&self.library_path, &from.path),
        };
        let runpath = from.image.runpath.as_ref();
        let runpath = runpath.map_or_else(Vec::new, |runpath| {
            directories(OsStr::new(runpath), &from.path)
        });
        let standard = STANDARD.iter().map(PathBuf::from);
        let named = from
            .rpaths
            .iter()
            .cloned()
            .chain(library_path)
            .chain(runpath);
        named
            .map(move |directory| directory.join(name))
            .chain(self.cache.files(name))
            .chain(standard.map(move |directory| directory.join(name)))
    }

    /// The program with all libraries that it needs.
    pub(crate) fn closure(&self, program: Loaded) -> Closure {
        let mut seen = BTreeSet::new();
        let mut missing = Vec::new();
        let mut files = vec![program];
        let mut next = 0;
        while let Some(from) = files.get(next).cloned()
            && files.len() < MOST_LOADED
        {
            next += 1;
            for name in &from.image.needed {
                if !seen.insert(name.clone()) {
                    continue;
                }
                match self.find(OsStr::new(name), &from) {
                    Some(found) => files.push(found),
                    None => missing.push((name.clone(), from.name())),
                }
            }
        }
        Closure { files, missing }
    }
}

/// The image of a file, if it can be loaded into a process of `machine`.
fn fitting(path: &Path, machine: Machine) -> Option<Image> {
    Image::open(path)
        .ok()
        .filter(|image| image.machine == machine)
}

/// The directories of a list, separated by colons or, as in `LD_LIBRARY_PATH`,
/// semicolons. An empty one is the working directory.
pub(crate) fn directories(list: &OsStr, from: &Path) -> Vec<PathBuf> {
    list.as_bytes()
        .split(|&byte| byte == b':' || byte == b';')
        .map(|directory| match directory {
            b"" => PathBuf::from("."),
            directory => expanded(OsStr::from_bytes(directory), from),
        })
        .collect()
}

/// A path in which `$ORIGIN` is replaced by the directory of the file that
/// names it.
fn expanded(path: &OsStr, from: &Path) -> PathBuf {
    let from = from.canonicalize().unwrap_or_else(|_| from.to_owned());
    let origin = from.parent().unwrap_or(Path::new("/"));
    let Some(path) = path.to_str() else {
        return PathBuf::from(path);
    };
    let origin = origin.to_string_lossy();
    PathBuf::from(
        path.replace("${ORIGIN}", &origin)
            .replace("$ORIGIN", &origin),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_directories() {
        let from = Path::new("/nowhere/bin/program");
        let found = directories(OsStr::new("$ORIGIN/../lib:/a;${ORIGIN}:"), from);
        let expected = ["/nowhere/bin/../lib", "/a", "/nowhere/bin", "."];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn the_libraries_of_this_test_are_found() {
        let path = std::env::current_exe().unwrap();
        let program = Loaded::new(path.clone(), Image::open(&path).unwrap());
        let closure = Loader::new(None).closure(program);
        assert!(closure.missing.is_empty(), "{:?}", closure.missing);
        let has = |name: &str| {
            closure
                .files
                .iter()
                .any(|file| file.name().starts_with(name))
        };
        assert!(has("libc.so") || has("libc.musl"));
    }

    #[test]
    fn a_library_of_another_name_or_machine_is_not_found() {
        let path = std::env::current_exe().unwrap();
        let program = Loaded::new(path.clone(), Image::open(&path).unwrap());
        let loader = Loader::new(Some("/etc".into()));
        assert!(
            loader
                .find(OsStr::new("libnowhere.so.7"), &program)
                .is_none()
        );
        assert!(loader.find(OsStr::new("passwd"), &program).is_none());
        let mut other = program;
        other.image.machine = Machine::default();
        assert!(loader.find(OsStr::new("libc.so.6"), &other).is_none());
    }
}
