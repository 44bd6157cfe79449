//! Pause and resume of an arena whose memory is mapped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::rig::{MS, Rig, plain};
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Contents;
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::error::{AllocError, Code};
use vramalloc_model::{Call, Gpu, Settings};

mod cycles;
mod exports;
mod faults;
mod others;
mod races;

/// Seeded numbers.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A program that knows what each of its blocks holds.
pub(super) struct Program {
    pub(super) rig: Rig,
    pub(super) live: Vec<(Address, Bytes, u64)>,
    tags: u64,
}

impl Program {
    pub(super) fn new(config: &Config) -> Program {
        Program::on(config, Settings::default())
    }

    pub(super) fn on(config: &Config, settings: Settings) -> Program {
        Program {
            rig: Rig::on(Gpu::new(settings), config),
            live: Vec::new(),
            tags: 0,
        }
    }

    /// Under `mapped`, on a GPU of 16 GiB.
    pub(super) fn mapped() -> Program {
        Program::new(&plain(StrategyKind::Mapped))
    }

    pub(super) fn take(&mut self, size: Bytes) -> Address {
        let address = self.rig.get(size);
        self.tags += 1;
        self.rig.gpu.write_tag(address, size, self.tags);
        self.live.push((address, size, self.tags));
        address
    }

    pub(super) fn give(&mut self, number: usize) {
        let (address, _, _) = self.live.swap_remove(number);
        self.rig.arena.free(address).unwrap();
    }

    /// Blocks of many sizes that are live, beside some that are cached, in limbo with
    /// work that still uses them, or kept by the thread.
    pub(super) fn fill(&mut self) {
        for size in [
            1,
            100,
            3000,
            70_000,
            900_000,
            1 << 20,
            3 << 20,
            5_000_000,
            33 << 20,
        ] {
            for _ in 0..3 {
                self.take(Bytes::new(size));
            }
        }
        for number in [25, 22, 19, 16, 13, 10, 7, 4, 1] {
            self.give(number);
        }
        for size in [2000, 400_000, 9 << 20] {
            let address = self.take(Bytes::new(size));
            self.rig.launch(address, Bytes::new(size), 5 * MS);
            self.give(self.live.len() - 1);
        }
    }

    #[track_caller]
    pub(super) fn holds_all(&self) {
        for &(address, size, tag) in &self.live {
            let holds = self.rig.gpu.holds_tag(address, size, tag);
            assert!(holds, "{address:?} of {size} has lost its contents");
        }
    }

    #[track_caller]
    pub(super) fn cycle(&self) {
        let arena = &self.rig.arena;
        let paused = arena.pause(Contents::Keep).unwrap();
        arena.validate().unwrap();
        assert_eq!(self.rig.gpu.used(0), Bytes::ZERO);
        let resumed = arena.resume().unwrap();
        arena.validate().unwrap();
        assert!(paused.bytes >= resumed.bytes, "{paused:?} {resumed:?}");
        assert_eq!(paused.copied, resumed.copied);
        self.holds_all();
    }

    pub(super) fn ends_clean(mut self) {
        while !self.live.is_empty() {
            self.give(0);
        }
        self.rig.arena.drop_backups();
        assert_eq!(self.rig.gpu.backups(), (0, Bytes::ZERO));
        self.rig.ends_clean();
    }
}

#[test]
fn all_memory_goes_and_comes_back_with_what_it_held() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    let before = arena.stats();
    let paused = arena.pause(Contents::Keep).unwrap();
    arena.validate().unwrap();
    assert!(arena.is_paused());
    assert_eq!(program.rig.gpu.used(0), Bytes::ZERO);
    let (first, size, tag) = program.live[0];
    assert!(!program.rig.gpu.holds_tag(first, size, tag));
    let stats = arena.stats();
    assert_eq!(stats.reserved.current, Bytes::ZERO);
    assert_eq!(stats.live.current, before.live.current);
    assert!(stats.pause.paused >= stats.live.current && stats.pause.is_paused);
    assert!(paused.bytes >= stats.pause.paused);
    assert_eq!(stats.pause.stays, vramalloc_core::stats::Stays::default());
    assert!(paused.copied >= stats.live.current);
    let resumed = arena.resume().unwrap();
    arena.validate().unwrap();
    assert_eq!(resumed.bytes, stats.pause.paused);
    program.holds_all();
    let stats = arena.stats();
    assert_eq!((stats.pause.pauses, stats.pause.resumes), (1, 1));
    assert_eq!(stats.pause.paused, Bytes::ZERO);
    program.ends_clean();
}

