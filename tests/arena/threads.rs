//! Threads that allocate, free each other's blocks, and run out of memory
//! together. The books balance at the end.

use std::sync::mpsc;
use std::thread;

use vramalloc::address::{Address, Bytes};
use vramalloc::config::StrategyKind;

use crate::rig::{Rig, plain};

const THREADS: u64 = 4;
const ROUNDS: u64 = 3_000;

fn exchange(strategy: StrategyKind, memory: Bytes) {
    let rig = Rig::new(&plain(strategy), memory);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    let served: u64 = thread::scope(|scope| {
        let threads: Vec<_> = receivers
            .into_iter()
            .zip(0..)
            .map(|(receiver, me): (mpsc::Receiver<Address>, usize)| {
                let next = senders[(me + 1) % senders.len()].clone();
                let rig = &rig;
                scope.spawn(move || {
                    let mut served = 0;
                    for round in 0..ROUNDS {
                        let size = (round * 7_919 + me as u64 * 104_729) % (6 << 20) + 1;
                        if let Ok(block) = rig.arena.allocate(Bytes::new(size)) {
                            served += 1;
                            next.send(block).unwrap();
                        }
                        for block in receiver.try_iter() {
                            rig.arena.free(block).unwrap();
                        }
                    }
                    drop(next);
                    (receiver, served)
                })
            })
            .collect();
        let ended: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        drop(senders);
        ended
            .into_iter()
            .map(|(receiver, served)| {
                receiver
                    .try_iter()
                    .for_each(|block| rig.arena.free(block).unwrap());
                served
            })
            .sum()
    });
    let stats = rig.arena.stats();
    let allocations: u64 = stats.classes.iter().map(|class| class.allocations).sum();
    let frees: u64 = stats.classes.iter().map(|class| class.frees).sum();
    assert_eq!((allocations, frees), (served, served));
    rig.ends_clean();
}

#[test]
fn blocks_change_hands() {
    for strategy in [
        StrategyKind::NaiveBestFit,
        StrategyKind::AutoGrowth,
        StrategyKind::Passthrough,
    ] {
        exchange(strategy, Bytes::gib(4));
    }
}

#[test]
fn short_of_memory_together() {
    for strategy in [
        StrategyKind::NaiveBestFit,
        StrategyKind::AutoGrowth,
        StrategyKind::Passthrough,
    ] {
        exchange(strategy, Bytes::mib(48));
    }
}

/// All threads ask for the first chunk at once: it is taken once.
#[test]
fn a_chunk_in_advance_is_taken_once() {
    let rig = Rig::new(&plain(StrategyKind::NaiveBestFit), Bytes::gib(4));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| rig.get(Bytes::mib(1)));
        }
    });
    assert_eq!(rig.arena.stats().chunks, 1);
}
