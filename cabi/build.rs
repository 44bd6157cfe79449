//! Links `libvramalloc.so` so that it needs no CUDA library and stays loaded.

use std::path::PathBuf;
use std::{env, fs, io};

/// The beginning of every static library; alone, it is an empty one.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    // cuda-driver-sys asks for `-lcuda`, but only its type names are used. An
    // empty archive of that name satisfies the linker on machines without
    // CUDA and leaves nothing behind in the library.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("libcuda.a"), EMPTY_ARCHIVE)?;
    println!("cargo:rustc-link-search=native={}", out.display());
    // Programs that are linked with it for its C API find it by this name; if
    // another copy was preloaded, they find that one.
    let major = env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvramalloc.so.{major}");
    // If it is loaded by dlopen, CUDA's functions of the same names come first:
    // the table of doors must still hold ours.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // Programs hold pointers to our functions, so the library must outlive
    // any dlclose of it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // All symbols are bound before the first door opens, so that no door takes
    // a look-up lock later.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    Ok(())
}
