//! Advice on memory: requests that failed, and memory that was held without
//! use.

use vramalloc_core::Bytes;
use vramalloc_core::stats::Metric;

use super::super::super::units::count;
use super::{Advice, Case, bytes, is_part, size};

const MIB: u64 = 1 << 20;

/// Less than this is not worth advice.
const WORTH: u64 = 64 * MIB;

/// The smallest size of blocks that are worth keeping whole.
const LARGE: u64 = 32 * MIB;

/// Requests failed on the limit for want of memory. If enough was free in
/// pieces, other advice may be better; what the device does not have, no limit
/// gives.
pub(super) fn limit(case: &Case<'_>) -> Option<Advice> {
    let limit = case.limit()?;
    let (failed, needed, enough) = raised(case)?;
    let (option, value) = match case.file.has_own_limit(case.arena.device) {
        true => ("device_limits", raised_limits(case)?),
        false => ("limit", size(enough)),
    };
    Some(Advice {
        option,
        value,
        why: format!(
            "{} failed on the limit ({}) although the device has the memory; the largest \
             and what the program held then need {}. This value is that, rounded up to 256 MiB.",
            count(failed, "request"),
            bytes(limit),
            bytes(needed),
        ),
    })
}

/// How many requests failed on the limit, what they needed, and the limit that would have
/// been enough. If that is no more than there was, other memory of the device was the
/// reason.
fn raised(case: &Case<'_>) -> Option<(u64, u64, u64)> {
    let limit = case.limit()?;
    let told = case.arena.raisable_ooms.zip(case.arena.limit_needed);
    let (failed, needed) = told.or_else(|| limit_from_sums(case))?;
    let enough = needed.checked_next_multiple_of(256 * MIB).unwrap_or(needed);
    (failed > 0 && enough > limit).then_some((failed, needed, enough))
}

/// The limits of devices, with all that were too low raised.
fn raised_limits(case: &Case<'_>) -> Option<String> {
    let mut loaded = case.file.loaded();
    let arenas = case.file.arenas.iter();
    for arena in arenas.filter(|arena| case.file.has_own_limit(arena.device)) {
        if let Some((_, _, enough)) = raised(&Case { arena, ..*case }) {
            let device = u32::try_from(arena.device).ok()?;
            loaded.change_limit_of(device, &size(enough)).ok()?;
        }
    }
    loaded.value("device_limits")
}

/// As `raisable_ooms`, from files that do not count these requests: how many a
/// higher limit serves, and which.
fn limit_from_sums(case: &Case<'_>) -> Option<(u64, u64)> {
    let pieces = case.arena.fragmented_ooms;
    let failed = case.arena.limit_ooms.saturating_sub(pieces);
    let needed = (case.arena.live.peak).saturating_add(case.arena.largest_oom);
    let holds = case.arena.device_total.is_none_or(|total| needed <= total);
    holds.then_some((failed, needed))
}

/// Requests failed at the limit without an attempt to free memory.
pub(super) fn fail_at_limit(case: &Case<'_>) -> Option<Advice> {
    let rejected = case.memory.number("num_oom_rejections");
    (rejected > 0).then(|| Advice {
        option: "throw_on_cudamalloc_oom",
        value: "False".to_owned(),
        why: format!(
            "{} failed at the limit at once; else freed memory would have been \
             waited for and idle memory given back first ({} were cached at the most).",
            count(rejected, "request"),
            bytes(case.arena.cached.peak),
        ),
    })
}

/// Memory was to be paused that the strategy does not map.
pub(super) fn map_memory(case: &Case<'_>) -> Option<Advice> {
    let failed = case.arena.pause.failures;
    let why = case.arena.mapping.as_deref()?.strip_prefix("off: ")?;
    (failed > 0 && why.starts_with("strategy:")).then(|| Advice {
        option: "strategy",
        value: "mapped".to_owned(),
        why: format!(
            "{} to pause or resume failed: only mapped memory can be paused, and {why} maps none.",
            count(failed, "attempt"),
        ),
    })
}

/// The whole cache had to be emptied for a request.
pub(super) fn collect_before_the_limit(case: &Case<'_>) -> Option<Advice> {
    let retries = case.memory.number("num_alloc_retries");
    let helped = retries.saturating_sub(case.arena.ooms);
    let has_cache = case.strategy() != "passthrough";
    // If requests wait for other threads' frees, those frees served them;
    // collecting earlier would not have helped.
    let waits = case
        .option("gpu_allocator_retry_time")
        .is_some_and(|ms| ms != "0");
    (helped > 0 && has_cache && !waits && case.is_unset("garbage_collection_threshold")).then(
        || Advice {
            option: "garbage_collection_threshold",
            value: "0.8".to_owned(),
            why: format!(
                "{} served only after all of limbo was waited for and the whole \
             cache was emptied; old idle memory would have gone back before it came to that.",
                match helped {
                    1 => "One request was".to_owned(),
                    n => format!("{n} requests were"),
                },
            ),
        },
    )
}

