//! A simulated `libcuda.so.1` for tests: the driver's interface over the model
//! GPU of `vramalloc-model`.
//!
//! The model has time, streams, pages and captures; this library adds what a
//! program sees of them: handles, real memory behind the device addresses
//! (which the host cannot touch, as on a real machine), modules, kernels with
//! an effect, and the look-up of functions by name and version. It answers as a
//! driver does, also to bad arguments; what a real device would punish is
//! printed on standard error and counted in the report at exit.
//!
//! # What is not modelled
//!
//! Textures and surfaces; memory operations of streams; time between processes,
//! whose clocks are their own; graphs with other nodes than captured work, sets,
//! and memory, and the edges of graphs; errors that stay with a context after a
//! faulting kernel (a violation is recorded instead; `SIM_CUDA_FAULT` makes
//! such errors); captures that end before a forked stream was joined. The host
//! learns of finished work through the driver only: a program that spins on
//! memory which the device is to write waits for ever, because no simulated
//! time passes. Host functions run inside the driver's lock.
//!
//! Of the families of memory:
//!
//! - pools: of host memory or managed memory; use of an allocation before its
//!   stream has reached it; a stream whose work happens to begin after a free
//!   counts as one that depends on it;
//! - virtual memory: multicast, memory that is exported as anything but a
//!   descriptor, a descriptor that keeps its memory (the exporter has to);
//! - managed memory: pages that move one by one, back to the host, or to make room
//!   (all of it moves to the device whose work touches any first, as far as it fits,
//!   and then only a prefetch moves it, by pages of 2 MiB, when it is called);
//!   attachment to streams; memory that the host may not touch while the device
//!   works;
//! - arrays: formats other than integers, floats and normalised integers;
//!   memory that is mapped later; alignment of rows;
//! - graphs: blocks on another device than that of the launch's stream.
//!
//! # Floors
//!
//! From the ground up. A module imports from the floors below it, or from its
//! own without a circle; `ci/floors` reads this list.
//!
//! 1. `env`, `ffi`, `backing`, `descriptor`, `effect`: the settings of the
//!    environment, reading arguments, the bytes of the memory, descriptors that
//!    name them to other processes, and what work does to them.
//! 2. `thread`, `ptx`: the state of each thread, and the kernels of an image.
//! 3. `state`: the things behind handles.
//! 4. `machine`: all state behind one lock.
//! 5. `entry`: how a call begins and ends.
//! 6. `init`, `device`, `context`, `green`, `settings`, `errors`,
//!    `stream`, `event`, `capture`, `graph`, `graph_memory`, `memory`,
//!    `host`, `pool`, `pool_attributes`, `virtual_memory`, `shareable`, `managed`,
//!    `array`, `copy`, `array_copy`, `memset`, `pointer`, `ipc`, `module`,
//!    `launch`, `export_table`: the functions, by theme. They are methods
//!    of `Machine` and of a call, and may call each other's, in circles
//!    too.
//! 7. `table`, `report`: every function with its versions; the report at exit.
//! 8. `hide`: functions that are to be lacking.

#![recursion_limit = "512"]
#![allow(
    non_snake_case,
    missing_docs,
    reason = "the names are the driver's own"
)]
#![allow(clippy::print_stderr, reason = "a test tool that says what it saw")]

mod array;
mod array_copy;
mod backing;
mod capture;
mod context;
mod copy;
mod descriptor;
mod device;
mod effect;
mod entry;
mod env;
mod errors;
mod event;
mod export_table;
mod ffi;
mod graph;
mod graph_memory;
mod green;
mod hide;
mod host;
mod init;
mod ipc;
mod launch;
mod machine;
mod managed;
mod memory;
mod memset;
mod module;
mod pointer;
mod pool;
mod pool_attributes;
mod ptx;
mod report;
mod settings;
mod shareable;
mod state;
mod stream;
mod table;
mod thread;
mod virtual_memory;

#[cfg(test)]
mod tests;
