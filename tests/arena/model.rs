//! Random programs against an oracle that knows which bytes are live and which
//! the device still uses.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Watch;
use vramalloc_core::config::{
    Config, Decay, DeviceShare, Fill, FreeSync, GarbageThreshold, Rounding, Splitting, StrategyKind,
};
use vramalloc_core::error::FreeError;
use vramalloc_core::stats::{BlockState, Metric};

use crate::history;
use crate::rig::Rig;

const DEVICE: Bytes = Bytes::mib(512);

/// One step of a program.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    /// Frees one of the live blocks.
    Free(prop::sample::Index),
    /// Frees what may not be freed: an interior pointer of a live block.
    FreeInside(prop::sample::Index, u64),
    /// Work of so many nanoseconds on a live block.
    Launch(prop::sample::Index, u64),
    Pass(u64),
    Flush,
    Trim,
    BeginCapture,
    EndCapture,
    /// Somebody else takes so many MiB of the device.
    Occupy(u64),
    MemInfo,
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        1u64..4096,
        1u64..(1 << 20),
        1u64..(24 << 20),
        (0u64..24).prop_map(|n| n << 20),
        Just(512),
        Just((2 << 20) + 1),
        1u64..(700 << 20),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        12 => size().prop_map(Step::Allocate),
        10 => any::<Index>().prop_map(Step::Free),
        1 => (any::<Index>(), 1u64..4096).prop_map(|(which, offset)| Step::FreeInside(which, offset)),
        6 => (any::<Index>(), 0u64..20_000_000).prop_map(|(which, ns)| Step::Launch(which, ns)),
        2 => (0u64..30_000_000).prop_map(Step::Pass),
        1 => Just(Step::Flush),
        1 => Just(Step::Trim),
        1 => Just(Step::BeginCapture),
        2 => Just(Step::EndCapture),
        1 => (0u64..300).prop_map(Step::Occupy),
        1 => Just(Step::MemInfo),
    ]
}

fn rounding() -> impl Strategy<Value = Rounding> {
    let divisions = (0u32..7).prop_map(|power| 1 << power);
    let rounding = (divisions, prop::option::of(0u64..64));
    prop::option::of(rounding).prop_map(|rounding| match rounding {
        None => Rounding::default(),
        Some((divisions, bypass)) => Rounding {
            divisions: [divisions; 16],
            bypass: bypass.map(Bytes::mib),
        },
    })
}

fn config() -> impl Strategy<Value = Config> {
    let megabytes = |most: u64| prop::option::of((1..most).prop_map(Bytes::mib));
    let strategy = prop_oneof![
        2 => Just(StrategyKind::NaiveBestFit),
        3 => Just(StrategyKind::AutoGrowth),
        1 => Just(StrategyKind::Passthrough),
        3 => Just(StrategyKind::Mapped),
    ];
    let threshold = prop_oneof![
        3 => Just(GarbageThreshold::NextOpportunity),
        1 => (1u64..100).prop_map(|n| GarbageThreshold::Bytes(Bytes::mib(n))),
        1 => Just(GarbageThreshold::Pressure),
    ];
    let sizes = (
        megabytes(300),
        megabytes(300),
        megabytes(64),
        megabytes(40),
        megabytes(600),
    );
    let shares = (
        prop_oneof![Just(1.0), 0.0..1.0],
        prop_oneof![Just(0.92), 0.0..1.0],
    );
    let sync = prop_oneof![3 => Just(FreeSync::Deferred), 1 => Just(FreeSync::Strict)];
    let splitting = (megabytes(100), megabytes(60), megabytes(40)).prop_map(
        |(max_split, max_non_split_rounding, large_segment)| Splitting {
            max_split,
            max_non_split_rounding,
            large_segment,
        },
    );
    let rest = (megabytes(100), rounding(), splitting, policy());
    (strategy, sync, threshold, shares, sizes, rest).prop_map(
        |(strategy, free_sync, garbage_threshold, shares, sizes, rest)| Config {
            strategy,
            free_sync,
            garbage_threshold,
            garbage_fraction: shares.0,
            chunk_fraction: shares.1,
            initial_chunk: sizes.0,
            reallocate_chunk: sizes.1,
            auto_growth_chunk: sizes.2.unwrap_or(Bytes::ZERO),
            dedicated_min: sizes.3,
            limit: sizes.4.map(DeviceShare::Bytes),
            limbo_budget: rest.0.map(DeviceShare::Bytes),
            rounding: rest.1,
            splitting: rest.2,
            ..rest.3
        },
    )
}

