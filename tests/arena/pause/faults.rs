//! Each call of the driver fails in turn: the arena runs or is paused, and has lost
//! nothing.

use super::Program;
use vramalloc_core::address::Bytes;
use vramalloc_core::arena::Contents;
use vramalloc_core::config::StrategyKind;
use vramalloc_core::error::{AllocError, Code};
use vramalloc_model::{Call, Settings};

use crate::rig::{Rig, plain};

const CALLS: [Call; 11] = [
    Call::Fence,
    Call::Reached,
    Call::Wait,
    Call::TakeBackup,
    Call::Save,
    Call::Unmap,
    Call::Release,
    Call::Create,
    Call::Map,
    Call::Admit,
    Call::Restore,
];

/// The arena is in one of its two states, in which it does what it should.
fn is_whole(program: &mut Program) {
    let arena = &program.rig.arena;
    arena.validate().unwrap();
    if arena.is_paused() {
        assert_eq!(arena.allocate(Bytes::mib(3)), Err(AllocError::Paused));
        arena.resume().unwrap();
        arena.validate().unwrap();
    }
    program.holds_all();
    program.take(Bytes::mib(3));
    program.take(Bytes::new(700));
    program.holds_all();
}

fn program(unmaps_runs: bool) -> Program {
    let settings = Settings {
        unmaps_runs,
        ..Settings::default()
    };
    let mut program = Program::on(&plain(StrategyKind::Mapped), settings);
    program.fill();
    program
}

/// How many calls of each kind a pause and a resume make.
fn most_calls(call: Call) -> u64 {
    let program = program(false);
    let before = program.rig.gpu.calls(call);
    program.cycle();
    program.rig.gpu.calls(call) - before
}

#[test]
fn each_call_fails_in_turn() {
    for call in CALLS {
        let most = most_calls(call);
        assert!(most > 0 || call == Call::Reached, "{}", call.name());
        for n in 1..=most {
            let mut program = program(n % 2 == 0);
            let gpu = program.rig.gpu.clone();
            gpu.fail_nth(call, n, Code::UNKNOWN);
            let arena = std::sync::Arc::clone(&program.rig.arena);
            let paused = arena.pause(Contents::Keep);
            arena.validate().unwrap();
            if paused.is_ok() {
                assert!(arena.is_paused());
                let resumed = arena.resume();
                assert_eq!(resumed.is_ok(), !arena.is_paused());
            }
            gpu.end_faults();
            is_whole(&mut program);
            program.cycle();
            program.ends_clean();
        }
    }
}

#[test]
fn what_a_failed_resume_did_is_undone() {
    for (call, n) in [
        (Call::Create, 9),
        (Call::Map, 9),
        (Call::Admit, 3),
        (Call::Restore, 4),
    ] {
        let mut program = program(true);
        let gpu = program.rig.gpu.clone();
        let arena = std::sync::Arc::clone(&program.rig.arena);
        arena.pause(Contents::Keep).unwrap();
        let stats = arena.stats();
        gpu.fail_nth(call, n, Code::UNKNOWN);
        assert_eq!(arena.resume(), Err(Code::UNKNOWN), "{}", call.name());
        assert!(arena.is_paused());
        assert_eq!(gpu.used(0), Bytes::ZERO);
        assert_eq!(arena.stats().pause.paused, stats.pause.paused);
        is_whole(&mut program);
        program.ends_clean();
    }
}

#[test]
fn what_a_failed_pause_did_is_undone() {
    for call in [Call::TakeBackup, Call::Save, Call::Unmap] {
        let mut program = program(false);
        let gpu = program.rig.gpu.clone();
        let arena = std::sync::Arc::clone(&program.rig.arena);
        gpu.fail_nth(call, 1, Code::UNKNOWN);
        assert_eq!(arena.pause(Contents::Keep), Err(Code::UNKNOWN));
        assert!(!arena.is_paused());
        is_whole(&mut program);
        program.ends_clean();
    }
}

#[test]
fn a_pause_that_the_host_has_no_memory_for_leaves_none_taken() {
    for (call, n) in [(Call::TakeBackup, 3), (Call::Save, 2)] {
        let mut program = program(true);
        program.cycle();
        let gpu = program.rig.gpu.clone();
        let kept = gpu.backups();
        program.take(Bytes::mib(700));
        let arena = std::sync::Arc::clone(&program.rig.arena);
        gpu.fail_nth(call, n, Code::OUT_OF_MEMORY);
        assert_eq!(arena.pause(Contents::Keep), Err(Code::OUT_OF_MEMORY));
        assert!(!arena.is_paused());
        assert_eq!(gpu.backups(), kept, "{}", call.name());
        assert_eq!(arena.stats().pause.backups, kept.1);
        is_whole(&mut program);
        program.cycle();
        program.ends_clean();
    }
}

/// Several fail, also those that undo what was done.
#[test]
fn calls_fail_at_random() {
    let calls = [
        Call::Fence,
        Call::Wait,
        Call::Save,
        Call::Unmap,
        Call::Release,
        Call::Create,
        Call::Map,
        Call::Admit,
        Call::Restore,
    ];
    for seed in 0..40 {
        let settings = Settings {
            seed,
            unmaps_runs: seed % 2 == 0,
            ..Settings::default()
        };
        let mut program = Program::on(&plain(StrategyKind::Mapped), settings);
        program.fill();
        let gpu = program.rig.gpu.clone();
        let arena = std::sync::Arc::clone(&program.rig.arena);
        for _ in 0..20 {
            for call in calls {
                gpu.fail_randomly(call, 60, Code::UNKNOWN);
            }
            let _paused = arena.pause(Contents::Keep);
            arena.validate().unwrap();
            let _resumed = arena.resume();
            arena.validate().unwrap();
            gpu.end_faults();
            is_whole(&mut program);
        }
        program.ends_clean();
    }
}

/// Others would have to give up what it took.
#[test]
fn a_pause_takes_nothing_of_a_host_that_has_too_little() {
    let settings = Settings {
        host: Bytes::mib(900),
        ..Settings::default()
    };
    let program = Program::on(&plain(StrategyKind::Mapped), settings);
    let Rig { arena, gpu, .. } = &program.rig;
    for _ in 0..10 {
        arena.allocate(Bytes::mib(100)).unwrap();
    }
    assert_eq!(arena.pause(Contents::Keep), Err(Code::OUT_OF_MEMORY));
    assert_eq!(gpu.calls(Call::TakeBackup), 1);
    assert_eq!(gpu.backups(), (0, Bytes::ZERO));
    assert!(!arena.is_paused());
    arena.pause(Contents::Drop).unwrap();
    arena.resume().unwrap();
    assert_eq!(gpu.violations(), []);
}
