//! Snapshots, the events before them, and requests that failed.

use std::cell::Cell;
use std::collections::BTreeMap;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::{StackWatch, Watch};
use vramalloc_core::config::{Config, DeviceShare, FreeSync, StrategyKind};
use vramalloc_core::ledger::Ledger;
use vramalloc_core::stats::{
    Action, ArenaStats, BlockState, Event, Group, SegmentKind, Snapshot, StackId,
};
use vramalloc_model::Call;

use crate::rig::{MS, Rig, plain};

const MIB: Bytes = Bytes::mib(1);
const DEVICE: Bytes = Bytes::gib(1);
const STRATEGIES: [StrategyKind; 4] = [
    StrategyKind::NaiveBestFit,
    StrategyKind::AutoGrowth,
    StrategyKind::Passthrough,
    StrategyKind::Mapped,
];

/// Everything is kept.
pub(crate) const ALL: Watch = Watch {
    events: 1 << 16,
    ooms: true,
    blocks: true,
    stacks: None,
    recording: None,
};

/// The memory of a device, going back in time.
#[derive(Default)]
struct Past {
    /// Size by start.
    segments: BTreeMap<u64, u64>,
    /// Requested size by start, and whether it was freed.
    blocks: BTreeMap<u64, (u64, bool)>,
}

impl Past {
    fn undo(&mut self, event: &Event) {
        let size = event.size.get();
        match event.action {
            Action::Alloc(at) => {
                assert_eq!(
                    self.blocks.remove(&at.get()),
                    Some((size, false)),
                    "{event:?}"
                );
            }
            Action::FreeRequested(at) => {
                let before = self.blocks.insert(at.get(), (size, false));
                assert_eq!(before, Some((size, true)), "{event:?}");
            }
            Action::FreeCompleted(at) => {
                let around = self.segments.range(..=at.get()).next_back();
                assert!(
                    around.is_some_and(|(a, s)| at.get() + size <= a + s),
                    "{event:?}"
                );
                let before = self.blocks.insert(at.get(), (size, true));
                assert_eq!(before, None, "{event:?}");
            }
            Action::SegmentAlloc(at) => {
                assert_eq!(self.segments.remove(&at.get()), Some(size), "{event:?}");
                let inside = self.blocks.range(at.get()..at.get() + size).next();
                assert_eq!(inside, None, "{event:?}");
            }
            Action::SegmentFree(at) => {
                let below = self.segments.range(..at.get() + size).next_back();
                assert!(below.is_none_or(|(a, s)| a + s <= at.get()), "{event:?}");
                self.segments.insert(at.get(), size);
            }
            Action::SegmentMap(at) => {
                let around = self.segments.range(..=at.get()).next_back();
                let (start, whole) = around.map(|(a, s)| (*a, *s)).unwrap();
                let (end, whole_end) = (at.get() + size, start + whole);
                assert!(end <= whole_end, "{event:?}");
                let inside = self.blocks.range(at.get()..end).next();
                assert_eq!(inside, None, "{event:?}");
                self.segments.remove(&start);
                for (from, to) in [(start, at.get()), (end, whole_end)] {
                    if from < to {
                        self.segments.insert(from, to - from);
                    }
                }
            }
            Action::SegmentUnmap(at) => {
                let below = self.segments.range(..at.get() + size).next_back();
                assert!(below.is_none_or(|(a, s)| a + s <= at.get()), "{event:?}");
                self.map(at.get(), size);
            }
            Action::Oom { .. } => {}
        }
    }

    /// What is mapped side by side is one.
    fn map(&mut self, at: u64, size: u64) {
        let size = size + self.segments.remove(&(at + size)).unwrap_or(0);
        match self.segments.range_mut(..at).next_back() {
            Some((start, before)) if start + *before == at => *before += size,
            _ => assert_eq!(self.segments.insert(at, size), None),
        }
    }
}

