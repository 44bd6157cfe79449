//! Random programs over mapped memory, against an oracle: what a block holds stays, no
//! unit leaves under work, and whatever fails, nothing is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vramalloc_core::Arena;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, Decay, FreeSync, StrategyKind, ThreadCacheSize};
use vramalloc_core::error::{AllocError, Code};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_model::{Call, Gpu, Settings, SimDriver, StreamId};

/// One step of a program, or of what goes on around it.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
    /// Work of so many nanoseconds on a live block.
    Launch(prop::sample::Index, u64),
    Pass(u64),
    Flush,
    Trim,
    GiveBackIdle,
    GiveBackWhenQuiet,
    GiveRoom(u64),
    BeginCapture,
    EndCapture,
    /// Somebody else takes so many MiB of the device.
    Occupy(u64),
    /// In MiB; 0 is none.
    Limit(u64),
    MemInfo,
    /// From such a byte of a block on, so many were given to others.
    Exported(prop::sample::Index, u64, u64),
    /// The n-th of such calls fails, for want of memory or not.
    Fail(usize, u64, bool),
    /// Of a thousand calls of this kind, so many fail.
    FailRandomly(usize, u64, bool),
    EndFaults,
    AdmitAll,
    FreeAll,
}

/// What fails.
const CALLS: [Call; 7] = [
    Call::Reserve,
    Call::Create,
    Call::Map,
    Call::Admit,
    Call::Unmap,
    Call::Release,
    Call::Alloc,
];

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        1u64..4096,
        1u64..(1 << 20),
        1u64..(24 << 20),
        (1u64..24).prop_map(|n| n << 20),
        (1u64..8).prop_map(|n| n << 21),
        Just((2 << 20) + 1),
        1u64..(300 << 20),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        16 => size().prop_map(Step::Allocate),
        12 => any::<Index>().prop_map(Step::Free),
        6 => (any::<Index>(), 0u64..20_000_000).prop_map(|(which, ns)| Step::Launch(which, ns)),
        2 => (0u64..30_000_000).prop_map(Step::Pass),
        1 => Just(Step::Flush),
        1 => Just(Step::Trim),
        1 => Just(Step::GiveBackIdle),
        1 => Just(Step::GiveBackWhenQuiet),
        1 => (0u64..20).prop_map(Step::GiveRoom),
        1 => Just(Step::BeginCapture),
        2 => Just(Step::EndCapture),
        1 => (0u64..300).prop_map(Step::Occupy),
        1 => prop_oneof![Just(0u64), 1u64..400].prop_map(Step::Limit),
        1 => Just(Step::MemInfo),
        1 => (any::<Index>(), 0u64..4096, 1u64..(8<<20)).prop_map(|(which, from, size)| Step::Exported(which, from, size)),
        2 => (0usize..7, 1u64..6, any::<bool>()).prop_map(|(call, n, oom)| Step::Fail(call, n, oom)),
        1 => (0usize..7, prop_oneof![Just(1000u64), 1u64..1000], any::<bool>()).prop_map(|(call, n, oom)| Step::FailRandomly(call, n, oom)),
        1 => Just(Step::EndFaults),
        1 => Just(Step::AdmitAll),
        1 => Just(Step::FreeAll),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let seldom = || prop::bool::weighted(0.15);
    (
        prop_oneof![3 => Just(FreeSync::Deferred), 1 => Just(FreeSync::Strict)],
        (seldom(), seldom(), seldom()),
        any::<bool>(),
        prop_oneof![3 => Just(Decay::Never), 1 => Just(Decay::After(Duration::from_millis(0)))],
        prop_oneof![3 => Just(None), 1 => (0.01..0.99).prop_map(Some)],
    )
        .prop_map(
            |(free_sync, (idle, hit, at_limit), caches, decay, gc)| Config {
                strategy: StrategyKind::Mapped,
                free_sync,
                free_idle_chunk: idle,
                free_when_no_cache_hit: hit,
                fail_at_limit: at_limit,
                decay,
                garbage_collection_threshold: gc,
                thread_cache: if caches {
                    Config::default().thread_cache
                } else {
                    ThreadCacheSize::Most(Bytes::ZERO)
                },
                ..Config::default()
            },
        )
}

/// What must be true, kept apart from the arena.
struct Oracle {
    gpu: Gpu,
    arena: Arena<SimDriver>,
    quota: Arc<Quota>,
    streams: Vec<StreamId>,
    /// The size of each block and what was written to it, by where it starts.
    live: BTreeMap<u64, (u64, u64)>,
    tag: u64,
    capturing: bool,
    /// Calls may fail.
    faults: bool,
    total: Bytes,
    /// Memory may have been lost, since the driver did not take it back.
    lossy: bool,
    occupied: u64,
    page: u64,
}

