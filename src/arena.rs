//! All chunks and indexes of one device context.
//!
//! Owns the memory that it took from its [`Driver`]. The paths that programs
//! are on all the time, a hit and a free, take the lock once and make no
//! driver call. They are in `hit` and `free`. Everything else is in the modules below, of
//! which the first to read are `miss`, `growth`, `ladder` (out of memory), `fences`
//! (epochs), `waits` and `release` (what goes back to the driver).
//!
//! # Lock order
//!
//! There is one lock, around the `state`. It is a spin lock and no driver
//! call, environment read, log or I/O happens under it; nor is any other lock
//! taken but, for a moment, that of the quota's flights (the page map is
//! lock-free, its first-use initialisation aside). The list of requests that
//! failed has a lock of its own, taken by itself.
//!
//! # Invariant
//!
//! A freed block is handed out again only after a fence later than the free
//! was reached on every stream of the context (or, with `immediate`, at the
//! user's own risk). Memory leaves the heap and the page map before it goes
//! back to the driver.

mod banks;
mod caches;
mod check;
mod direct;
mod fences;
mod finish;
mod free;
mod growth;
mod hit;
mod inspect;
mod ladder;
mod mapped;
mod miss;
mod pack;
mod pause;
mod pressure;
mod recall;
mod release;
mod retire;
mod shortage;
mod state;
mod together;
mod units;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use crate::address::Bytes;
use crate::busy::Busy;
use crate::config::{
    Config, DeviceShare, FreeSync, GarbageThreshold, StrategyKind, ThreadCacheSize,
};
use crate::driver::Driver;
use crate::driver::mapping::MappingTraits;
use crate::driver::metered::Metered;
pub use crate::driver::program_call::CallEnd;
use crate::driver::program_call::call;
use crate::error::Code;
use crate::heap::Heap;
pub use crate::heap::locate::Located;
use crate::page_map::{ArenaId, PageMap};
use crate::quota::Quota;
use crate::stats::OomLog;
use crate::strategy::packing::Packing;
use crate::strategy::{Pinned, PinnedPlan, Rounder, Strategy};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Lock, OnceLock, prepare_barriers};
use crate::thread_cache::CacheHub;

pub use check::Inconsistency;
use direct::Kind;
use finish::Finish;
pub use inspect::{Peak, StackWatch, Watch};
pub use pause::Contents;
use pressure::PressureCallback;
pub use pressure::live_at;
use release::ReleasePolicy;
use shortage::Need;
use state::ArenaState;

/// The memory of one device context.
pub struct Arena<D: Driver> {
    id: ArenaId,
    driver: Metered<D>,
    kind: Kind,
    strategy: Strategy,
    rounder: Option<Rounder>,
    free_sync: FreeSync,
    garbage_threshold: GarbageThreshold,
    garbage_fraction: f64,
    dedicated_min: Option<Bytes>,
    limbo_budget: Option<DeviceShare>,
    device_total: OnceLock<Bytes>,
    quota: Arc<Quota>,
    /// What is done to a block before the program gets it.
    finish: Option<Finish>,
    policy: ReleasePolicy,
    fail_at_limit: bool,
    /// For how long a request waits for others' frees.
    retry_time: Duration,
    /// Asks whoever else has memory of the device; see [`Arena::relieved_by`].
    pressure: Option<PressureCallback>,
    /// Whether its chunks stay; see [`Arena::hold`].
    holds: AtomicBool,
    /// What there is of virtual memory, once it was asked for.
    mapping: OnceLock<Option<MappingTraits>>,
    /// Whether no memory is mapped any more; see [`Arena::grow_plainly`].
    plain: AtomicBool,
    /// Whether that is since there were no addresses for it.
    lacks_addresses: AtomicBool,
    /// Whether units lie scattered, and may be brought together.
    scattered: AtomicBool,
    /// Whether any option has something to do after a free.
    follows_frees: bool,
    /// Whether idle memory is to go back at the program's next free.
    owes: AtomicBool,
    /// Whether other contexts hold up more of what was freed than there is a budget for.
    is_held_up: AtomicBool,
    /// Held by the thread on the out-of-memory ladder.
    ladder: Busy,
    /// Called at the end of calls; see [`Arena::followed_by`].
    then: Option<fn(CallEnd)>,
    watch: Watch,
    /// Why threads keep nothing, by the options.
    not_kept: Option<&'static str>,
    /// Whether they may keep what they free.
    keeps: bool,
    cache_size: ThreadCacheSize,
    hub: Arc<CacheHub>,
    /// The number of the hub, and the same for requests: none's where each is looked at
    /// first.
    hub_serial: u64,
    hub_at_once: u64,
    state: Lock<ArenaState<D::Fence>>,
    ooms: Lock<OomLog>,
    /// Whether memory that it does not have is asked for past it; see
    /// [`Arena::asked_past`].
    asks_past: bool,
    /// The requests for which that is done now.
    refused: Lock<Vec<Need>>,
}

