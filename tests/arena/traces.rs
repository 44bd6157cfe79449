//! Real allocation traces: a program that repeats finds its memory again.

use std::collections::BTreeMap;

use vramalloc::address::{Address, Bytes};
use vramalloc::config::StrategyKind;
use vramalloc::sim::{Call, Gpu, Settings};

use crate::read::{Event, events};
use crate::rig::{Rig, plain};

fn replay(rig: &Rig, events: &[Event]) {
    let mut live: BTreeMap<u64, Address> = BTreeMap::new();
    for &(id, size) in events {
        if let Some(size) = size {
            live.insert(id, rig.get(size));
        } else if let Some(address) = live.remove(&id) {
            rig.arena.free(address).unwrap();
        }
    }
    live.into_values()
        .for_each(|address| rig.arena.free(address).unwrap());
}

fn later_passes_take_nothing_from_the_driver(trace: &str) {
    let events = events(trace);
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::NaiveBestFit] {
        let settings = Settings {
            memory: Bytes::gib(80),
            span: Bytes::gib(128),
            ..Settings::default()
        };
        let rig = Rig::on(Gpu::new(settings), &plain(strategy));
        let calls = [0; 3].map(|_| {
            replay(&rig, &events);
            (rig.gpu.calls(Call::Alloc), rig.gpu.calls(Call::Free))
        });
        assert!(calls[0].0 > 0);
        assert_eq!(
            calls, [calls[0]; 3],
            "{strategy:?}: allocations and frees by pass"
        );
        rig.ends_clean();
    }
}

#[test]
fn gpt_train() {
    later_passes_take_nothing_from_the_driver("gpt_train.1");
}

#[test]
fn varlen_train() {
    later_passes_take_nothing_from_the_driver("varlen_train.1");
}

#[test]
fn llm_infer() {
    later_passes_take_nothing_from_the_driver("llm_infer.1");
}
