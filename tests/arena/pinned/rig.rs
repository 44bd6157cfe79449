//! A host's memory and an arena of it, or two, over the model GPU.

use std::sync::Arc;

use vramalloc_core::PinnedPlan;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Arena;
use vramalloc_core::config::{Config, PinnedConfig, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{Driver, MemInfo, Whose};
use vramalloc_core::error::Code;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_model::{Gpu, Settings, SimDriver, SimFence, StreamId};

pub(super) const HOST: Bytes = Bytes::gib(8);
pub(super) const PAGE: u64 = 4096;

/// A host's memory, in which everything begins at whole pages.
pub(super) struct Host {
    memory: Arc<SimDriver>,
    /// What is taken at the least: above 1 MiB nothing shares a page.
    least: Bytes,
    /// How far behind the device's everything begins.
    shift: u64,
}

impl Host {
    pub(super) fn new(memory: SimDriver) -> Host {
        Host {
            memory: Arc::new(memory),
            least: Bytes::new((1 << 20) + 1),
            shift: 0,
        }
    }
}

impl Mapping for Host {}

impl Driver for Host {
    type Fence = SimFence;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let taken = size.max(self.least).saturating_add(Bytes::new(self.shift));
        let address = self.memory.alloc(taken)?;
        Ok(Address::new(address.get() + self.shift))
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        self.memory.free(Address::new(address.get() - self.shift))
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        self.memory.mem_info()
    }

    fn may_fence(&self) -> bool {
        self.memory.may_fence()
    }

    fn fence(&self) -> Result<SimFence, Code> {
        self.memory.fence()
    }

    fn reached(&self, fence: &SimFence) -> Result<bool, Code> {
        self.memory.reached(fence)
    }

    fn wait(&self, fence: &SimFence, whose: Whose) -> Result<bool, Code> {
        self.memory.wait(fence, whose)
    }
}

pub(super) struct Rig {
    pub(super) gpu: Gpu,
    pub(super) arena: Arena<Host>,
    pub(super) map: Arc<PageMap>,
    pub(super) stream: StreamId,
}

impl Rig {
    pub(super) fn new(config: &Config, pinned: PinnedConfig) -> Rig {
        let gpu = Gpu::new(Settings {
            memory: HOST,
            ..Settings::default()
        });
        let driver = gpu.driver(0).unwrap();
        let stream = gpu.stream(driver.context(), false).unwrap();
        let plan = Arc::new(PinnedPlan::new(&pinned, HOST));
        let map = Arc::new(PageMap::new());
        let arena = Arena::pinned(
            ArenaId(0),
            Host::new(driver),
            config,
            &plan,
            Arc::clone(&map),
        );
        Rig {
            gpu,
            arena,
            map,
            stream,
        }
    }

    pub(super) fn plain() -> Rig {
        Rig::new(&Config::default(), PinnedConfig::default())
    }

    pub(super) fn get(&self, size: u64) -> Address {
        let got = self.arena.allocate(Bytes::new(size));
        got.unwrap_or_else(|error| panic!("{size}: {error:?}"))
    }

    pub(super) fn launch(&self, address: Address, size: u64, duration: u64) {
        let touched = [(address, Bytes::new(size))];
        self.gpu.launch(self.stream, duration, &touched).unwrap();
    }

    pub(super) fn reserved(&self) -> u64 {
        self.arena.stats().reserved.current.get()
    }

    pub(super) fn ends_clean(&self) {
        self.arena.trim();
        self.arena.validate().unwrap();
        assert_eq!(self.reserved(), 0);
        assert_eq!(self.gpu.live_count(), 0);
        assert_eq!(self.gpu.violations(), []);
    }
}

/// Two arenas on one memory, in which small allocations share a page of the
/// page map, and where nothing is pooled.
pub(super) fn neighbours(shift: u64) -> (Gpu, Arc<PageMap>, [Arena<Host>; 2]) {
    let gpu = Gpu::new(Settings::default());
    let config = Config {
        strategy: StrategyKind::Passthrough,
        ..Config::default()
    };
    let plan = Arc::new(PinnedPlan::new(&PinnedConfig::default(), HOST));
    let map = Arc::new(PageMap::new());
    let memory = Arc::new(gpu.driver(0).unwrap());
    let arenas = [0, 1].map(|number| {
        let driver = Host {
            memory: Arc::clone(&memory),
            least: Bytes::new(PAGE),
            shift,
        };
        Arena::pinned(ArenaId(number), driver, &config, &plan, Arc::clone(&map))
    });
    (gpu, map, arenas)
}
