//! Finding `libvramalloc.so`.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::link;

/// The library's file name.
const NAME: &str = "libvramalloc.so";

/// The variable that names the library, if it is not beside the command.
const VARIABLE: &str = "VRAMALLOC_LIBRARY";

/// Where the library may be, relative to the directory of the command: beside
/// it (a build tree, an unpacked archive) or in an installation's `lib`.
const PLACES: &[&str] = &[".", "../lib", "../lib64"];

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
    let mut places = PLACES.iter().map(|place| directory.join(place).join(NAME));
    match places.find(|path| path.exists()) {
        Some(path) => usable(&path).map_err(|error| format!("{}: {error}", path.display())),
        None => Err(format!(
            "{NAME} is neither in {} nor in the lib directory beside it; name it with --library \
             or {VARIABLE}",
            directory.display()
        )),
    }
}

/// The path in a form that can be preloaded.
fn usable(path: &Path) -> Result<PathBuf, String> {
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    if !path.is_file() {
        return Err("not a file".to_owned());
    }
    link::loadable(path)
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
