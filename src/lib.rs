//! vramalloc: a GPU memory allocator under unmodified CUDA programs.
//!
//! This crate is the allocator itself, without any CUDA in it. The shared
//! library that a program is preloaded with (`cabi/`) puts CUDA's functions
//! above it (the *doors*) and the real driver below it (the [`Driver`]).
//!
//! # How one allocation goes
//!
//! A door asks the [`Arena`] of the current context for memory. The arena looks
//! in its *free index* for a cached block that fits, splits it and hands it
//! out: no driver call. On a miss it polls the *limbo*, and then the [strategy]
//! says how large a *chunk* to take from the driver. A free finds the block by
//! its address in the *page map* and puts it in limbo, where it stays until a
//! *fence* later than the free was reached on every stream of the context; only
//! then can it be handed out again.
//!
//! # Glossary
//!
//! Memory, from the driver to the program:
//!
//! * *driver allocation*: memory that the driver gave in one call;
//! * *chunk*: a driver allocation that is cut into blocks; statistics call it,
//!   and a direct allocation, a *segment*;
//! * *block*: a piece of a chunk, free or live, in whole *slots* of 512 bytes;
//! * *slab*: a chunk of 2 MiB for requests up to 1 MiB, in `auto_growth`; in
//!   `mapped`, a unit of a range for these;
//! * *bank*: in `auto_growth`, the slabs that some of the threads cut small blocks from
//!   first;
//! * *range*: in `mapped`, reserved addresses whose memory comes and goes in *units*,
//!   each created in one call; where there is none a range has a *hole*;
//! * *window*: a stretch of a range's free blocks and holes that is given memory for
//!   one request;
//! * *direct allocation*: a driver allocation that serves one request;
//! * *pool*: of an arena, the chunks for requests of one kind: small, large or
//!   oversize; of the whole library, an arena with what it takes chunks from;
//! * *live*, *cached*, *limbo*: the three states of a block's bytes: held by
//!   the program, free to be handed out, or freed while the GPU may still use
//!   them. *Reserved* is their sum;
//! * *idle* chunk: a chunk without a live block; an *empty* chunk is one that is
//!   a single free block, so that it can go back to the driver at once.
//!
//! The parts of the allocator:
//!
//! * *arena*: all chunks, blocks and indexes of one device context, or of one
//!   of its streams, or of one kind of host memory;
//! * *place*: where memory lives: a device, pinned host memory, pageable host
//!   memory;
//! * *strategy*: the policy that says when to take a chunk and how large;
//! * *heap*: of an arena, its chunks, blocks and free indexes;
//! * *free index*: the free blocks by size;
//! * *page map*: from an address to its arena and block;
//! * *quota*: what a process may have of a device, in all arenas and past the
//!   pool together (the option `limit`);
//! * *past the pool*: how memory comes that CUDA itself gives, by functions that
//!   no arena serves; a *family* of them gives one kind of memory;
//! * *flight*: memory on its way between the driver and an arena, which neither
//!   counts as its own;
//! * *hit*, *miss*: a request that a cached block serves, and one for which none
//!   fits;
//! * *ladder*: the steps that are tried, in order, before a request fails for
//!   want of memory;
//! * *exchange*: giving idle chunks back to take one that fits better;
//! * *door*: an exported CUDA function. What a door does not serve is *handed
//!   on* to the real function;
//! * *lane* (a stream pool): an arena that serves one stream, whose order
//!   protects its blocks without fences;
//! * *group*: buffers that the C API packs into few allocations, by *layers*
//!   that stay together;
//! * *scope*: the memory that a thread got by the C API between two calls, to
//!   be freed together.
//!
//! When memory may be used again:
//!
//! * *fence*: marks in the work of every context that may use the memory,
//!   which can be queried and waited for together;
//! * *epoch*: the batch of limbo blocks behind one fence;
//! * *reclaimable*: of a block in limbo, that its epoch has ended;
//! * *kept*: of a small block, that the thread which freed it has it for its own
//!   next requests; the arena can *recall* it;
//! * *batch*: what a thread keeps behind one fence;
//! * *limbo budget*: the most that may lie in limbo before an allocation waits
//!   for it;
//! * *retired*: of an arena, that its context is gone and its memory with it;
//! * *snapshot*: a consistent picture of an arena, block by block.
//!
//! # Floors
//!
//! From the ground up. A module imports from the floors below it, or from its
//! own without a circle; `ci/floors` reads this list.
//!
//! 1. [`address`], [`error`], [`patience`]: addresses and sizes, the codes of a
//!    failure, and how a thread waits for another.
//! 2. `sync`, [`host`], [`library`]: atomics and locks, from `std` or from the model
//!    checker; how much memory the host has; which library of the program has what.
//! 3. `waiters`, [`gate`], [`busy`], [`scope`], [`lookup`], [`page_map`],
//!    [`control`]: state that threads share: the threads that wait for a free, a
//!    gate that can be closed, what one does at a time, what ends together, tables
//!    that are read without a lock, and whose an address is; and the page that
//!    processes share.
//! 4. [`quota`]: how much a process may have of a device.
//! 5. [`config`]: the options.
//! 6. [`group`], [`stats`]: buffers packed together; what is counted, as plain
//!    values and JSON.
//! 7. [`recording`]: every event, written to a file as it happens, and read again.
//! 8. `thread_cache`: small blocks that threads keep for their own next requests.
//! 9. [`driver`], [`families`]: the seam to CUDA, and the stage that counts its
//!    calls; what the program takes from CUDA past the arenas.
//! 10. `strategy`: when to take chunks and how large.
//! 11. `heap`: chunks, blocks and the free index; it says what happened.
//! 12. `limbo`, [`ledger`]: what was freed and may still be in use, by epochs; which
//!     call stack holds how much.
//! 13. `counters`: what all of that does to which counter, and the newest events.
//! 14. [`arena`]: all of it for one context, behind one lock and above one driver.
//! 15. [`lanes`]: arenas for single streams, for memory whose users say where
//!     they use it.

#![forbid(unsafe_code)]

pub mod address;
pub mod arena;
pub mod busy;
pub mod config;
pub mod control;
mod counters;
pub mod driver;
pub mod error;
pub mod families;
pub mod gate;
pub mod group;
mod heap;
pub mod host;
pub mod lanes;
pub mod ledger;
pub mod library;
mod limbo;
pub mod lookup;
pub mod page_map;
pub mod patience;
pub mod quota;
pub mod recording;
pub mod scope;
pub mod stats;
mod strategy;
mod sync;
mod thread_cache;
mod waiters;

pub use address::{Address, Bytes};
pub use arena::Arena;
pub use driver::{Driver, MemInfo};
pub use error::{AllocError, Code, FreeError};
pub use strategy::PinnedPlan;
