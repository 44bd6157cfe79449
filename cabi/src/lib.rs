//! libvramalloc.so: CUDA's doors over the vramalloc arena.
//!
//! All of the project's unsafe code and all of its foreign functions, and no
//! policy: when memory is taken, kept or handed out again is the arena's
//! business. Arrows point one way: the doors ([`runtime`], [`driver_api`],
//! [`host_memory`], [`capture`], [`ipc`], [`lifecycle`], [`green`], [`peers`], [`streams`], [`proc_address`], and
//! [`mod@dlsym`] beside them) stand on [`context`] and [`process`], these on
//! [`real_driver`] and [`marker`], these on [`real`] and [`linker`]. [`symbols`] is the
//! table of the doors and [`process::guard`] the way in.
//!
//! # How to add a door
//!
//! One line in `real/intercepted.rs`, and a function of that name in the module it
//! names. The export list, the swap in `dlsym` and the one in
//! `cuGetProcAddress` follow from the line.

#![allow(
    non_snake_case,
    reason = "functions behind doors bear the names of CUDA's functions"
)]

mod api;
mod doors;
mod driver;
mod ipc;
mod linker;
mod pools;
mod process;
mod real;
mod report;
mod types;
