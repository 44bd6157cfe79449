//! The stage of the tests: programs that run under the library, some of them
//! told what to do while they run, recordings, and traces of allocations.
//!
//! # Floors
//!
//! 1. `stage`, `recorded`, `traces`, `pythons`: where tests run, and what they read.
//! 2. `outside`: programs that are told what to do.

pub mod outside;
pub mod pythons;
pub mod recorded;
pub mod stage;
pub mod traces;
