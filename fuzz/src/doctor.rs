//! The parsers of `vramalloc doctor`, built from its own sources as well.

#![allow(dead_code, unused_imports, reason = "only the parsers are called here")]

use std::ffi::OsStr;
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[path = "../../src/bin/vramalloc/doctor/cache.rs"]
mod cache;
#[path = "../../src/bin/vramalloc/doctor/findings.rs"]
mod findings;
#[path = "../../src/bin/vramalloc/doctor/image.rs"]
mod image;
#[path = "../../src/bin/vramalloc/doctor/loader.rs"]
mod loader;
#[path = "../../src/bin/vramalloc/doctor/preloads.rs"]
mod preloads;
#[path = "../../src/bin/vramalloc/doctor/program.rs"]
mod program;

/// An ELF file.
pub fn elf(data: &[u8]) {
    match image::Image::read(&mut Cursor::new(data)) {
        Ok(image) => {
            crate::is_plain(&image.machine.name());
            assert!(image.exports.iter().all(|name| !name.contains('\0')));
        }
        Err(error) => crate::is_plain(&error),
    }
}

/// A cache of the loader, and lists of libraries and of directories.
pub fn loader(data: &[u8]) {
    let cache = cache::Cache::new(data);
    for name in ["libcuda.so.1", ""] {
        for path in cache.files(OsStr::new(name)) {
            assert!(!path.as_os_str().as_bytes().contains(&0));
        }
    }
    for name in preloads::names(data).chain(preloads::machine_wide(data)) {
        assert!(!name.is_empty());
    }
    if let Some(interpreter) = program::interpreter(data) {
        assert!(!interpreter.is_empty());
    }
    let directories = loader::directories(OsStr::from_bytes(data), Path::new("/a/b"));
    assert!(!directories.is_empty());
}
