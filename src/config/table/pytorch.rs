//! Options that bear the names of PyTorch's keys.

use super::super::names::{SWITCH, boolean, name_of, named, show_boolean};
use super::super::torch::{divisions, show_divisions};
use super::super::value::{
    NONE, fraction, mebibytes_or_none, optional_mebibytes, power_of_two, show_mebibytes,
    show_mebibytes_or_none, show_number_or_none,
};
use super::super::{DeviceShare, Settings, StrategyKind};
use super::{
    AS_NEEDED, BLANK, BOOLEAN, BOOLEANS, MEBIBYTES, MEBIBYTES_OR_NONE, OptionRow, POOLED, Role,
    Torch, kept, set,
};
use crate::address::Bytes;

/// The chunk that PyTorch takes for a request between 1 MiB and 10 MiB by
/// default; also the least value of the options that are compared with it.
const LARGE_SEGMENT: Bytes = Bytes::mib(20);

/// The most threads that touch page-locked memory.
const MOST_THREADS: u32 = 128;

/// A number of MiB that is at least a large segment, or `none`.
fn at_least_a_segment(settings: &Settings, text: &str) -> Option<Option<Bytes>> {
    let least = settings.config.splitting.large_segment;
    mebibytes_or_none(text)
        .filter(|size| size.is_none_or(|size| size >= least.unwrap_or(LARGE_SEGMENT)))
}

const FROM_SEGMENT: &str = "a whole number of MiB from large_segment_size_mb (where that is none, \
                            20) to 17592186044415, or none";

