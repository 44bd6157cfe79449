//! Batches of small blocks whose epoch has ended: each free puts a few back,
//! and nobody who asks for more has to do without the rest.

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::StrategyKind;
use vramalloc_core::stats::Action;
use vramalloc_model::Call;

use crate::history::ALL;
use crate::rig::{Rig, plain, without_caches};

const DEVICE: Bytes = Bytes::gib(1);
/// So many small blocks fill a batch.
const BATCH: usize = 64;

/// How many blocks came back after their free.
fn completed(rig: &Rig) -> usize {
    let events = rig.arena.events().unwrap().events;
    let is_completed = |action| matches!(action, Action::FreeCompleted(_));
    let completed = events.iter().filter(|event| is_completed(event.action));
    completed.count()
}

fn free_all(rig: &Rig, blocks: impl IntoIterator<Item = Address>) {
    for block in blocks {
        rig.arena.free(block).unwrap();
    }
}

#[test]
fn each_free_puts_two_back_and_none_a_whole_batch() {
    let rig = Rig::watched(&plain(StrategyKind::AutoGrowth), DEVICE, ALL);
    let blocks: Vec<_> = (0..2 * BATCH).map(|_| rig.get(Bytes::kib(4))).collect();
    let mut before = 0;
    for (number, &block) in blocks.iter().enumerate() {
        rig.arena.free(block).unwrap();
        let now = completed(&rig);
        assert!(now - before <= 2, "{} at free {number}", now - before);
        if number >= BATCH + BATCH / 2 {
            assert!(now >= BATCH, "{now} after free {number}");
        }
        before = now;
    }
    rig.ends_clean();
}

#[test]
fn large_blocks_are_put_back_at_once() {
    let rig = Rig::watched(&plain(StrategyKind::AutoGrowth), DEVICE, ALL);
    let blocks: Vec<_> = (0..4).map(|_| rig.get(Bytes::mib(16))).collect();
    free_all(&rig, blocks);
    assert_eq!(completed(&rig), 4);
    rig.ends_clean();
}

/// A request that nothing cached fits is served by the rest of the batch,
/// without a look at the device.
#[test]
fn a_hit_finds_what_is_not_yet_put_back() {
    let rig = Rig::new(&without_caches(StrategyKind::AutoGrowth), DEVICE);
    // Two slabs, and nothing is left of either.
    let halves: Vec<_> = (0..4).map(|_| rig.get(Bytes::kib(512))).collect();
    let small: Vec<_> = (0..512).map(|_| rig.get(Bytes::kib(4))).collect();
    // Blocks that do not merge, and the large one last.
    let mut apart = small.iter().copied().step_by(2);
    free_all(&rig, apart.by_ref().take(BATCH - 1));
    free_all(&rig, [halves[0]]);
    // One for the next batch; it puts back two small ones.
    free_all(&rig, apart.next());
    let calls = |rig: &Rig| [Call::Alloc, Call::Fence].map(|call| rig.gpu.calls(call));
    let before = calls(&rig);
    let again = rig.get(Bytes::kib(512));
    assert_eq!((again, calls(&rig)), (halves[0], before));
}

/// What the program is told of free memory has all of the batch in it.
#[test]
fn free_memory_counts_what_is_not_yet_put_back() {
    let rig = Rig::new(&plain(StrategyKind::NaiveBestFit), DEVICE);
    // So that the chunk is in use.
    let _held = rig.get(Bytes::mib(1));
    let before = rig.arena.mem_info().unwrap();
    let blocks: Vec<_> = (0..BATCH).map(|_| rig.get(Bytes::mib(1))).collect();
    free_all(&rig, blocks);
    assert_eq!(rig.arena.mem_info().unwrap(), before);
}
