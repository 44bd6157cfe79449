//! Finding `libvramalloc.so`, and the `LD_PRELOAD` by which a program comes under it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::link;

/// The library's file names: for linking, and the one that programs ask for,
/// which may be all that is installed.
const NAMES: [&str; 2] = [
    "libvramalloc.so",
    concat!("libvramalloc.so.", env!("CARGO_PKG_VERSION_MAJOR")),
];

/// How every name of a copy of the library begins, that of a link of ours too.
const STEM: &[u8] = b"libvramalloc";

/// What an ELF file says of itself that can be preloaded (`ET_DYN`).
const SHARED: [u8; 2] = [3, 0];

/// The variable that names the library, if it is not beside the command.
const VARIABLE: &str = "VRAMALLOC_LIBRARY";

/// Where the library may be, relative to the directory of the command: beside
/// it (a build tree, an unpacked archive) or in an installation's `lib`.
const PLACES: [&str; 3] = [".", "../lib", "../lib64"];

/// An absolute path of the library that can be preloaded: `given`, or the one that the environment
/// names, or the first that is found near the command.
///
/// # Errors
/// One line that says what is missing and how to name it.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given {
        return usable(path).map_err(|error| format!("--library {}: {error}", path.display()));
    }
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = Path::new(&path);
        return usable(path).map_err(|error| format!("{VARIABLE}={}: {error}", path.display()));
    }
    let command = env::current_exe().map_err(|error| format!("where this command is: {error}"))?;
    let directory = command.parent().unwrap_or(Path::new("/"));
    // As Debian and what is like it have libraries.
    let of_machine = format!("../lib/{}-linux-gnu", env::consts::ARCH);
    let places = PLACES.into_iter().chain([&*of_machine]);
    let mut files = places.flat_map(|place| {
        let place = directory.join(place);
        NAMES.map(|name| place.join(name))
    });
    match files.find(|path| path.exists()) {
        Some(path) => usable(&path).map_err(|error| format!("{}: {error}", path.display())),
        None => Err(format!(
            "{} is neither in {} nor in the lib directory beside it; name it with --library or \
             {VARIABLE}",
            NAMES[0],
            directory.display()
        )),
    }
}

/// The path of a file in a form that can be preloaded, by the name that it was
/// given: what a link leads to may have another after an upgrade, while programs run.
fn usable(path: &Path) -> Result<PathBuf, String> {
    // Fails where the link leads nowhere.
    let found = path.metadata().map_err(|error| error.to_string())?;
    let name = path.file_name().filter(|_| found.is_file());
    let name = name.ok_or_else(|| "not a file".to_owned())?;
    is_library(path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|error| error.to_string())?;
    link::loadable(folder.join(name))
}

/// Fails for what the loader would not take: it says so at every start, and goes on
/// without it.
fn is_library(path: &Path) -> Result<(), String> {
    let own = env::current_exe().ok().and_then(|command| start(&command));
    match (start(path), own) {
        (Some(found), Some(own)) if found.machine != own.machine => Err(format!(
            "a library for another machine than {}",
            env::consts::ARCH
        )),
        (Some(found), _) if found.kind == SHARED => Ok(()),
        _ => Err("not a shared library".to_owned()),
    }
}

/// How an ELF file begins.
struct Start {
    /// Word size, order of bytes, and processor.
    machine: [u8; 4],
    kind: [u8; 2],
}

fn start(file: &Path) -> Option<Start> {
    let mut start = [0; 20];
    File::open(file).ok()?.read_exact(&mut start).ok()?;
    let [.., kind, kind_high, low, high] = start;
    start.starts_with(b"\x7fELF").then_some(Start {
        machine: [start[4], start[5], low, high],
        kind: [kind, kind_high],
    })
}

/// `LD_PRELOAD` with the library in front.
pub(super) struct Preload {
    pub(super) value: OsString,
    /// The other copies of the library that it named: two in one process get in each
    /// other's way.
    pub(super) left_out: Vec<OsString>,
}

/// What `LD_PRELOAD` is to be, with `library` in front and once.
pub(super) fn in_front(library: &Path, preload: Option<&OsStr>) -> Preload {
    let mut value = library.as_os_str().to_owned();
    let mut left_out = Vec::new();
    for entry in names(preload.unwrap_or_default().as_bytes()) {
        if is_same(Path::new(&entry), library) {
            continue;
        }
        let name = Path::new(&entry).file_name().unwrap_or_default();
        if name.as_bytes().starts_with(STEM) {
            left_out.push(entry);
            continue;
        }
        value.push(":");
        value.push(entry);
    }
    Preload { value, left_out }
}

/// Whether both lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
    matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

/// The names in a list in the form of `LD_PRELOAD`, separated by spaces or colons.
pub(super) fn names(list: &[u8]) -> impl Iterator<Item = OsString> {
    list.split(|byte| byte.is_ascii_whitespace() || *byte == b':')
        .filter(|name| !name.is_empty())
        .map(|name| OsString::from_vec(name.to_owned()))
}
