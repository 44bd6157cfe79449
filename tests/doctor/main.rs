//! `vramalloc doctor` over programs of every kind, on the simulated CUDA.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod machine;
mod place;
mod programs;
mod unseen;
