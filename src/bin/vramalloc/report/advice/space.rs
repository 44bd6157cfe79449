//! Advice on memory: requests that failed, and memory that was held for
//! nothing.

use vramalloc::stats::Metric;

use super::{Advice, Case, bytes, is_part, size};

const MIB: u64 = 1 << 20;

/// Less than this is not worth a word.
const WORTH: u64 = 64 * MIB;

/// The least size of blocks that are worth keeping whole.
const LARGE: u64 = 32 * MIB;

/// Requests failed on the limit for want of memory. Where there was enough in
/// pieces, other advice may be better; where the device has less, none is.
pub(super) fn limit(case: &Case<'_>) -> Option<Advice> {
    let limit = case.option("limit").filter(|&limit| limit != "none")?;
    let pieces = case.details.fragmented_ooms;
    let failed = case.arena.limit_ooms.saturating_sub(pieces);
    let (largest, live) = (case.details.largest_oom, case.arena.live.peak);
    let least = live.saturating_add(largest);
    let holds = case.arena.device_total.is_none_or(|total| least <= total);
    (failed > 0 && holds).then(|| Advice {
        option: "limit",
        value: size(least.checked_next_multiple_of(256 * MIB).unwrap_or(least)),
        why: format!(
            "{failed} requests failed on the limit ({limit}), the largest of {}; this is the least \
             that holds it beside the most that was ever live ({}).",
            bytes(largest),
            bytes(live),
        ),
    })
}

/// Requests failed at the limit without an attempt to make room.
pub(super) fn fail_at_limit(case: &Case<'_>) -> Option<Advice> {
    let rejected = case.details.memory.rejections;
    (rejected > 0).then(|| Advice {
        option: "throw_on_cudamalloc_oom",
        value: "False".to_owned(),
        why: format!(
            "{rejected} requests failed at the limit at once; else freed memory would have been \
             waited for and idle memory given back first ({} were cached at the most).",
            bytes(case.arena.cached.peak),
        ),
    })
}

/// The whole cache had to be emptied for a request.
pub(super) fn collect_before_the_limit(case: &Case<'_>) -> Option<Advice> {
    let retries = case.details.memory.retries;
    let helped = retries.saturating_sub(case.arena.ooms);
    let has_cache = case.strategy() != "passthrough";
    (helped > 0 && has_cache && case.is_unset("garbage_collection_threshold")).then(|| Advice {
        option: "garbage_collection_threshold",
        value: "0.8".to_owned(),
        why: format!(
            "{helped} requests were served only after all of limbo was waited for and the whole \
             cache was emptied; old idle memory would have gone back before it came to that."
        ),
    })
}

