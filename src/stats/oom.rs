//! Requests that failed for want of memory, and why.
//!
//! Invariant: of many events the first and the last are kept and the rest is
//! counted. Cost: some 2 KiB per event.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::StackId;
use crate::address::Bytes;

/// How many of the first and how many of the last events are kept.
const KEPT: usize = 8;

/// The number of groups of live blocks that an event holds.
const GROUPS: usize = 10;

/// What an arena holds at one moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Holdings {
    /// Bytes that the driver gave: live, cached and limbo together.
    pub reserved: Bytes,
    /// Bytes that the program holds.
    pub live: Bytes,
    /// Bytes that could be handed out.
    pub cached: Bytes,
    /// Bytes that the program freed while the device may still use them.
    pub limbo: Bytes,
    /// Bytes in chunks without a live block.
    pub idle: Bytes,
    /// The largest cached block.
    pub largest_cached: Bytes,
}

/// Live blocks that have a property in common.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Group<K> {
    /// The common property.
    pub key: K,
    /// The number of blocks.
    pub count: u64,
    /// Their bytes, in the sizes that were handed out.
    pub bytes: Bytes,
}

/// A request that failed for want of memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OomEvent {
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// The requested size.
    pub request: Bytes,
    /// The size that would have been handed out.
    pub rounded: Bytes,
    /// Whether the option `limit`, and not the device, was the reason.
    pub at_limit: bool,
    /// Free memory of the device at the end, if the driver said.
    pub driver_free: Option<Bytes>,
    /// Memory of the device, if the driver said.
    pub driver_total: Option<Bytes>,
    /// The option `limit` on this device, if it is set.
    pub limit: Option<Bytes>,
    /// Bytes reserved on the device by all arenas of the process.
    pub device_reserved: Bytes,
    /// The arena when the request could not be served from it, before the
    /// request waited for anything or gave anything back.
    pub before: Holdings,
    /// The arena when the request failed.
    pub after: Holdings,
    /// The sizes with the most live bytes, the largest sum first.
    pub sizes: Vec<Group<Bytes>>,
    /// The call stacks with the most live bytes, if call stacks are taken.
    pub stacks: Vec<Group<StackId>>,
    /// Where the request was made, if call stacks are taken.
    pub stack: StackId,
}

impl OomEvent {
    /// What the driver could still have given at the end: its free memory, up
    /// to the limit.
    #[must_use]
    pub fn obtainable(&self) -> Bytes {
        let free = self.driver_free.unwrap_or(Bytes::ZERO);
        self.limit.map_or(free, |limit| {
            free.min(limit.saturating_sub(self.device_reserved))
        })
    }

    /// All free memory at the end, in whatever pieces.
    #[must_use]
    pub fn free_in_sum(&self) -> Bytes {
        self.after.cached.saturating_add(self.obtainable())
    }

    /// The largest free piece at the end.
    #[must_use]
    pub fn largest_free(&self) -> Bytes {
        self.after.largest_cached.max(self.obtainable())
    }

    /// Whether the free memory was enough, but not in one piece.
    #[must_use]
    pub fn is_fragmented(&self) -> bool {
        self.free_in_sum() >= self.rounded
    }

    fn to_json(&self) -> Value {
        let optional = |bytes: Option<Bytes>| bytes.map(Bytes::get);
        json!({
            "time_us": self.time_us,
            "request_bytes": self.request.get(),
            "rounded_bytes": self.rounded.get(),
            "at_limit": self.at_limit,
            "driver_free_bytes": optional(self.driver_free),
            "driver_total_bytes": optional(self.driver_total),
            "limit_bytes": optional(self.limit),
            "device_reserved_bytes": self.device_reserved.get(),
            "before": holdings(&self.before),
            "after": holdings(&self.after),
            "free_in_sum_bytes": self.free_in_sum().get(),
            "largest_free_bytes": self.largest_free().get(),
            "fragmented": self.is_fragmented(),
            "live_sizes": self.sizes.iter().map(|group| json!({
                "size_bytes": group.key.get(),
                "count": group.count,
                "bytes": group.bytes.get(),
            })).collect::<Vec<_>>(),
            "live_stacks": self.stacks.iter().map(|group| json!({
                "stack": group.key.number(),
                "count": group.count,
                "bytes": group.bytes.get(),
            })).collect::<Vec<_>>(),
            "stack": self.stack.number(),
        })
    }
}

