//! A driver that costs nothing, so that only the arena is measured.
//!
//! Memory is never short, a free does nothing, and a fence is reached at once;
//! making or querying one spins for a configured time, which is the cost of an
//! event of a real driver. Cost: one relaxed addition per allocation.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::driver::mapping::Mapping;
use vramalloc_core::driver::{MemInfo, PAGE, Whose};
use vramalloc_core::error::Code;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::{Arena, Driver};

/// Addresses of one device; the page map holds 48 bits of them.
const SPAN: u64 = 1 << 43;

/// The memory of one device, which never ends.
pub struct Costless {
    first: u64,
    next: AtomicU64,
    event: Duration,
}

impl Costless {
    /// Device `number`, on which making or asking a fence takes `event_ns`.
    pub fn new(number: u32, event_ns: u64) -> Costless {
        let first = SPAN * (u64::from(number) + 1);
        Costless {
            first,
            next: AtomicU64::new(first),
            event: Duration::from_nanos(event_ns),
        }
    }

    /// The bytes that it gave in all: no address is given twice.
    pub fn given(&self) -> u64 {
        self.next.load(Ordering::Relaxed) - self.first
    }

    fn spin(&self) {
        if self.event.is_zero() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < self.event {
            hint::spin_loop();
        }
    }
}

impl Mapping for Costless {}

impl Driver for Costless {
    type Fence = ();

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let pages = size.round_up(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        let start = self.next.fetch_add(pages.get(), Ordering::Relaxed);
        Ok(Address::new(start))
    }

    fn free(&self, _address: Address) -> Result<(), Code> {
        Ok(())
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        Ok(MemInfo {
            free: Bytes::new(SPAN),
            total: Bytes::new(SPAN),
        })
    }

    fn fence(&self) -> Result<(), Code> {
        self.spin();
        Ok(())
    }

    fn reached(&self, _fence: &()) -> Result<bool, Code> {
        self.spin();
        Ok(true)
    }

    fn wait(&self, _fence: &(), _whose: Whose) -> Result<bool, Code> {
        Ok(true)
    }
}

/// An arena over any driver, with the defaults of a strategy.
pub fn arena_over<D: Driver>(
    driver: D,
    number: u32,
    strategy: StrategyKind,
    map: &Arc<PageMap>,
) -> Arena<D> {
    let config = Config {
        strategy,
        ..Config::default()
    };
    arena_with(driver, number, &config, map)
}

/// An arena over any driver.
pub fn arena_with<D: Driver>(
    driver: D,
    number: u32,
    config: &Config,
    map: &Arc<PageMap>,
) -> Arena<D> {
    let quota = Arc::new(Quota::new(Bytes::MAX));
    Arena::new(ArenaId(number), driver, config, Arc::clone(map), quota)
}