/// The chunk in advance was far more than was needed.
pub(super) fn naive_chunk(case: &Case<'_>) -> Option<Advice> {
    if case.strategy() != "naive_best_fit" {
        return None;
    }
    let (live, reserved) = (case.arena.live.peak, case.arena.reserved.peak);
    let unused = reserved.saturating_sub(live);
    if unused < 1024 * MIB || !is_part(unused, reserved, 2) {
        return None;
    }
    // A tenth more than the peak, for what lies between the blocks.
    let enough = live.saturating_add(live / 10);
    let why = format!(
        "{} were reserved in advance and at most {} live; so much still holds that and a tenth \
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

/// The size from which on blocks are worth keeping whole: above half of the
/// smallest class of large requests that had a tenth of the peak.
fn large_blocks(case: &Case<'_>) -> Option<u64> {
    let bounds = case.details.classes.iter().filter_map(|class| {
        is_part(class.peak_bytes, case.arena.live.peak, 10).then_some(class.up_to?)
    });
    bounds
        .map(|bound| bound / 2)
        .filter(|&size| size >= LARGE)
        .min()
}

/// Requests failed because large blocks had been cut up for smaller ones.
pub(super) fn keep_large_blocks_whole(case: &Case<'_>) -> Option<Advice> {
    let failed = case.details.fragmented_ooms;
    let from = large_blocks(case)?;
    let can_cut = case.strategy() == "auto_growth" && case.is_unset("max_split_size_mb");
    (failed > 0 && can_cut).then(|| Advice {
        option: "max_split_size_mb",
        value: (from / MIB).to_string(),
        why: format!(
            "{failed} requests failed while enough was cached in pieces of chunks in use (up to \
             {}); blocks from {} on would have stayed whole and could have gone back to the \
             driver.",
            bytes(case.details.memory.peak(Metric::InactiveSplitBytes)),
            bytes(from),
        ),
    })
}

/// How much less could have been reserved with `part` of it given up: never
/// less than the most that was live.
fn saved(case: &Case<'_>, part: u64) -> u64 {
    let arena = case.arena;
    part.min(arena.reserved.peak.saturating_sub(arena.live.peak))
}

/// Whether that is worth an option.
fn is_worth(case: &Case<'_>, part: u64) -> bool {
    let saved = saved(case, part);
    saved >= WORTH && is_part(saved, case.arena.reserved.peak, 5)
}

/// Chunks of the wrong sizes were kept while others were taken.
pub(super) fn give_back_what_does_not_fit(case: &Case<'_>) -> Option<Advice> {
    let (idle, reserved) = (case.details.at_peak.idle, case.arena.reserved.peak);
    let keeps =
        case.strategy() == "auto_growth" && case.option("free_when_no_cache_hit") == Some("False");
    (keeps && is_worth(case, idle)).then(|| Advice {
        option: "free_when_no_cache_hit",
        value: "True".to_owned(),
        why: format!(
            "When the most was reserved ({}), {} of it lay in chunks that nothing was live in and \
             that were too small for what was asked for; they would have gone back first, for \
             more calls to the driver.",
            bytes(reserved),
            bytes(idle),
        ),
    })
}

/// Sizes that differ a little do not fit each other's blocks.
pub(super) fn round_alike(case: &Case<'_>) -> Option<Advice> {
    let (at_peak, reserved) = (&case.details.at_peak, case.arena.reserved.peak);
    let pieces = at_peak.cached.saturating_sub(at_peak.idle);
    let cut = case.strategy() == "auto_growth"
        && is_part(case.details.fragmented_misses, case.arena.misses, 10);
    (cut && is_worth(case, pieces) && case.is_unset("roundup_power2_divisions")).then(|| Advice {
        option: "roundup_power2_divisions",
        value: "8".to_owned(),
        why: format!(
            "When the most was reserved ({}), {} of it were free pieces of chunks in use, and {} \
             of {} requests that took more found enough in pieces; sizes that are rounded alike \
             fit each other's blocks, at an eighth more memory for each at the worst.",
            bytes(reserved),
            bytes(pieces),
            case.details.fragmented_misses,
            case.arena.misses,
        ),
    })
}

/// Rounding took much.
pub(super) fn round_less(case: &Case<'_>) -> Option<Advice> {
    let divisions: u64 = case.option("roundup_power2_divisions")?.parse().ok()?;
    let memory = &case.details.memory;
    let active = memory.peak(Metric::ActiveBytes);
    let rounding = active.saturating_sub(memory.peak(Metric::RequestedBytes));
    let finer = divisions.saturating_mul(2);
    (divisions > 1 && rounding >= WORTH && is_part(rounding, active, 10)).then(|| Advice {
        option: "roundup_power2_divisions",
        value: finer.to_string(),
        why: format!(
            "{} of {} in use were rounding; with {finer} divisions it is half as much at the worst.",
            bytes(rounding),
            bytes(active),
        ),
    })
}

/// Memory was taken while much waited for the device.
pub(super) fn smaller_limbo(case: &Case<'_>) -> Option<Advice> {
    let limbo = case.details.at_peak.limbo;
    let reserved = case.arena.reserved.peak;
    let budget = (limbo / 4).max(WORTH);
    let missed = case.details.limbo_misses > 0 && budget < limbo;
    (missed && is_worth(case, limbo)).then(|| Advice {
        option: "limbo_budget",
        value: size(budget),
        why: format!(
            "When the most was reserved ({}), {} of it were freed and waited for the device; \
             with less, requests wait rather than take more.",
            bytes(reserved),
            bytes(limbo),
        ),
    })
}

/// Idle memory was kept that nobody wanted.
pub(super) fn give_idle_back(case: &Case<'_>) -> Option<Advice> {
    let (idle, reserved) = (case.details.idle_low, case.arena.reserved.current);
    let kept_for_good = case.option("decay_ms") == Some("-1");
    // In a shorter run ten seconds of rest say nothing.
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
