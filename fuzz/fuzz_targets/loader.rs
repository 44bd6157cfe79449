//! See `vramalloc_fuzz::loader`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_fuzz::loader(data));
