//! The arenas of page-locked memory: one for each context and kind of request.
//!
//! Owns them, from the first request of their kind until the process ends, and
//! a page map of their own, for addresses of the host. Invariant: an arena
//! serves one context alone, and is told of its end. Cost: a hit is two loads
//! beyond finding the context's pool; a free finds its arena with the page map
//! and one load.

use std::sync::{Arc, OnceLock};

use vramalloc_core::arena::{Watch, live_at};
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::page_map::{ArenaId, Owner, PageMap};
use vramalloc_core::stats::{ArenaReport, PinnedReport, RecordedArena, RecordedPlace};
use vramalloc_core::{Address, Bytes, PinnedPlan, host};

use crate::driver::context::Context;
use crate::driver::whose;
use crate::pools::host_memory::registered::Leftovers;
use crate::pools::host_memory::source::{HostDriver, Kind};
use crate::pools::registry::Registry;
use crate::process::{self, cancel};
use crate::recording;
use crate::types::CUdevice;

/// An arena of page-locked memory.
pub(crate) type HostArena = vramalloc_core::Arena<HostDriver>;

/// Segments of the registry for these arenas, retired ones included: room for
/// 262144. Contexts beyond that are left to CUDA.
const MOST: usize = 256;

static POOLS: Registry<Pool, MOST> = Registry::new();
static PAGES: OnceLock<Arc<PageMap>> = OnceLock::new();
static PLAN: OnceLock<Arc<PinnedPlan>> = OnceLock::new();

/// An arena and its owner.
struct Pool {
    arena: HostArena,
    of: PoolOwner,
    kind: Kind,
}

/// The context that arenas belong to.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PoolOwner {
    /// Its number.
    pub(crate) context: u32,
    /// Its device.
    pub(crate) device: CUdevice,
}

/// The arenas of one context.
pub(crate) struct Pools {
    context: Arc<Context>,
    config: Config,
    of: PoolOwner,
    by_kind: [OnceLock<Option<&'static HostArena>>; Kind::COUNT],
}

impl Pools {
    /// The arenas of a context; none is made yet.
    pub(crate) fn new(context: Arc<Context>, config: Config, of: PoolOwner) -> Pools {
        Pools {
            context,
            config,
            of,
            by_kind: [const { OnceLock::new() }; Kind::COUNT],
        }
    }

    /// The arena for memory of this kind.
    pub(crate) fn arena(&self, kind: Kind) -> Option<&'static HostArena> {
        let place = self.by_kind.get(kind.index())?;
        if let Some(arena) = place.get() {
            return *arena;
        }
        // Read before the arena is made: no thread waits for a file.
        let plan = plan();
        let told = RecordedArena {
            place: RecordedPlace::Pinned,
            device: u32::try_from(self.of.device).ok(),
            device_name: None,
            device_total: None,
            limit: None,
            context: None,
            lane: false,
        };
        let watch = Watch {
            recording: recording::of(&told, tell_blocks),
            ..Watch::default()
        };
        *place.get_or_init(|| {
            let pages = PAGES.get_or_init(|| Arc::new(PageMap::new()));
            let config = &self.config;
            let source = HostDriver::new(Arc::clone(&self.context), kind, self.threads());
            let pool = POOLS.add(|number| {
                let id = ArenaId(number);
                let arena = HostArena::pinned(id, source, config, plan, Arc::clone(pages));
                let arena = arena.watched(watch).asked_past();
                Pool {
                    arena: arena.relieved_by(move || relieve(id), move || live(id)),
                    of: self.of,
                    kind,
                }
            });
            pool.map(|pool| &pool.arena)
        })
    }

    /// How many threads touch memory before it is registered, if it is.
    fn threads(&self) -> Option<u32> {
        let pools = self.config.strategy != StrategyKind::Passthrough;
        process::options(|loaded| {
            let options = &loaded.settings.pinned;
            (options.use_host_register && pools).then_some(options.register_threads)
        })
    }

