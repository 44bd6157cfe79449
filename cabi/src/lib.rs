//! libvramalloc.so: CUDA's functions over the vramalloc arena.
//!
//! All of the unsafe code that goes into a program and all foreign functions,
//! and no policy: when memory is taken, kept or handed out again is the arena's
//! business.
//!
//! # Floors
//!
//! From the ground up. A module imports from its own floor and from those
//! below, never from above (`ci/floors` reads this list).
//!
//! 1. [`types`]: CUDA's types.
//! 2. [`linker`]: what the dynamic linker has loaded, where it finds a
//!    function, and which library called us.
//! 3. [`process`]: the process that we are in: its start, its options, what
//!    each of its threads is doing here, and what we print.
//! 4. [`owners`], [`stacks`]: which library of the program asked for memory, and
//!    the call stacks of the threads that ask.
//! 5. [`real`]: the real functions of CUDA, and the list of those that we
//!    intercept.
//! 6. [`driver`]: contexts, streams, captures and events of the driver, as an
//!    arena needs them.
//! 7. [`recording`]: the file in which every event of the arenas is recorded.
//! 8. [`pools`]: the arenas of contexts, of streams and of the host.
//! 9. [`families`]: memory that programs take from CUDA past our pools: counted
//!    and capped.
//! 10. [`ipc`], [`page`]: memory shared with other processes, and what they read
//!     of this one.
//! 11. [`report`]: statistics, what programs read and set by name, and what
//!     others order.
//! 12. [`doors`]: the exported functions of CUDA; a few lines each.
//! 13. [`api`]: the C API.
//! 14. [`exit`]: the end of the process.
//!
//! # How to intercept one more function
//!
//! Add a line to `real/intercepted.rs`, and a function of that name to the
//! module of [`doors`] that the line names. The export list and the swaps in
//! `dlsym` and `cuGetProcAddress` follow from the line.

#![allow(
    non_snake_case,
    reason = "functions behind doors bear the names of CUDA's functions"
)]

mod api;
mod doors;
mod driver;
mod exit;
mod families;
mod ipc;
mod linker;
mod owners;
mod page;
mod pools;
mod process;
mod real;
mod recording;
mod report;
mod stacks;
mod types;
