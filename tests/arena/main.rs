//! The arena over the model GPU: one conformance suite for every strategy,
//! what each strategy does beyond it, and a property test against an oracle.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

mod asked;
mod batches;
mod caches;
mod conformance;
mod history;
mod lanes;
mod life;
mod mapped;
mod metrics;
mod model;
mod on_the_way;
mod options;
mod packing;
mod pause;
mod pinned;
mod rig;
mod since;
mod strategies;
mod threads;
mod traces;
mod units;
mod waits;