#[test]
fn what_is_paused_or_runs_already_stays_so() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    assert_eq!(arena.resume().unwrap().bytes, Bytes::ZERO);
    arena.pause(Contents::Keep).unwrap();
    assert_eq!(arena.pause(Contents::Drop).unwrap().bytes, Bytes::ZERO);
    arena.resume().unwrap();
    assert_eq!(arena.resume().unwrap().bytes, Bytes::ZERO);
    program.holds_all();
    program.ends_clean();
}

#[test]
fn nothing_was_ever_taken() {
    let program = Program::mapped();
    program.cycle();
    program.ends_clean();
}

#[test]
fn contents_that_are_dropped_are_not_copied() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    let paused = arena.pause(Contents::Drop).unwrap();
    assert_eq!(paused.copied, Bytes::ZERO);
    assert_eq!(program.rig.gpu.used(0), Bytes::ZERO);
    assert_eq!(arena.resume().unwrap().copied, Bytes::ZERO);
    assert_eq!(program.rig.gpu.calls(Call::Save), 0);
    assert_eq!(program.rig.gpu.calls(Call::Restore), 0);
    program.ends_clean();
}

#[test]
fn a_paused_arena_serves_nothing_and_takes_everything_back() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    arena.pause(Contents::Keep).unwrap();
    let refused = |size: u64| {
        assert_eq!(arena.allocate(Bytes::new(size)), Err(AllocError::Paused));
        arena.validate().unwrap();
    };
    for size in [1, 70_000, 5 << 20, 1 << 30] {
        refused(size);
    }
    // What is freed meanwhile is not handed out either, and needs no memory.
    let paused = arena.stats().pause.paused;
    while program.live.len() > 5 {
        let (_, size, _) = program.live[3];
        program.give(3);
        refused(size.get());
    }
    arena.flush();
    assert_eq!(arena.trim(), Bytes::ZERO);
    assert_eq!(program.rig.gpu.used(0), Bytes::ZERO);
    assert_eq!(arena.stats().ooms, 0);
    let resumed = arena.resume().unwrap();
    assert!(resumed.bytes < paused, "{resumed:?} of {paused}");
    arena.validate().unwrap();
    program.holds_all();
    program.ends_clean();
}

#[test]
fn what_is_freed_while_paused_is_not_told_as_free_memory() {
    let mut program = Program::mapped();
    program.fill();
    // Slabs that are empty in the end.
    for _ in 0..3000 {
        program.take(Bytes::new(3000));
    }
    let arena = Arc::clone(&program.rig.arena);
    arena.pause(Contents::Keep).unwrap();
    program.rig.gpu.occupy(0, Bytes::gib(10));
    while program.live.len() > 5 {
        program.give(3);
    }
    arena.flush();
    arena.validate().unwrap();
    assert_eq!(arena.idle(), Bytes::ZERO);
    assert_eq!(arena.stats().idle, Bytes::ZERO);
    // The device has it already.
    assert_eq!(arena.mem_info().unwrap().free, Bytes::gib(6));
    program.rig.gpu.occupy(0, Bytes::ZERO);
    arena.resume().unwrap();
    arena.validate().unwrap();
    program.holds_all();
    program.ends_clean();
}

#[test]
fn captures_refuse_both() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    let refused = || Err(Code::CAPTURE_UNSUPPORTED);
    let (gpu, stream) = (program.rig.gpu.clone(), program.rig.stream);
    gpu.begin_capture(stream);
    assert_eq!(arena.pause(Contents::Keep), refused());
    assert!(!arena.is_paused());
    assert!(gpu.end_capture(stream));
    arena.pause(Contents::Keep).unwrap();
    gpu.begin_capture(stream);
    assert_eq!(arena.resume(), refused());
    assert!(arena.is_paused());
    assert!(gpu.end_capture(stream));
    arena.resume().unwrap();
    program.holds_all();
    program.ends_clean();
}

/// What the program holds no more is not taken again, and is not told as if it were.
#[test]
fn what_is_freed_while_paused_is_paused_no_more() {
    let mut program = Program::mapped();
    for _ in 0..4 {
        program.take(Bytes::mib(20));
    }
    let arena = Arc::clone(&program.rig.arena);
    arena.pause(Contents::Keep).unwrap();
    let before = arena.stats().pause.paused;
    program.give(0);
    program.give(0);
    let after = arena.stats().pause.paused;
    assert!(
        after <= before.saturating_sub(Bytes::mib(36)),
        "{before} {after}"
    );
    arena.validate().unwrap();
    assert_eq!(arena.resume().unwrap().bytes, after);
    program.holds_all();
    program.ends_clean();
}

