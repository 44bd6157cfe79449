//! What a request waits for while a stream captures, when memory is short.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::StrategyKind;
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{MemInfo, Whose};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Code, Driver};
use vramalloc_model::SimDriver;

use crate::rig::{Rig, plain};

type Captured = Arena<Waited>;

/// What another thread does while one waits.
type Meanwhile = Box<dyn FnOnce(&Captured) + Send>;

/// A driver during a capture, with a thread that does something during each wait.
struct Waited {
    inner: SimDriver,
    arena: OnceLock<Weak<Captured>>,
    meanwhile: Mutex<VecDeque<Meanwhile>>,
}

impl Mapping for Waited {}

impl Driver for Waited {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.inner.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.inner.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.inner.mem_info()
    }

    fn may_fence(&self) -> bool {
        self.inner.may_fence()
    }

    fn fence(&self) -> Result<Self::Fence, Code> {
        self.inner.fence()
    }

    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code> {
        self.inner.reached(fence)
    }

    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code> {
        self.inner.wait(fence, whose)
    }

    fn wait_by_free(&self, whose: Whose) -> Result<bool, Code> {
        let next = self.meanwhile.lock().unwrap().pop_front();
        if let (Some(next), Some(arena)) = (next, self.arena.get().and_then(Weak::upgrade)) {
            thread::scope(|scope| scope.spawn(|| next(&arena)).join()).unwrap();
        }
        self.inner.wait_by_free(whose)
    }
}

/// Another thread takes what a wait made available and frees something else meanwhile, wait
/// after wait: there is another wait for that, as there is without a capture.
#[test]
fn a_request_waits_as_often_as_something_leaves_limbo() {
    const BLOCK: Bytes = Bytes::mib(2);
    let rig = Rig::new(&plain(StrategyKind::AutoGrowth), Bytes::mib(10));
    let driver = Waited {
        inner: rig.gpu.driver(0).unwrap(),
        arena: OnceLock::new(),
        meanwhile: Mutex::default(),
    };
    let (map, quota) = (Arc::new(PageMap::new()), Arc::new(Quota::new(Bytes::MAX)));
    let config = plain(StrategyKind::AutoGrowth);
    let arena = Arc::new(Arena::new(ArenaId(1), driver, &config, map, quota));
    let driver = arena.driver();
    driver.arena.set(Arc::downgrade(&arena)).unwrap();
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
    let capturing = rig.gpu.stream(driver.inner.context(), false).unwrap();
    rig.gpu.begin_capture(capturing);
    arena.free(third).unwrap();
    arena.free(first).unwrap();
    let swap = |freed: Address, taken: Address| -> Meanwhile {
        Box::new(move |arena| {
            assert_eq!(arena.allocate(BLOCK), Ok(taken));
            arena.free(freed).unwrap();
        })
    };
    *driver.meanwhile.lock().unwrap() = [swap(second, last), swap(last, first)].into();
    assert_eq!(arena.allocate(Bytes::mib(6)), Ok(second));
    assert!(driver.meanwhile.lock().unwrap().is_empty());
    assert!(rig.gpu.end_capture(capturing));
}
