//! See `vramalloc_parsers::names`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::names(data));
