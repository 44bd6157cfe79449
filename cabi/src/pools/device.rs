//! Contexts and their arenas.
//!
//! Owns every arena of the process, from the first request in a context until
//! the process ends: a retired arena keeps its statistics, and a pointer to one
//! never dangles. Invariant: a context has at most one arena that serves, and a
//! context that is made under an old handle gets a new one. Cost: a hit is one
//! thread-local look-up; a free finds its arena with the page map and one load.
//!
//! Lock order: `NEW`, then `SERVING` or the lock in `POOLS`. No driver call is
//! made under any of them.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use spin::rwlock::RwLock;
use vramalloc_core::lanes::Lanes;
use vramalloc_core::page_map::PageMap;
use vramalloc_core::patience::Brief;
use vramalloc_core::{Address, Bytes, Code, FreeError};

use crate::driver::context::{Context, Decision};
use crate::driver::devices::Device;
use crate::driver::real_driver::RealDriver;
use crate::driver::{contexts, green};
use crate::pools::holdings;
use crate::pools::host_memory::{Leftovers, Pools};
use crate::pools::registry::Registry;
use crate::process::fast_local::{Zeroed, fast_local};
use crate::real;
use crate::types::{CUcontext, CUdevice};

mod asked;
mod guests;
mod held;
mod making;
mod owners;
mod peaks;
mod regions;
mod reports;
mod settings;
pub(crate) mod shortage;
mod told;

pub(crate) use asked::{obey_limit, settled, when_settled, whose};
pub(crate) use guests::let_in;
use making::create;
pub(crate) use making::make_lane;
pub(crate) use owners::{arena, context_at, in_map, owner, pool_with, serving_pools};
pub(crate) use peaks::{begin_peak, peak, raise_peak};
use regions::RegionPool;
pub(crate) use regions::pool_for_thread;
pub(crate) use reports::{arenas, reports};
use settings::{config, watch};
pub(crate) use told::told;

/// An arena over the real driver.
pub(crate) type DeviceArena = vramalloc_core::Arena<RealDriver>;

/// Segments of the registry for the arenas of a process, retired ones included:
/// room for 262144. Contexts beyond that are left to CUDA.
const MOST_ARENAS: usize = 256;

/// The handle of no context, and not null, which stands for none on a thread.
const NO_CONTEXT: usize = usize::MAX;

/// Who asks for memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asking {
    /// A door: look-ups of CUDA's functions reach ours.
    Door,
    /// The C API, which can also be called when they do not.
    Api,
}

/// A context with its arena, or a lane of a context.
pub(crate) struct DevicePool {
    handle: usize,
    /// The same while the pool serves, then [`NO_CONTEXT`].
    serving: AtomicUsize,
    device: &'static Device,
    /// The device's handle, which is asked for at each request.
    ordinal: CUdevice,
    /// The device's primary context, which the runtime uses.
    primary: bool,
    arena: Arc<DeviceArena>,
    role: Role,
}

/// What a pool is for its context.
enum Role {
    /// The context's own pool.
    Context(Box<ContextPools>),
    /// A lane's pool; this is the pool of its context.
    Lane(&'static DevicePool),
    /// A pool for the memory of a region in its context.
    Region(Box<RegionPool>),
}

/// What a context has besides its arena.
struct ContextPools {
    /// Lanes: memory of streams, each lane with a pool of its own.
    lanes: Lanes<RealDriver>,
    pinned: Pools,
}

impl DevicePool {
    pub(crate) fn arena(&self) -> &Arc<DeviceArena> {
        &self.arena
    }

    fn context_pools(&self) -> &ContextPools {
        match &self.role {
            Role::Context(pools) => pools,
            Role::Lane(pool) => pool.context_pools(),
            Role::Region(pool) => &pool.nothing,
        }
    }

    /// The arenas of the context's page-locked host memory.
    pub(crate) fn pinned(&self) -> &Pools {
        &self.context_pools().pinned
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.ordinal
    }

    /// The lanes of the context.
    pub(crate) fn lanes(&self) -> &Lanes<RealDriver> {
        &self.context_pools().lanes
    }

    pub(crate) fn is_lane(&self) -> bool {
        matches!(self.role, Role::Lane(_))
    }

