//! All chunks and indexes of one device context.
//!
//! Owns the memory that it took from its [`Driver`]. The paths that programs
//! are on all the time, a hit and a free, take the lock once and make no
//! driver call. Everything else is in the modules below, of which the first to
//! read are `growth` (misses), `ladder` (out of memory) and `reclaim` (epochs and
//! what goes back to the driver).
//!
//! # Lock order
//!
//! There is one lock, around the books. It is a spin lock and no driver
//! call, environment read, log or I/O happens under it; nor is any other lock
//! taken but, for a moment, that of the quota's flights (the page map is
//! lock-free, its first-use initialisation aside). The list of requests that
//! failed has a lock of its own, taken by itself.
//!
//! # Invariant
//!
//! A freed block is handed out again only after a fence later than the free
//! was reached on every stream of the context (or, with `immediate`, at the
//! user's own risk). Memory leaves the books and the page map before it goes
//! back to the driver.

mod again;
mod asked;
mod block;
mod books;
mod chunk;
mod direct;
mod finish;
mod free_index;
mod growth;
mod history;
mod info;
mod ladder;
mod limbo;
mod meter;
mod neighbours;
mod packing;
mod picture;
mod reclaim;
mod surplus;
mod table;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use crate::address::{Address, Bytes};
use crate::arena::growth::Stray;
use crate::config::{Config, DeviceShare, FreeSync, GarbageThreshold, StrategyKind};
use crate::driver::{Driver, IfEnding, Whose};
use crate::error::{AllocError, Code, FreeError};
use crate::page_map::{ArenaId, PageMap};
use crate::quota::Quota;
use crate::stats::{ArenaStats, DriverCalls, OomLog};
use crate::strategy::{Pinned, PinnedPlan, Rounder, Route, Strategy};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Lock, OnceLock};

