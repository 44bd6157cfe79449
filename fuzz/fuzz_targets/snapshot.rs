//! See `vramalloc_fuzz::snapshot`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_fuzz::snapshot(data));