fn holdings(holdings: &Holdings) -> Value {
    json!({
        "reserved_bytes": holdings.reserved.get(),
        "live_bytes": holdings.live.get(),
        "cached_bytes": holdings.cached.get(),
        "limbo_bytes": holdings.limbo.get(),
        "idle_bytes": holdings.idle.get(),
        "largest_cached_bytes": holdings.largest_cached.get(),
    })
}

/// The groups with the most bytes. Each block is given by the key of its group
/// and its size.
#[must_use]
pub fn largest_groups<K: Copy + Ord>(mut blocks: Vec<(K, Bytes)>) -> Vec<Group<K>> {
    blocks.sort_unstable_by_key(|&(key, _)| key);
    let mut groups: Vec<Group<K>> = blocks
        .chunk_by(|(one, _), (other, _)| one == other)
        .filter_map(|blocks| {
            let add = |sum: Bytes, &(_, size): &(K, Bytes)| sum.saturating_add(size);
            Some(Group {
                key: blocks.first()?.0,
                count: u64::try_from(blocks.len()).unwrap_or(u64::MAX),
                bytes: blocks.iter().fold(Bytes::ZERO, add),
            })
        })
        .collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups.truncate(GROUPS);
    groups
}

/// The out-of-memory events of an arena.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OomLog {
    first: Vec<OomEvent>,
    last: VecDeque<OomEvent>,
    left_out: u64,
}

impl OomLog {
    /// Adds an event; drops the oldest of the last ones if there are too many.
    pub fn push(&mut self, event: OomEvent) {
        if self.first.len() < KEPT {
            return self.first.push(event);
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(event);
    }

    /// Adds the events of another arena, as if they had come later.
    pub(super) fn add(&mut self, other: &OomLog) {
        other.events().cloned().for_each(|event| self.push(event));
        self.left_out += other.left_out;
    }

    /// The number of events between the first and the last that were not kept.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The events that were kept, the oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &OomEvent> {
        self.first.iter().chain(&self.last)
    }

    /// The call stacks that the events name; one may come several times.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + '_ {
        self.events().flat_map(|event| {
            let groups = event.stacks.iter().map(|group| group.key);
            groups.chain([event.stack])
        })
    }

    pub(super) fn to_json(&self) -> Value {
        self.events().map(OomEvent::to_json).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> OomEvent {
        OomEvent {
            request: Bytes::new(number),
            ..OomEvent::default()
        }
    }

    #[test]
    fn the_first_and_the_last_are_kept() {
        let mut log = OomLog::default();
        (0..40).for_each(|number| log.push(event(number)));
        let kept: Vec<u64> = log.events().map(|event| event.request.get()).collect();
        assert_eq!(kept, (0..8).chain(32..40).collect::<Vec<_>>());
        assert_eq!(log.left_out(), 24);
    }

    #[test]
    fn groups_are_those_with_most_bytes() {
        let blocks = (1..=12u64).flat_map(|size| {
            let size = Bytes::new(size);
            std::iter::repeat_n((size, size), 2)
        });
        let groups = largest_groups(blocks.collect());
        let sizes: Vec<u64> = groups.iter().map(|group| group.key.get()).collect();
        assert_eq!(sizes, [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]);
        assert_eq!((groups[0].count, groups[0].bytes), (2, Bytes::new(24)));
        assert!(largest_groups::<Bytes>(Vec::new()).is_empty());
    }

    #[test]
    fn what_stood_in_the_way() {
        let mut event = OomEvent {
            rounded: Bytes::mib(30),
            driver_free: Some(Bytes::mib(50)),
            limit: Some(Bytes::mib(100)),
            device_reserved: Bytes::mib(90),
            ..OomEvent::default()
        };
        event.after.cached = Bytes::mib(25);
        event.after.largest_cached = Bytes::mib(9);
        assert_eq!(event.obtainable(), Bytes::mib(10));
        assert_eq!(event.free_in_sum(), Bytes::mib(35));
        assert_eq!(event.largest_free(), Bytes::mib(10));
        assert!(event.is_fragmented());
        event.after.cached = Bytes::mib(19);
        assert!(!event.is_fragmented());
    }
}
