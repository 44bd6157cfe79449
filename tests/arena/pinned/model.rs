//! Random programs against a list of what they hold.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, FreeSync, PinnedConfig};
use vramalloc_core::error::FreeError;
use vramalloc_core::page_map::{ArenaId, Owner};

use super::rig::{PAGE, Rig};

/// One step of a program.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
    FreeInside(prop::sample::Index, u64),
    Launch(prop::sample::Index, u64),
    Pass(u64),
    BeginCapture,
    EndCapture,
    /// Somebody else takes so many MiB.
    Occupy(u64),
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    let size = prop_oneof![1_u64..5000, 1_u64..(1 << 20), 1_u64..(40 << 20)];
    prop_oneof![
        10 => size.prop_map(Step::Allocate),
        9 => any::<Index>().prop_map(Step::Free),
        1 => (any::<Index>(), 1_u64..9000).prop_map(|(which, at)| Step::FreeInside(which, at)),
        6 => (any::<Index>(), 0_u64..20_000_000).prop_map(|(which, ns)| Step::Launch(which, ns)),
        2 => (0_u64..30_000_000).prop_map(Step::Pass),
        1 => Just(Step::BeginCapture),
        2 => Just(Step::EndCapture),
        1 => (7_900_u64..8_192).prop_map(Step::Occupy),
    ]
}

fn pinned_config() -> impl Strategy<Value = PinnedConfig> {
    let mebibytes = |most: u64| prop::option::of((1..most).prop_map(Bytes::mib));
    let fraction = prop_oneof![2 => Just(0.5), 1 => 0.0..0.1];
    (fraction, mebibytes(60), mebibytes(8), mebibytes(8)).prop_map(
        |(fraction, reserve_segment, max_round_threshold, max_cached)| PinnedConfig {
            fraction,
            reserve_segment,
            max_round_threshold,
            max_cached,
            ..PinnedConfig::default()
        },
    )
}

/// What the program holds, kept apart from the arena.
struct Program {
    rig: Rig,
    live: BTreeMap<u64, u64>,
    capturing: bool,
}

impl Program {
    fn run(&mut self, step: &Step) {
        let rig = &self.rig;
        match step {
            Step::Allocate(size) => self.allocate(*size),
            Step::Free(which) => {
                if let Some((start, _)) = self.pick(which) {
                    rig.arena.free(Address::new(start)).unwrap();
                    self.live.remove(&start);
                }
            }
            Step::FreeInside(which, offset) => {
                if let Some((start, _)) = self.pick(which).filter(|&(_, size)| *offset < size) {
                    let inside = Address::new(start + offset);
                    assert_eq!(rig.arena.free(inside), Err(FreeError::NotLive));
                }
            }
            Step::Launch(which, ns) => {
                if let Some((start, size)) = self.pick(which).filter(|_| !self.capturing) {
                    rig.launch(Address::new(start), size, *ns);
                }
            }
            Step::Pass(ns) => rig.gpu.pass(*ns),
            Step::BeginCapture if !self.capturing => {
                rig.gpu.begin_capture(rig.stream);
                self.capturing = true;
            }
            Step::EndCapture if self.capturing => {
                assert!(rig.gpu.end_capture(rig.stream), "the capture was spoiled");
                self.capturing = false;
            }
            Step::BeginCapture | Step::EndCapture => {}
            Step::Occupy(mebibytes) => rig.gpu.occupy(0, Bytes::mib(*mebibytes)),
        }
        self.check();
    }

    fn pick(&self, which: &prop::sample::Index) -> Option<(u64, u64)> {
        let n = self.live.len();
        (n > 0).then(|| self.live.iter().nth(which.index(n)).map(|(&a, &s)| (a, s)))?
    }

    fn allocate(&mut self, size: u64) {
        let Ok(address) = self.rig.arena.allocate(Bytes::new(size)) else {
            return;
        };
        let start = address.get();
        assert_eq!(start % PAGE, 0, "alignment");
        assert_eq!(self.rig.map.owner(address), Owner::Arena(ArenaId(0)));
        // The pages of a block are its own.
        let end = start + size.next_multiple_of(PAGE);
        let below = self.live.range(..end).next_back();
        assert!(below.is_none_or(|(a, s)| a + s <= start), "an overlap");
        let in_use = self.rig.gpu.in_use(address, Bytes::new(size));
        assert!(!in_use, "handed out before its fence");
        self.live.insert(start, size);
    }

    fn check(&self) {
        self.rig.arena.validate().unwrap();
        let stats = self.rig.arena.stats();
        let parts = [stats.live, stats.cached, stats.limbo].map(|gauge| gauge.current.get());
        assert_eq!(self.rig.reserved(), parts.iter().sum::<u64>());
        assert!(self.live.values().sum::<u64>() <= stats.live.current.get());
    }

    fn end(mut self, kept: bool) {
        self.run(&Step::EndCapture);
        self.rig.gpu.occupy(0, Bytes::ZERO);
        for &start in self.live.keys() {
            self.rig.arena.free(Address::new(start)).unwrap();
        }
        if kept {
            self.rig.arena.trim();
            self.rig.arena.validate().unwrap();
            assert!(self.rig.gpu.live_count() <= 1);
        } else {
            self.rig.ends_clean();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_agree_with_what_they_hold(
        pinned in pinned_config(),
        strict in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let free_sync = if strict { FreeSync::Strict } else { FreeSync::Deferred };
        let config = Config { free_sync, ..Config::default() };
        let rig = Rig::new(&config, pinned);
        let mut program = Program { rig, live: BTreeMap::new(), capturing: false };
        for step in &steps {
            program.run(step);
        }
        program.end(pinned.reserve_segment.is_some());
    }
}