/// Nothing on the device uses what is not there: no fence is waited for.
#[test]
fn what_is_freed_while_paused_is_not_taken_again_however_busy_the_device_is() {
    for size in [Bytes::mib(20), Bytes::kib(700)] {
        let mut program = Program::mapped();
        for _ in 0..8 {
            program.take(size);
        }
        let arena = Arc::clone(&program.rig.arena);
        arena.pause(Contents::Keep).unwrap();
        let stream = program.rig.stream;
        program.rig.gpu.launch(stream, 100 * MS, &[]).unwrap();
        (0..8).for_each(|_| program.give(0));
        assert_eq!(arena.idle(), Bytes::ZERO);
        let resumed = arena.resume().unwrap();
        assert_eq!((resumed.bytes, resumed.copied), (Bytes::ZERO, Bytes::ZERO));
        program.ends_clean();
    }
}

#[test]
fn plain_memory_stays_and_is_listed() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    arena.grow_plainly();
    program.take(Bytes::mib(40));
    let paused = arena.pause(Contents::Keep).unwrap();
    arena.validate().unwrap();
    assert!(paused.stays.plain >= Bytes::mib(40), "{paused:?}");
    assert_eq!(program.rig.gpu.used(0), paused.stays.plain);
    arena.resume().unwrap();
    program.holds_all();
    program.ends_clean();
}

#[test]
fn other_strategies_have_nothing_to_pause() {
    for strategy in [StrategyKind::AutoGrowth, StrategyKind::Passthrough] {
        let mut program = Program::new(&plain(strategy));
        program.take(Bytes::mib(3));
        let arena = Arc::clone(&program.rig.arena);
        assert_eq!(arena.pause(Contents::Keep), Err(Code::NOT_SUPPORTED));
        assert!(!arena.is_paused());
        program.take(Bytes::mib(3));
        program.holds_all();
        program.ends_clean();
    }
}

/// What the driver gave plainly, since it had no units, goes by the waits of a pause.
#[test]
fn plain_memory_in_limbo_counts_as_given_back() {
    let mut program = Program::mapped();
    let arena = Arc::clone(&program.rig.arena);
    program.take(Bytes::mib(3));
    let gpu = program.rig.gpu.clone();
    gpu.fail_randomly(Call::Create, 1000, Code::OUT_OF_MEMORY);
    let stream = program.rig.stream;
    gpu.begin_capture(stream);
    program.take(Bytes::mib(5));
    program.give(1);
    assert!(gpu.end_capture(stream));
    let before = gpu.used(0);
    let paused = arena.pause(Contents::Keep).unwrap();
    assert_eq!(paused.bytes, before.saturating_sub(gpu.used(0)));
    gpu.fail_randomly(Call::Create, 0, Code::OUT_OF_MEMORY);
    arena.resume().unwrap();
    program.holds_all();
    program.ends_clean();
}

#[test]
fn without_memory_it_stays_paused() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    arena.pause(Contents::Keep).unwrap();
    let gpu = program.rig.gpu.clone();
    gpu.occupy(0, Bytes::gib(16).saturating_sub(Bytes::mib(30)));
    assert_eq!(arena.resume(), Err(Code::OUT_OF_MEMORY));
    arena.validate().unwrap();
    assert!(arena.is_paused());
    assert_eq!(arena.stats().reserved.current, Bytes::ZERO);
    gpu.occupy(0, Bytes::ZERO);
    arena.resume().unwrap();
    program.holds_all();
    program.ends_clean();
}

#[test]
fn a_context_that_ends_while_paused_leaves_nothing() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    arena.pause(Contents::Keep).unwrap();
    let gpu = program.rig.gpu.clone();
    gpu.destroy_context(arena.driver().context());
    arena.retire();
    assert_eq!(gpu.units_and_reservations(), (0, 0));
    assert_eq!(gpu.backups(), (0, Bytes::ZERO));
    assert_eq!(gpu.used(0), Bytes::ZERO);
    assert_eq!(gpu.violations(), []);
    assert!(!arena.is_paused());
    assert_eq!(arena.resume(), Err(Code::INVALID_CONTEXT));
    assert!(!program.rig.is_ours(program.live[0].0));
}

#[test]
fn the_limit_has_room_for_others_meanwhile() {
    let mut program = Program::mapped();
    program.fill();
    let arena = Arc::clone(&program.rig.arena);
    let free = arena.mem_info().unwrap().free;
    arena.pause(Contents::Keep).unwrap();
    assert!(arena.mem_info().unwrap().free > free);
    assert_eq!(arena.mem_info().unwrap().free, Bytes::gib(16));
    arena.resume().unwrap();
    program.ends_clean();
}

/// Waits until another thread has done something.
pub(super) fn await_flag(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        thread::yield_now();
    }
}
