//! See `vramalloc_parsers::elf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_parsers::elf(data));