    /// Whether both belong to the same context.
    pub(crate) fn is_of_context(&self, other: &DevicePool) -> bool {
        self.handle == other.handle
    }

    fn context(&self) -> &Arc<Context> {
        self.arena.driver().context()
    }

    fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(self.context(), context)
    }

    /// Whether its context may be ending: it is asked nothing then.
    fn is_paused(&self) -> bool {
        self.context().is_paused()
    }

    /// Frees a block of this pool.
    #[inline(always)]
    pub(crate) fn free(&self, address: Address) -> Result<(), FreeError> {
        match &self.role {
            Role::Context(_) | Role::Region(_) => self.arena.free(address),
            Role::Lane(pool) => pool.lanes().free(&self.arena, address),
        }
    }

    /// Frees a block of this pool in the order of a stream; see
    /// [`DeviceArena::free_in_order`]. Calls `counted` with what counts still.
    pub(crate) fn free_in_order(
        &self,
        address: Address,
        give_back: impl FnOnce() -> Result<(), Code>,
        counted: impl FnOnce(Bytes),
    ) -> Result<(), FreeError> {
        let free = || {
            let freed = self.arena.free_in_order(address, give_back);
            freed.map(counted)
        };
        match &self.role {
            Role::Context(_) | Role::Region(_) => free(),
            Role::Lane(pool) => pool.lanes().free_by(&self.arena, address, free),
        }
    }
}

static PAGES: OnceLock<Arc<PageMap>> = OnceLock::new();
static NEW: SpinMutex<(), Brief> = SpinMutex::new(());
static SERVING: RwLock<Vec<&'static DevicePool>, Brief> = RwLock::new(Vec::new());
/// Every pool by the number of its arena.
static POOLS: Registry<DevicePool, MOST_ARENAS> = Registry::new();
/// The arena that a thread used last.
#[derive(Copy, Clone)]
struct Remembered {
    generation: u64,
    handle: usize,
    pool: Option<&'static DevicePool>,
}

impl Remembered {
    /// Whether it is the arena of this context. After the end of a context, threads
    /// do not find its arena again.
    #[inline(always)]
    fn is_of(&self, handle: CUcontext) -> bool {
        self.handle == handle.addr() && self.generation == contexts::generation()
    }
}

// SAFETY: in a cell; numbers, and a reference that zeros make none.
unsafe impl Zeroed for Cell<Remembered> {}

fast_local! {
    /// The arena that the calling thread used last.
    fn last() -> Cell<Remembered> = LAST_POOL to OWN_CACHES;
}

/// The arena of the context that is current on this thread, and its device;
/// `None` if no context is current.
pub(crate) fn current() -> Option<(&'static DeviceArena, CUdevice)> {
    let pool = current_pool(Asking::Door)?;
    Some((&pool.arena, pool.device.handle))
}

/// The pool of the context that is current on this thread.
#[inline]
pub(crate) fn current_pool(asking: Asking) -> Option<&'static DevicePool> {
    let handle = current_context()?;
    let remembered = last().get();
    match remembered.pool {
        Some(pool) if remembered.is_of(handle) => Some(pool),
        _ => find_current(handle, asking),
    }
}

/// The pool of this context, if the thread used it last and the context is no part
/// of another; only where the shortcut is open.
#[inline(always)]
pub(crate) fn last_pool(handle: CUcontext) -> Option<&'static DevicePool> {
    let remembered = last();
    let pool = remembered.get().pool?;
    // Relaxed: nothing is looked up here while a context may be ending.
    (pool.serving.load(Ordering::Relaxed) == handle.addr()).then_some(pool)
}

/// The context that is current on this thread.
#[inline(always)]
fn current_context() -> Option<CUcontext> {
    let mut handle: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut handle) };
    (result == 0 && !handle.is_null()).then_some(handle)
}

#[cold]
#[inline(never)]
fn find_current(handle: CUcontext, asking: Asking) -> Option<&'static DevicePool> {
    // Before the look: what is found may be gone after it.
    let generation = contexts::generation();
    let pool = find(green::whole(handle), asking, || {
        let mut device: CUdevice = 0;
        // SAFETY: writes the answer to a local.
        let told = unsafe { real::cuCtxGetDevice(&raw mut device) } == 0;
        told.then_some(device)
    })?;
    last().set(Remembered {
        generation,
        handle: handle.addr(),
        pool: Some(pool),
    });
    Some(pool)
}

