//! The command `vramalloc`.
fn main() {}
