//! Pauses of memory that the program has given to others.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Program, Random};
use crate::rig::MS;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Contents;
use vramalloc_core::driver::PAGE;

#[test]
fn what_others_may_have_mapped_stays() {
    let mut program = Program::mapped();
    program.fill();
    let (given, size) = (program.take(Bytes::mib(20)), Bytes::mib(20));
    let arena = Arc::clone(&program.rig.arena);
    program.rig.export(given, size);
    let paused = arena.pause(Contents::Keep).unwrap();
    arena.validate().unwrap();
    assert!(paused.stays.exported >= size && paused.stays.exported <= Bytes::mib(26));
    assert_eq!(program.rig.gpu.used(0), paused.stays.exported);
    assert!(program.rig.gpu.holds_tag(given, size, program.tags));
    // It is in use all the time.
    program.rig.launch(given, size, 100 * MS);
    arena.resume().unwrap();
    assert_eq!(arena.stats().pause.stays.exported, Bytes::ZERO);
    program.holds_all();
    // It can go when its block is free.
    program.give(program.live.len() - 1);
    let paused = arena.pause(Contents::Keep).unwrap();
    assert_eq!(paused.stays.exported, Bytes::ZERO);
    arena.resume().unwrap();
    program.ends_clean();
}

#[test]
fn an_exported_block_that_is_freed_while_paused_is_free_memory() {
    let mut program = Program::mapped();
    let given = program.take(Bytes::mib(20));
    program.take(Bytes::mib(30));
    let arena = Arc::clone(&program.rig.arena);
    program.rig.export(given, Bytes::mib(20));
    arena.pause(Contents::Keep).unwrap();
    program.give(0);
    arena.flush();
    arena.validate().unwrap();
    arena.resume().unwrap();
    arena.validate().unwrap();
    program.holds_all();
    program.take(Bytes::mib(20));
    program.ends_clean();
}

/// The driver may refuse a handle, and has none of what is gone.
#[test]
fn what_was_not_given_to_others_goes() {
    let mut program = Program::mapped();
    let block = program.take(Bytes::mib(20));
    let arena = Arc::clone(&program.rig.arena);
    let inside = Address::new(block.get() + 4096);
    program.rig.export(block, Bytes::ZERO);
    program.rig.export(inside, Bytes::ZERO);
    let paused = arena.pause(Contents::Keep).unwrap();
    assert_eq!(paused.stays.exported, Bytes::ZERO);
    assert!(!arena.begin_export(block));
    arena.resume().unwrap();
    let paused = arena.pause(Contents::Keep).unwrap();
    assert_eq!(paused.stays.exported, Bytes::ZERO);
    arena.resume().unwrap();
    // What was given stays, also where another handle is refused.
    program.rig.export(inside, PAGE);
    program.rig.export(inside, Bytes::ZERO);
    let paused = arena.pause(Contents::Keep).unwrap();
    assert_eq!(paused.stays.exported, Bytes::new(2 * PAGE.get()));
    arena.resume().unwrap();
    program.holds_all();
    program.ends_clean();
}

#[test]
fn what_was_exported_goes_again_once_its_block_was_freed() {
    let mut program = Program::mapped();
    let size = Bytes::mib(20);
    let given = program.take(size);
    let arena = Arc::clone(&program.rig.arena);
    program.rig.export(given, size);
    program.give(0);
    arena.flush();
    assert_eq!(program.take(size), given);
    let paused = arena.pause(Contents::Keep).unwrap();
    assert_eq!(paused.stays.exported, Bytes::ZERO);
    arena.resume().unwrap();
    program.ends_clean();
}

/// The units that are touched by some of these.
fn pages_of(exported: &[(Address, Bytes)]) -> BTreeSet<u64> {
    let touched = exported.iter().flat_map(|(at, size)| {
        let end = at.get() + size.get();
        at.get() / PAGE.get()..end.div_ceil(PAGE.get())
    });
    touched.collect()
}

/// What stays is what handles name of blocks that are live since, whatever they name.
#[test]
fn a_unit_stays_while_a_handle_names_a_live_block_in_it() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut program = Program::mapped();
        let arena = Arc::clone(&program.rig.arena);
        let mut exported: Vec<(Address, Bytes)> = Vec::new();
        for turn in 0..120 {
            match random.below(4) {
                0 | 1 => {
                    let slots = match random.below(2) {
                        0 => 1 + random.below(700),
                        _ => (1 << 11) + 1 + random.below(8000),
                    };
                    program.take(Bytes::new(512 * slots));
                }
                2 if !program.live.is_empty() => {
                    let number = random.below(program.live.len() as u64) as usize;
                    let (at, size, _) = program.live[number];
                    program.give(number);
                    let end = at.get() + size.get();
                    exported.retain(|&(part, _)| part < at || part.get() >= end);
                }
                3 if !program.live.is_empty() => {
                    let number = random.below(program.live.len() as u64) as usize;
                    let (block, size, _) = program.live[number];
                    let from = block.get() + random.below(size.get());
                    let bytes = random.below(3).min(1) * (1 + random.below(8 << 20));
                    program.rig.export(Address::new(from), Bytes::new(bytes));
                    exported.extend(program.live.iter().filter_map(|&(at, size, _)| {
                        let start = at.get().max(from);
                        let end = (at.get() + size.get()).min(from + bytes);
                        let size = Bytes::new(end.checked_sub(start).filter(|&size| size > 0)?);
                        Some((Address::new(start), size))
                    }));
                }
                _ => {}
            }
            if turn % 10 == 9 {
                let paused = arena.pause(Contents::Keep).unwrap();
                let pages = pages_of(&exported).len() as u64;
                assert_eq!(
                    paused.stays.exported,
                    Bytes::new(PAGE.get() * pages),
                    "{seed} {turn}"
                );
                arena.resume().unwrap();
                program.holds_all();
            }
        }
        program.ends_clean();
    }
}
