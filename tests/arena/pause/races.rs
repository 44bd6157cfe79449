//! Threads that allocate and free while others pause and resume, and contexts that end
//! meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::{Program, Random, await_flag};
use crate::rig::plain;
use vramalloc_core::address::Bytes;
use vramalloc_core::arena::Contents;
use vramalloc_core::config::{Config, Fill, StrategyKind};
use vramalloc_core::error::{AllocError, Code};

/// Lets the other threads end, also where this one fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

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
        let _ends = Ends(&ends);
        for _ in 0..200 {
            arena.pause(Contents::Keep).unwrap();
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < before + 20 {
                thread::yield_now();
            }
            arena.resume().unwrap();
            program.holds_all();
        }
    });
    arena.validate().unwrap();
    program.ends_clean();
}

/// A block is filled before a pause takes its memory, or not handed out.
#[test]
fn what_threads_get_meanwhile_is_filled() {
    let config = Config {
        fill: Some(Fill {
            byte: 0xA5,
            whole_block: false,
        }),
        ..plain(StrategyKind::Mapped)
    };
    let mut program = Program::new(&config);
    program.take(Bytes::mib(9));
    let arena = Arc::clone(&program.rig.arena);
    let ends = AtomicBool::new(false);
    let served = AtomicU64::new(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Acquire) {
                match arena.allocate(Bytes::mib(4)) {
                    Ok(address) => {
                        served.fetch_add(1, Ordering::Relaxed);
                        arena.free(address).unwrap();
                    }
                    Err(error) => {
                        assert_eq!(error, AllocError::Paused);
                        thread::yield_now();
                    }
                }
            }
        });
        let _ends = Ends(&ends);
        for _ in 0..1000 {
            arena.pause(Contents::Keep).unwrap();
            arena.resume().unwrap();
        }
    });
    assert_eq!(
        program.rig.gpu.fills().len() as u64,
        served.load(Ordering::Relaxed)
    );
    program.holds_all();
    program.ends_clean();
}

/// What a thread has a handle of stays, whenever it asked; what it has none of goes.
#[test]
fn handles_are_asked_for_meanwhile() {
    let mut program = Program::mapped();
    let block = program.take(Bytes::mib(20));
    let arena = Arc::clone(&program.rig.arena);
    for _ in 0..300 {
        let (given, paused) = thread::scope(|scope| {
            let asks = scope.spawn(|| {
                let given = arena.begin_export(block);
                if given {
                    thread::yield_now();
                    arena.end_export(block, Bytes::mib(20));
                }
                given
            });
            let paused = arena.pause(Contents::Keep).unwrap();
            (asks.join().unwrap(), paused)
        });
        assert_eq!(given, !paused.stays.exported.is_zero());
        arena.resume().unwrap();
        program.holds_all();
        // Its export ends with the block.
        program.give(0);
        arena.flush();
        assert_eq!(program.take(Bytes::mib(20)), block);
    }
    program.ends_clean();
}

/// A thread that finds another growing waits for it, and does not take its turn away or
/// wait for itself.
#[test]
fn a_device_is_let_in_while_threads_grow() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let program = Program::mapped();
        let arena = &program.rig.arena;
        let ends = AtomicBool::new(false);
        let grown = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ends.load(Ordering::Acquire) {
                        let address = arena.allocate(Bytes::mib(30)).unwrap();
                        arena.free(address).unwrap();
                        arena.trim();
                        grown.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _ends = Ends(&ends);
            while grown.load(Ordering::Relaxed) < 100 {
                arena.admit_all().unwrap();
            }
        });
        arena.validate().unwrap();
        let _ = done.send(());
    });
    let waited = is_done.recv_timeout(Duration::from_secs(60));
    assert_eq!(waited, Ok(()), "the threads hang");
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
