//! Contexts and their arenas.
//!
//! Owns every arena of the process, from the first request in a context until
//! the process ends: a retired arena keeps its statistics, and a pointer to
//! one never dangles. Invariant: a context has at most one arena that serves,
//! and a context that comes back under an old handle gets a new one. Cost: a
//! hit is one thread-local look-up; a free finds its arena with the page map
//! and one load.
//!
//! Lock order: `NEW`, then `SERVING` or that of `HOMES`. No driver call is made
//! under any of them.

use std::cell::Cell;
use std::ptr;
use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use spin::rwlock::RwLock;
use vramalloc_core::config::{FreeSync, StrategyKind};
use vramalloc_core::lanes::Lanes;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::patience::Brief;
use vramalloc_core::{Address, Bytes, Code, FreeError, MemInfo};

use crate::driver::devices::{self, Device, device};
use crate::driver::green;
use crate::driver::marker::{Decision, Marker};
use crate::driver::peers;
use crate::driver::real_driver::RealDriver;
use crate::pools::holdings;
use crate::pools::host_memory::{Leftovers, Of, Pools};
use crate::pools::lanes;
use crate::pools::registry::Registry;
use crate::process::say::{Once, warn_once};
use crate::process::{self, cancel};
use crate::real;
use crate::types::{CUcontext, CUdevice};

mod held;
mod owners;
mod reports;
mod settings;
pub(crate) mod shortage;

pub(crate) use owners::{arena, home_with, in_map, marker_at, owner, serving_homes};
pub(crate) use reports::{arenas, reports};
use settings::{config, watch};

/// An arena over the real driver.
pub(crate) type Arena = vramalloc_core::Arena<RealDriver>;

/// As many arenas as a process can have, in segments of the registry, retired
/// ones counted: 262144. Contexts beyond are left to CUDA.
const MOST_ARENAS: usize = 256;

/// Who wants memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asking {
    /// A door: CUDA's functions are ours.
    Door,
    /// The C API, which is there also where they are not.
    Api,
}

/// A context with its arena, or one of its lanes.
pub(crate) struct Home {
    context: usize,
    device: &'static Device,
    /// The device's primary context, which the runtime uses.
    primary: bool,
    arena: Arc<Arena>,
    role: Role,
}

/// What a home is to its context.
enum Role {
    /// The context's own.
    Context(Box<Beside>),
    /// A lane's; this is its context's.
    Lane(&'static Home),
}

/// What a context has beside its arena.
struct Beside {
    /// Memory of streams, each lane with a home of its own.
    lanes: Lanes<RealDriver>,
    pinned: Pools,
}

impl Home {
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn beside(&self) -> &Beside {
        match &self.role {
            Role::Context(beside) => beside,
            Role::Lane(home) => home.beside(),
        }
    }

    /// The arenas of the context's page-locked host memory.
    pub(crate) fn pinned(&self) -> &Pools {
        &self.beside().pinned
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device.handle
    }

    /// The lanes of the context.
    pub(crate) fn lanes(&self) -> &Lanes<RealDriver> {
        &self.beside().lanes
    }

    pub(crate) fn is_lane(&self) -> bool {
        matches!(self.role, Role::Lane(_))
    }

    /// Whether the other one's context is this one's.
    pub(crate) fn is_of_context(&self, other: &Home) -> bool {
        self.context == other.context
    }

    fn marker(&self) -> &Arc<Marker> {
        self.arena.driver().marker()
    }

    fn is_of(&self, marker: &Arc<Marker>) -> bool {
        Arc::ptr_eq(self.marker(), marker)
    }

    /// Whether its context may be ending: nothing is asked of it then.
    fn is_paused(&self) -> bool {
        self.marker().is_paused()
    }

    /// Frees a block of this home.
    #[inline(always)]
    pub(crate) fn free(&self, address: Address) -> Result<(), FreeError> {
        match &self.role {
            Role::Context(_) => self.arena.free(address),
            Role::Lane(home) => home.lanes().free(&self.arena, address),
        }
    }

    /// The same in the order of a stream; see [`Arena::free_in_order`].
    pub(crate) fn free_in_order(
        &self,
        address: Address,
        give_back: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), FreeError> {
        let free = || self.arena.free_in_order(address, give_back);
        match &self.role {
            Role::Context(_) => free(),
            Role::Lane(home) => home.lanes().free_by(&self.arena, address, free),
        }
    }

    /// Free and total memory of the device as the program should see them: what
    /// lies idle in any arena of the device is given back before a request
    /// fails, and so it is free.
    pub(crate) fn mem_info(&self) -> Result<MemInfo, Code> {
        let MemInfo { free, total } = self.arena.mem_info()?;
        let elsewhere = homes_on(self.device()).into_iter().map(|home| {
            let own = home.arena.id() == self.arena.id();
            let idle = if own { Bytes::ZERO } else { home.arena.idle() };
            idle.saturating_add(home.lanes().idle())
        });
        let free = elsewhere.fold(free, Bytes::saturating_add).min(total);
        Ok(MemInfo { free, total })
    }