    fn all(&self) -> impl Iterator<Item = &'static HostArena> {
        self.by_kind.iter().filter_map(|place| *place.get()?)
    }

    /// Whether the device may still be using freed memory.
    pub(crate) fn has_limbo(&self) -> bool {
        self.all()
            .any(|arena| !arena.limbo().is_zero() || arena.driver().has_leaving())
    }

    /// Makes memory available that the device is done with.
    pub(crate) fn flush(&self) {
        self.all().for_each(HostArena::flush);
    }

    /// Gives back all memory that is not in use.
    pub(crate) fn give_back_idle(&self) {
        self.all().for_each(|arena| {
            arena.give_back_idle();
        });
    }

    /// Ends the arenas with their context; returns what memory is left.
    pub(crate) fn retire(&self) -> Leftovers {
        self.all().fold(Leftovers::default(), |left, arena| {
            arena.retire();
            left.and(arena.driver().forget())
        })
    }
}

fn plan() -> &'static Arc<PinnedPlan> {
    if let Some(plan) = PLAN.get() {
        return plan;
    }
    let _held = cancel::Held::back();
    // If the host does not say how much memory it has, none is kept.
    let memory = host::memory().unwrap_or(Bytes::ZERO);
    let plan = process::options(|loaded| PinnedPlan::new(&loaded.settings.pinned, memory));
    PLAN.get_or_init(|| Arc::new(plan))
}

/// Who owns an address of the host.
pub(crate) fn owner(address: Address) -> Owner {
    whose::owner(address, || in_map(address), context_of)
}

/// Who owns an address as far as the page map knows.
pub(crate) fn in_map(address: Address) -> Owner {
    PAGES
        .get()
        .map_or(Owner::Foreign, |pages| pages.owner(address))
}

/// The context that the page map names for an address.
pub(crate) fn context_at(address: Address) -> Option<&'static Arc<Context>> {
    context_of(in_map(address))
}

fn context_of(owner: Owner) -> Option<&'static Arc<Context>> {
    let Owner::Arena(id) = owner else {
        return None;
    };
    Some(arena(id)?.driver().context())
}

/// Gives back what is idle in all other arenas, of whatever kind and context, for one that
/// is short: they share the host. Whether that was anything.
fn relieve(asking: ArenaId) -> bool {
    give_back(others(asking))
}

/// Gives back what is idle in arenas. Whether that was anything.
pub(super) fn give_back(arenas: impl Iterator<Item = &'static HostArena>) -> bool {
    let released = arenas.map(|arena| {
        let is_unwanted = arena.driver().give_back_unwanted();
        !arena.trim().is_zero() || is_unwanted
    });
    released.fold(false, |any, released| any | released)
}

/// What the program holds in all other arenas at least, at a moment of the call.
fn live(asking: ArenaId) -> Option<Bytes> {
    let others: Vec<_> = others(asking).collect();
    live_at(&others, || Some(()))
}

fn others(asking: ArenaId) -> impl Iterator<Item = &'static HostArena> {
    all().filter(move |arena| arena.id() != asking)
}

/// Every arena there has been.
pub(crate) fn all() -> impl Iterator<Item = &'static HostArena> {
    POOLS.all().map(|pool| &pool.arena)
}

/// The arena with this number.
pub(crate) fn arena(id: ArenaId) -> Option<&'static HostArena> {
    POOLS.get(id.0).map(|pool| &pool.arena)
}

/// A report of every arena there has been.
pub(crate) fn reports() -> impl Iterator<Item = ArenaReport> {
    POOLS.all().map(|Pool { arena, of, kind }| ArenaReport {
        device: u32::try_from(of.device).unwrap_or(0),
        pinned: Some(PinnedReport {
            context: of.context,
            flags: kind.flags(),
        }),
        stats: arena.stats(),
        calls: arena.driver_calls(),
        ooms: arena.ooms(),
        ..ArenaReport::default()
    })
}

/// Has all of these arenas tell the recording what they hold.
fn tell_blocks() {
    POOLS.all().for_each(|pool| pool.arena.tell_blocks());
}
