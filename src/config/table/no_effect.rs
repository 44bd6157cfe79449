//! Options without an effect: those of the frameworks that cannot have one in
//! an allocator below them.
//!
//! They are read and checked, so that they are not mistaken for misspellings,
//! and each row gives the reason.

use super::super::Settings;
use super::super::names::boolean;
use super::super::torch::{reserve, reserves};
use super::super::value::{mebibytes, number, up_to};
use super::{BLANK, BOOLEAN, BOOLEANS, MEBIBYTES, OptionRow, Reading, Role, Torch, kept};

/// Reads a boolean for an option without an effect.
const READ_BOOLEAN: fn(&mut Settings, &str) -> Reading = |_, text| kept(boolean(text).is_some());

/// Reads a number of MiB for an option without an effect.
const READ_MEBIBYTES: fn(&mut Settings, &str) -> Reading =
    |_, text| kept(mebibytes(text).is_some());

// Reasons that several rows share.
const RANGES: &str = "under strategy:mapped a range has as many addresses as its device has memory, \
                      and another is reserved where that is not enough";
const ASYNC: &str = "the arena serves every request: the stream of a request is not known below \
                     the framework, and memory of CUDA's own pool cannot be shared by \
                     cudaIpcGetMemHandle";
const POOLS: &str = "small requests have slabs of 2 MiB of their own in any case";

pub(super) const ROWS: &[OptionRow] = &[
    OptionRow {
        key: "backend",
        torch: Torch::Keys(&["backend"]),
        role: Role::NoEffect(ASYNC),
        kind: "choice",
        accepted: "native, cudaMallocAsync",
        help: "PyTorch: whether its own cache or CUDA's pool serves requests.",
        read: |_, text| kept(matches!(text, "native" | "cudaMallocAsync")),
        ..BLANK
    },
    OptionRow {
        key: "release_lock_on_cudamalloc",
        torch: Torch::Keys(&["release_lock_on_cudamalloc", "release_lock_on_hipmalloc"]),
        role: Role::NoEffect("no lock is ever held while the driver is called"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "PyTorch: whether other threads can allocate while the driver is called.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "expandable_segments_reserve",
        torch: Torch::Keys(&["expandable_segments_reserve"]),
        role: Role::NoEffect(RANGES),
        kind: "number or GiB",
        accepted: "a number above 0, alone or with a G",
        help: "PyTorch: how many addresses a growing segment reserves.",
        read: |_, text| kept(reserve(text)),
        ..BLANK
    },
    OptionRow {
        key: "expandable_segments_reserve_by_class",
        torch: Torch::Keys(&["expandable_segments_reserve_by_class"]),
        role: Role::NoEffect(RANGES),
        kind: "list",
        accepted: "a list [name:value,...] of values above 0, alone or with a G",
        help: "PyTorch: the same for classes of streams.",
        read: |_, text| kept(reserves(text)),
        ..BLANK
    },
    OptionRow {
        key: "graph_capture_record_stream_reuse",
        torch: Torch::Keys(&["graph_capture_record_stream_reuse"]),
        role: Role::NoEffect(
            "the streams of a block and the shape of a captured graph are not known below the \
             framework",
        ),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "PyTorch: whether blocks of several streams are reused while a graph is captured.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "pinned_free_catch_all",
        torch: Torch::Keys(&["pinned_free_catch_all"]),
        role: Role::NoEffect("a free here raises nothing that could be caught"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "PyTorch: whether a free of page-locked memory swallows exceptions.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "use_stream_safe_cuda_allocator",
        paddle: Some("FLAGS_use_stream_safe_cuda_allocator"),
        role: Role::NoEffect(
            "a request for device memory does not say on which streams it is used; the reuse \
             rule protects every stream instead",
        ),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle: whether a block remembers the streams that use it.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "use_cuda_managed_memory",
        paddle: Some("FLAGS_use_cuda_managed_memory"),
        role: Role::NoEffect(
            "a program that asks for device memory gets device memory; managed memory has other \
             attributes and another speed",
        ),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle: whether memory is managed memory.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "use_cuda_malloc_async_allocator",
        paddle: Some("FLAGS_use_cuda_malloc_async_allocator"),
        role: Role::NoEffect(ASYNC),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle: whether memory comes from CUDA's own pool.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "cuda_malloc_async_pool_memory_throttle_ratio",
        paddle: Some("FLAGS_cuda_malloc_async_pool_memory_throttle_ratio"),
        role: Role::NoEffect(ASYNC),
        kind: "number",
        accepted: "a number",
        help: "Paddle: how full CUDA's own pool may get before an allocation waits.",
        read: |_, text| kept(number(text).is_some()),
        ..BLANK
    },
    OptionRow {
        key: "use_pinned_memory",
        paddle: Some("FLAGS_use_pinned_memory"),
        role: Role::NoEffect(
            "it locks Paddle's own pool of host memory, which is not taken through CUDA",
        ),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle: whether its pool of host memory is locked.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "use_auto_growth_pinned_allocator",
        paddle: Some("FLAGS_use_auto_growth_pinned_allocator"),
        role: Role::NoEffect("there is one pool of page-locked memory, and it grows as needed"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle: whether page-locked memory is taken as it is needed.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "use_auto_growth_v2",
        paddle: Some("FLAGS_use_auto_growth_v2"),
        role: Role::NoEffect("there is one auto_growth"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle: whether a second version of auto_growth is used.",
        read: READ_BOOLEAN,
        ..BLANK
    },
    OptionRow {
        key: "small_pool_size_in_mb",
        paddle: Some("FLAGS_small_pool_size_in_mb"),
        role: Role::NoEffect(POOLS),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "Paddle: up to which size requests are served from a pool of their own.",
        read: READ_MEBIBYTES,
        ..BLANK
    },
    OptionRow {
        key: "small_pool_auto_growth_chunk_size_in_mb",
        paddle: Some("FLAGS_small_pool_auto_growth_chunk_size_in_mb"),
        role: Role::NoEffect(POOLS),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "Paddle: the least that the pool of small requests takes at a time.",
        read: READ_MEBIBYTES,
        ..BLANK
    },
    OptionRow {
        key: "large_pool_auto_growth_chunk_size_in_mb",
        paddle: Some("FLAGS_large_pool_auto_growth_chunk_size_in_mb"),
        role: Role::NoEffect(POOLS),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "Paddle: the least that the pool of large requests takes at a time.",
        read: READ_MEBIBYTES,
        ..BLANK
    },
    OptionRow {
        key: "alignment_size",
        paddle: Some("FLAGS_alignment_size"),
        role: Role::NoEffect("every address is a multiple of 512 bytes"),
        kind: "bytes",
        accepted: "a whole number from 0 to 18446744073709551615",
        help: "Paddle: what sizes and addresses are multiples of.",
        read: |_, text| kept(up_to(u64::MAX, text).is_some()),
        ..BLANK
    },
    OptionRow {
        key: "log_memory_stats",
        paddle: Some("FLAGS_log_memory_stats"),
        role: Role::NoEffect(
            "operators are not seen below the framework; stats_interval_s writes the statistics \
             while the program runs",
        ),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle: whether the memory in use is logged after each operator.",
        read: READ_BOOLEAN,
        ..BLANK
    },
];
