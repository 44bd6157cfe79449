//! See `vramalloc_parsers::report`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::report(data));
