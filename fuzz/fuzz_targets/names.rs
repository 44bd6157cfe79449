//! See `vramalloc_fuzz::names`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_fuzz::names(data));
