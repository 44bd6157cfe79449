//! An arena over one device of a model GPU, as the tests need it.

use std::sync::Arc;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::{Arena, Watch};
use vramalloc_core::config::{Config, StrategyKind, ThreadCacheSize};
use vramalloc_core::page_map::{ArenaId, Owner, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_model::{Gpu, Settings, SimDriver, StreamId};

pub(crate) const MS: u64 = 1_000_000;

pub(crate) struct Rig {
    pub(crate) gpu: Gpu,
    pub(crate) arena: Arc<Arena<SimDriver>>,
    pub(crate) map: Arc<PageMap>,
    pub(crate) quota: Arc<Quota>,
    /// A stream that does not order with the legacy one.
    pub(crate) stream: StreamId,
}

impl Rig {
    /// A device of `memory` bytes under `config`.
    pub(crate) fn new(config: &Config, memory: Bytes) -> Rig {
        let gpu = Gpu::new(Settings {
            memory,
            ..Settings::default()
        });
        Rig::on(gpu, config)
    }

    /// The same, with what is to be kept of the past.
    pub(crate) fn watched(config: &Config, memory: Bytes, watch: Watch) -> Rig {
        let gpu = Gpu::new(Settings {
            memory,
            ..Settings::default()
        });
        Rig::watched_on(gpu, config, watch)
    }

    /// The first device of this machine.
    pub(crate) fn on(gpu: Gpu, config: &Config) -> Rig {
        Rig::watched_on(gpu, config, Watch::default())
    }

    fn watched_on(gpu: Gpu, config: &Config, watch: Watch) -> Rig {
        let driver = gpu.driver(0).unwrap();
        let stream = gpu.stream(driver.context(), false).unwrap();
        let total = vramalloc_core::Driver::mem_info(&driver).unwrap().total;
        let limit = config.limit.map_or(Bytes::MAX, |limit| limit.of(total));
        let map = Arc::new(PageMap::new());
        let quota = Arc::new(Quota::new(limit));
        let (shared_map, shared_quota) = (Arc::clone(&map), Arc::clone(&quota));
        let arena = Arena::new(ArenaId(0), driver, config, shared_map, shared_quota).watched(watch);
        Rig {
            gpu,
            arena: Arc::new(arena),
            map,
            quota,
            stream,
        }
    }

    /// The program gives bytes of a block to others.
    pub(crate) fn export(&self, address: Address, size: Bytes) {
        assert!(self.arena.begin_export(address));
        self.arena.end_export(address, size);
    }

    pub(crate) fn get(&self, size: Bytes) -> Address {
        self.arena
            .allocate(size)
            .unwrap_or_else(|error| panic!("{size}: {error:?}"))
    }

    /// Work of `duration` on the non-blocking stream that writes the block.
    pub(crate) fn launch(&self, address: Address, size: Bytes, duration: u64) {
        self.gpu
            .launch(self.stream, duration, &[(address, size)])
            .unwrap();
    }

    pub(crate) fn is_ours(&self, address: Address) -> bool {
        self.map.owner(address) == Owner::Arena(ArenaId(0))
    }

    /// Where the driver's allocation around a block starts.
    pub(crate) fn allocation(&self, address: Address) -> Address {
        self.arena.locate(address).unwrap().allocation
    }

    /// Whether the block is a driver allocation of its own.
    pub(crate) fn is_whole(&self, address: Address) -> bool {
        self.arena.locate(address).unwrap().is_whole()
    }

    /// Nothing is left, on either side of the seam, and nothing forbidden was
    /// done on the way.
    pub(crate) fn ends_clean(&self) {
        self.arena.validate().unwrap();
        self.arena.trim();
        self.arena.validate().unwrap();
        let stats = self.arena.stats();
        for (name, gauge) in [
            ("live", stats.live),
            ("cached", stats.cached),
            ("limbo", stats.limbo),
            ("reserved", stats.reserved),
        ] {
            assert_eq!(gauge.current, Bytes::ZERO, "{name}");
        }
        assert_eq!(self.gpu.used(0), Bytes::ZERO);
        assert_eq!(self.gpu.live_count(), 0);
        assert_eq!(self.gpu.units_and_reservations(), (0, 0));
        assert_eq!(self.gpu.violations(), []);
    }
}

/// The strategy with its defaults.
pub(crate) fn plain(strategy: StrategyKind) -> Config {
    Config {
        strategy,
        ..Config::default()
    }
}

/// The same where threads keep nothing of what they free.
pub(crate) fn without_caches(strategy: StrategyKind) -> Config {
    Config {
        thread_cache: ThreadCacheSize::Most(Bytes::ZERO),
        ..plain(strategy)
    }
}

/// The virtual memory of a driver is that of its field `inner`.
macro_rules! mapping_of_inner {
    ($driver:ty) => {
        impl ::vramalloc_core::driver::mapping::Mapping for $driver {
            fn mapping_traits(
                &self,
            ) -> Result<Option<::vramalloc_core::driver::mapping::MappingTraits>, Code> {
                self.inner.mapping_traits()
            }

            fn reserve(&self, size: Bytes) -> Result<Address, Code> {
                self.inner.reserve(size)
            }

            fn unreserve(&self, at: Address, size: Bytes) -> Result<(), Code> {
                self.inner.unreserve(at, size)
            }

            fn create(&self, size: Bytes) -> Result<::vramalloc_core::driver::mapping::Unit, Code> {
                self.inner.create(size)
            }

            fn release(&self, unit: ::vramalloc_core::driver::mapping::Unit) -> Result<(), Code> {
                self.inner.release(unit)
            }

            fn map(
                &self,
                at: Address,
                size: Bytes,
                unit: ::vramalloc_core::driver::mapping::Unit,
            ) -> Result<(), Code> {
                self.inner.map(at, size, unit)
            }

            fn admit(&self, at: Address, size: Bytes) -> Result<(), Code> {
                self.inner.admit(at, size)
            }

            fn unmap(&self, at: Address, size: Bytes) -> Result<(), Code> {
                self.inner.unmap(at, size)
            }
        }
    };
}
pub(crate) use mapping_of_inner;
