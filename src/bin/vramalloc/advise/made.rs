//! Recordings made by hand, for the tests.

use std::collections::{BTreeMap, BTreeSet};

use super::super::replay::tape::{Item, Tape, TapeArena, What};

/// A recording of a program on devices of this size, made by hand.
pub(super) fn tape(total: u64, arenas: &[u32]) -> Tape {
    let arena = |&device: &u32| TapeArena {
        device,
        total,
        elsewhere: Some(0),
        ..TapeArena::default()
    };
    Tape {
        options: Some(BTreeMap::new()),
        arenas: arenas.iter().map(arena).collect(),
        items: Vec::new(),
        events: 0,
        blocks: 0,
        past: BTreeSet::new(),
        lacks: None,
        is_ended: true,
        is_cut: false,
    }
}

pub(super) fn does(tape: &mut Tape, arena: u32, what: What) {
    tape.events += 1;
    tape.items.push(Item {
        what,
        arena,
        thread: 1,
        event: tape.events,
        time_us: u64::from(tape.events) * 1000,
    });
}

pub(super) fn takes(tape: &mut Tape, arena: u32, size: u64) -> u32 {
    let (block, address) = (tape.blocks, 0);
    tape.blocks += 1;
    does(
        tape,
        arena,
        What::Alloc {
            block,
            address,
            size,
        },
    );
    block
}

pub(super) fn frees(tape: &mut Tape, arena: u32, block: u32) {
    does(tape, arena, What::Free { block, address: 0 });
}
