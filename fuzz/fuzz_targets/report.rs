//! See `vramalloc_fuzz::report`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_fuzz::report(data));