/// The pool of a context of this device, whichever context is current.
pub(crate) fn pool_of(
    handle: CUcontext,
    device: CUdevice,
    asking: Asking,
) -> Option<&'static DevicePool> {
    find(green::whole(handle), asking, || Some(device))
}

/// The pool that serves a context, or a new one. If the context may be ending,
/// waits for that to be decided.
fn find(
    handle: CUcontext,
    asking: Asking,
    device: impl Fn() -> Option<CUdevice>,
) -> Option<&'static DevicePool> {
    loop {
        let found = match serving(handle.addr()) {
            Some(pool) if !pool.is_paused() => return Some(pool),
            Some(pool) => Err(Arc::clone(pool.context())),
            None => create(handle, device()?, asking),
        };
        let context = match found {
            Ok(pool) => return pool,
            Err(context) => context,
        };
        match context.await_decision() {
            // A pool that is found before the next end begins will do.
            Decision::Lives => {
                if let Some(pool) = serving(handle.addr()).filter(|pool| pool.is_of(&context)) {
                    return Some(pool);
                }
            }
            Decision::Ended => {}
            // Meanwhile requests go to the driver.
            Decision::Open => return None,
        }
    }
}

/// Whether a context is current on this thread.
///
/// # Errors
/// What the driver would return to a call that needs one.
pub(crate) fn check_current() -> Result<(), Code> {
    let mut handle: CUcontext = ptr::null_mut();
    // SAFETY: writes the answer to a local.
    let asked = unsafe { real::cuCtxGetCurrent(&raw mut handle) };
    // A failure of our question is no failure of the program's.
    if asked == 0 && handle.is_null() {
        return Err(Code::INVALID_CONTEXT);
    }
    Ok(())
}

fn serving(handle: usize) -> Option<&'static DevicePool> {
    SERVING
        .read()
        .iter()
        .find(|pool| pool.handle == handle && pool.tag().is_none())
        .copied()
}

/// Whether there is or was an arena.
pub(crate) fn any() -> bool {
    POOLS.all().next().is_some()
}

/// The pools that serve.
pub(crate) fn pools() -> Vec<&'static DevicePool> {
    let mut pools = SERVING.read().clone();
    pools.retain(|pool| !pool.is_paused());
    pools
}

/// The pools that serve on a device.
pub(crate) fn pools_on(device: CUdevice) -> Vec<&'static DevicePool> {
    let mut pools = pools();
    pools.retain(|pool| pool.device.handle == device);
    pools
}

/// Every pool there has been on a device, lanes too; dead ones have no memory.
pub(crate) fn all_on(device: CUdevice) -> impl Iterator<Item = &'static DevicePool> {
    POOLS.all().filter(move |pool| pool.device.handle == device)
}

/// The pools of this context that serve.
pub(crate) fn pools_of(context: &Arc<Context>) -> Vec<&'static DevicePool> {
    let mut pools = pools();
    pools.retain(|pool| pool.is_of(context));
    pools
}

/// After a context was paused: from now on no pool in it is found or made.
pub(crate) fn close_pools() {
    // A thread that was making one is done when this lock is free.
    drop(NEW.lock());
    contexts::forget_remembered();
}

/// Retires the arenas of a context that is gone.
pub(crate) fn retire(context: &Arc<Context>) -> Leftovers {
    peaks::keep_peaks(context);
    let retired: Vec<&'static DevicePool> = {
        let mut serving = SERVING.write();
        let (retired, kept) = serving.drain(..).partition(|pool| pool.is_of(context));
        *serving = kept;
        retired
    };
    let mut left = Leftovers::default();
    for pool in retired {
        pool.serving.store(NO_CONTEXT, Ordering::Relaxed);
        pool.arena.retire();
        reports::keep_the_end(&pool.arena, pool.lanes().retire());
        left = left.and(pool.pinned().retire());
    }
    contexts::forget_remembered();
    holdings::forget_dead();
    left
}
