//! See `vramalloc_parsers::options`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::options(data));
