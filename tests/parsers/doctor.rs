//! The parsers of `vramalloc doctor`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vramalloc_command::parsers;

/// An ELF file.
pub fn elf(data: &[u8]) {
    match parsers::image(data) {
        Ok((machine, exports)) => {
            crate::is_plain(&machine);
            assert!(exports.iter().all(|name| !name.contains('\0')));
        }
        Err(error) => crate::is_plain(&error),
    }
}

/// A cache of the loader, and lists of libraries and of directories.
pub fn loader(data: &[u8]) {
    for name in ["libcuda.so.1", ""] {
        for path in parsers::cached(data, name) {
            assert!(!path.as_os_str().as_bytes().contains(&0));
        }
    }
    for name in parsers::preloads(data) {
        assert!(!name.is_empty());
    }
    if let Some(interpreter) = parsers::interpreter(data) {
        assert!(!interpreter.is_empty());
    }
    assert!(!parsers::directories(data, Path::new("/a/b")).is_empty());
}
