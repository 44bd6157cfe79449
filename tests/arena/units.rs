//! Units move only behind a fence.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::StrategyKind;
use vramalloc_core::driver::{MemInfo, Whose};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Code, Driver};
use vramalloc_model::{Gpu, Settings, SimDriver, SimFence, Violation};

use crate::rig::{MS, Rig, mapping_of_inner, plain, without_caches};

/// A driver whose fences may say nothing: each counts as reached when it is made.
struct Fencing {
    inner: SimDriver,
    is_honest: bool,
}

mapping_of_inner!(Fencing);

impl Driver for Fencing {
    type Fence = SimFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.inner.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.inner.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.inner.mem_info()
    }

    fn fence(&self) -> Result<SimFence, Code> {
        self.inner.fence()
    }

    fn reached(&self, fence: &SimFence) -> Result<bool, Code> {
        Ok(!self.is_honest || self.inner.reached(fence)?)
    }

    fn wait(&self, fence: &SimFence, whose: Whose) -> Result<bool, Code> {
        Ok(!self.is_honest || self.inner.wait(fence, whose)?)
    }
}

/// What the model GPU says when a freed block, which a kernel still writes, gives its
/// units to the next.
fn stolen_from_a_kernel(is_honest: bool) -> Vec<Violation> {
    let gpu = Gpu::new(Settings {
        memory: Bytes::mib(64),
        ..Settings::default()
    });
    let inner = gpu.driver(0).unwrap();
    let stream = gpu.stream(inner.context(), false).unwrap();
    let driver = Fencing { inner, is_honest };
    let quota = Arc::new(Quota::new(Bytes::MAX));
    let config = plain(StrategyKind::Mapped);
    let map = Arc::new(PageMap::new());
    let arena = Arena::new(ArenaId(0), driver, &config, map, quota);
    let (first, size) = (arena.allocate(Bytes::mib(20)).unwrap(), Bytes::mib(20));
    let kept = arena.allocate(Bytes::mib(20)).unwrap();
    gpu.launch(stream, 200 * MS, &[(first, size)]).unwrap();
    arena.free(first).unwrap();
    let second = arena.allocate(Bytes::mib(40)).unwrap();
    assert!(second != first);
    arena.free(kept).unwrap();
    arena.free(second).unwrap();
    gpu.violations()
}

#[test]
fn without_a_fence_units_are_unmapped_under_a_kernel() {
    assert_eq!(stolen_from_a_kernel(true), []);
    let violations = stolen_from_a_kernel(false);
    let is_unmapped_in_use =
        |violation: &Violation| matches!(violation, Violation::FreedInUse { .. });
    assert!(violations.iter().any(is_unmapped_in_use), "{violations:?}");
}

/// Whoever finds that another thread makes a window waits for its turn, and holds nothing
/// meanwhile.
#[test]
fn turns_are_waited_for_while_windows_are_made() {
    let rig = Rig::new(&without_caches(StrategyKind::Mapped), Bytes::mib(64));
    let arena = Arc::clone(&rig.arena);
    let (ends, ended) = mpsc::channel();
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let other = Arc::clone(&rig.arena);
    let waiting = thread::spawn(move || {
        // Relaxed: it stands for itself.
        while !is_done.load(Ordering::Relaxed) {
            other.admit_all().unwrap();
        }
    });
    let making = thread::spawn(move || {
        for _ in 0..2000 {
            let block = arena.allocate(Bytes::mib(8)).unwrap();
            arena.free(block).unwrap();
            arena.trim();
        }
        ends.send(()).unwrap();
    });
    // Where the two wait for each other, nobody ends.
    ended.recv_timeout(Duration::from_secs(120)).unwrap();
    done.store(true, Ordering::Relaxed);
    making.join().unwrap();
    waiting.join().unwrap();
    assert!(rig.arena.is_empty());
}