/// The first chunk was much larger than needed.
pub(super) fn naive_chunk(case: &Case<'_>) -> Option<Advice> {
    if case.strategy() != "naive_best_fit" {
        return None;
    }
    let (live, reserved) = (case.arena.live.peak, case.arena.reserved.peak);
    let unused = reserved.saturating_sub(live);
    if unused < 1024 * MIB || !is_part(unused, reserved, 2) {
        return None;
    }
    // A tenth more than the peak, for the gaps between the blocks.
    let enough = live.saturating_add(live / 10);
    let why = format!(
        "{} were reserved in advance, but at most {} were live; this value holds them and a tenth \
         more.",
        bytes(reserved),
        bytes(live),
    );
    let initial = case.option("initial_gpu_memory_in_mb")?;
    let fraction: f64 = case.option("fraction_of_gpu_memory_to_use")?.parse().ok()?;
    if initial != "0" {
        return Some(Advice {
            option: "initial_gpu_memory_in_mb",
            value: enough.div_ceil(MIB).max(1).to_string(),
            why,
        });
    }
    #[allow(clippy::cast_precision_loss, reason = "two digits are shown")]
    let fraction = fraction * enough as f64 / reserved as f64;
    Some(Advice {
        option: "fraction_of_gpu_memory_to_use",
        value: format!("{:.2}", (fraction * 100.0).ceil().clamp(1.0, 100.0) / 100.0),
        why,
    })
}

/// The size from which blocks are worth keeping whole: half of the smallest
/// class of large requests that held a tenth of the peak.
fn large_blocks(case: &Case<'_>) -> Option<u64> {
    let bounds = case.arena.classes.iter().filter_map(|class| {
        is_part(class.peak_bytes, case.arena.live.peak, 10).then_some(class.up_to?)
    });
    bounds
        .map(|bound| bound / 2)
        .filter(|&size| size >= LARGE)
        .min()
}

/// Requests failed because large blocks had been cut up for smaller ones.
pub(super) fn keep_large_blocks_whole(case: &Case<'_>) -> Option<Advice> {
    let failed = case.arena.fragmented_ooms;
    let from = large_blocks(case)?;
    let can_cut = case.strategy() == "auto_growth" && case.is_unset("max_split_size_mb");
    (failed > 0 && can_cut).then(|| Advice {
        option: "max_split_size_mb",
        value: (from / MIB).to_string(),
        why: format!(
            "{} failed while enough was cached in pieces of chunks in use (up to \
             {}); blocks from {} on would have stayed whole and could have gone back to the \
             driver.",
            count(failed, "request"),
            bytes(case.memory.peak(Metric::InactiveSplitBytes)),
            bytes(from),
        ),
    })
}

/// How much less could have been reserved by giving up `part` of it: never
/// below the peak of live memory.
fn saved(case: &Case<'_>, part: u64) -> u64 {
    let arena = case.arena;
    part.min(arena.reserved.peak.saturating_sub(arena.live.peak))
}

/// Whether that saving is worth an option.
fn is_worth(case: &Case<'_>, part: u64) -> bool {
    let saved = saved(case, part);
    saved >= WORTH && is_part(saved, case.arena.reserved.peak, 5)
}

/// Chunks of the wrong sizes were kept while others were taken.
pub(super) fn give_back_what_does_not_fit(case: &Case<'_>) -> Option<Advice> {
    let (at_peak, reserved) = (&case.arena.at_peak, case.arena.reserved.peak);
    // The part of it in limbo could not have gone back.
    let idle = at_peak.idle.saturating_sub(at_peak.limbo);
    let keeps =
        case.strategy() == "auto_growth" && case.option("free_when_no_cache_hit") == Some("False");
    (keeps && is_worth(case, idle)).then(|| Advice {
        option: "free_when_no_cache_hit",
        value: "True".to_owned(),
        why: format!(
            "When the most was reserved ({}), {} of it lay in chunks that nothing was live in and \
             that were too small for the requests; with this option they go back first, which \
             takes more driver calls.",
            bytes(reserved),
            bytes(idle),
        ),
    })
}