pub(super) const ROWS: &[OptionRow] = &[
    OptionRow {
        key: "large_segment_size_mb",
        torch: Torch::Keys(&["large_segment_size_mb"]),
        role: Role::Own(|s| show_mebibytes_or_none(s.config.splitting.large_segment)),
        kind: "MiB",
        accepted: "a whole number of MiB from 11 to 17592186044415, or none",
        help: "auto_growth: what is taken from the driver for a request above 1 MiB and below \
               10 MiB; none: what is needed.",
        idle: AS_NEEDED,
        read: |s, text| {
            let size = mebibytes_or_none(text)
                .filter(|size| size.is_none_or(|size| size > Bytes::mib(10)));
            set(&mut s.config.splitting.large_segment, size)
        },
        ..BLANK
    },
    OptionRow {
        key: "max_split_size_mb",
        torch: Torch::Keys(&["max_split_size_mb"]),
        role: Role::Own(|s| show_mebibytes_or_none(s.config.splitting.max_split)),
        kind: "MiB",
        accepted: FROM_SEGMENT,
        help: "auto_growth: requests of at least this size have blocks of their own, which are \
               not cut and serve no request below it; none: all may be cut.",
        late: true,
        idle: AS_NEEDED,
        read: |s, text| {
            let size = at_least_a_segment(s, text);
            set(&mut s.config.splitting.max_split, size)
        },
        ..BLANK
    },
    OptionRow {
        key: "max_non_split_rounding_mb",
        torch: Torch::Keys(&["max_non_split_rounding_mb"]),
        role: Role::Own(|s| show_mebibytes_or_none(s.config.splitting.max_non_split_rounding)),
        kind: "MiB",
        accepted: FROM_SEGMENT,
        help: "How much larger than a request of at least max_split_size_mb the block may be \
               that serves it; none: large_segment_size_mb, and where that is none, 20.",
        late: true,
        idle: |s| {
            let splits = s.config.splitting.max_split.is_some();
            AS_NEEDED(s).or((!splits).then_some("only with max_split_size_mb"))
        },
        read: |s, text| {
            let size = at_least_a_segment(s, text);
            set(&mut s.config.splitting.max_non_split_rounding, size)
        },
        ..BLANK
    },
    OptionRow {
        key: "roundup_power2_divisions",
        torch: Torch::Keys(&["roundup_power2_divisions"]),
        role: Role::Own(|s| show_divisions(&s.config.rounding.divisions)),
        kind: "number or list",
        accepted: "a power of two up to 2147483648; a list [MiB:divisions,...,>:divisions] of \
                   powers of two, in which divisions may be 0; or none",
        help: "Into how many steps the span between two powers of two is divided; a request is \
               rounded up to the next step. In a list, an entry holds for sizes from its MiB \
               to below twice that, the first also for all below, and > for all above the one \
               before it.",
        idle: POOLED,
        read: |s, text| set(&mut s.config.rounding.divisions, divisions(text)),
        ..BLANK
    },
    OptionRow {
        key: "roundup_bypass_threshold_mb",
        torch: Torch::Keys(&["roundup_bypass_threshold_mb"]),
        role: Role::Own(|s| show_mebibytes_or_none(s.config.rounding.bypass)),
        kind: "MiB",
        accepted: MEBIBYTES_OR_NONE,
        help: "Requests above this size are not rounded to a step; none: all are.",
        idle: |s| {
            let rounds =
                s.config.rounding.divisions != Settings::default().config.rounding.divisions;
            POOLED(s).or((!rounds).then_some("only with roundup_power2_divisions"))
        },
        read: |s, text| set(&mut s.config.rounding.bypass, mebibytes_or_none(text)),
        ..BLANK
    },
    OptionRow {
        key: "garbage_collection_threshold",
        torch: Torch::Keys(&["garbage_collection_threshold"]),
        role: Role::Own(|s| show_number_or_none(s.config.garbage_collection_threshold)),
        kind: "number",
        accepted: "a number above 0 and below 1, or none",
        help: "The share of the limit, or of the device where there is none, above which idle \
               chunks, but for slabs of small requests, go back before more is taken, those first \
               that have been idle for longest, until no more than that share is reserved; none: \
               only when memory is short.",
        idle: POOLED,
        read: |s, text| {
            let threshold = match text {
                NONE => Some(None),
                text => fraction(text).filter(|&n| n > 0.0 && n < 1.0).map(Some),
            };
            set(&mut s.config.garbage_collection_threshold, threshold)
        },
        ..BLANK
    },
    OptionRow {
        key: "per_process_memory_fraction",
        torch: Torch::Keys(&["per_process_memory_fraction"]),
        role: Role::Sets("limit"),
        kind: "number",
        accepted: "a number above 0 and up to 1",
        help: "PyTorch's name for limit, as a share of the device; 1: none.",
        read: |s, text| {
            let limit = fraction(text)
                .filter(|&share| share > 0.0)
                .map(|share| Some(DeviceShare::Fraction(share)).filter(|_| share < 1.0));
            set(&mut s.config.limit, limit)
        },
        ..BLANK
    },
    OptionRow {
        key: "throw_on_cudamalloc_oom",
        torch: Torch::Keys(&["throw_on_cudamalloc_oom"]),
        role: Role::Own(|s| show_boolean(s.config.fail_at_limit)),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Whether a request beyond the limit fails at once, with the cache as it is (only \
               memory that was freed is waited for); False: idle memory is given back first.",
        read: |s, text| set(&mut s.config.fail_at_limit, boolean(text)),
        ..BLANK
    },
    OptionRow {
        key: "pinned_use_cuda_host_register",
        torch: Torch::Keys(&[
            "pinned_use_cuda_host_register",
            "pinned_use_hip_host_register",
        ]),
        role: Role::Own(|s| show_boolean(s.pinned.use_host_register)),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Whether page-locked host memory is taken from the system, touched and then \
               registered with CUDA, rather than allocated by CUDA; the program cannot tell. \
               Write-combined memory is always CUDA's.",
        read: |s, text| set(&mut s.pinned.use_host_register, boolean(text)),
        ..BLANK
    },
    OptionRow {
        key: "pinned_num_register_threads",
        torch: Torch::Keys(&["pinned_num_register_threads"]),
        role: Role::Own(|s| s.pinned.register_threads.to_string()),
        kind: "number",
        accepted: "a power of two from 1 to 128",
        help: "How many threads touch memory before it is registered.",
        idle: |s| {
            let registers = s.pinned.use_host_register;
            (!registers).then_some("only with pinned_use_cuda_host_register")
        },
        read: |s, text| {
            let threads = power_of_two(text).filter(|&threads| threads <= MOST_THREADS);
            set(&mut s.pinned.register_threads, threads)
        },
        ..BLANK
    },
    OptionRow {
        key: "pinned_use_background_threads",
        torch: Torch::Keys(&["pinned_use_background_threads"]),
        role: Role::Own(|s| show_boolean(s.pinned.background_threads)),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "Whether a thread makes freed page-locked memory available when the device is done \
               with it, and not only the next request.",
        read: |s, text| set(&mut s.pinned.background_threads, boolean(text)),
        ..BLANK
    },
    OptionRow {
        key: "pinned_reserve_segment_size_mb",
        torch: Torch::Keys(&["pinned_reserve_segment_size_mb"]),
        role: Role::Own(|s| show_mebibytes(s.pinned.reserve_segment.unwrap_or(Bytes::ZERO))),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "How much page-locked memory is taken in one piece at the first request for it, \
               and kept; 0: none.",
        read: |s, text| set(&mut s.pinned.reserve_segment, optional_mebibytes(text)),
        ..BLANK
    },
    OptionRow {
        key: "pinned_max_round_threshold_mb",
        torch: Torch::Keys(&["pinned_max_round_threshold_mb"]),
        role: Role::Own(|s| show_mebibytes_or_none(s.pinned.max_round_threshold)),
        kind: "MiB",
        accepted: MEBIBYTES_OR_NONE,
        help: "Requests for page-locked memory up to this size are rounded to a power of two; \
               none: to whole blocks only.",
        read: |s, text| set(&mut s.pinned.max_round_threshold, mebibytes_or_none(text)),
        ..BLANK
    },
    OptionRow {
        key: "pinned_max_cached_size_mb",
        torch: Torch::Keys(&["pinned_max_cached_size_mb"]),
        role: Role::Own(|s| show_mebibytes_or_none(s.pinned.max_cached)),
        kind: "MiB",
        accepted: MEBIBYTES_OR_NONE,
        help: "Freed page-locked memory above this size goes back to CUDA; none: all is kept.",
        read: |s, text| set(&mut s.pinned.max_cached, mebibytes_or_none(text)),
        ..BLANK
    },
    OptionRow {
        key: "expandable_segments",
        torch: Torch::Keys(&["expandable_segments"]),
        role: Role::Sets("strategy"),
        kind: BOOLEAN,
        accepted: BOOLEANS,
        help: "PyTorch's switch: True is strategy mapped; False leaves the strategy as it is.",
        read: |s, text| match boolean(text) {
            Some(true) => set(&mut s.config.strategy, Some(StrategyKind::Mapped)),
            other => kept(other.is_some()),
        },
        ..BLANK
    },
    OptionRow {
        key: "no_cuda_memory_caching",
        torch: Torch::Variable("PYTORCH_NO_CUDA_MEMORY_CACHING"),
        role: Role::Own(|s| name_of(SWITCH, &s.torch_uncached)),
        kind: "switch",
        accepted: "0, 1",
        help: "Whether PyTorch keeps no cache of its own, so that this one is the cache; import \
               auto then reads PyTorch's variables also where the program is PyTorch.",
        read: |s, text| set(&mut s.torch_uncached, named(SWITCH, text)),
        ..BLANK
    },
];
