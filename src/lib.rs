//! vramalloc: a GPU memory allocator under unmodified CUDA programs.
//!
//! This crate is the allocator itself, without any CUDA in it. The shared
//! library that a program is preloaded with (`cabi/`) puts CUDA's functions
//! above it (the *doors*) and the real driver below it (the [`Driver`]).
//!
//! # How one allocation goes
//!
//! A door asks the [`Arena`] of the current context for memory. The arena
//! looks in its *free index* for a cached block that fits, splits it and hands
//! it out: no driver call. On a miss it polls the *limbo*, and then the
//! [strategy] says how large a *chunk* to take from the
//! driver. A free finds the block by its address in the *page map* and puts it
//! in limbo, where it stays until a *fence* later than the free was reached on
//! every stream of the context; only then can it be handed out again.
//!
//! # Glossary
//!
//! * *chunk*: a region obtained from the driver in one call;
//! * *block*: a piece of a chunk, free or live;
//! * *arena*: all chunks and indexes of one device context;
//! * *place*: where memory lives: a device, pinned host, host;
//! * *strategy*: when to get chunks and how large;
//! * *free index*: free blocks by size;
//! * *page map*: address to block;
//! * *limbo*: blocks freed by the program that the GPU may still be using;
//! * *fence*: a mark in the device's work that can be asked whether it has
//!   been reached;
//! * *epoch*: the batch of limbo blocks behind one fence;
//! * *door*: an exported CUDA symbol;
//! * *lane*: an arena that serves one stream, whose order protects its blocks;
//! * *snapshot*: a consistent picture of an arena;
//! * *group*: buffers that the C API packs into few allocations, by *layers*
//!   that stay together;
//! * *scope*: what a thread got by the C API between two calls, to be freed
//!   together.
//!
//! # Order of the rooms
//!
//! [`arena`] → strategy → chunk, block, free index, [`page map`](page_map)
//! → [`address`] and [`error`]; [`driver`] is the seam below the arena,
//! [`config`] and [`stats`] are read by all, `sync` and [`patience`]
//! lie under all.

#![forbid(unsafe_code)]

pub mod address;
pub mod arena;
mod bell;
pub mod config;
pub mod driver;
pub mod error;
pub mod gate;
pub mod group;
pub mod host;
pub mod lanes;
pub mod page_map;
pub mod patience;
pub mod quota;
pub mod scope;
pub mod stats;
mod strategy;
mod sync;

pub use address::{Address, Bytes};
pub use arena::Arena;
pub use driver::{Driver, MemInfo};
pub use error::{AllocError, Code, FreeError};
pub use strategy::PinnedPlan;
