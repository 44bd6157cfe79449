//! The arenas of page-locked memory: one for each context and each way of
//! asking for memory.
//!
//! Owns them, from the first request of their kind until the process ends, and
//! a page map of their own: addresses of the host. Invariant: an arena serves
//! one context alone, whose end it is told of. Cost: a hit is two loads beyond
//! the context's; a free finds its arena with the page map and one load.

use std::sync::{Arc, OnceLock};

use core_arena::config::{Config, StrategyKind};
use core_arena::page_map::{ArenaId, Owner, PageMap};
use core_arena::{Address, Bytes, PinnedPlan, host};

use crate::host_memory::registered::Leftovers;
use crate::host_memory::source::{Kind, Source};
use crate::life;
use crate::marker::Marker;
use crate::registry::Registry;

/// An arena of page-locked memory.
pub(crate) type Arena = core_arena::Arena<Source>;

/// As many as a process can have, retired ones counted; what is beyond is left
/// to CUDA.
const MOST: usize = 4096;

static ARENAS: Registry<Arena, MOST> = Registry::new();
static PAGES: OnceLock<Arc<PageMap>> = OnceLock::new();
static PLAN: OnceLock<Arc<PinnedPlan>> = OnceLock::new();

/// The arenas of one context.
pub(crate) struct Pools {
    marker: Arc<Marker>,
    config: Config,
    by_kind: [OnceLock<Option<&'static Arena>>; Kind::COUNT],
}

impl Pools {
    /// The context of the marker has no arena yet.
    pub(crate) fn new(marker: Arc<Marker>, config: Config) -> Pools {
        Pools {
            marker,
            config,
            by_kind: [const { OnceLock::new() }; Kind::COUNT],
        }
    }

    /// The arena for memory of this kind.
    pub(crate) fn arena(&self, kind: Kind) -> Option<&'static Arena> {
        let place = self.by_kind.get(kind.index())?;
        if let Some(arena) = place.get() {
            return *arena;
        }
        // Read before the arena is made: nobody waits for a file.
        let plan = plan();
        *place.get_or_init(|| {
            let pages = PAGES.get_or_init(|| Arc::new(PageMap::new()));
            let config = &self.config;
            let source = Source::new(Arc::clone(&self.marker), kind, self.threads());
            ARENAS.add(|number| {
                Arena::pinned(ArenaId(number), source, config, plan, Arc::clone(pages))
            })
        })
    }

    /// How many threads touch memory that is to be registered, where it is.
    fn threads(&self) -> Option<u32> {
        let pools = self.config.strategy != StrategyKind::Passthrough;
        life::options(|loaded| {
            let options = &loaded.settings.pinned;
            (options.use_host_register && pools).then_some(options.register_threads)
        })
    }

    fn all(&self) -> impl Iterator<Item = &'static Arena> {
        self.by_kind.iter().filter_map(|place| *place.get()?)
    }

    /// Whether the device may still be using what was freed.
    pub(crate) fn has_limbo(&self) -> bool {
        self.all()
            .any(|arena| !arena.limbo().is_zero() || arena.driver().has_leaving())
    }

    /// Makes available what the device is done with.
    pub(crate) fn flush(&self) {
        self.all().for_each(Arena::flush);
    }

    /// Gives everything back that is not in use; how many bytes that were.
    pub(crate) fn trim(&self) -> Bytes {
        let released = self.all().map(Arena::trim);
        released.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The context ends, and its memory with it, but for these leftovers.
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
    // Of a host that does not say what it has, nothing is kept.
    let memory = host::memory().unwrap_or(Bytes::ZERO);
    let plan = life::options(|loaded| PinnedPlan::new(&loaded.settings.pinned, memory));
    PLAN.get_or_init(|| Arc::new(plan))
}

/// Whose an address of the host is.
pub(crate) fn owner(address: Address) -> Owner {
    PAGES
        .get()
        .map_or(Owner::Foreign, |pages| pages.owner(address))
}

/// Every arena there has been.
pub(crate) fn all() -> impl Iterator<Item = &'static Arena> {
    ARENAS.all()
}

/// The arena with this number.
pub(crate) fn arena(id: ArenaId) -> Option<&'static Arena> {
    ARENAS.get(id.0)
}
