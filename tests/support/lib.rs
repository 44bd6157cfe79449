//! The stage of the tests: programs that run under the library, and traces of
//! real programs.

pub mod stage;
pub mod traces;
