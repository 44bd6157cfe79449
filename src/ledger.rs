//! Which call stack holds how much.
//!
//! Owns a sum for each call stack, over all arenas of the process that are given
//! the same ledger: what is live, what was live when all of it together was at
//! its highest, and what failed. Invariant: the peak's sums are those of one
//! moment. They are not copied when a peak is reached: a sum is, before it
//! changes for the first time after the peak. Cost: a spin lock and a dozen
//! instructions for an allocation or a free; 80 bytes a stack.
//!
//! Where only a sample of the requests has stacks, each stands for as many as its
//! size makes it likely to have been left out: sums of sizes and of blocks are
//! right on the average, whatever the sizes are.

mod sample;

use std::collections::BTreeMap;
use std::fmt;

use crate::address::Bytes;
use crate::heap::table::Table;
use crate::stats::{Group, StackId, StackSums};
use crate::sync::Lock;

pub use sample::Sampler;
use sample::chance;

/// The most call stacks that are told of in a request that failed.
const MOST_GROUPS: usize = 10;

/// Blocks are counted in such parts, since one of a sample stands for some and a
/// fraction.
const PARTS: u64 = 256;

/// Blocks and their bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
struct Held {
    parts: u64,
    bytes: u64,
}

impl Held {
    fn add(&mut self, more: Held) {
        self.parts = self.parts.saturating_add(more.parts);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    fn sub(&mut self, less: Held) {
        self.parts = self.parts.saturating_sub(less.parts);
        self.bytes = self.bytes.saturating_sub(less.bytes);
    }

    fn group(self, key: StackId) -> Option<Group<StackId>> {
        let is_any = self != Held::default();
        is_any.then_some(Group {
            key,
            count: self.parts.saturating_add(PARTS / 2) / PARTS,
            bytes: Bytes::new(self.bytes),
        })
    }
}

/// What a stack has.
#[derive(Copy, Clone, Default)]
struct Entry {
    live: Held,
    /// As of the peak, if `live` has changed since.
    at_peak: Held,
    /// How many peaks there were when `live` changed last.
    peaks: u64,
    failed: Held,
}

struct State {
    /// By the number of the stack, from 1; 0: none was to be had.
    entries: Table<Entry>,
    live: u64,
    peak: u64,
    /// How often a new peak was reached.
    peaks: u64,
    /// The entries that were ever used are before this one.
    most: usize,
}

/// See the module.
pub struct Ledger {
    state: Lock<State>,
    /// The mean distance of samples; zero: every request has its stack.
    distance: Bytes,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Ledger {
    /// Nothing has a stack yet. `distance`: so many bytes lie between two samples,
    /// on the average; zero where every request has its stack.
    #[must_use]
    pub fn new(distance: Bytes) -> Ledger {
        Ledger {
            state: Lock::new(State {
                entries: Table::new(Entry::default()),
                live: 0,
                peak: 0,
                peaks: 0,
                most: 0,
            }),
            distance,
        }
    }

    /// The program got a block of `size` bytes for a request.
    pub(crate) fn took(&self, stack: StackId, request: Bytes, size: Bytes) {
        if let Some(held) = self.weigh(stack, request, size) {
            let state = &mut *self.state.lock();
            state.live(stack).add(held);
            state.live = state.live.saturating_add(held.bytes);
            if state.live > state.peak {
                state.peak = state.live;
                state.peaks += 1;
            }
        }
    }

    /// It has it no longer.
    pub(crate) fn gave(&self, stack: StackId, request: Bytes, size: Bytes) {
        if let Some(held) = self.weigh(stack, request, size) {
            let state = &mut *self.state.lock();
            state.live(stack).sub(held);
            state.live = state.live.saturating_sub(held.bytes);
        }
    }

    /// A request failed. Each of them has its stack.
    pub(crate) fn failed(&self, stack: StackId, request: Bytes) {
        let held = Held {
            parts: PARTS,
            bytes: request.get(),
        };
        self.state.lock().entry(stack).failed.add(held);
    }

    /// The stacks that hold most of these blocks, given by their sizes.
    pub(crate) fn groups_of(&self, blocks: &[(Bytes, StackId)]) -> Vec<Group<StackId>> {
        let mut held = BTreeMap::<StackId, Held>::new();
        for &(size, stack) in blocks {
            let weight = self.weigh(stack, size, size);
            if let (Some(weight), Some(_)) = (weight, stack.number()) {
                held.entry(stack).or_default().add(weight);
            }
        }
        let mut groups = sorted(
            held.into_iter()
                .filter_map(|(stack, held)| held.group(stack)),
        );
        groups.truncate(MOST_GROUPS);
        groups
    }

    /// What a block stands for; nothing where its request was left out.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, and a conversion that stops at the largest number"
    )]
    fn weigh(&self, stack: StackId, request: Bytes, size: Bytes) -> Option<Held> {
        if stack == StackId::LEFT_OUT {
            return None;
        }
        if self.distance.is_zero() {
            return Some(Held {
                parts: PARTS,
                bytes: size.get(),
            });
        }
        let weight = 1.0 / chance(request, self.distance);
        Some(Held {
            parts: (weight * PARTS as f64 + 0.5) as u64,
            bytes: (weight * size.get() as f64 + 0.5) as u64,
        })
    }

