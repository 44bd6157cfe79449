//! What the benches share: a driver that costs nothing, and a workload.

#![allow(clippy::panic, reason = "tools that may fail loudly")]

pub mod driver;
pub mod workload;