    /// Gives everything back that no block lies in; how many bytes that were.
    pub(crate) fn trim(&self) -> Bytes {
        self.lanes().trim().saturating_add(self.arena.trim())
    }
}

static PAGES: OnceLock<Arc<PageMap>> = OnceLock::new();
static NEW: SpinMutex<(), Brief> = SpinMutex::new(());
static SERVING: RwLock<Vec<&'static Home>, Brief> = RwLock::new(Vec::new());
/// Every home by the number of its arena.
static HOMES: Registry<Home, MOST_ARENAS> = Registry::new();
/// The arena that a thread used last.
#[derive(Copy, Clone)]
struct Remembered {
    generation: u64,
    context: usize,
    home: Option<&'static Home>,
}

thread_local! {
    static LAST: Cell<Remembered> =
        const { Cell::new(Remembered { generation: 0, context: 0, home: None }) };
}

/// The arena of the context that is current on this thread, with the device
/// it is on; none where no context is current.
pub(crate) fn current() -> Option<(&'static Arena, CUdevice)> {
    let home = current_home(Asking::Door)?;
    Some((&home.arena, home.device.handle))
}

/// The home of the context that is current on this thread.
pub(crate) fn current_home(asking: Asking) -> Option<&'static Home> {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: a place for the answer.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    if result != 0 || context.is_null() {
        return None;
    }
    // A thread that was told of a context's end does not find its arena again.
    let generation = peers::generation();
    let last = LAST.get();
    match last.home {
        Some(home) if last.context == context.addr() && last.generation == generation => Some(home),
        _ => {
            let home = find(green::whole(context), asking, || {
                let mut device: CUdevice = 0;
                // SAFETY: a place for the answer.
                let told = unsafe { real::cuCtxGetDevice(&raw mut device) } == 0;
                told.then_some(device)
            })?;
            LAST.set(Remembered {
                generation,
                context: context.addr(),
                home: Some(home),
            });
            Some(home)
        }
    }
}

/// The home of a context of this device, whatever context is current.
pub(crate) fn home_of(
    context: CUcontext,
    device: CUdevice,
    asking: Asking,
) -> Option<&'static Home> {
    find(green::whole(context), asking, || Some(device))
}

/// The home that serves a context, or a new one. Where the context may be
/// ending, it is waited for that to be decided.
fn find(
    context: CUcontext,
    asking: Asking,
    device: impl Fn() -> Option<CUdevice>,
) -> Option<&'static Home> {
    loop {
        let found = match serving(context.addr()) {
            Some(home) if !home.is_paused() => return Some(home),
            Some(home) => Err(Arc::clone(home.marker())),
            None => create(context, device()?, asking),
        };
        let marker = match found {
            Ok(home) => return home,
            Err(marker) => marker,
        };
        match marker.await_decision() {
            // One that was found before the next end begins will do.
            Decision::Lives => {
                if let Some(home) = serving(context.addr()).filter(|home| home.is_of(&marker)) {
                    return Some(home);
                }
            }
            Decision::Ended => {}
            // What it is asked for meanwhile is the driver's.
            Decision::Open => return None,
        }
    }
}

/// Whether a context is current on this thread.
///
/// # Errors
/// What the driver would answer a call that needs one.
pub(crate) fn check_current() -> Result<(), Code> {
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: a place for the answer.
    let asked = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    // A question of ours that fails is no failure of the program's.
    if asked == 0 && context.is_null() {
        return Err(Code::INVALID_CONTEXT);
    }
    Ok(())
}

fn serving(context: usize) -> Option<&'static Home> {
    SERVING
        .read()
        .iter()
        .find(|home| home.context == context)
        .copied()
}