/// Sizes that differ a little do not fit each other's blocks.
pub(super) fn round_alike(case: &Case<'_>) -> Option<Advice> {
    let (at_peak, reserved) = (&case.arena.at_peak, case.arena.reserved.peak);
    let pieces = at_peak.cached.saturating_sub(at_peak.idle);
    // A miss could only have been served by a block that was freed.
    let at_peak_blocks = case.arena.classes.iter().map(|class| class.peak_blocks);
    let freed = (case.arena.allocations).saturating_sub(at_peak_blocks.sum());
    let missed = case.arena.fragmented_misses.min(freed);
    let cut = case.strategy() == "auto_growth" && is_part(missed, case.arena.misses, 10);
    (cut && is_worth(case, pieces) && case.is_unset("roundup_power2_divisions")).then(|| Advice {
        option: "roundup_power2_divisions",
        value: "8".to_owned(),
        why: format!(
            "When the most was reserved ({}), {} of it were free pieces of chunks in use, and {} \
             of {} that took more found enough in pieces; sizes that are rounded alike \
             fit each other's blocks; each takes at most an eighth more memory.",
            bytes(reserved),
            bytes(pieces),
            case.arena.fragmented_misses,
            count(case.arena.misses, "request"),
        ),
    })
}

/// Rounding cost much memory.
pub(super) fn round_less(case: &Case<'_>) -> Option<Advice> {
    let divisions: u64 = case.option("roundup_power2_divisions")?.parse().ok()?;
    let active = case.memory.peak(Metric::ActiveBytes);
    let rounding = active.saturating_sub(case.memory.peak(Metric::RequestedBytes));
    let finer = divisions.saturating_mul(2);
    (divisions > 1 && rounding >= WORTH && is_part(rounding, active, 10)).then(|| Advice {
        option: "roundup_power2_divisions",
        value: finer.to_string(),
        why: format!(
            "{} of {} in use came from rounding; {finer} divisions halve it in the worst case.",
            bytes(rounding),
            bytes(active),
        ),
    })
}

/// Whether the limbo budget is far above the one that the library chooses by
/// default: only then does a smaller one help, and it does not contradict the
/// advice to enlarge it.
fn has_large_budget(case: &Case<'_>) -> bool {
    let usual = (case.arena.reserved.peak / 16).max(WORTH);
    let total = case.arena.device_total.map_or(Bytes::MAX, Bytes::new);
    let budget = case.file.loaded().settings.config.limbo_budget;
    budget.is_some_and(|budget| budget.of(total).get() >= usual.saturating_mul(8))
}

/// Memory was taken while much lay in limbo, which a budget far above the
/// default allowed.
pub(super) fn smaller_limbo(case: &Case<'_>) -> Option<Advice> {
    let limbo = case.arena.at_peak.limbo;
    let reserved = case.arena.reserved.peak;
    let smaller = (limbo / 4).max(WORTH);
    let missed = case.arena.limbo_misses > 0 && smaller < limbo;
    (missed && has_large_budget(case) && is_worth(case, limbo)).then(|| Advice {
        option: "limbo_budget",
        value: size(smaller),
        why: format!(
            "When the most was reserved ({}), {} of it were freed and waited for the device; \
             with a smaller budget, requests wait rather than take more.",
            bytes(reserved),
            bytes(limbo),
        ),
    })
}

/// The most that limbo can be given: what the device, or the limit, leaves
/// beside live memory.
pub(super) fn room_for_limbo(case: &Case<'_>) -> u64 {
    let live = case.arena.live.peak;
    let total = case
        .arena
        .device_total
        .into_iter()
        .chain(case.limit())
        .min();
    total.map_or(u64::MAX, |total| total.saturating_sub(live))
}

/// Idle memory was kept without use.
pub(super) fn give_idle_back(case: &Case<'_>) -> Option<Advice> {
    let (idle, reserved) = (case.arena.idle_low, case.arena.reserved.current);
    let kept_for_good = case.option("decay_ms") == Some("-1");
    // In a shorter run ten seconds without use mean nothing.
    let long = case.file.ran_ns() >= 60_000_000_000;
    (kept_for_good && long && idle >= WORTH && is_part(idle, reserved, 4)).then(|| Advice {
        option: "decay_ms",
        value: "10000".to_owned(),
        why: format!(
            "{} of the {} reserved at the end had been idle ever since memory was last taken or \
             given back; after ten seconds it would have gone back to the device.",
            bytes(idle),
            bytes(reserved),
        ),
    })
}