    /// All sums, each list with the largest first; nothing where the host has no
    /// memory for them.
    #[must_use]
    pub fn sums(&self) -> StackSums {
        let mut entries: Vec<Entry> = Vec::new();
        let peaks = loop {
            let most = self.state.lock().most;
            // With some that come meanwhile.
            if entries.try_reserve_exact(most + most / 8 + 64).is_err() {
                return StackSums::default();
            }
            let state = self.state.lock();
            if state.most <= entries.capacity() {
                entries.extend(state.entries.iter().take(state.most));
                break state.peaks;
            }
        };
        let list = |of: fn(&Entry, u64) -> Held| {
            sorted(entries.iter().enumerate().filter_map(|(at, entry)| {
                let number = u32::try_from(at).ok()?.checked_sub(1);
                let stack = number.map_or(StackId::NONE, StackId::new);
                of(entry, peaks).group(stack)
            }))
        };
        StackSums {
            live: list(|entry, _| entry.live),
            peak: list(Entry::at_peak),
            failed: list(|entry, _| entry.failed),
        }
    }
}

/// The largest first.
fn sorted(groups: impl Iterator<Item = Group<StackId>>) -> Vec<Group<StackId>> {
    let mut groups: Vec<Group<StackId>> = groups.collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups
}

impl Entry {
    /// What was live at the last of so many peaks.
    fn at_peak(&self, peaks: u64) -> Held {
        if self.peaks == peaks {
            self.at_peak
        } else {
            self.live
        }
    }
}

impl State {
    fn entry(&mut self, stack: StackId) -> &mut Entry {
        let number = stack.number().map_or(0, |number| number.saturating_add(1));
        self.most = self.most.max(number as usize + 1);
        self.entries.make(number)
    }

    /// What is live of a stack, to be changed.
    fn live(&mut self, stack: StackId) -> &mut Held {
        let peaks = self.peaks;
        let entry = self.entry(stack);
        if entry.peaks != peaks {
            (entry.at_peak, entry.peaks) = (entry.live, peaks);
        }
        &mut entry.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: Bytes = Bytes::mib(1);

    fn bytes(groups: &[Group<StackId>]) -> Vec<(Option<u32>, u64, u64)> {
        let one =
            |group: &Group<StackId>| (group.key.number(), group.count, group.bytes.get() >> 20);
        groups.iter().map(one).collect()
    }

    #[test]
    fn the_peak_is_that_of_all_stacks_together() {
        let ledger = Ledger::new(Bytes::ZERO);
        let (one, two) = (StackId::new(0), StackId::new(300));
        let took = |stack, mib| ledger.took(stack, Bytes::mib(mib), Bytes::mib(mib));
        let gave = |stack, mib| ledger.gave(stack, Bytes::mib(mib), Bytes::mib(mib));
        took(one, 5);
        took(two, 3);
        took(StackId::NONE, 1);
        gave(one, 5);
        // Alone it holds more than ever, and all together less.
        took(two, 4);
        let sums = ledger.sums();
        assert_eq!(bytes(&sums.live), [(Some(300), 2, 7), (None, 1, 1)]);
        let first = [(Some(0), 1, 5), (Some(300), 1, 3), (None, 1, 1)];
        assert_eq!(bytes(&sums.peak), first);
        took(one, 2);
        let second = [(Some(300), 2, 7), (Some(0), 1, 2), (None, 1, 1)];
        assert_eq!(bytes(&ledger.sums().peak), second);
        ledger.failed(two, Bytes::mib(9));
        gave(two, 3);
        gave(one, 2);
        let sums = ledger.sums();
        assert_eq!(bytes(&sums.peak), second);
        assert_eq!(bytes(&sums.live), [(Some(300), 1, 4), (None, 1, 1)]);
        assert_eq!(bytes(&sums.failed), [(Some(300), 1, 9)]);
    }

    #[test]
    fn of_a_sample_the_sums_are_right_on_the_average() {
        let ledger = Ledger::new(Bytes::kib(512));
        let mut sampler = Sampler::seeded(1);
        let sizes = [Bytes::new(512), Bytes::kib(100), MIB, Bytes::mib(20)];
        let (mut taken, mut requests) = (0_u64, 0_u64);
        for round in 0..40_000 {
            let size = sizes[round % 4];
            requests += 1;
            if sampler.takes(size, Bytes::kib(512)) {
                taken += 1;
                ledger.took(StackId::new(u32::try_from(round % 4).unwrap()), size, size);
            } else {
                ledger.took(StackId::LEFT_OUT, size, size);
            }
        }
        // All of the large ones, most of those of 1 MiB, few of the others.
        assert!((20_000..22_500).contains(&taken), "{taken} of {requests}");
        let sums = ledger.sums();
        for (number, size) in sizes.iter().enumerate() {
            let is_it = |group: &&Group<StackId>| group.key.number() == u32::try_from(number).ok();
            let group = sums.live.iter().find(is_it).unwrap();
            let expected = size.get() * 10_000;
            // Some ten of the smallest are taken, each for a thousand.
            let tolerance = if number == 0 { expected } else { expected / 15 };
            assert!(
                group.bytes.get().abs_diff(expected) < tolerance,
                "{group:?}"
            );
            assert!(
                group.count.abs_diff(10_000) < tolerance / size.get(),
                "{group:?}"
            );
        }
    }

    #[test]
    fn what_was_taken_with_a_weight_goes_with_it() {
        let ledger = Ledger::new(Bytes::kib(512));
        let sizes = [(700, 1024), (123_457, 123_904), (1 << 20, 1 << 20)];
        let sizes = sizes.map(|(request, size)| (Bytes::new(request), Bytes::new(size)));
        for stack in [StackId::new(1), StackId::NONE] {
            sizes
                .iter()
                .for_each(|&(request, size)| ledger.took(stack, request, size));
            sizes
                .iter()
                .for_each(|&(request, size)| ledger.gave(stack, request, size));
        }
        assert!(ledger.sums().live.is_empty());
    }
}
