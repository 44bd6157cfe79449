//! What an arena tells of the time since somebody asked: peaks that are begun anew, and
//! the blocks that are held.

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Peak;
use vramalloc_core::config::StrategyKind;

use crate::rig::{Rig, plain};

const DEVICE: Bytes = Bytes::gib(1);

/// A seeded generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 31)) % bound
    }
}

/// What a thread keeps, and has room for, is neither in the peak nor missing from it.
#[test]
fn a_peak_is_exact_since_it_was_begun() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
        let mut held: Vec<(Address, u64)> = Vec::new();
        let (mut live, mut since, mut ever) = (0, 0, 0);
        for step in 0..6000 {
            let grows = random.below(100) < if step % 1000 < 500 { 60 } else { 40 };
            if grows || held.is_empty() {
                // Mostly of one size that threads keep; from there to those they do
                // not, so that no block is larger than its request.
                let slots = match random.below(30) {
                    0 => 200 + random.below(5000),
                    _ => 8,
                };
                let size = 512 * slots;
                held.push((rig.get(Bytes::new(size)), size));
                live += size;
            } else {
                let at = usize::try_from(random.below(held.len() as u64)).unwrap();
                let (block, size) = held.swap_remove(at);
                rig.arena.free(block).unwrap();
                live -= size;
            }
            since = since.max(live);
            ever = ever.max(live);
            match random.below(500) {
                0 => {
                    let told = rig.arena.begin_peak(Peak::Live);
                    assert_eq!(told, Bytes::new(since), "seed {seed}, step {step}");
                    since = live;
                }
                1 => {
                    let told = rig.arena.peak(Peak::Live);
                    assert_eq!(told, Bytes::new(since), "seed {seed}, step {step}");
                }
                _ => {}
            }
        }
        let stats = rig.arena.stats();
        assert!(stats.thread_hits > 100, "{}", stats.thread_hits);
        assert_eq!(stats.live.peak, Bytes::new(ever), "seed {seed}");
        let classes = stats.classes_at_peak.iter().map(|class| class.bytes);
        assert_eq!(classes.sum::<u64>(), ever, "seed {seed}");
    }
}

#[test]
fn what_is_reserved_has_a_peak_of_its_own() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), DEVICE);
    let block = rig.get(Bytes::mib(100));
    rig.arena.free(block).unwrap();
    rig.arena.trim();
    let reserved = || rig.arena.peak(Peak::Reserved);
    assert_eq!(reserved(), Bytes::mib(100));
    assert_eq!(rig.arena.begin_peak(Peak::Reserved), Bytes::mib(100));
    assert_eq!(reserved(), Bytes::ZERO);
    rig.get(Bytes::mib(30));
    assert_eq!(reserved(), Bytes::mib(30));
    let stats = rig.arena.stats();
    assert_eq!(stats.reserved.peak, Bytes::mib(100));
    assert_eq!(rig.arena.peak(Peak::Live), Bytes::mib(100));
}

#[test]
fn blocks_that_are_held_are_told_and_no_others() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::Passthrough] {
        let rig = Rig::new(&plain(strategy), DEVICE);
        let sizes = [100, 5000, 5000, 3 << 20, 40 << 20];
        let mut blocks: Vec<Address> = sizes.map(|size| rig.get(Bytes::new(size))).into();
        for at in [3, 1] {
            rig.arena.free(blocks.remove(at)).unwrap();
        }
        let held = rig.arena.blocks_held().unwrap();
        let mut told: Vec<Address> = held.iter().map(|block| block.address).collect();
        told.sort_unstable();
        blocks.sort_unstable();
        assert_eq!(told, blocks);
        let asked: u64 = held.iter().map(|block| block.requested.get()).sum();
        assert_eq!(asked, 100 + 5000 + (40 << 20));
    }
}
