//! What a request waits for while a stream captures, when memory is short, and a free where
//! much waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_model::Settings;

use super::asking::{Asked, Asking, arena_asking};
use crate::rig::plain;

/// What another thread does while one waits.
type Meanwhile = Box<dyn FnOnce(&Arena<Asking<Waited>>) + Send>;

/// During each wait without a fence, another thread does something.
#[derive(Default)]
struct Waited {
    arena: OnceLock<Weak<Arena<Asking<Waited>>>>,
    captures: AtomicBool,
    meanwhile: Mutex<VecDeque<Meanwhile>>,
}

impl Asked for Waited {
    fn may_fence(&self) -> bool {
        !self.captures.load(Ordering::Relaxed)
    }

    fn wait_by_free(&self) {
        let next = self.meanwhile.lock().unwrap().pop_front();
        if let (Some(next), Some(arena)) = (next, self.arena.get().and_then(Weak::upgrade)) {
            thread::scope(|scope| scope.spawn(|| next(&arena)).join()).unwrap();
        }
    }
}

/// Another thread takes what a wait made available and frees something else meanwhile, wait
/// after wait: there is another wait for that, as there is without a capture.
#[test]
fn a_request_waits_as_often_as_something_leaves_limbo() {
    const BLOCK: Bytes = Bytes::mib(2);
    let settings = Settings {
        memory: Bytes::mib(10),
        ..Settings::default()
    };
    // Chunks are not packed, and what is cut from the whole does not go back.
    let config = Config {
        auto_growth_chunk: Bytes::mib(4),
        ..plain(StrategyKind::AutoGrowth)
    };
    let (gpu, capturing, arena) = arena_asking(Waited::default(), &config, settings);
    let arena = Arc::new(arena);
    let test = &arena.driver().test;
    test.arena.set(Arc::downgrade(&arena)).ok().unwrap();
    // One chunk, in which four lie side by side.
    let whole = arena.allocate(Bytes::mib(8)).unwrap();
    arena.free(whole).unwrap();
    arena.flush();
    let mut blocks = [(); 4].map(|()| arena.allocate(BLOCK).unwrap());
    blocks.sort_unstable();
    let [first, second, third, last] = blocks;
    assert_eq!(whole, first);
    arena.free(last).unwrap();
    arena.flush();
    gpu.begin_capture(capturing);
    test.captures.store(true, Ordering::Relaxed);
    arena.free(third).unwrap();
    arena.free(first).unwrap();
    let swap = |freed: Address, taken: Address| -> Meanwhile {
        Box::new(move |arena| {
            assert_eq!(arena.allocate(BLOCK), Ok(taken));
            arena.free(freed).unwrap();
        })
    };
    *test.meanwhile.lock().unwrap() = [swap(second, last), swap(last, first)].into();
    assert_eq!(arena.allocate(Bytes::mib(6)), Ok(second));
    assert!(test.meanwhile.lock().unwrap().is_empty());
    assert!(gpu.end_capture(capturing));
}

/// Counts waits in a capture, beside other contexts or not.
struct Captured {
    is_alone: bool,
    waits: AtomicUsize,
}

impl Asked for Captured {
    fn may_fence(&self) -> bool {
        false
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }

    fn wait_by_free(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }
}

/// A free waits where more is in limbo than its budget allows, 64 MiB: bare CUDA's waits each
/// time, but for no other context. Frees of blocks that the thread keeps do too.
#[test]
fn a_free_in_a_capture_waits_where_much_is_in_limbo() {
    for (is_alone, size) in [
        (true, Bytes::mib(1)),
        (true, Bytes::kib(16)),
        (false, Bytes::mib(1)),
    ] {
        let settings = Settings {
            memory: Bytes::gib(4),
            ..Settings::default()
        };
        let test = Captured {
            is_alone,
            waits: AtomicUsize::new(0),
        };
        let config = plain(StrategyKind::AutoGrowth);
        let (_gpu, _, arena) = arena_asking(test, &config, settings);
        for _ in 0..Bytes::gib(1).get() / size.get() {
            arena.free(arena.allocate(size).unwrap()).unwrap();
        }
        let waits = arena.driver().test.waits.load(Ordering::Relaxed);
        let reserved = arena.glance().reserved;
        if is_alone {
            assert!((4..=18).contains(&waits), "{waits}");
            assert!(reserved <= Bytes::mib(128), "{reserved}");
        } else {
            assert_eq!((waits, reserved), (0, Bytes::gib(1)));
        }
    }
}
