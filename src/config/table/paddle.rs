//! Options that bear the names of Paddle's flags.

use super::super::names::{STRATEGIES, boolean, named, show_boolean};
use super::super::value::{
    fraction, garbage, group_mib, mebibytes, millis, optional_mebibytes, show_garbage,
    show_mebibytes, whole,
};
use super::super::{DeviceShare, Fill, FreeSync, StrategyKind};
use super::{
    AS_NEEDED, BLANK, BOOLEAN, BOOLEANS, IN_ADVANCE, MEBIBYTES, OptionRow, Reading, Role,
    ZERO_TO_ONE, kept, set,
};
use crate::address::Bytes;

/// What `init_allocated_mem` fills memory with.
const INIT: Fill = Fill {
    byte: 0xEF,
    whole_block: false,
};

pub(super) const ROWS: &[OptionRow] = &[
    OptionRow {
        key: "allocator_strategy",
        paddle: Some("FLAGS_allocator_strategy"),
        role: Role::Sets("strategy"),
        kind: "choice",
        accepted: "naive_best_fit, auto_growth, mapped, thread_local, passthrough",
        help: "Paddle's name for strategy; thread_local is auto_growth, because one pool serves \
               all threads.",
        read: |s, text| {
            let strategy = match text {
                "thread_local" => Some(StrategyKind::AutoGrowth),
                text => named(STRATEGIES, text),
            };
            set(&mut s.config.strategy, strategy)
        },
        ..BLANK
    },
    OptionRow {
        key: "use_system_allocator",
        paddle: Some("FLAGS_use_system_allocator"),
        role: Role::Sets("strategy"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle's switch: True is strategy passthrough, whatever allocator_strategy says; \
               False leaves the strategy as it is.",
        read: |s, text| match boolean(text) {
            Some(true) => set(&mut s.config.strategy, Some(StrategyKind::Passthrough)),
            other => kept(other.is_some()),
        },
        ..BLANK
    },
    OptionRow {
        key: "use_virtual_memory_auto_growth",
        paddle: Some("FLAGS_use_virtual_memory_auto_growth"),
        role: Role::Sets("strategy"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle's switch: True is strategy mapped; False leaves the strategy as it is.",
        read: |s, text| match boolean(text) {
            Some(true) => set(&mut s.config.strategy, Some(StrategyKind::Mapped)),
            other => kept(other.is_some()),
        },
        ..BLANK
    },
    OptionRow {
        key: "fraction_of_gpu_memory_to_use",
        paddle: Some("FLAGS_fraction_of_gpu_memory_to_use"),
        role: Role::Own(|s| s.config.chunk_fraction.to_string()),
        kind: "number",
        accepted: ZERO_TO_ONE,
        help: "naive_best_fit: the share of the available memory that a chunk takes; 0: every \
               call goes to the driver.",
        idle: IN_ADVANCE,
        read: |s, text| set(&mut s.config.chunk_fraction, fraction(text)),
        ..BLANK
    },
    OptionRow {
        key: "initial_gpu_memory_in_mb",
        paddle: Some("FLAGS_initial_gpu_memory_in_mb"),
        role: Role::Own(|s| show_mebibytes(s.config.initial_chunk.unwrap_or(Bytes::ZERO))),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "naive_best_fit: the size of the first chunk; 0: by the fraction.",
        idle: IN_ADVANCE,
        read: |s, text| set(&mut s.config.initial_chunk, optional_mebibytes(text)),
        ..BLANK
    },
    OptionRow {
        key: "reallocate_gpu_memory_in_mb",
        paddle: Some("FLAGS_reallocate_gpu_memory_in_mb"),
        role: Role::Own(|s| show_mebibytes(s.config.reallocate_chunk.unwrap_or(Bytes::ZERO))),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "naive_best_fit: the size of later chunks; 0: by the fraction.",
        idle: IN_ADVANCE,
        read: |s, text| set(&mut s.config.reallocate_chunk, optional_mebibytes(text)),
        ..BLANK
    },
    OptionRow {
        key: "gpu_memory_limit_mb",
        paddle: Some("FLAGS_gpu_memory_limit_mb"),
        role: Role::Sets("limit"),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "Paddle's name for limit, in MiB; 0: none.",
        read: |s, text| {
            let limit = optional_mebibytes(text).map(|size| size.map(DeviceShare::Bytes));
            set(&mut s.config.limit, limit)
        },
        ..BLANK
    },
    OptionRow {
        key: "auto_growth_chunk_size_in_mb",
        paddle: Some("FLAGS_auto_growth_chunk_size_in_mb"),
        role: Role::Own(|s| show_mebibytes(s.config.auto_growth_chunk)),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "auto_growth: the least that is taken from the driver at a time; 0: what is \
               needed.",
        idle: AS_NEEDED,
        read: |s, text| set(&mut s.config.auto_growth_chunk, mebibytes(text)),
        ..BLANK
    },
    OptionRow {
        key: "free_idle_chunk",
        paddle: Some("FLAGS_free_idle_chunk"),
        role: Role::Own(|s| show_boolean(s.config.free_idle_chunk)),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "auto_growth: whether chunks without a live block go back to the driver after \
               every free, which waits for the device as CUDA's own does.",
        idle: AS_NEEDED,
        read: |s, text| set(&mut s.config.free_idle_chunk, boolean(text)),
        ..BLANK
    },
    OptionRow {
        key: "free_when_no_cache_hit",
        paddle: Some("FLAGS_free_when_no_cache_hit"),
        role: Role::Own(|s| show_boolean(s.config.free_when_no_cache_hit)),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "auto_growth: whether idle chunks go back to the driver before another is taken, \
               and are not looked for again where that one cannot be had.",
        idle: AS_NEEDED,
        read: |s, text| set(&mut s.config.free_when_no_cache_hit, boolean(text)),
        ..BLANK
    },
    OptionRow {
        key: "gpu_allocator_retry_time",
        paddle: Some("FLAGS_gpu_allocator_retry_time"),
        role: Role::Own(|s| s.config.retry_time.as_millis().to_string()),
        kind: "milliseconds",
        accepted: "a whole number from 0 to 86400000",
        help: "How long a request that cannot be served waits for frees of other threads before \
               it fails; 0 (Paddle: 10000): not at all.",
        read: |s, text| set(&mut s.config.retry_time, millis(text)),
        ..BLANK
    },
    OptionRow {
        key: "eager_delete_tensor_gb",
        paddle: Some("FLAGS_eager_delete_tensor_gb"),
        role: Role::Own(|s| show_garbage(s.config.garbage_threshold)),
        kind: "GiB",
        accepted: "a number of GiB up to 17179869183, or a negative one",
        help: "How much freed memory collects before it is put behind one fence; 0: at the next \
               opportunity; negative: only when memory is short, at an explicit flush, or when \
               limbo_budget is used up.",
        read: |s, text| set(&mut s.config.garbage_threshold, garbage(text)),
        ..BLANK
    },
    OptionRow {
        key: "fast_eager_deletion_mode",
        paddle: Some("FLAGS_fast_eager_deletion_mode"),
        role: Role::Sets("free_sync"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Paddle's switch: True is free_sync deferred, False is strict.",
        read: |s, text| {
            let sync = boolean(text).map(|fast| {
                if fast {
                    FreeSync::Deferred
                } else {
                    FreeSync::Strict
                }
            });
            set(&mut s.config.free_sync, sync)
        },
        ..BLANK
    },
    OptionRow {
        key: "memory_fraction_of_eager_deletion",
        paddle: Some("FLAGS_memory_fraction_of_eager_deletion"),
        role: Role::Own(|s| s.config.garbage_fraction.to_string()),
        kind: "number",
        accepted: ZERO_TO_ONE,
        help: "The share of a batch of freed memory that is released with it, the largest \
               blocks first; the rest waits for the next batch.",
        read: |s, text| set(&mut s.config.garbage_fraction, fraction(text)),
        ..BLANK
    },
    OptionRow {
        key: "alloc_fill_value",
        paddle: Some("FLAGS_alloc_fill_value"),
        role: Role::Own(|s| match s.config.fill {
            Some(fill) if fill.whole_block => fill.byte.to_string(),
            _ => "-1".to_owned(),
        }),
        kind: "byte",
        accepted: "a whole number from 0 to 9223372036854775807, of which the low byte counts, \
                   or -1",
        help: "The byte that the whole block is filled with before it is handed out; -1: none.",
        read: |s, text| {
            let without = s.config.fill.filter(|fill| !fill.whole_block);
            let fill = whole(text).and_then(|value| match value {
                -1 => Some(without),
                value if value < 0 => None,
                value => {
                    let [byte, ..] = value.to_le_bytes();
                    Some(Some(Fill {
                        byte,
                        whole_block: true,
                    }))
                }
            });
            set(&mut s.config.fill, fill)
        },
        ..BLANK
    },
    OptionRow {
        key: "init_allocated_mem",
        paddle: Some("FLAGS_init_allocated_mem"),
        role: Role::Own(|s| show_boolean(s.config.fill == Some(INIT))),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Whether the bytes that were asked for are filled with 0xEF before they are \
               handed out. A value of alloc_fill_value counts instead.",
        // A fill of the whole block stays, so it must be read before.
        late: true,
        read: |s, text| match (boolean(text), s.config.fill) {
            (None, _) => Reading::Unreadable,
            (_, Some(fill)) if fill.whole_block => Reading::Kept,
            (Some(on), _) => set(&mut s.config.fill, Some(on.then_some(INIT))),
        },
        ..BLANK
    },
    OptionRow {
        key: "sync_after_alloc",
        paddle: Some("FLAGS_sync_after_alloc"),
        role: Role::Own(|s| show_boolean(s.config.sync_after_alloc)),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Whether an allocation returns only when the device has done all its work.",
        read: |s, text| set(&mut s.config.sync_after_alloc, boolean(text)),
        ..BLANK
    },
    OptionRow {
        key: "fraction_of_cuda_pinned_memory_to_use",
        paddle: Some("FLAGS_fraction_of_cuda_pinned_memory_to_use"),
        role: Role::Own(|s| s.pinned.fraction.to_string()),
        kind: "number",
        accepted: ZERO_TO_ONE,
        help: "The most page-locked host memory that is pooled, as a share of the machine's, or \
               of what the process's control groups leave of it; beyond it, and above a 256th \
               of it, requests go to CUDA; 0: every call does. Chunks grow with what is used, \
               from 256 KiB up to that 256th.",
        read: |s, text| set(&mut s.pinned.fraction, fraction(text)),
        ..BLANK
    },
    OptionRow {
        key: "fraction_of_cpu_memory_to_use",
        paddle: Some("FLAGS_fraction_of_cpu_memory_to_use"),
        role: Role::Own(|s| s.pageable.fraction.to_string()),
        kind: "number",
        accepted: ZERO_TO_ONE,
        help: "Host memory of the C API: a chunk is at most this share of a 32nd of the \
               machine's memory.",
        read: |s, text| set(&mut s.pageable.fraction, fraction(text)),
        ..BLANK
    },
    OptionRow {
        key: "initial_cpu_memory_in_mb",
        paddle: Some("FLAGS_initial_cpu_memory_in_mb"),
        role: Role::Own(|s| show_mebibytes(s.pageable.initial)),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "Host memory of the C API: a chunk is at most this.",
        read: |s, text| set(&mut s.pageable.initial, mebibytes(text)),
        ..BLANK
    },
    OptionRow {
        key: "eager_delete_scope",
        paddle: Some("FLAGS_eager_delete_scope"),
        role: Role::Own(|s| show_boolean(s.scopes_end_inline)),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Scopes of the C API: whether what a scope holds is freed before its end returns; \
               False: by a thread.",
        read: |s, text| set(&mut s.scopes_end_inline, boolean(text)),
        ..BLANK
    },
    OptionRow {
        key: "fuse_parameter_groups_size",
        paddle: Some("FLAGS_fuse_parameter_groups_size"),
        role: Role::Own(|s| s.groups.most_members.to_string()),
        kind: "number",
        accepted: "a whole number from -2147483648 to 2147483647",
        help: "Groups of the C API: a group ends when it has more buffers than this; 1 and \
               less: no bound. Only where fuse_parameter_memory_size is above 0.",
        idle: |s| {
            let ends = s.groups.least_mib > 0.0;
            (!ends).then_some("only where fuse_parameter_memory_size is above 0")
        },
        read: |s, text| {
            let members = whole(text).and_then(|n| i32::try_from(n).ok());
            set(&mut s.groups.most_members, members)
        },
        ..BLANK
    },
    OptionRow {
        key: "fuse_parameter_memory_size",
        paddle: Some("FLAGS_fuse_parameter_memory_size"),
        role: Role::Own(|s| s.groups.least_mib.to_string()),
        kind: "MiB",
        accepted: "a number up to 17592186044415, or a negative one",
        help: "Groups of the C API: a group ends when it has at least so many MiB; 0: all is \
               one group; negative: each layer is a group.",
        read: |s, text| set(&mut s.groups.least_mib, group_mib(text)),
        ..BLANK
    },
];
