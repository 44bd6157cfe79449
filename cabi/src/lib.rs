//! libvramalloc.so: CUDA's doors over the vramalloc arena.
//!
//! All of the project's unsafe code and all of its foreign functions, and no
//! policy: when memory is taken, kept or handed out again is the arena's
//! business. Arrows point one way: the doors ([`runtime`], [`driver_api`],
//! [`host_memory`], [`capture`], [`ipc`], [`lifecycle`], [`green`], [`peers`], [`streams`], [`proc_address`], and
//! [`mod@dlsym`] beside them) stand on [`context`] and [`life`], these on
//! [`real_driver`] and [`marker`], these on [`resolve`]. [`symbols`] is the
//! list of the doors and [`guard`] the way in.
//!
//! # How to add a door
//!
//! One line in [`symbols`], and a function of that name in the module it
//! names. The export list, the swap in `dlsym` and the one in
//! `cuGetProcAddress` follow from the line.

#![allow(
    non_snake_case,
    reason = "functions behind doors bear the names of CUDA's functions"
)]

mod api;
mod callers;
mod cancel;
mod capture;
mod context;
mod control;
mod dlsym;
mod driver_api;
mod dump;
mod fence;
mod green;
mod guard;
mod host_memory;
mod ipc;
mod lanes;
mod life;
mod lifecycle;
mod marker;
mod notes;
mod objects;
mod outside;
mod pageable;
mod peers;
mod places;
mod proc_address;
mod real_driver;
mod registry;
mod reserve;
mod resolve;
mod runtime;
mod snapshots;
mod stacks;
mod streams;
mod symbols;
mod types;
mod unwind;
