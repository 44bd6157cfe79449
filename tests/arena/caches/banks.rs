//! Chunks of small blocks that belong to some of the threads.

use std::collections::BTreeSet;

use super::*;

const BLOCK: Bytes = Bytes::kib(4);

/// As many threads as find themselves in every bank, whatever other tests start meanwhile.
const THREADS: usize = 12;

/// What each of so many threads gets by its own calls; one works after the other.
fn each_gets(rig: &Rig, count: usize) -> Vec<Vec<Address>> {
    let work = || (0..count).map(|_| rig.get(BLOCK)).collect();
    let one = |_| thread::scope(|scope| scope.spawn(work).join().unwrap());
    (0..THREADS).map(one).collect()
}

fn chunks(rig: &Rig, blocks: &[Address]) -> BTreeSet<u64> {
    blocks
        .iter()
        .map(|&block| rig.allocation(block).get())
        .collect()
}

/// Takes that many bytes in blocks and frees all but each second one: what is free then
/// lies in pieces.
fn scatter(rig: &Rig, bytes: Bytes) -> Vec<Address> {
    let count = bytes.get() / BLOCK.get();
    let blocks: Vec<_> = (0..count).map(|_| rig.get(BLOCK)).collect();
    let (stay, go): (Vec<_>, Vec<_>) = (0..).zip(blocks).partition(|(n, _)| n % 2 == 0);
    free_all(rig, go.into_iter().map(|(_, block)| block));
    // What the thread keeps of it comes back.
    rig.arena.mem_info().unwrap();
    stay.into_iter().map(|(_, block)| block).collect()
}

#[test]
fn threads_cut_small_blocks_from_different_chunks() {
    let rig = rig();
    let blocks = each_gets(&rig, 100);
    let found: Vec<_> = blocks.iter().map(|blocks| chunks(&rig, blocks)).collect();
    let banks: BTreeSet<_> = found.iter().flatten().collect();
    assert!((2..=4).contains(&banks.len()), "{banks:?}");
    // A thread that has a chunk stays there.
    assert!(found.iter().all(|chunks| chunks.len() == 1), "{found:?}");
    free_all(&rig, blocks.into_iter().flatten());
    rig.ends_clean();
}

/// What is free in one bank serves the threads of the others but for 8 MiB of it.
#[test]
fn a_bank_keeps_little_for_itself() {
    let rig = rig();
    let stay = scatter(&rig, Bytes::mib(64));
    let before = rig.arena.glance().reserved;
    let blocks = each_gets(&rig, (20 << 20) / THREADS / 4096);
    assert_eq!(rig.arena.glance().reserved, before);
    let more = each_gets(&rig, (12 << 20) / THREADS / 4096);
    assert!(rig.arena.glance().reserved <= before.saturating_add(Bytes::mib(8)));
    free_all(
        &rig,
        [blocks, more].into_iter().flatten().flatten().chain(stay),
    );
    rig.ends_clean();
}

#[test]
fn where_memory_is_scarce_there_are_no_banks() {
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::mib(64));
    let stay = scatter(&rig, Bytes::mib(40));
    let before = rig.arena.glance().reserved;
    let blocks = each_gets(&rig, (19 << 20) / THREADS / 4096);
    assert_eq!(rig.arena.glance().reserved, before);
    free_all(&rig, blocks.into_iter().flatten().chain(stay));
    rig.ends_clean();
}

/// A chunk changes banks with the thread that finds it whole.
#[test]
fn a_chunk_that_is_whole_is_everybodys() {
    let rig = rig();
    for _ in 0..THREADS {
        let work = || free_all(&rig, (0..100).map(|_| rig.get(BLOCK)).collect::<Vec<_>>());
        thread::scope(|scope| scope.spawn(work).join().unwrap());
        // What the thread keeps comes back.
        rig.arena.mem_info().unwrap();
    }
    assert_eq!(rig.gpu.calls(Call::Alloc), 1);
    rig.ends_clean();
}
