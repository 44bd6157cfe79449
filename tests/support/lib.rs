//! The stage of the tests: programs that run under the library, some of them
//! told what to do while they run, and traces of real programs.

pub mod outside;
pub mod recorded;
pub mod stage;
pub mod traces;
