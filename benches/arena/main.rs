//! Measures the arena without the doors: one question per run, one JSON line
//! per figure. `scripts/bench` runs it; by hand:
//!
//! ```text
//! cargo run --release -p vramalloc-benches --bin bench-arena -- steady event_ns=175
//! ```
//!
//! # Floors
//!
//! From the ground up. A module imports from the floors below it, or from its
//! own without a circle; `ci/floors` reads this list.
//!
//! 1. `clock`: measuring time.
//! 2. `arguments`: the arguments of a question.
//! 3. `latency`, `growth`, `memory`, `recording`, `threads`: the questions.
//! 4. `baseline`: a question of latency on the model device.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::exit,
    reason = "a tool that may fail loudly"
)]

mod arguments;
mod baseline;
mod clock;
mod growth;
mod latency;
mod memory;
mod recording;
mod threads;

use arguments::Arguments;

type Question = fn(&Arguments);

const QUESTIONS: [(&str, Question); 12] = [
    ("hit", latency::hit),
    ("steady", latency::steady),
    ("random", latency::random),
    ("count", latency::count),
    ("baseline", baseline::run),
    ("threads", threads::run),
    ("alone", threads::alone),
    ("exchange", threads::exchange),
    ("memory", memory::run),
    ("trace", memory::print),
    ("growth", growth::run),
    ("recording", recording::run),
];

fn main() {
    let mut words = std::env::args().skip(1);
    let question = words.next().unwrap_or_default();
    let Some((_, ask)) = QUESTIONS.iter().find(|(name, _)| *name == question) else {
        let names = QUESTIONS.map(|(name, _)| name).join(", ");
        eprintln!("usage: bench-arena QUESTION [NAME=VALUE]...\nquestions: {names}");
        std::process::exit(2);
    };
    ask(&Arguments::parse(words));
}