/// What is done before and when memory is short.
fn policy() -> impl Strategy<Value = Config> {
    let threshold = prop_oneof![2 => Just(None), 1 => (0.01..0.99).prop_map(Some)];
    let decay = prop_oneof![
        3 => Just(Decay::Never),
        1 => (0u64..2).prop_map(|ms| Decay::After(Duration::from_millis(ms))),
    ];
    let seldom = || prop::bool::weighted(0.2);
    let fill = prop::option::weighted(0.1, any::<bool>()).prop_map(|fill| {
        fill.map(|whole_block| Fill {
            byte: 0xEF,
            whole_block,
        })
    });
    let finish = (fill, seldom());
    let patience = prop_oneof![9 => Just(0), 1 => Just(1u64)].prop_map(Duration::from_millis);
    let idle = (seldom(), seldom());
    (threshold, decay, idle, seldom(), patience, finish).prop_map(
        |(threshold, decay, idle, fail_at_limit, retry_time, finish)| Config {
            garbage_collection_threshold: threshold,
            decay,
            fail_at_limit,
            free_idle_chunk: idle.0,
            free_when_no_cache_hit: idle.1,
            retry_time,
            fill: finish.0,
            sync_after_alloc: finish.1,
            ..Config::default()
        },
    )
}

/// A live block.
#[derive(Copy, Clone)]
struct Held {
    request: u64,
    size: u64,
    /// What it takes of the device, as the statistics count.
    counted: u64,
}

/// What must be true, kept apart from the arena.
struct Oracle {
    rig: Rig,
    /// What the program holds, by where it starts.
    live: BTreeMap<u64, Held>,
    /// Whether a block is larger than its request only by less than a slot.
    exact: bool,
    /// Whether blocks are filled before they are handed out.
    fills: bool,
    /// Whether its memory is mapped.
    is_mapped: bool,
    capturing: bool,
    /// The most there was of what rises only when memory is handed out.
    peaks: [u64; HANDED_OUT.len()],
}

/// At most once in a step.
const HANDED_OUT: [Metric; 5] = [
    Metric::Allocation,
    Metric::AllocatedBytes,
    Metric::Active,
    Metric::ActiveBytes,
    Metric::RequestedBytes,
];

