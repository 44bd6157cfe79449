//! See `vramalloc_parsers::loader`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::loader(data));
