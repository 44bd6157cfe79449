//! Finding `libvramalloc.so`.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::link;

/// The library's file names: for linking, and the one that programs ask for,
/// which may be all that is installed.
const NAMES: [&str; 2] = [
    "libvramalloc.so",
    concat!("libvramalloc.so.", env!("CARGO_PKG_VERSION_MAJOR")),
];

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
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|error| error.to_string())?;
    link::loadable(folder.join(name))
}

/// The value of `LD_PRELOAD` with `library` in front.
pub(super) fn in_front(library: &Path, preload: Option<&OsStr>) -> std::ffi::OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(rest) = preload.filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}
