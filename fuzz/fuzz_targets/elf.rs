//! See `vramalloc_fuzz::elf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramalloc_fuzz::elf(data));
