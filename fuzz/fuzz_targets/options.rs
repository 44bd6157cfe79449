//! See `vramalloc_fuzz::options`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_fuzz::options(data));
