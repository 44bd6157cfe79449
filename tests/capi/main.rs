//! The C API under real programs, over the simulated CUDA: preloaded, where the
//! library stands in front of CUDA's functions, and loaded by `dlopen`, where
//! it does not.
//!
//! Each program checks what it gets and prints what it saw; here it is held to
//! its lines, to the rules of the simulated device and to the statistics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot set its stage has failed"
)]

mod control;
mod ends;
mod options;
mod pause;
mod places;
mod streams;
mod whose;

use vramalloc_tests::stage::{self, Kind, Run};

/// How the library comes into a program.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Comes {
    /// Preloaded.
    First,
    /// By `dlopen`, with CUDA's functions bound to CUDA's.
    Late,
}

impl Comes {
    const ALL: [Comes; 2] = [Comes::First, Comes::Late];

    fn run(self, program: &'static str, kind: Kind) -> Run {
        match self {
            Comes::First => Run::preloaded(program, kind).arg("front"),
            Comes::Late => Run::bare(program, kind)
                .env("API_LIBRARY", &stage::library().to_string_lossy())
                .arg("late"),
        }
    }
}
