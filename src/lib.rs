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
//! # Floors
//!
//! From the ground up. A module imports from the floors below it, or from its
//! own without a circle; `ci/floors` reads this list.
//!
//! 1. [`address`], [`error`], [`patience`]: addresses and sizes, the codes of a
//!    failure, and how a thread waits for another.
//! 2. `sync`, [`host`]: atomics and locks, from `std` or from the model checker;
//!    how much memory the host has.
//! 3. `waiters`, [`gate`], [`scope`], [`page_map`]: what threads share: who is woken
//!    by a free, who may pass, what ends together, whose an address is.
//! 4. [`quota`]: how much all arenas of a device may hold together.
//! 5. [`config`]: the options.
//! 6. [`group`], [`stats`]: buffers packed together; what is counted, as plain
//!    values and JSON.
//! 7. [`driver`]: the seam to CUDA, and the stage that counts its calls.
//! 8. `strategy`: when to take chunks and how large.
//! 9. [`arena`]: the chunks, blocks, free index and limbo of one context.
//! 10. [`lanes`]: an arena for each stream that says where memory is used.

#![forbid(unsafe_code)]

pub mod address;
pub mod arena;
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
mod waiters;

pub use address::{Address, Bytes};
pub use arena::Arena;
pub use driver::{Driver, MemInfo};
pub use error::{AllocError, Code, FreeError};
pub use strategy::PinnedPlan;
