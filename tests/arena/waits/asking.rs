//! A driver that asks a test before some of its calls.

use std::sync::Arc;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::Config;
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{MemInfo, Whose};
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Code, Driver};
use vramalloc_model::{Gpu, Settings, SimDriver, StreamId};

/// A driver that asks a test.
pub(super) struct Asking<T> {
    pub(super) driver: SimDriver,
    pub(super) test: T,
}

pub(super) trait Asked: Send + Sync {
    /// Before memory is taken.
    fn alloc(&self) -> Result<(), Code> {
        Ok(())
    }

    fn may_fence(&self) -> bool {
        true
    }

    fn is_alone(&self) -> bool {
        true
    }

    /// Before a fence is made.
    fn fence(&self) -> Result<(), Code> {
        Ok(())
    }

    /// Before one is waited for.
    fn wait(&self) {}

    /// Before all work is waited for without one.
    fn wait_by_free(&self) {}
}

impl<T> Mapping for Asking<T> {}

impl<T: Asked> Driver for Asking<T> {
    type Fence = <SimDriver as Driver>::Fence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        self.test.alloc()?;
        self.driver.alloc(size)
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.driver.free(address)
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.driver.mem_info()
    }

    fn may_fence(&self) -> bool {
        self.test.may_fence()
    }

    fn is_alone(&self) -> bool {
        self.test.is_alone()
    }

    fn fence(&self) -> Result<Self::Fence, Code> {
        self.test.fence()?;
        self.driver.fence()
    }

    fn reached(&self, fence: &Self::Fence) -> Result<bool, Code> {
        self.driver.reached(fence)
    }

    fn wait(&self, fence: &Self::Fence, whose: Whose) -> Result<bool, Code> {
        self.test.wait();
        self.driver.wait(fence, whose)
    }

    fn wait_by_free(&self, whose: Whose) -> Result<bool, Code> {
        self.test.wait_by_free();
        self.driver.wait_by_free(whose)
    }
}

pub(super) fn arena_asking<T: Asked>(
    test: T,
    config: &Config,
    settings: Settings,
) -> (Gpu, StreamId, Arena<Asking<T>>) {
    let gpu = Gpu::new(settings);
    let driver = gpu.driver(0).unwrap();
    let stream = gpu.stream(driver.context(), false).unwrap();
    let driver = Asking { driver, test };
    let (map, quota) = (Arc::new(PageMap::new()), Arc::new(Quota::new(Bytes::MAX)));
    let arena = Arena::new(ArenaId(0), driver, config, map, quota);
    (gpu, stream, arena)
}