/// Makes the arena of a context of this device; or the marker of one that may
/// be ending.
fn create(
    context: CUcontext,
    handle: CUdevice,
    asking: Asking,
) -> Result<Option<&'static Home>, Arc<Marker>> {
    let _held = cancel::Held::back();
    let Some((marker, primary)) = peers::learn(context, handle) else {
        return Ok(None);
    };
    let device = device(handle);
    let pages = PAGES.get_or_init(|| Arc::new(PageMap::new()));
    let (config, watch) = process::options(|loaded| {
        let settings = &loaded.settings;
        (config(&settings.config, asking), watch(settings))
    });

    let new = NEW.lock();
    if marker.is_paused() {
        return Err(marker);
    }
    // Another thread may have been faster.
    if let Some(home) = serving(context.addr()) {
        return Ok(Some(home));
    }
    let home = HOMES.add(|number| {
        let id = ArenaId(number);
        let driver = RealDriver::new(Arc::clone(&marker), marker_at);
        let quota = Arc::clone(&device.quota);
        let arena = Arena::new(id, driver, &config, Arc::clone(pages), quota);
        let relieve = move || lanes::relieve(handle, id);
        let live = move || held::live(handle, id);
        Home {
            context: context.addr(),
            device,
            primary,
            arena: Arc::new(arena.watched(watch).relieved_by(relieve, live)),
            role: Role::Context(Box::new(Beside {
                lanes: Lanes::new(),
                pinned: Pools::new(
                    marker,
                    config.clone(),
                    Of {
                        context: number,
                        device: handle,
                    },
                ),
            })),
        }
    });
    let Some(home) = home else {
        drop(new);
        warn_once(
            Once::Arenas,
            "no context that is made from now on is pooled, capped or counted: there were too many",
        );
        return Ok(None);
    };
    SERVING.write().push(home);
    drop(new);
    if home.arena.events_kept() < watch.events {
        warn_once(
            Once::Trace,
            "trace: no host memory for so many events; none are kept",
        );
    }
    Ok(Some(home))
}

/// Makes a lane of a context: no fence, and chunks as they are needed,
/// whatever the strategy. Memory is filled and waited for in no stream's order,
/// so not here.
pub(crate) fn make_lane(home: &'static Home) -> Option<Arc<Arena>> {
    let pages = PAGES.get()?;
    let (mut config, watch) = process::options(|loaded| {
        let settings = &loaded.settings;
        (settings.config.clone(), watch(settings))
    });
    config.strategy = StrategyKind::AutoGrowth;
    config.free_sync = FreeSync::Immediate;
    config.fill = None;
    config.sync_after_alloc = false;
    let driver = RealDriver::new(Arc::clone(home.arena.driver().marker()), marker_at);
    let device = home.device;
    let lane = HOMES.add(|number| {
        let id = ArenaId(number);
        let quota = Arc::clone(&device.quota);
        let arena = Arena::new(id, driver, &config, Arc::clone(pages), quota);
        let relieve = move || lanes::relieve(device.handle, id);
        let live = move || held::live(device.handle, id);
        Home {
            context: home.context,
            device,
            primary: home.primary,
            arena: Arc::new(arena.watched(watch).relieved_by(relieve, live)),
            role: Role::Lane(home),
        }
    })?;
    Some(Arc::clone(&lane.arena))
}

/// Puts a limit in force that was changed, and gives idle memory beyond it
/// back.
pub(crate) fn obey_limit() {
    for device in devices::obey_limit() {
        for home in homes_on(device.handle) {
            if device.is_beyond_limit() {
                home.trim();
            }
        }
    }
}

/// Whether there is or was an arena.
pub(crate) fn any() -> bool {
    HOMES.all().next().is_some()
}

/// The homes that serve.
pub(crate) fn homes() -> Vec<&'static Home> {
    let mut homes = SERVING.read().clone();
    homes.retain(|home| !home.is_paused());
    homes
}

/// The homes that serve on a device.
pub(crate) fn homes_on(device: CUdevice) -> Vec<&'static Home> {
    let mut homes = homes();
    homes.retain(|home| home.device.handle == device);
    homes
}

/// Every home there has been on a device, lanes too; the memory of those that
/// are gone counts for nothing.
pub(crate) fn all_on(device: CUdevice) -> impl Iterator<Item = &'static Home> {
    HOMES.all().filter(move |home| home.device.handle == device)
}

/// The homes of the marker's context that serve.
pub(crate) fn homes_of(marker: &Arc<Marker>) -> Vec<&'static Home> {
    let mut homes = homes();
    homes.retain(|home| home.is_of(marker));
    homes
}

/// After the marker of a context was paused: whoever looks for a home from
/// now on finds none in it, and none is made.
pub(crate) fn close_homes() {
    // Whoever was making one has made it when this is passed.
    drop(NEW.lock());
    peers::forget_remembered();
}

/// The context of this marker is gone: its arenas forget everything.
pub(crate) fn retire(marker: &Arc<Marker>) -> Leftovers {
    let retired: Vec<&'static Home> = {
        let mut serving = SERVING.write();
        let (retired, kept) = serving.drain(..).partition(|home| home.is_of(marker));
        *serving = kept;
        retired
    };
    let mut left = Leftovers::default();
    for home in retired {
        home.arena.retire();
        reports::keep_the_end(&home.arena, home.lanes().retire());
        left = left.and(home.pinned().retire());
    }
    peers::forget_remembered();
    holdings::forget_dead();
    left
}
