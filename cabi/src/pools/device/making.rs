//! How a context gets its arena, and a lane of it one of its own.
//!
//! Invariant: a context has at most one arena that serves, whichever thread is faster.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use vramalloc_core::arena::Watch;
use vramalloc_core::config::{FreeSync, StrategyKind};
use vramalloc_core::lanes::Lanes;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::stats::{RecordedArena, RecordedPlace};

use super::settings::{config, watch};
use super::{
    Asking, ContextPools, DeviceArena, DevicePool, NEW, NO_CONTEXT, PAGES, POOLS, Role, SERVING,
    arenas, context_at, held, serving,
};
use crate::driver::context::Context;
use crate::driver::contexts;
use crate::driver::devices::{Device, device};
use crate::driver::real_driver::RealDriver;
use crate::pools::host_memory::{PoolOwner, Pools};
use crate::process::say::{Once, warn_once};
use crate::process::{self, cancel};
use crate::recording;
use crate::stacks;
use crate::types::{CUcontext, CUdevice};

/// Makes the arena of a context. Fails with the context if that may be ending.
pub(super) fn create(
    handle: CUcontext,
    ordinal: CUdevice,
    asking: Asking,
) -> Result<Option<&'static DevicePool>, Arc<Context>> {
    let _held = cancel::Held::back();
    let Some((context, primary)) = contexts::learn(handle, ordinal) else {
        return Ok(None);
    };
    let device = device(ordinal);
    let pages = PAGES.get_or_init(|| Arc::new(PageMap::new()));
    stacks::prepare();
    let (config, watch) = process::options(|loaded| {
        let settings = &loaded.settings;
        (config(&settings.config, asking), watch(settings))
    });

    let recording = recording::of(&told_as(device, ordinal, handle.addr(), false), tell_blocks);
    let watch = Watch { recording, ..watch };

    let new = NEW.lock();
    if context.is_paused() {
        return Err(context);
    }
    // Another thread may have been faster.
    if let Some(pool) = serving(handle.addr()) {
        return Ok(Some(pool));
    }
    let pool = POOLS.add(|number| {
        let id = ArenaId(number);
        let driver = RealDriver::new(Arc::clone(&context), Some(device), context_at);
        let quota = Arc::clone(&device.quota);
        let arena = DeviceArena::new(id, driver, &config, Arc::clone(pages), quota);
        DevicePool {
            handle: handle.addr(),
            serving: AtomicUsize::new(handle.addr()),
            device,
            ordinal,
            primary,
            arena: held::beside_others(arena, watch, device, handle.addr()),
            role: Role::Context(Box::new(ContextPools {
                lanes: Lanes::new(),
                pinned: Pools::new(
                    context,
                    config.clone(),
                    PoolOwner {
                        context: number,
                        device: ordinal,
                    },
                ),
            })),
        }
    });
    let Some(pool) = pool else {
        drop(new);
        warn_once(
            Once::Arenas,
            "no context that is made from now on is pooled, capped or counted: there were too many",
        );
        return Ok(None);
    };
    SERVING.write().push(pool);
    drop(new);
    pool.arena.tell_memory();
    if pool.arena.events_kept() < watch.events {
        warn_once(
            Once::Trace,
            "trace: no host memory for so many events; none are kept",
        );
    }
    Ok(Some(pool))
}

/// What an arena is, for a recording, in the words of the statistics.
pub(super) fn told_as(
    device: &Device,
    ordinal: CUdevice,
    context: usize,
    lane: bool,
) -> RecordedArena<'_> {
    RecordedArena {
        place: RecordedPlace::Device,
        device: u32::try_from(ordinal).ok(),
        device_name: device.name.as_deref(),
        device_total: device.total,
        limit: device.quota.limit(),
        context: Some(context as u64),
        lane,
    }
}

/// Has every arena tell the recording what it holds.
pub(super) fn tell_blocks() {
    arenas().for_each(|(_, arena)| arena.tell_blocks());
}

/// Makes a lane of a context: it needs no fence and takes chunks as they are
/// needed, whatever the strategy. Filling and waiting follow no stream's order,
/// so a lane does neither.
pub(crate) fn make_lane(pool: &'static DevicePool) -> Option<Arc<DeviceArena>> {
    let pages = PAGES.get()?;
    let (mut config, watch) = process::options(|loaded| {
        let settings = &loaded.settings;
        (settings.config.clone(), watch(settings))
    });
    config.strategy = StrategyKind::AutoGrowth;
    config.free_sync = FreeSync::Immediate;
    config.fill = None;
    config.sync_after_alloc = false;
    let recording = recording::of(
        &told_as(pool.device, pool.ordinal, pool.handle, true),
        tell_blocks,
    );
    let watch = Watch { recording, ..watch };
    let device = pool.device;
    let context = Arc::clone(pool.arena.driver().context());
    let driver = RealDriver::new(context, Some(device), context_at);
    let lane = POOLS.add(|number| {
        let id = ArenaId(number);
        let quota = Arc::clone(&device.quota);
        let arena = DeviceArena::new(id, driver, &config, Arc::clone(pages), quota);
        DevicePool {
            handle: pool.handle,
            serving: AtomicUsize::new(NO_CONTEXT),
            device,
            ordinal: pool.ordinal,
            primary: pool.primary,
            arena: held::beside_others(arena, watch, device, pool.handle),
            role: Role::Lane(pool),
        }
    })?;
    Some(Arc::clone(&lane.arena))
}