impl<D: Driver> Arena<D> {
    /// An arena that holds nothing yet. Makes no driver call.
    #[must_use]
    pub fn new(
        id: ArenaId,
        driver: D,
        config: &Config,
        map: Arc<PageMap>,
        quota: Arc<Quota>,
    ) -> Arena<D> {
        let (strategy, kind) = (Strategy::new(config), Kind::Device);
        Arena::with(id, driver, (kind, strategy), config, map, quota)
    }

    /// An arena of pinned host memory. Of the configuration it obeys what is
    /// not about devices. Makes no driver call.
    #[must_use]
    pub fn pinned(
        id: ArenaId,
        driver: D,
        config: &Config,
        plan: &Arc<PinnedPlan>,
        map: Arc<PageMap>,
    ) -> Arena<D> {
        let pools = plan.pools() && config.strategy != StrategyKind::Passthrough;
        let (strategy, quota) = if pools {
            (Strategy::Pinned(Pinned::new(plan)), plan.quota())
        } else {
            (Strategy::Passthrough, Arc::new(Quota::new(Bytes::MAX)))
        };
        let config = Config {
            free_sync: config.free_sync,
            garbage_threshold: config.garbage_threshold,
            garbage_fraction: config.garbage_fraction,
            limbo_budget: config.limbo_budget,
            decay: config.decay,
            fill: config.fill,
            ..Config::default()
        };
        Arena::with(id, driver, (Kind::Host, strategy), &config, map, quota)
    }

    fn with(
        id: ArenaId,
        driver: D,
        (kind, strategy): (Kind, Strategy),
        config: &Config,
        map: Arc<PageMap>,
        quota: Arc<Quota>,
    ) -> Arena<D> {
        let policy = ReleasePolicy::new(config, &strategy);
        let packing = Packing::new(&strategy);
        let hub = Arc::new(CacheHub::new(Arc::clone(&map), id));
        let not_kept = caches::why_not(config, kind, &strategy);
        if not_kept.is_none() {
            prepare_barriers(D::may_make_barriers);
        }
        let pool_of_kept = not_kept.is_none().then(|| strategy.pool_of_small());
        let heap = Heap::new(id, map, config, kind == Kind::Host, pool_of_kept);
        Arena {
            id,
            driver: Metered::new(driver),
            kind,
            strategy,
            rounder: Rounder::new(&config.rounding),
            free_sync: config.free_sync,
            garbage_threshold: config.garbage_threshold,
            garbage_fraction: config.garbage_fraction,
            dedicated_min: config.dedicated_min,
            limbo_budget: config.limbo_budget,
            device_total: OnceLock::new(),
            quota,
            follows_frees: policy.follows_frees() || !config.retry_time.is_zero(),
            policy,
            finish: Finish::new(config),
            fail_at_limit: config.fail_at_limit,
            retry_time: config.retry_time,
            watch: Watch::default(),
            keeps: not_kept.is_none(),
            not_kept,
            cache_size: config.thread_cache,
            pressure: None,
            mapping: OnceLock::new(),
            plain: AtomicBool::new(false),
            lacks_addresses: AtomicBool::new(false),
            scattered: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            is_held_up: AtomicBool::new(false),
            ladder: Busy::new(),
            then: None,
            state: Lock::new(ArenaState::new(heap, Arc::clone(&hub), config, packing)),
            hub_serial: hub.serial(),
            hub_at_once: hub.serial(),
            hub,
            ooms: Lock::new(OomLog::default()),
            asks_past: false,
            refused: Lock::new(Vec::new()),
        }
    }

    /// The number under which the page map knows this arena.
    pub fn id(&self) -> ArenaId {
        self.id
    }

    /// The driver below.
    pub fn driver(&self) -> &D {
        self.driver.inner()
    }

    /// Makes a call of the driver for memory that the arena had none for, and
    /// counts it with its own.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn ask_past<T>(&self, call: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        self.driver.alloc_past(call)
    }

    /// The same for memory that such a call took and that the arena could not
    /// enter: it goes back.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn return_past(&self, call: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
        self.driver.free_past(call)
    }

    /// This arena, which calls `then` at the end of each call that did more than
    /// hand a block out or take it back, when nothing is held, with what it did.
    #[must_use]
    pub fn followed_by(mut self, then: fn(CallEnd)) -> Arena<D> {
        self.then = Some(then);
        self
    }

    /// Runs what a call of the program does beyond the hit path, counts the call
    /// where it waits for the device, and lets others know of its end.
    pub(super) fn counted<R>(&self, work: impl FnOnce() -> R) -> R {
        call(work, |end, waited| {
            if let Some(waited) = waited {
                self.state.lock().counters.waited(waited);
            }
            if let Some(then) = self.then {
                then(end);
            }
        })
    }
}
