//! Threads that allocate and free while others pause and resume, and contexts that end
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::{Program, Random, await_flag};
use vramalloc_core::address::Bytes;
use vramalloc_core::arena::Contents;
use vramalloc_core::error::{AllocError, Code};

#[test]
fn threads_allocate_and_free_meanwhile() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    let ends = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (arena, ends, served) = (&arena, &ends, &served);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut held = Vec::new();
                while !ends.load(Ordering::Acquire) {
                    let size = Bytes::new(1 << random.below(23));
                    match arena.allocate(size) {
                        Ok(address) => held.push(address),
                        Err(error) => {
                            assert_eq!(error, AllocError::Paused);
                            thread::yield_now();
                        }
                    }
                    served.fetch_add(1, Ordering::Relaxed);
                    if held.len() > 20 || arena.is_paused() && !held.is_empty() {
                        let number = random.below(held.len() as u64) as usize;
                        arena.free(held.swap_remove(number)).unwrap();
                    }
                }
                for address in held {
                    arena.free(address).unwrap();
                }
            });
        }
        for _ in 0..200 {
            arena.pause(Contents::Keep).unwrap();
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < before + 20 {
                thread::yield_now();
            }
            arena.resume().unwrap();
            program.holds_all();
        }
        ends.store(true, Ordering::Release);
    });
    arena.validate().unwrap();
    program.ends_clean();
}

#[test]
fn two_threads_pause_and_resume() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..100 {
                    arena.pause(Contents::Keep).unwrap();
                    arena.resume().unwrap();
                }
            });
        }
    });
    assert!(!arena.is_paused());
    arena.validate().unwrap();
    program.holds_all();
    program.ends_clean();
}

#[test]
fn a_context_ends_while_a_thread_pauses() {
    for _ in 0..60 {
        let mut program = Program::mapped();
        program.fill();
        let arena = Arc::clone(&program.rig.arena);
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    let paused = arena.pause(Contents::Keep);
                    begun.store(true, Ordering::Release);
                    let resumed = arena.resume();
                    if paused.is_err() && resumed.is_err() {
                        assert_eq!(resumed, Err(Code::INVALID_CONTEXT));
                        break;
                    }
                }
            });
            await_flag(&begun);
            arena.retire();
        });
        let gpu = &program.rig.gpu;
        assert_eq!(gpu.units_and_reservations(), (0, 0));
        assert_eq!(gpu.backups(), (0, Bytes::ZERO));
        assert_eq!(gpu.used(0), Bytes::ZERO);
        assert_eq!(gpu.violations(), []);
    }
}
