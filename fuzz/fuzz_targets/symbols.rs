//! See `vramalloc_parsers::symbols`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::symbols(data));