/// Segments do not overlap, their blocks tile them and are merged, and the
/// events lead back to an empty device unless the first were lost.
pub(crate) fn holds_together(snapshot: &Snapshot) {
    let mut past = Past::default();
    let mut end = 0;
    for segment in &snapshot.segments {
        assert!(segment.address.get() >= end, "{segment:?} overlaps");
        let mut at = segment.address;
        let mut was_free = false;
        for block in snapshot.blocks_of(segment) {
            assert_eq!(block.address, at, "a gap");
            assert!(block.requested <= block.size);
            let free = block.state == BlockState::Free;
            assert!(!(free && was_free), "neighbours that are free");
            assert_eq!(free, block.requested.is_zero(), "{block:?}");
            if !free {
                let limbo = block.state == BlockState::Limbo;
                past.blocks.insert(at.get(), (block.requested.get(), limbo));
            }
            was_free = free;
            at = at.checked_add(block.size).unwrap();
        }
        assert_eq!(at.offset_from(segment.address), segment.size, "a gap");
        let (start, size) = (segment.address.get(), segment.size.get());
        if segment.is_mapped {
            past.map(start, size);
        } else {
            past.segments.insert(start, size);
        }
        end = at.get();
    }
    let count: usize = snapshot.segments.iter().map(|s| s.block_count).sum();
    assert_eq!(count, snapshot.blocks.len(), "a block of no segment");
    assert!(snapshot.events.is_sorted_by_key(|event| event.time_us));
    snapshot
        .events
        .iter()
        .rev()
        .for_each(|event| past.undo(event));
    if snapshot.events_lost == 0 {
        assert!(past.segments.is_empty() && past.blocks.is_empty());
    }
}

fn words(snapshot: &Snapshot) -> Vec<&'static str> {
    snapshot
        .events
        .iter()
        .map(|event| event.action.word())
        .collect()
}

fn states(snapshot: &Snapshot, state: BlockState) -> Vec<(Address, Bytes)> {
    let blocks = snapshot.blocks.iter().filter(|block| block.state == state);
    blocks
        .map(|block| (block.address, block.requested))
        .collect()
}

#[test]
fn a_block_goes_through_its_states() {
    for strategy in STRATEGIES {
        let rig = Rig::watched(&plain(strategy), DEVICE, ALL);
        let request = Bytes::new(700);
        let block = rig.get(request);
        rig.launch(block, request, MS);
        let snapshot = rig.arena.snapshot().unwrap();
        holds_together(&snapshot);
        let (taken, given) = match strategy {
            StrategyKind::Mapped => ("segment_map", "segment_unmap"),
            _ => ("segment_alloc", "segment_free"),
        };
        assert_eq!(words(&snapshot), [taken, "alloc"], "{strategy:?}");
        assert_eq!(snapshot.events[1].size, request, "as it was asked for");
        let segment = snapshot.segments[0];
        assert_eq!(snapshot.events[0].size, segment.size);
        assert_eq!(segment.size, rig.arena.stats().reserved.current);
        assert_eq!(states(&snapshot, BlockState::Live), [(block, request)]);
        let kind = match strategy {
            StrategyKind::NaiveBestFit => SegmentKind::Large,
            StrategyKind::AutoGrowth | StrategyKind::Mapped => SegmentKind::Small,
            StrategyKind::Passthrough => SegmentKind::Direct,
        };
        assert_eq!(segment.kind, kind);
        rig.arena.free(block).unwrap();
        let snapshot = rig.arena.snapshot().unwrap();
        holds_together(&snapshot);
        if strategy == StrategyKind::Passthrough {
            let end = ["free_requested", "free_completed", "segment_free"];
            assert_eq!(words(&snapshot)[2..], end);
            continue;
        }
        assert_eq!(words(&snapshot)[2..], ["free_requested"]);
        assert_eq!(states(&snapshot, BlockState::Limbo), [(block, request)]);
        rig.gpu.pass(2 * MS);
        rig.arena.flush();
        let snapshot = rig.arena.snapshot().unwrap();
        holds_together(&snapshot);
        assert_eq!(words(&snapshot)[2..], ["free_requested", "free_completed"]);
        assert_eq!(snapshot.blocks.len(), 1);
        assert_eq!(
            states(&snapshot, BlockState::Free),
            [(segment.address, Bytes::ZERO)]
        );
        rig.arena.trim();
        let snapshot = rig.arena.snapshot().unwrap();
        holds_together(&snapshot);
        assert_eq!(words(&snapshot)[4..], [given]);
        assert!(snapshot.segments.is_empty());
    }
}

/// The device is done with what goes back to the driver, since the driver's
/// free waits.
#[test]
fn memory_that_goes_back_from_limbo_is_done_with_first() {
    let rig = Rig::watched(&plain(StrategyKind::AutoGrowth), DEVICE, ALL);
    // Not even a page is left with which the device could be waited for.
    let size = DEVICE;
    let block = rig.get(size);
    rig.launch(block, size, MS);
    rig.gpu.begin_capture(rig.stream);
    rig.arena.free(block).unwrap();
    let other = rig.get(size);
    let snapshot = rig.arena.snapshot().unwrap();
    holds_together(&snapshot);
    let events = [
        "free_requested",
        "free_completed",
        "segment_free",
        "segment_alloc",
        "alloc",
    ];
    assert_eq!(words(&snapshot)[2..], events);
    assert!(rig.gpu.end_capture(rig.stream));
    rig.arena.free(other).unwrap();
    rig.ends_clean();
}

