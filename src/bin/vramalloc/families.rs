//! The families of functions that take memory past the pool, in the words that
//! the report and the doctor have in common.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use vramalloc_core::stats::Family;

/// What a reader calls the family with this key; the key itself if a newer
/// library has a family that is not known here.
pub(super) fn called(key: &str) -> &str {
    Family::with_key(key).map_or(key, |family| family.taken_by())
}

/// The numbers of families that have one, summed up over the devices and with
/// the largest first: `3 by cudaMallocAsync, 1 by cuMemCreate`.
pub(super) fn in_words<'a>(
    numbers: impl Iterator<Item = (&'a str, u64)>,
    written: fn(u64) -> String,
) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (key, number) in numbers {
        let sum = sums.entry(called(key)).or_default();
        *sum = sum.saturating_add(number);
    }
    let mut sums: Vec<(&str, u64)> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
    sums.sort_by_key(|&(_, sum)| Reverse(sum));
    let parts: Vec<String> = (sums.into_iter())
        .map(|(name, sum)| format!("{} by {name}", written(sum)))
        .collect();
    parts.join(", ")
}
