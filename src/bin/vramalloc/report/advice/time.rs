//! Advice on time: waits for the device, and calls to the driver.

use super::super::super::units::{count, duration};
use super::super::file::MEMORY_CALLS;
use super::super::meaning::of_run;
use super::space::{room_for_limbo, smaller_limbo};
use super::{Advice, Case, bytes, is_part, size};

/// Requests waited because limbo was over its budget.
pub(super) fn larger_limbo(case: &Case<'_>) -> Option<Advice> {
    let ns = case.arena.budget_wait_ns;
    let limbo = case.arena.limbo.peak;
    // More limbo needs memory that is there; and if less was advised, more is not.
    let larger = limbo.saturating_mul(2).min(room_for_limbo(case));
    let is_more = larger >= limbo.saturating_add(limbo / 2);
    let may = case.arena.ooms == 0 && is_more && smaller_limbo(case).is_none();
    (case.took(ns) && may).then(|| Advice {
        option: "limbo_budget",
        value: size(larger),
        why: format!(
            "{} waited {} for the device, {}, because limbo (up to {}) was \
             over its budget; with a larger one, they take memory instead until the device has \
             caught up.",
            count(case.arena.budget_waits, "request"),
            duration(ns),
            of_run(ns, case.file),
            bytes(limbo),
        ),
    })
}

/// Every free waited.
pub(super) fn do_not_wait_in_free(case: &Case<'_>) -> Option<Advice> {
    let ns = case.arena.wait_ns;
    (case.option("free_sync") == Some("strict") && case.took(ns)).then(|| Advice {
        option: "free_sync",
        value: "deferred".to_owned(),
        why: format!(
            "Frees waited {} for the device, {}; deferred keeps the same order without \
             waiting.",
            duration(ns),
            of_run(ns, case.file),
        ),
    })
}

/// The cost of allocating and freeing in the driver, if it is worth advice.
fn driver_time(case: &Case<'_>) -> Option<(u64, String)> {
    let ns = case.arena.driver_ns(&MEMORY_CALLS);
    case.took(ns).then(|| {
        let calls = case.arena.memory_calls();
        let words = format!(
            "{} for memory took {}, {}",
            count(calls, "driver call"),
            duration(ns),
            of_run(ns, case.file),
        );
        (calls, words)
    })
}

/// Everything went to the driver.
pub(super) fn cache(case: &Case<'_>) -> Option<Advice> {
    let (_, took) = driver_time(case)?;
    (case.strategy() == "passthrough").then(|| Advice {
        option: "strategy",
        value: "auto_growth".to_owned(),
        why: format!("{took}; a cache serves what is freed and asked for again."),
    })
}

/// Many requests went to the driver by their size.
pub(super) fn fewer_dedicated(case: &Case<'_>) -> Option<Advice> {
    let least = case
        .option("dedicated_min")
        .filter(|&least| least != "none")?;
    let (calls, took) = driver_time(case)?;
    let direct = case.arena.direct;
    // Each is an allocation and, mostly, a free.
    let most = is_part(direct, calls, 4);
    (most && case.strategy() != "passthrough").then(|| Advice {
        option: "dedicated_min",
        value: "none".to_owned(),
        why: format!(
            "{took}; {} of at least {least} had one of their own.",
            count(direct, "request")
        ),
    })
}

/// Memory was taken in many small steps.
pub(super) fn larger_chunks(case: &Case<'_>) -> Option<Advice> {
    let (calls, took) = driver_time(case)?;
    let misses = case.arena.misses;
    let by_need = case.option("auto_growth_chunk_size_in_mb") == Some("0");
    let many = misses >= 100 && is_part(misses, calls, 4);
    (case.strategy() == "auto_growth" && by_need && many).then(|| Advice {
        option: "auto_growth_chunk_size_in_mb",
        value: "64".to_owned(),
        why: format!("{took}; {misses} requests took a new chunk. Larger chunks are fewer."),
    })
}