#[test]
fn immediate_reuse_is_told_as_it_happens() {
    let config = Config {
        free_sync: FreeSync::Immediate,
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::watched(&config, DEVICE, ALL);
    rig.arena.free(rig.get(MIB)).unwrap();
    let snapshot = rig.arena.snapshot().unwrap();
    holds_together(&snapshot);
    assert_eq!(words(&snapshot)[2..], ["free_requested", "free_completed"]);
}

/// A context that ends takes all with it; what it held stays to be told, until
/// that is forgotten.
#[test]
fn the_end_of_a_context_is_kept() {
    for strategy in STRATEGIES {
        let rig = Rig::watched(&plain(strategy), DEVICE, ALL);
        let (_live, freed) = (rig.get(MIB), rig.get(Bytes::mib(9)));
        rig.launch(freed, MIB, MS);
        rig.arena.free(freed).unwrap();
        let (before, stats) = (rig.arena.snapshot().unwrap(), rig.arena.stats());
        rig.arena.retire();
        for snapshot in [rig.arena.snapshot(), rig.arena.events()] {
            let snapshot = snapshot.unwrap();
            holds_together(&snapshot);
            assert_eq!(snapshot.segments, before.segments, "{strategy:?}");
            assert_eq!(snapshot.blocks, before.blocks);
            assert_eq!(snapshot.events, before.events);
            assert!(snapshot.ended_us >= Some(snapshot.made_us) && !snapshot.forgotten);
        }
        assert_eq!(rig.arena.blocks_at_the_end(), before.blocks.len() as u64);
        let ended_us = rig.arena.stats().ended_us;
        assert!(ended_us.is_some());
        assert_eq!(rig.arena.stats(), ArenaStats { ended_us, ..stats });
        // A second end changes nothing.
        rig.arena.retire();
        assert_eq!(rig.arena.stats().ended_us, ended_us);

        rig.arena.forget_the_end();
        let snapshot = rig.arena.snapshot().unwrap();
        assert!(snapshot.blocks.is_empty() && snapshot.events.is_empty());
        assert!(snapshot.forgotten && snapshot.ended_us == ended_us);
        assert_eq!(snapshot.events_lost, before.events.len() as u64);
    }
}

/// Without the option only the numbers are.
#[test]
fn of_an_end_the_numbers_are_kept_in_any_case() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    rig.get(MIB);
    rig.arena.retire();
    assert_eq!(rig.arena.stats().live.current, MIB);
    assert!(rig.arena.snapshot().unwrap().forgotten);
    assert_eq!(rig.arena.blocks_at_the_end(), 0);
}

#[test]
fn the_newest_events_are_kept() {
    let rig = Rig::watched(
        &plain(StrategyKind::AutoGrowth),
        DEVICE,
        Watch { events: 10, ..ALL },
    );
    let blocks: Vec<_> = (0..20).map(|_| rig.get(MIB)).collect();
    for &block in &blocks[5..] {
        rig.arena.free(block).unwrap();
    }
    rig.arena.flush();
    let snapshot = rig.arena.snapshot().unwrap();
    holds_together(&snapshot);
    assert_eq!(snapshot.events.len(), 10);
    // Ten chunks of two blocks each, 20 requests, 15 frees.
    assert_eq!(snapshot.events_lost, 10 + 20 + 15 + 15 - 10);
    assert_eq!(words(&snapshot), ["free_completed"; 10]);
    assert_eq!(rig.arena.events().unwrap().events, snapshot.events);
}

#[test]
fn without_the_option_there_are_blocks_and_no_events() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    let block = rig.get(MIB);
    let snapshot = rig.arena.snapshot().unwrap();
    assert_eq!((snapshot.events.len(), snapshot.events_lost), (0, 0));
    assert_eq!(states(&snapshot, BlockState::Live), [(block, MIB)]);
    assert_eq!(rig.arena.events_kept(), 0);
}

#[test]
fn without_host_memory_for_them_there_are_no_events() {
    let watch = Watch {
        events: usize::MAX,
        ..ALL
    };
    let rig = Rig::watched(&plain(StrategyKind::AutoGrowth), DEVICE, watch);
    assert_eq!(rig.arena.events_kept(), 0);
    let block = rig.get(MIB);
    assert_eq!(rig.arena.snapshot().unwrap().events, []);
    rig.arena.free(block).unwrap();
    rig.ends_clean();
}

