//! See `vramalloc_parsers::recording`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::recording(data));
