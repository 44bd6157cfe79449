//! The arenas of regions: in each context one for each tag that is used there.
//!
//! Invariant: a region's pool is found as long as its context's own is. Cost: a look at
//! the pools that serve; the first time, the making of an arena.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use vramalloc_core::arena::Contents;
use vramalloc_core::page_map::ArenaId;

use super::making::{tell_blocks, told_as};
use super::{
    Asking, ContextPools, DeviceArena, DevicePool, NEW, NO_CONTEXT, PAGES, POOLS, Role, SERVING,
    config, context_at, current_pool, held, watch,
};
use crate::driver::real_driver::RealDriver;
use crate::pools::host_memory::{PoolOwner, Pools};
use crate::pools::regions::{self, Region};
use crate::process::{self, cancel};
use crate::recording;
use vramalloc_core::arena::Watch;
use vramalloc_core::lanes::Lanes;

/// A region's pool, and what it has besides its arena, which is nothing.
pub(super) struct RegionPool {
    region: &'static Region,
    pub(super) nothing: ContextPools,
}

impl DevicePool {
    fn region(&self) -> Option<&'static Region> {
        match &self.role {
            Role::Region(pool) => Some(pool.region),
            Role::Context(_) | Role::Lane(_) => None,
        }
    }

    /// The tag of its memory, if that was asked for in a region.
    pub(crate) fn tag(&self) -> Option<&'static CStr> {
        self.region().map(|region| &*region.tag)
    }

    /// What becomes of its memory's contents in a pause.
    pub(crate) fn contents(&self) -> Contents {
        self.region()
            .map_or(Contents::Keep, |region| region.contents)
    }

    /// The pool of the context that serves the calling thread's requests: that of the
    /// region that it is in, or this one.
    #[inline]
    pub(crate) fn serving_thread(&'static self) -> &'static DevicePool {
        match regions::current() {
            None => self,
            Some(region) => self.of_region(region),
        }
    }

    #[cold]
    fn of_region(&'static self, region: &'static Region) -> &'static DevicePool {
        let is_it = |pool: &&DevicePool| {
            pool.is_of(self.context()) && pool.region().is_some_and(|r| std::ptr::eq(r, region))
        };
        let find = || SERVING.read().iter().copied().find(|pool| is_it(pool));
        // Where there can be no more arenas, tags are not told apart.
        find().or_else(|| make(self, region, find)).unwrap_or(self)
    }
}

/// The pool that serves requests of the calling thread.
#[inline]
pub(crate) fn pool_for_thread(asking: Asking) -> Option<&'static DevicePool> {
    current_pool(asking).map(DevicePool::serving_thread)
}

/// Makes the pool of a region in a context, whose own pool this is.
fn make(
    pool: &'static DevicePool,
    region: &'static Region,
    find: impl Fn() -> Option<&'static DevicePool>,
) -> Option<&'static DevicePool> {
    // Not below what a thread may be cancelled in.
    let _held = cancel::Held::back();
    let pages = PAGES.get()?;
    let (config, watch) = process::options(|loaded| {
        let settings = &loaded.settings;
        (config(&settings.config, Asking::Door), watch(settings))
    });
    let recording = recording::of(
        &told_as(pool.device, pool.ordinal, pool.handle, false),
        tell_blocks,
    );
    let watch = Watch { recording, ..watch };
    let (device, context) = (pool.device, pool.context());
    let new = NEW.lock();
    if let Some(found) = find() {
        return Some(found);
    }
    if context.is_paused() {
        return None;
    }
    let made = POOLS.add(|number| {
        let id = ArenaId(number);
        let driver = RealDriver::new(Arc::clone(context), Some(device), context_at);
        let quota = Arc::clone(&device.quota);
        let arena = DeviceArena::new(id, driver, &config, Arc::clone(pages), quota);
        let owner = PoolOwner {
            context: number,
            device: pool.ordinal,
        };
        DevicePool {
            handle: pool.handle,
            serving: AtomicUsize::new(NO_CONTEXT),
            device,
            ordinal: pool.ordinal,
            primary: pool.primary,
            arena: held::beside_others(arena, watch, device, pool.handle),
            role: Role::Region(Box::new(RegionPool {
                region,
                nothing: ContextPools {
                    lanes: Lanes::new(),
                    pinned: Pools::new(Arc::clone(context), config.clone(), owner),
                },
            })),
        }
    })?;
    SERVING.write().push(made);
    drop(new);
    made.arena.tell_memory();
    Some(made)
}
