//! The other libraries that are preloaded, and whether they define the same
//! functions.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use super::super::library::names;
use super::findings::Findings;
use super::loader::{Loaded, Loader};

/// The machine-wide list, which the loader reads after `LD_PRELOAD`.
const MACHINE_WIDE: &str = "/etc/ld.so.preload";

/// How many names a finding lists.
const LISTED: usize = 3;

/// A library that is to be preloaded.
struct Entry {
    name: OsString,
    /// The list that names it.
    list: &'static str,
}

/// Says which other libraries are preloaded, in the order of the loader.
pub(crate) fn examine(
    preload: Option<OsString>,
    library: &Loaded,
    program: &Loaded,
    loader: &Loader,
    findings: &mut Findings,
) {
    let mut entries = Vec::new();
    for name in names(preload.unwrap_or_default().as_bytes()) {
        entries.push(Entry {
            name,
            list: "LD_PRELOAD",
        });
    }
    for name in machine_wide(&fs::read(MACHINE_WIDE).unwrap_or_default()) {
        entries.push(Entry {
            name,
            list: MACHINE_WIDE,
        });
    }
    let found: Vec<Option<Loaded>> = entries
        .iter()
        .map(|entry| loader.find(&entry.name, program))
        .collect();
    let ours = found
        .iter()
        .position(|found| found.as_ref().is_some_and(|found| same(found, library)));
    for (place, (entry, found)) in entries.iter().zip(&found).enumerate() {
        let name = entry.name.to_string_lossy();
        let list = entry.list;
        match found {
            None => findings.note(
                "preload",
                format_args!(
                    "{name} in {list} is not there or cannot be loaded into this program; the \
                     loader says so at each start and goes on; remove it from {list}"
                ),
            ),
            Some(_) if Some(place) == ours => {
                findings.ok("preload", format_args!("{list} names this library already"));
            }
            Some(found) => other(
                found,
                list,
                ours.is_some_and(|ours| place < ours),
                library,
                findings,
            ),
        }
    }
    if entries.is_empty() {
        findings.ok("preload", "no other library is preloaded");
    }
}

/// Says how another library interferes with ours.
fn other(
    found: &Loaded,
    list: &str,
    stands_before: bool,
    library: &Loaded,
    findings: &mut Findings,
) {
    let path = found.path.display();
    let common: Vec<&str> = found
        .image
        .exports
        .intersection(&library.image.exports)
        .map(String::as_str)
        .collect();
    if common.is_empty() {
        findings.ok(
            "preload",
            format_args!("{path} in {list} defines none of the same functions"),
        );
        return;
    }
    let more = match common.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = common.get(..LISTED).unwrap_or(&common).join(", ");
    if found.name() == library.name() {
        findings.problem(
            "preload",
            format_args!(
                "{path} in {list} is another copy of this library; remove one of the two \
                 (vramalloc run leaves those in LD_PRELOAD out)"
            ),
        );
    } else if stands_before && common.contains(&"dlsym") {
        findings.problem(
            "preload",
            format_args!(
                "{path} in {list} stands before this library and exports dlsym: it may hide the \
                 driver, and then nothing is served and no limit is in force; put {} first, as \
                 vramalloc run does",
                library.name()
            ),
        );
    } else if stands_before {
        findings.problem(
            "preload",
            format_args!(
                "{path} in {list} stands before this library and takes {names}{more} away from \
                 it; put {} first, as vramalloc run does",
                library.name()
            ),
        );
    } else {
        findings.note(
            "preload",
            format_args!(
                "{path} in {list} defines {names}{more} too; with this library before it, as \
                 vramalloc run puts it, it does not see the calls that are served here"
            ),
        );
    }
}

fn same(a: &Loaded, b: &Loaded) -> bool {
    match (a.path.canonicalize(), b.path.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// The names in the machine-wide list, in which `#` begins a comment.
pub(crate) fn machine_wide(text: &[u8]) -> impl Iterator<Item = OsString> {
    text.split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b'#').next())
        .flat_map(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_libraries() {
        let list = |found: Vec<OsString>| {
            let found = found.iter().map(|name| name.to_string_lossy().into_owned());
            found.collect::<Vec<_>>()
        };
        let found = names(b"/a/b.so:c.so  /d.so:").collect();
        assert_eq!(list(found), ["/a/b.so", "c.so", "/d.so"]);
        let found = machine_wide(b"# none\n/a.so /b.so # not /c.so\n\n/d.so").collect();
        assert_eq!(list(found), ["/a.so", "/b.so", "/d.so"]);
    }
}