impl Oracle {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Allocate(request) => self.allocate(*request),
            Step::Free(which) => self.free(which),
            Step::FreeInside(which, offset) => {
                if let Some((address, size)) = self.pick(which)
                    && *offset < size
                {
                    let inside = Address::new(address + offset);
                    assert_eq!(self.rig.arena.free(inside), Err(FreeError::NotLive));
                }
            }
            Step::Launch(which, ns) => {
                // A captured launch does not run.
                if let Some((address, size)) = self.pick(which).filter(|_| !self.capturing) {
                    self.rig
                        .launch(Address::new(address), Bytes::new(size), *ns);
                }
            }
            Step::Pass(ns) => self.rig.gpu.pass(*ns),
            Step::Flush => self.rig.arena.flush(),
            Step::Trim => {
                self.rig.arena.trim();
            }
            Step::BeginCapture if !self.capturing => {
                self.rig.gpu.begin_capture(self.rig.stream);
                self.capturing = true;
            }
            Step::BeginCapture => {}
            Step::EndCapture => self.end_capture(),
            Step::Occupy(megabytes) => self.rig.gpu.occupy(0, Bytes::mib(*megabytes)),
            Step::MemInfo => {
                let info = self.rig.arena.mem_info().unwrap();
                assert!(info.free <= info.total && info.total <= DEVICE);
            }
        }
        self.check();
    }

    fn pick(&self, which: &prop::sample::Index) -> Option<(u64, u64)> {
        let n = self.live.len();
        (n > 0)
            .then(|| (self.live.iter().nth(which.index(n))).map(|(&a, held)| (a, held.request)))?
    }

    fn allocate(&mut self, request: u64) {
        let Ok(address) = self.rig.arena.allocate(Bytes::new(request)) else {
            return;
        };
        let start = address.get();
        assert_eq!(start % 512, 0, "alignment");
        let located = self.rig.arena.locate(address).unwrap();
        let size = located.size.get();
        // Above 1 MiB the driver takes pages.
        let pages = located.is_direct && size > 1 << 20;
        let counted = if pages {
            size.next_multiple_of(2 << 20)
        } else {
            size
        };
        assert!(size >= request && size.is_multiple_of(512));
        assert!(!self.exact || size - request < 512, "{size} for {request}");
        let below = self.live.range(..=start).next_back();
        let below = below.map(|(start, held)| start + held.size);
        let above = self.live.range(start..).next().map(|(&a, _)| a);
        assert!(
            below.is_none_or(|end| end <= start),
            "overlaps the block below"
        );
        assert!(
            above.is_none_or(|next| start + size <= next),
            "overlaps the block above"
        );
        let in_use = self.rig.gpu.in_use(address, Bytes::new(request));
        assert!(!in_use, "handed out before its fence");
        if self.fills && !self.capturing {
            let (filled, length, _) = *self.rig.gpu.fills().last().unwrap();
            assert!(filled == address && (request..=size).contains(&length.get()));
        }
        let held = Held {
            request,
            size,
            counted,
        };
        self.live.insert(start, held);
    }

    fn free(&mut self, which: &prop::sample::Index) {
        let Some((address, _)) = self.pick(which) else {
            return;
        };
        self.rig.arena.free(Address::new(address)).unwrap();
        self.live.remove(&address);
        let again = self.rig.arena.free(Address::new(address));
        if self.rig.is_ours(Address::new(address)) {
            assert_eq!(again, Err(FreeError::NotLive), "a double free");
        }
    }

    fn end_capture(&mut self) {
        if std::mem::take(&mut self.capturing) {
            assert!(
                self.rig.gpu.end_capture(self.rig.stream),
                "the capture was invalidated"
            );
        }
    }

    fn check(&mut self) {
        self.rig.arena.validate().unwrap();
        self.check_located();
        let stats = self.rig.arena.stats();
        for (peak, metric) in self.peaks.iter_mut().zip(HANDED_OUT) {
            let stat = stats.memory.all[metric];
            *peak = (*peak).max(stat.current);
            assert_eq!(stat.peak, *peak, "peak of {}", metric.name());
        }
        assert_eq!(
            stats.memory.all[Metric::Allocation].current,
            self.live.len() as u64
        );
        let live: u64 = self.live.values().map(|held| held.counted).sum();
        assert_eq!(stats.live.current, Bytes::new(live), "live bytes");
        let parts = [stats.live, stats.cached, stats.limbo].map(|gauge| gauge.current.get());
        assert_eq!(
            stats.reserved.current.get(),
            parts.iter().sum::<u64>(),
            "bytes conserved"
        );
        assert!(
            stats.reserved.current <= self.rig.gpu.used(0),
            "more than the driver gave"
        );
    }

    /// A live block is found from its last byte, and not from behind it; of a
    /// direct allocation only the start is known.
    fn check_located(&self) {
        let locate = |address| self.rig.arena.locate(Address::new(address));
        for (&start, held) in &self.live {
            let found = locate(start).unwrap();
            assert_eq!((found.block.get(), found.size.get()), (start, held.size));
            let end = start + held.size;
            let inside = (!found.is_direct).then_some(found);
            assert_eq!(locate(end - 1), inside, "the last byte of {start:x}");
            let behind = locate(end).map(|found| found.block.get());
            assert_eq!(behind, self.live.contains_key(&end).then_some(end));
        }
    }

    /// The snapshot has what is live, and fits the events before it.
    fn check_snapshot(&self) {
        let snapshot = self.rig.arena.snapshot().unwrap();
        if !self.is_mapped {
            history::holds_together(&snapshot);
        }
        let live: BTreeMap<u64, u64> = (snapshot.blocks.iter())
            .filter(|block| block.state == BlockState::Live)
            .map(|block| (block.address.get(), block.requested.get()))
            .collect();
        let held = self.live.iter().map(|(&start, held)| (start, held.request));
        assert_eq!(live, held.collect());
        let sizes = snapshot.segments.iter().map(|segment| segment.size.get());
        let reserved = self.rig.arena.stats().reserved.current.get();
        let sum = sizes.sum::<u64>();
        // Units that are mapped nowhere are of no segment.
        assert!(
            if self.is_mapped {
                sum <= reserved
            } else {
                sum == reserved
            },
            "{sum} {reserved}"
        );
    }

    fn end(mut self) {
        self.end_capture();
        for &address in self.live.keys() {
            self.rig.arena.free(Address::new(address)).unwrap();
        }
        self.rig.gpu.occupy(0, Bytes::ZERO);
        self.rig.ends_clean();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_agree_with_the_oracle(
        config in config(),
        events in prop_oneof![Just(1usize << 16), 1usize..60],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let rig = Rig::watched(&config, DEVICE, Watch { events, ..history::ALL });
        let exact = config.rounding == Rounding::default() && config.splitting.max_split.is_none();
        let mut oracle = Oracle {
            rig,
            live: BTreeMap::new(),
            exact,
            fills: config.fill.is_some(),
            is_mapped: config.strategy == StrategyKind::Mapped,
            capturing: false,
            peaks: [0; HANDED_OUT.len()],
        };
        for (number, step) in steps.iter().enumerate() {
            oracle.run(step);
            // Not always: it looks at everything that happened so far.
            if number % 8 == 0 || number + 1 == steps.len() {
                oracle.check_snapshot();
            }
        }
        oracle.end();
    }
}
