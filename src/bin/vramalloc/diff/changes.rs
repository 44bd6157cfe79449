//! The differences of two sides, those that changed most first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::read::{RankName, Side, StackHeld};

/// A quantity on both sides, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Change<What> {
    #[serde(flatten)]
    pub(super) what: What,
    pub(super) before: u64,
    pub(super) after: u64,
}

/// A peak of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct PeakOf {
    /// Empty where a file is compared with a file.
    pub(super) rank: String,
    pub(super) device: u64,
    pub(super) of: &'static str,
    /// Whether it is over what was allowed.
    pub(super) is_over: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct OwnerOf {
    pub(super) owner: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct SizeOf {
    /// The largest request of the class; `None`: no bound.
    pub(super) up_to_bytes: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct StackOf {
    pub(super) stack: String,
}

/// See the module. Of all but the peaks there is only what changed.
#[derive(Serialize)]
pub(super) struct Changes {
    pub(super) before: SideName,
    pub(super) after: SideName,
    /// Whether more requests failed for want of memory, where that is judged.
    pub(super) fails_more: bool,
    pub(super) peaks: Vec<Change<PeakOf>>,
    pub(super) owners: Vec<Change<OwnerOf>>,
    pub(super) sizes: Vec<Change<SizeOf>>,
    /// `None` if a file has no call stacks.
    pub(super) stacks: Option<Vec<Change<StackOf>>>,
}

/// A side by its name, and the programs that ran.
#[derive(Serialize)]
pub(super) struct SideName {
    pub(super) name: String,
    pub(super) programs: BTreeSet<String>,
    /// Files that were written before the end of their process.
    pub(super) unfinished: u64,
    /// Requests that failed for want of memory.
    pub(super) out_of_memory: u64,
    /// By how many processes more than ranks the peaks are sums.
    #[serde(skip)]
    pub(super) beside: u64,
}

impl Changes {
    pub(super) fn between(before: &Side, after: &Side) -> Changes {
        let named = |side: &Side| SideName {
            name: side.name.clone(),
            programs: side.programs.clone(),
            unfinished: side.unfinished,
            out_of_memory: side.ooms,
            beside: side.files.saturating_sub(side.ranks()),
        };
        let stacks = before.stacks.as_ref().zip(after.stacks.as_ref());
        Changes {
            before: named(before),
            after: named(after),
            fails_more: false,
            peaks: peaks(before, after),
            owners: owners(before, after),
            sizes: changed(&before.sizes, &after.sizes, |&largest| SizeOf {
                up_to_bytes: (largest != u64::MAX).then_some(largest),
            }),
            stacks: stacks.map(|(one, other)| {
                let bytes = |stacks: &BTreeMap<String, StackHeld>| {
                    let bytes = stacks.iter().map(|(key, held)| (key.clone(), held.bytes));
                    bytes.collect::<BTreeMap<String, u64>>()
                };
                changed(&bytes(one), &bytes(other), |key| StackOf {
                    stack: (other.get(key).or_else(|| one.get(key)))
                        .map_or_else(String::new, |held| held.text.clone()),
                })
            }),
        }
    }

    /// Marks the peaks that are over what is allowed. A program whose requests fail has
    /// lower peaks, and is over as well.
    pub(super) fn judge(&mut self, is_over: impl Fn(u64, u64) -> bool) {
        self.fails_more = self.after.out_of_memory > self.before.out_of_memory;
        for peak in &mut self.peaks {
            peak.what.is_over = is_over(peak.before, peak.after);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.fails_more || self.peaks.iter().any(|peak| peak.what.is_over)
    }

    pub(super) fn to_json(&self) -> String {
        // Texts and numbers can always be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Where the library of one side did not tell of owners, nothing is known of a change.
fn owners(before: &Side, after: &Side) -> Vec<Change<OwnerOf>> {
    if before.owners.is_empty() || after.owners.is_empty() {
        return Vec::new();
    }
    changed(&before.owners, &after.owners, |owner| OwnerOf {
        owner: owner.clone(),
    })
}

/// The peaks of each device.
fn peaks(before: &Side, after: &Side) -> Vec<Change<PeakOf>> {
    let devices: BTreeSet<&(RankName, u64)> =
        before.peaks.keys().chain(after.peaks.keys()).collect();
    let mut peaks = Vec::new();
    for key in devices {
        let of = |side: &Side| side.peaks.get(key).copied().unwrap_or_default();
        let (one, other) = (of(before), of(after));
        let mut peak = |of, before, after| {
            let what = PeakOf {
                rank: key.0.text.clone(),
                device: key.1,
                of,
                is_over: false,
            };
            peaks.push(Change {
                what,
                before,
                after,
            });
        };
        for (name, before, after) in [
            ("live", one.live, other.live),
            ("reserved", one.reserved, other.reserved),
            ("past the pool", one.past, other.past),
        ] {
            // A device from which nothing of a kind was taken has no peak.
            if before > 0 || after > 0 {
                peak(name, before, after);
            }
        }
    }
    peaks
}

/// What differs, the largest difference first.
fn changed<Key: Ord, What>(
    before: &BTreeMap<Key, u64>,
    after: &BTreeMap<Key, u64>,
    what: impl Fn(&Key) -> What,
) -> Vec<Change<What>> {
    let keys: BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
    let of = |side: &BTreeMap<Key, u64>, key| side.get(key).copied().unwrap_or(0);
    let mut changes: Vec<Change<What>> = (keys.into_iter())
        .filter(|key| of(before, key) != of(after, key))
        .map(|key| Change {
            what: what(key),
            before: of(before, key),
            after: of(after, key),
        })
        .collect();
    changes.sort_by_key(|change| Reverse(change.before.abs_diff(change.after)));
    changes
}