pub use asked::Glance;
pub use books::Located;
use books::{Books, Freed, Release, Search, Want};
use direct::Kind;
use finish::Finish;
pub use history::Watch;
use meter::Metered;
use neighbours::Neighbours;
pub use neighbours::live_at;
use packing::Packing;
use reclaim::Extent;
use surplus::Surplus;
pub use validate::Inconsistency;

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
    surplus: Surplus,
    fail_at_limit: bool,
    /// For how long a request waits for others' frees.
    retry_time: Duration,
    /// Asks whoever else has memory of the device; see [`Arena::relieved_by`].
    neighbours: Option<Neighbours>,
    /// Whether its chunks stay; see [`Arena::hold`].
    holds: AtomicBool,
    /// Whether any option has something to do after a free.
    follows_frees: bool,
    /// Whether idle memory is to go back at the program's next free.
    owes: AtomicBool,
    /// Called at the end of calls; see [`Arena::followed_by`].
    then: Option<fn()>,
    watch: Watch,
    books: Lock<Books<D::Fence>>,
    ooms: Lock<OomLog>,
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
        let surplus = Surplus::new(config, &strategy);
        let packing = Packing::new(&strategy);
        let mut books = Books::new(id, map, config, packing);
        if kind == Kind::Host {
            books.is_of_host();
        }
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
            follows_frees: surplus.follows_frees() || !config.retry_time.is_zero(),
            surplus,
            finish: Finish::new(config),
            fail_at_limit: config.fail_at_limit,
            retry_time: config.retry_time,
            watch: Watch::default(),
            neighbours: None,
            holds: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            then: None,
            books: Lock::new(books),
            ooms: Lock::new(OomLog::default()),
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

    /// Memory for a request of `request` bytes, aligned to 512.
    ///
    /// # Errors
    /// [`AllocError`], after the whole out-of-memory ladder;
    /// [`Code::INVALID_VALUE`] for no bytes.
    pub fn allocate(&self, request: Bytes) -> Result<Address, AllocError> {
        self.allocate_for(request, Stray::GivenBack)
    }

    /// As `allocate`. But a direct allocation that the page map cannot hold,
    /// because it begins at no multiple of 512, is the program's all the same:
    /// uncounted, and the real free's business.
    ///
    /// # Errors
    /// As `allocate`.
    pub fn allocate_or_leave(&self, request: Bytes) -> Result<Address, AllocError> {
        self.allocate_for(request, Stray::Left)
    }

    fn allocate_for(&self, request: Bytes, stray: Stray) -> Result<Address, AllocError> {
        let _step = self.step();
        if request.is_zero() {
            return Err(AllocError::Driver(Code::INVALID_VALUE));
        }
        let stack = self.call_stack();
        let size = match &self.rounder {
            None => self.strategy.block(request),
            Some(rounder) => rounder.size(request),
        };
        let size = size.ok_or(AllocError::Driver(Code::OUT_OF_MEMORY))?;
        let route = if self.dedicated_min.is_some_and(|least| request >= least) {
            Route::Direct
        } else {
            self.strategy
                .route(size, &|| self.available())
                .map_err(AllocError::Driver)?
        };
        let serve = || match route {
            Route::Direct => self.allocate_direct(request, stack, stray),
            Route::Pool(pool) => {
                let want = Want {
                    request,
                    size,
                    pool,
                    stack,
                };
                let hit = self.books.lock().take(want, Search::Quick);
                hit.map_or_else(|| self.allocate_after_miss(want), Ok)
            }
        };
        match &self.finish {
            None => serve(),
            Some(finish) => {
                let finished = || serve().inspect(|&address| self.finish(finish, address));
                self.counted(finished)
            }
        }
    }

    /// Frees the live block at `address`.
    ///
    /// # Errors
    /// [`FreeError::NotLive`], or what the driver answered when it was to take
    /// its own allocation back. Nothing is changed then.
    pub fn free(&self, address: Address) -> Result<(), FreeError> {
        let _step = self.step();
        let (freed, batch_is_full) = self.leave_program(address)?;
        let strict = self.free_sync == FreeSync::Strict;
        let is_done = match freed {
            Freed::Done => true,
            Freed::Limbo => !strict && !batch_is_full,
            Freed::GiveBack(_) => false,
        };
        if is_done && !self.follows_frees {
            return Ok(());
        }
        self.counted(|| self.end_free(freed, batch_is_full))
    }

    /// What a free has left to be done.
    fn end_free(&self, freed: Freed, batch_is_full: bool) -> Result<(), FreeError> {
        let result = match freed {
            Freed::Done => Ok(()),
            Freed::GiveBack(direct) => {
                let address = direct.region.address;
                let freed = self.give_back_freed(direct, || self.driver.free_from_here(address));
                self.pay();
                freed
            }
            Freed::Limbo if self.free_sync == FreeSync::Strict => {
                self.wait_in_free();
                self.decay();
                self.pay();
                Ok(())
            }
            Freed::Limbo => {
                if batch_is_full {
                    self.close(Extent::Share);
                    self.poll_for_later();
                    self.decay();
                    self.pay();
                }
                Ok(())
            }
        };
        if self.follows_frees {
            self.after_free();
        }
        result
    }

    /// Takes a block back in the books; with it, whether a batch is full.
    pub(in crate::arena) fn leave_program(
        &self,
        address: Address,
    ) -> Result<(Freed, bool), FreeError> {
        let quiet = !self.driver.may_fence();
        let release = match self.free_sync {
            FreeSync::Immediate if self.driver.may_give_back() => Release::AtOnce,
            _ => Release::AfterFence {
                quiet,
                elsewhere: self.driver.is_elsewhere(),
            },
        };
        let mut books = self.books.lock();
        let freed = books.free(address, release);
        books.put_back_some();
        let full = self.batch_is_full(&books);
        freed.map(|freed| (freed, full))
    }

    fn after_free(&self) {
        self.release_after_free();
        self.notify_waiters();
    }

    /// Wakes who waits for memory, wherever on the device.
    fn notify_waiters(&self) {
        if !self.retry_time.is_zero() {
            self.quota.waiters().notify();
        }
    }

    /// Closes the open epoch and makes available what the device is done
    /// with. Waits for nothing, unless idle memory has decayed: the driver's
    /// free of it waits.
    pub fn flush(&self) {
        self.counted(|| self.flush_now());
    }

    fn flush_now(&self) {
        self.close(Extent::All);
        self.poll();
        self.decay();
    }

    /// Bytes that the program freed and that may still be in use.
    #[must_use]
    pub fn limbo(&self) -> Bytes {
        let mut books = self.books.lock();
        books.put_back_over();
        books.limbo_bytes()
    }

    /// Waits for limbo, then gives every idle chunk back to the driver, unless
    /// the context may be ending; returns how many bytes that were.
    pub fn trim(&self) -> Bytes {
        self.counted(|| self.trim_now())
    }

    fn trim_now(&self) -> Bytes {
        let _turn = self.turn_on_ladder();
        self.books.lock().tally().waited_for_all();
        self.wait_for_all(Whose::Own);
        let released = self.release_idle_if(IfEnding::Leave);
        if !self.books.lock().is_used_elsewhere() {
            return released;
        }
        self.wait_for_all(Whose::All);
        released.saturating_add(self.release_idle_if(IfEnding::Leave))
    }

    /// Gives every idle chunk back to the driver, with what of it is in limbo,
    /// and waits for nobody itself: the driver's own free waits for whoever
    /// uses the memory. Returns how many bytes that were.
    pub fn give_back_idle(&self) -> Bytes {
        self.counted(|| {
            let _turn = self.turn_on_ladder();
            self.release_idle_if(IfEnding::Leave)
        })
    }

    /// Forgets everything without a driver call: the context is gone and its
    /// memory with it. From then on nothing is handed out, and what it tells of
    /// itself is how it stood.
    pub fn retire(&self) {
        let reserved = self.end_books();
        self.quota.put_back(reserved);
        // Nothing that they wait for will come.
        self.notify_waiters();
    }

    /// A consistent picture of the arena.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        self.books.lock().picture()
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

    /// Calls made to the driver so far.
    #[must_use]
    pub fn driver_calls(&self) -> DriverCalls {
        self.driver.read()
    }

    /// Compares everything that the books keep twice; for tests.
    ///
    /// # Errors
    /// The first difference found.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        self.books.lock().validate()
    }

    /// The live block that an address lies in, or of a direct allocation
    /// starts at, with the driver's allocation around it; none where no live
    /// block is. Where a block starts that takes constant time; anywhere else
    /// a step for each 2 MiB from there down to the start of the block below,
    /// and some hundreds at most for the ends: it does not grow with blocks or
    /// chunks.
    #[must_use]
    pub fn locate(&self, address: Address) -> Option<Located> {
        self.books.lock().locate(address)
    }
}
