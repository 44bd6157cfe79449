//! Many pauses and resumes: what they leave behind, and what the later ones do.

use std::sync::Arc;

use super::{Program, Random};
use vramalloc_core::address::Bytes;
use vramalloc_core::arena::Contents;
use vramalloc_core::error::Code;
use vramalloc_core::stats::Moved;
use vramalloc_model::Call;

#[test]
fn a_thousand_cycles_leave_nothing_behind() {
    let mut program = Program::mapped();
    let mut random = Random::new(7);
    program.fill();
    for _ in 0..1000 {
        for _ in 0..random.below(4) {
            if random.below(2) == 0 || program.live.len() < 10 {
                let size = 1 << random.below(24);
                program.take(Bytes::new(size + random.below(size)));
            } else {
                let number = random.below(program.live.len() as u64) as usize;
                program.give(number);
            }
        }
        program.cycle();
    }
    let most = program.rig.arena.stats().live.peak;
    let (_, bytes) = program.rig.gpu.backups();
    assert!(bytes <= most.saturating_add(Bytes::mib(256)), "{bytes}");
    program.ends_clean();
}

#[test]
fn the_next_pause_uses_the_same_host_memory() {
    let mut program = Program::mapped();
    program.fill();
    program.cycle();
    let taken = program.rig.gpu.calls(Call::TakeBackup);
    assert!(taken > 0);
    for _ in 0..5 {
        program.cycle();
    }
    assert_eq!(program.rig.gpu.calls(Call::TakeBackup), taken);
    program.rig.arena.drop_backups();
    assert_eq!(program.rig.gpu.backups(), (0, Bytes::ZERO));
    program.cycle();
    program.ends_clean();
}

/// A resume after the first does nothing but take units, map them and copy, each once:
/// so it is no slower than that.
#[test]
fn a_second_cycle_copies_and_maps_and_nothing_else() {
    let mut program = Program::mapped();
    program.fill();
    program.cycle();
    let (gpu, arena) = (program.rig.gpu.clone(), Arc::clone(&program.rig.arena));
    let calls = || Call::ALL.map(|call| (call, gpu.calls(call)));
    let made_by = |work: &dyn Fn() -> Result<Moved, Code>| {
        let before = calls();
        work().unwrap();
        let made = calls().into_iter().zip(before);
        made.map(|((call, after), (_, before))| (call, after - before))
            .filter(|(_, count)| *count > 0)
            .collect::<Vec<_>>()
    };
    let units = arena.stats().reserved.current.get() / Bytes::mib(2).get();
    let paused = made_by(&|| arena.pause(Contents::Keep));
    let of = |made: &[(Call, u64)], call| made.iter().find(|(c, _)| *c == call).map_or(0, |c| c.1);
    let saves = of(&paused, Call::Save);
    assert_eq!(of(&paused, Call::TakeBackup), 0, "{paused:?}");
    assert_eq!(of(&paused, Call::Release), units, "{paused:?}");
    let resumed = made_by(&|| arena.resume());
    for &(call, count) in &resumed {
        let most = match call {
            Call::Create | Call::Map => units,
            Call::Restore | Call::Admit => saves,
            // What is in limbo is looked at.
            Call::Fence | Call::Reached => 2,
            _ => 0,
        };
        assert!(count <= most, "{}: {resumed:?}", call.name());
    }
    program.holds_all();
    program.ends_clean();
}
