//! Gives the library the name under which programs look for the driver, and
//! binds its own names to itself, as NVIDIA's does: else its table of functions
//! would hold those of whatever library is preloaded.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rerun-if-changed=build.rs");
}