#[test]
fn a_failed_request_says_what_stood_in_the_way() {
    let config = Config {
        initial_chunk: Some(DEVICE),
        ..plain(StrategyKind::NaiveBestFit)
    };
    let rig = Rig::watched(&config, DEVICE, ALL);
    let blocks: Vec<_> = (0..64).map(|_| rig.get(Bytes::mib(16))).collect();
    for pair in blocks.chunks(2) {
        rig.arena.free(pair[0]).unwrap();
    }
    rig.arena.free(blocks[1]).unwrap();
    let request = Bytes::new((49 << 20) + 1);
    assert!(rig.arena.allocate(request).is_err());
    let log = rig.arena.ooms();
    let event = log.events().next().unwrap();
    assert_eq!((log.events().count(), log.left_out()), (1, 0));
    assert_eq!(event.request, request);
    assert_eq!(event.rounded, Bytes::new((49 << 20) + 512));
    assert_eq!((event.at_limit, event.limit), (false, None));
    assert_eq!(
        (event.driver_free, event.driver_total),
        (Some(Bytes::ZERO), Some(DEVICE))
    );
    assert_eq!(event.after.live, Bytes::mib(31 * 16));
    assert_eq!(event.after.cached, Bytes::mib(33 * 16));
    assert_eq!(event.after.largest_cached, Bytes::mib(48));
    assert_eq!(event.free_in_sum(), Bytes::mib(33 * 16));
    assert!(event.is_fragmented());
    let groups: Vec<_> = event
        .sizes
        .iter()
        .map(|g| (g.key, g.count, g.bytes))
        .collect();
    assert_eq!(groups, [(Bytes::mib(16), 31, Bytes::mib(31 * 16))]);
    let snapshot = rig.arena.snapshot().unwrap();
    holds_together(&snapshot);
    let last = snapshot.events.last().unwrap();
    assert_eq!(
        last.action,
        Action::Oom {
            device_free: Bytes::ZERO
        }
    );
    assert_eq!(last.size, event.rounded);
    assert!(event.time_us >= snapshot.events[0].time_us);
}

/// What is there when the request comes is told, also where all of it is given
/// back before the request fails. What could be had in no way leaves it there.
#[test]
fn what_was_there_before_the_ladder_is_told() {
    let limit = Some(DeviceShare::Bytes(Bytes::mib(512)));
    let config = Config {
        limit,
        ..plain(StrategyKind::AutoGrowth)
    };
    let rig = Rig::watched(&config, DEVICE, ALL);
    let (first, second) = (rig.get(Bytes::mib(200)), rig.get(Bytes::mib(100)));
    let kept = rig.get(Bytes::mib(1));
    rig.arena.free(first).unwrap();
    rig.arena.free(second).unwrap();
    for size in [512, 511] {
        assert!(rig.arena.allocate(Bytes::mib(size)).is_err());
    }
    let log = rig.arena.ooms();
    let [hopeless, event] = [0, 1].map(|n| log.events().nth(n).unwrap());
    assert_eq!(hopeless.after.reserved, hopeless.before.reserved);
    assert!(event.at_limit);
    assert_eq!(event.limit, limit.map(|_| Bytes::mib(512)));
    assert!(event.before.reserved >= Bytes::mib(300));
    assert!(event.before.idle >= Bytes::mib(300));
    assert!(event.after.reserved <= Bytes::mib(20));
    assert_eq!(event.after.idle, Bytes::ZERO);
    assert!(event.is_fragmented());
    rig.arena.free(kept).unwrap();
    rig.ends_clean();
}

/// A driver that does not say what it has, or an option that wants nothing
/// told, changes nothing else.
#[test]
fn a_failed_request_without_answers() {
    let rig = Rig::watched(&plain(StrategyKind::AutoGrowth), DEVICE, ALL);
    let code = vramalloc_core::Code::UNKNOWN;
    rig.gpu.fail_randomly(Call::MemInfo, 1000, code);
    assert!(rig.arena.allocate(Bytes::gib(2)).is_err());
    rig.gpu.fail_randomly(Call::MemInfo, 0, code);
    let log = rig.arena.ooms();
    assert_eq!(log.events().next().unwrap().driver_free, None);

    let watch = Watch {
        ooms: false,
        ..Watch::default()
    };
    let rig = Rig::watched(&plain(StrategyKind::AutoGrowth), DEVICE, watch);
    assert!(rig.arena.allocate(Bytes::gib(2)).is_err());
    assert_eq!(rig.arena.ooms().events().count(), 0);
    assert_eq!(rig.arena.stats().ooms, 1);
    // How much there is at all is asked once.
    assert_eq!(rig.arena.driver_calls().mem_info.calls, 1);
}

