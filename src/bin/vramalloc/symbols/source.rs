//! Source lines, and what was inlined, of files that have them.
//!
//! Cost: some 20 us for each address; debug information is many times as large
//! as the code, so it is mapped (by addr2line) and only read where it is asked.

use std::path::{Path, PathBuf};

use addr2line::Loader;

use super::names;
use super::{Function, SourceLine};

/// Where debug information of installed packages lies.
const DEBUG: &str = "/usr/lib/debug";

/// More functions than a compiler inlines at one place.
const MOST_INLINED: usize = 32;

/// The file with the debug information for a build id, if it is installed.
pub(super) fn by_build_id(build_id: &str) -> Option<PathBuf> {
    let (first, rest) = build_id.split_at_checked(2)?;
    let path = PathBuf::from(format!("{DEBUG}/.build-id/{first}/{rest}.debug"));
    path.is_file().then_some(path)
}

/// The files that a link can mean in the file at `path`.
pub(super) fn linked(path: &Path, link: &str) -> Vec<PathBuf> {
    let link = Path::new(link);
    if link.is_absolute() {
        return vec![link.to_owned()];
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let below = folder.strip_prefix("/").unwrap_or(folder);
    let places = [
        folder.to_owned(),
        folder.join(".debug"),
        Path::new(DEBUG).join(below),
    ];
    let files = places.map(|place| place.join(link));
    files.into_iter().filter(|file| file != path).collect()
}

/// The source lines of a file.
pub(super) struct Source(Loader);

impl Source {
    /// `None` if they cannot be read. `shared`: what several such files share.
    pub(super) fn open(path: &Path, shared: Option<&Path>) -> Option<Source> {
        Loader::new_with_sup(path, shared).ok().map(Source)
    }

    /// The functions at an address, the innermost first; empty if it has no
    /// line.
    pub(super) fn functions(&self, address: u64) -> Vec<Function> {
        let mut functions = Vec::new();
        let Ok(mut frames) = self.0.find_frames(address) else {
            return functions;
        };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref();
            let name = name.and_then(|name| name.raw_name().ok());
            let at = frame.location.as_ref().and_then(|location| {
                Some(SourceLine {
                    file: location.file?.into(),
                    line: location.line?,
                })
            });
            if functions.len() == MOST_INLINED || (name.is_none() && at.is_none()) {
                break;
            }
            functions.push(Function {
                name: name
                    .map_or_else(String::new, |name| names::demangled(name.as_bytes()))
                    .into(),
                is_near: false,
                at,
            });
        }
        functions
    }
}
