//! Unmodified programs over the simulated CUDA, bare and under the preload.
//!
//! One module per risk. Every program comes in several kinds (see
//! [`Kind`]) and runs under several strategies; what differs from the
//! bare run, what the simulated device found wrong, or what the statistics do
//! not add up to fails the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot set its stage has failed"
)]

mod absent;
mod callers;
mod control;
mod counts;
mod disturbed;
mod ending;
mod failures;
mod families;
mod fences;
mod frameworks;
mod history;
mod host;
mod ipc;
mod late_frees;
mod mapped;
mod nvml;
mod options;
mod orders;
mod owners;
mod paddle;
mod recording;
mod replayed;
mod results;
mod reuse;
mod room;
mod settings;
mod shortage;
mod simulated;
mod stacks;
