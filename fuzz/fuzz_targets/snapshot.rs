//! See `vramalloc_parsers::snapshot`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::snapshot(data));