impl Oracle {
    fn new(config: &Config, settings: Settings) -> Oracle {
        let total = settings.memory;
        let page = settings.page.get();
        let gpu = Gpu::new(settings);
        let driver = gpu.driver(0).unwrap();
        let context = driver.context();
        let streams = vec![
            gpu.stream(context, false).unwrap(),
            gpu.stream(context, true).unwrap(),
            gpu.stream(context, false).unwrap(),
            gpu.legacy(context).unwrap(),
        ];
        let quota = Arc::new(Quota::new(Bytes::MAX));
        let arena = Arena::new(
            ArenaId(0),
            driver,
            config,
            Arc::new(PageMap::new()),
            Arc::clone(&quota),
        );
        Oracle {
            gpu,
            arena,
            quota,
            streams,
            live: BTreeMap::new(),
            tag: 0,
            capturing: false,
            faults: false,
            total,
            lossy: false,
            occupied: 0,
            page,
        }
    }

    fn pick(&self, which: &prop::sample::Index) -> Option<(u64, u64, u64)> {
        let n = self.live.len();
        (n > 0).then(|| {
            let (&a, &(s, t)) = self.live.iter().nth(which.index(n)).unwrap();
            (a, s, t)
        })
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Allocate(n) => self.allocate(*n),
            Step::Free(which) => {
                if let Some((a, _, _)) = self.pick(which) {
                    self.free(a);
                }
            }
            Step::FreeAll => {
                let all: Vec<u64> = self.live.keys().copied().collect();
                all.into_iter().for_each(|a| self.free(a));
            }
            Step::Launch(which, ns) => {
                if let Some((a, size, s)) = self.pick(which).filter(|_| !self.capturing) {
                    let stream = self.streams[s as usize % self.streams.len()];
                    self.gpu
                        .launch(stream, *ns, &[(Address::new(a), Bytes::new(size))])
                        .unwrap();
                }
            }
            Step::Pass(ns) => self.gpu.pass(*ns),
            Step::Flush => self.arena.flush(),
            Step::Trim => drop(self.arena.trim()),
            Step::GiveBackIdle => drop(self.arena.give_back_idle()),
            Step::GiveBackWhenQuiet => drop(self.arena.give_back_when_quiet()),
            Step::GiveRoom(ms) => drop(self.arena.give_room(Duration::from_millis(*ms))),
            Step::BeginCapture if !self.capturing => {
                self.gpu.begin_capture(self.streams[0]);
                self.capturing = true;
            }
            Step::BeginCapture => {}
            Step::EndCapture => self.end_capture(),
            Step::Occupy(mib) => {
                self.occupied = mib << 20;
                self.gpu.occupy(0, Bytes::mib(*mib));
            }
            Step::Limit(0) => self.quota.set_limit(Bytes::MAX),
            Step::Limit(mib) => self.quota.set_limit(Bytes::mib(*mib)),
            Step::MemInfo => {
                let info = self.arena.mem_info().unwrap();
                assert!(info.free <= info.total && info.total <= self.total);
            }
            Step::Exported(which, offset, size) => {
                if let Some((a, _, _)) = self.pick(which) {
                    let at = Address::new(a + offset);
                    assert!(self.arena.begin_export(at));
                    self.arena.end_export(at, Bytes::new(*size));
                }
            }
            Step::Fail(call, n, oom) => {
                let code = if *oom {
                    Code::OUT_OF_MEMORY
                } else {
                    Code::UNKNOWN
                };
                self.faults = true;
                self.lossy |= matches!(
                    CALLS[*call],
                    Call::Unmap | Call::Release | Call::Reserve | Call::Admit
                );
                self.gpu.fail_nth(CALLS[*call], *n, code);
            }
            Step::FailRandomly(call, n, oom) => {
                let code = if *oom {
                    Code::OUT_OF_MEMORY
                } else {
                    Code::UNKNOWN
                };
                self.faults = true;
                self.lossy |= matches!(
                    CALLS[*call],
                    Call::Unmap | Call::Release | Call::Reserve | Call::Admit
                );
                self.gpu.fail_randomly(CALLS[*call], *n, code);
            }
            Step::EndFaults => {
                self.faults = false;
                self.gpu.end_faults();
            }
            Step::AdmitAll => _ = self.arena.admit_all(),
        }
        self.check(step);
    }

    fn free(&mut self, a: u64) {
        let (size, tag) = self.live[&a];
        assert!(
            self.gpu.holds_tag(Address::new(a), Bytes::new(size), tag),
            "contents lost at {a:x}"
        );
        match self.arena.free(Address::new(a)) {
            Ok(()) => drop(self.live.remove(&a)),
            Err(error) => assert!(self.faults, "{error:?}"),
        }
    }

    fn allocate(&mut self, n: u64) {
        match self.arena.allocate(Bytes::new(n)) {
            Ok(address) => {
                let start = address.get();
                assert_eq!(start % 512, 0);
                let below = self.live.range(..=start).next_back();
                assert!(below.is_none_or(|(a, (s, _))| a + s <= start), "overlap");
                let above = self.live.range(start..).next();
                assert!(above.is_none_or(|(&a, _)| start + n <= a), "overlap");
                assert!(!self.gpu.in_use(address, Bytes::new(n)), "in use");
                self.tag += 1;
                self.gpu.write_tag(address, Bytes::new(n), self.tag);
                // It can be touched throughout.
                if !self.capturing {
                    self.gpu
                        .launch(
                            self.streams[self.tag as usize % self.streams.len()],
                            0,
                            &[(address, Bytes::new(n))],
                        )
                        .unwrap();
                }
                self.live.insert(start, (n, self.tag));
            }
            Err(error) => {
                if !self.faults && !self.capturing {
                    self.must_fail(n, error);
                }
            }
        }
    }

    /// What could be had must be: bare CUDA would have served it.
    fn must_fail(&self, n: u64, error: AllocError) {
        let pages = |n: u64| n.next_multiple_of(self.page);
        let live: u64 = self
            .live
            .values()
            .map(|(s, _)| s.next_multiple_of(512))
            .sum();
        let free_by_driver = self
            .total
            .get()
            .saturating_sub(self.gpu.used(0).get() + self.occupied);
        let reserved = self.arena.stats().reserved.current.get();
        let cap = self.quota.limit().map_or(u64::MAX, Bytes::get);
        // Each block may pin two units that nobody else can use, and slabs. What had to be
        // taken plainly while calls failed goes back whole or not at all.
        let units: u64 = self.live.values().map(|(s, _)| pages(*s) + self.page).sum();
        let mapped = self.gpu.units_and_reservations().0 as u64 * self.page;
        let plain = self.gpu.used(0).get().saturating_sub(mapped);
        let pinned = units + plain;
        let could = (free_by_driver + reserved).min(cap);
        assert!(
            pages(n) + pinned + 2 * self.page > could || self.lossy,
            "{error:?} for {n}: live {live}, pinned {pinned}, free {free_by_driver}, reserved {reserved}, cap {cap}"
        );
    }

    fn end_capture(&mut self) {
        if std::mem::take(&mut self.capturing) {
            assert!(self.gpu.end_capture(self.streams[0]), "invalidated");
        }
    }

    fn check(&self, step: &Step) {
        if let Err(error) = self.arena.validate() {
            panic!("{step:?}: {error:?}");
        }
        assert_eq!(self.gpu.violations(), [], "{step:?}");
        for (&a, &(s, t)) in &self.live {
            assert!(
                self.gpu.holds_tag(Address::new(a), Bytes::new(s), t),
                "{step:?}: contents of {a:x}"
            );
        }
        let stats = self.arena.stats();
        let parts = [stats.live, stats.cached, stats.limbo].map(|g| g.current.get());
        assert_eq!(
            stats.reserved.current.get(),
            parts.iter().sum::<u64>(),
            "{step:?}"
        );
        // Of larger pages the model gives parts to small plain allocations. One of up to
        // 1 MiB can lie across the end of the 2 MiB in which the quota counts it.
        let is_usual = self.page == 2 << 20;
        let counted = self.quota.reserved().get();
        let beyond = if is_usual { 0 } else { counted / 2 };
        assert!(counted + beyond >= stats.reserved.current.get(), "{step:?}");
        if !self.lossy && is_usual {
            assert!(stats.reserved.current <= self.gpu.used(0), "{step:?}");
        }
    }

    fn end(mut self, retire: bool) {
        self.end_capture();
        self.gpu.end_faults();
        self.faults = false;
        self.gpu.occupy(0, Bytes::ZERO);
        if retire {
            self.gpu.pass(1 << 40);
            self.gpu.destroy_context(self.arena.driver().context());
            self.arena.retire();
            if !self.lossy {
                assert_eq!(self.gpu.units_and_reservations(), (0, 0));
                assert_eq!(self.gpu.used(0), Bytes::ZERO);
                assert_eq!(self.quota.reserved(), Bytes::ZERO);
            }
            assert_eq!(self.gpu.violations(), []);
            return;
        }
        let all: Vec<u64> = self.live.keys().copied().collect();
        all.into_iter().for_each(|a| self.free(a));
        self.arena.trim();
        self.arena.validate().unwrap();
        if !self.lossy {
            assert_eq!(self.arena.stats().reserved.current, Bytes::ZERO);
            assert_eq!(self.gpu.used(0), Bytes::ZERO);
            assert_eq!(self.gpu.units_and_reservations(), (0, 0));
            assert_eq!(self.quota.reserved(), Bytes::ZERO);
        }
        assert_eq!(self.gpu.violations(), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_keep_what_they_hold(
        config in config(),
        steps in prop::collection::vec(step(), 1..150),
        page in prop_oneof![3 => Just(2u64), 1 => Just(4), 1 => Just(16), 1=> Just(32)],
        memory in prop_oneof![2 => Just(512u64), 1 => Just(96), 1 => Just(2048)],
        runs in any::<bool>(),
        races in any::<bool>(),
        retire in any::<bool>(),
        faults in any::<bool>(),
    ) {
        let settings = Settings {
            memory: Bytes::mib(memory),
            page: Bytes::mib(page),
            unmaps_runs: runs,
            races,
            ..Settings::default()
        };
        let mut oracle = Oracle::new(&config, settings);
        for step in &steps {
            if !faults && matches!(step, Step::Fail(..) | Step::FailRandomly(..)) {
                continue;
            }
            oracle.run(step);
        }
        oracle.end(retire);
    }
}
