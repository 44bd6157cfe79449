//! The functions that take device memory past the pool, and which of them a
//! file names: because it is linked to them, or to look them up while it runs.
//!
//! Not seen: what is asked of a runtime that is linked in, since that names all
//! of them itself; and `cudaGraphAddNode`, which adds nodes of every kind. A
//! trial run shows both.

use std::collections::BTreeSet;

use memchr::memmem;

/// These functions, without version and variant.
const FUNCTIONS: [&str; 15] = [
    "cuArray3DCreate",
    "cuArrayCreate",
    "cuGraphAddMemAllocNode",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemCreate",
    "cuMipmappedArrayCreate",
    "cudaGraphAddMemAllocNode",
    "cudaMalloc3DArray",
    "cudaMallocArray",
    "cudaMallocAsync",
    "cudaMallocFromPoolAsync",
    "cudaMallocManaged",
    "cudaMallocMipmappedArray",
];

/// How these begin, for the search.
const BEGINNINGS: [&[u8]; 6] = [
    b"cuArray",
    b"cuGraphAddMem",
    b"cuMem",
    b"cuMipmapped",
    b"cudaGraphAddMem",
    b"cudaMalloc",
];

/// What may stand behind the name.
const ENDINGS: [&str; 3] = ["", "_v2", "_ptsz"];

/// The function of this name, if it is one of these.
pub(crate) fn function(name: &[u8]) -> Option<&'static str> {
    let is = |function: &&&str| {
        let rest = name.strip_prefix(function.as_bytes());
        rest.is_some_and(|rest| ENDINGS.iter().any(|ending| ending.as_bytes() == rest))
    };
    FUNCTIONS.iter().find(is).copied()
}

/// Adds the functions that constants name: each as a whole text.
pub(crate) fn named(bytes: &[u8], found: &mut BTreeSet<&'static str>) {
    for beginning in BEGINNINGS {
        for at in memmem::find_iter(bytes, beginning) {
            let before = at.checked_sub(1).and_then(|before| bytes.get(before));
            let is_inside = before.is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_');
            let rest = bytes.get(at..).unwrap_or_default();
            let text = memchr::memchr(0, rest).and_then(|end| rest.get(..end));
            found.extend(text.filter(|_| !is_inside).and_then(function));
        }
    }
}

/// Whether this function gives managed memory.
pub(crate) fn is_managed(function: &str) -> bool {
    function.ends_with("Managed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_are_found_and_no_others() {
        let mut found = BTreeSet::new();
        named(
            b"\0cuMemCreate\0 cudaMallocAsync: out of memory\0cudaMallocManaged\0\
              xcudaMallocArray\0cuMemAllocAsync_ptsz\0cuMemAllocPitch\0cuArrayCreate",
            &mut found,
        );
        let expected = ["cuMemAllocAsync", "cuMemCreate", "cudaMallocManaged"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
        for name in FUNCTIONS {
            let begins = |start: &&[u8]| name.as_bytes().starts_with(start);
            assert!(BEGINNINGS.iter().any(begins), "{name}");
        }
        assert!(is_managed("cuMemAllocManaged") && !is_managed("cuMemCreate"));
    }
}