fn this_place() -> StackId {
    StackId::new(7)
}

/// Counts in a ledger of its own.
fn stacks(samples: Option<fn(Bytes) -> bool>, distance: Bytes) -> Watch {
    Watch {
        stacks: Some(StackWatch {
            take: this_place,
            samples,
            ledger: Box::leak(Box::new(Ledger::new(distance))),
            asked_by: "stacks",
        }),
        ..ALL
    }
}

#[test]
fn call_stacks_go_where_the_blocks_go() {
    let this = StackId::new(7);
    for strategy in STRATEGIES {
        let watch = stacks(None, Bytes::ZERO);
        let ledger = watch.stacks.unwrap().ledger;
        let rig = Rig::watched(&plain(strategy), DEVICE, watch);
        let (live, freed) = (rig.get(MIB), rig.get(Bytes::mib(9)));
        rig.launch(freed, MIB, MS);
        rig.arena.free(freed).unwrap();
        assert!(rig.arena.allocate(Bytes::gib(2)).is_err());
        let snapshot = rig.arena.snapshot().unwrap();
        for block in &snapshot.blocks {
            let known = block.state != BlockState::Free;
            assert_eq!(block.stack == this, known, "{block:?}");
        }
        for event in &snapshot.events {
            let asks = matches!(
                event.action,
                Action::Alloc(_)
                    | Action::SegmentAlloc(_)
                    | Action::SegmentMap(_)
                    | Action::Oom { .. }
            );
            assert_eq!(event.stack == this, asks, "{event:?}");
        }
        let log = rig.arena.ooms();
        let event = log.events().next().unwrap();
        assert_eq!(event.stack, this);
        let group = event.stacks[0];
        assert_eq!((group.key, group.count, group.bytes), (this, 1, MIB));
        let sums = ledger.sums();
        let of = |groups: &[Group<StackId>]| (groups[0].key, groups[0].count, groups[0].bytes);
        assert_eq!(of(&sums.live), (this, 1, MIB));
        // A driver allocation is whole pages.
        let whole = Bytes::mib(if strategy == StrategyKind::Passthrough {
            11
        } else {
            10
        });
        assert_eq!(of(&sums.peak), (this, 2, whole));
        assert_eq!(of(&sums.failed), (this, 1, Bytes::gib(2)));
        assert!(rig.arena.not_kept().is_some());
        rig.arena.free(live).unwrap();
        assert!(ledger.sums().live.is_empty());
        let _lost = rig.get(MIB);
        rig.arena.retire();
        assert!(ledger.sums().live.is_empty(), "it went with its context");
    }
}

/// Threads keep what is not in a sample, and the sums are those of the sample alone.
#[test]
fn blocks_beside_a_sample_are_kept() {
    // Every fourth block of 4 KiB, and none of other sizes.
    fn fourth(request: Bytes) -> bool {
        thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
        let is_asked = request == Bytes::kib(4);
        COUNT.with(|count| {
            count.set(count.get() + u32::from(is_asked));
            is_asked && count.get().is_multiple_of(4)
        })
    }
    let watch = Watch {
        events: 0,
        ..stacks(Some(fourth), Bytes::new(1))
    };
    let ledger = watch.stacks.unwrap().ledger;
    let rig = Rig::watched(&plain(StrategyKind::AutoGrowth), DEVICE, watch);
    assert_eq!(rig.arena.not_kept(), None);
    let mut kept = 0;
    for _ in 0..30 {
        let held: Vec<_> = (0..100).map(|_| rig.get(Bytes::kib(4))).collect();
        let live: u64 = ledger.sums().live.iter().map(|group| group.count).sum();
        assert_eq!(live, 25);
        for at in held {
            if rig.arena.free_kept(at) {
                kept += 1;
            } else {
                rig.arena.free(at).unwrap();
            }
        }
        assert!(ledger.sums().live.is_empty());
        rig.get(Bytes::mib(3));
    }
    assert!((1000..=30 * 75).contains(&kept), "{kept}");
    let stats = rig.arena.stats();
    assert_eq!(stats.live.current, Bytes::mib(90));
    assert_eq!(stats.hits + stats.misses, 30 * 101);
}
