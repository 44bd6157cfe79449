//! Contexts and their arenas.
//!
//! Owns every arena of the process, from the first request in a context until
//! the process ends: a retired arena keeps its statistics, and a pointer to
//! one never dangles. Invariant: a context has at most one arena that serves,
//! and a context that comes back under an old handle gets a new one. Cost: a
//! hit is one thread-local look-up; a free finds its arena with the page map
//! and one load.
//!
//! Lock order: `NEW`, then `SERVING` or that of `HOMES`; `DEVICES` alone. No
//! driver call is made under any of them.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use core_arena::arena::Watch;
use core_arena::config::{Config, FreeSync, OomReport, Settings, StrategyKind};
use core_arena::page_map::{ArenaId, Owner, PageMap};
use core_arena::quota::Quota;
use core_arena::stats::ArenaReport;
use core_arena::{Address, Bytes, Code};
use spin::mutex::SpinMutex;
use spin::relax::Yield;
use spin::rwlock::RwLock;

use crate::guard::own_call;
use crate::host_memory::{self, Leftovers, Of, Pools};
use crate::real_driver::RealDriver;
use crate::registry::Registry;
use crate::resolve::MISSING;
use crate::symbols::real;
use crate::types::{CUcontext, CUdevice, CUdeviceptr};
use crate::{capture, dlsym, life, lifecycle, peers, stacks};

/// An arena over the real driver.
pub(crate) type Arena = core_arena::Arena<RealDriver>;

/// As many arenas as a process can have, retired ones counted; contexts
/// beyond are left to CUDA.
const MOST_ARENAS: usize = 4096;

/// Who wants memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asking {
    /// A door: CUDA's functions are ours.
    Door,
    /// The C API, which is there also where they are not.
    Api,
}

/// A context with its arena.
pub(crate) struct Home {
    context: usize,
    device: &'static Device,
    /// The device's primary context, which the runtime uses.
    primary: bool,
    arena: Arena,
    pinned: Pools,
}

impl Home {
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The arenas of the context's page-locked host memory.
    pub(crate) fn pinned(&self) -> &Pools {
        &self.pinned
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device.handle
    }
}

/// What is the same for all arenas of a device.
struct Device {
    handle: CUdevice,
    name: Option<String>,
    total: Option<Bytes>,
    quota: Arc<Quota>,
}

static PAGES: OnceLock<Arc<PageMap>> = OnceLock::new();
static DEVICES: SpinMutex<Vec<&'static Device>, Yield> = SpinMutex::new(Vec::new());
static NEW: SpinMutex<(), Yield> = SpinMutex::new(());
static SERVING: RwLock<Vec<&'static Home>, Yield> = RwLock::new(Vec::new());
/// Every home by the number of its arena.
static HOMES: Registry<Home, MOST_ARENAS> = Registry::new();
/// Changes when an arena is retired: what threads remember may be old then.
static GENERATION: AtomicU64 = AtomicU64::new(0);

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
    // Acquire: pairs with the Release in `retire_where`; a thread that was
    // told of a context's end does not find its arena again.
    let generation = GENERATION.load(Ordering::Acquire);
    let last = LAST.get();
    match last.home {
        Some(home) if last.context == context.addr() && last.generation == generation => Some(home),
        _ => {
            let home = serving(context.addr()).or_else(|| {
                let mut device: CUdevice = 0;
                // SAFETY: a place for the answer.
                let told = unsafe { real::cuCtxGetDevice(&raw mut device) } == 0;
                told.then(|| create(context, device, asking)).flatten()
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
    serving(context.addr()).or_else(|| create(context, device, asking))
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

/// Makes the arena of a context of this device.
fn create(context: CUcontext, handle: CUdevice, asking: Asking) -> Option<&'static Home> {
    let device = device(handle);
    let primary = is_primary(context, handle);
    let marker = peers::marker(context, || primary.then_some(handle));
    let pages = PAGES.get_or_init(|| Arc::new(PageMap::new()));
    let (config, watch) = life::options(|loaded| {
        let settings = &loaded.settings;
        (config(&settings.config, asking), watch(settings))
    });

    let new = NEW.lock();
    // Another thread may have been faster.
    if let Some(home) = serving(context.addr()) {
        return Some(home);
    }
    let home = HOMES.add(|number| Home {
        context: context.addr(),
        device,
        primary,
        arena: Arena::new(
            ArenaId(number),
            RealDriver::new(Arc::clone(&marker)),
            &config,
            Arc::clone(pages),
            Arc::clone(&device.quota),
        )
        .watched(watch),
        pinned: Pools::new(
            marker,
            config.clone(),
            Of {
                context: number,
                device: handle,
            },
        ),
    })?;
    SERVING.write().push(home);
    drop(new);
    if home.arena.events_kept() < watch.events {
        life::warn_once(
            life::Once::Trace,
            "trace: no host memory for so many events; none are kept",
        );
    }
    Some(home)
}

/// What an arena obeys. Where the library was only loaded for the C API, by
/// `dlopen`, nobody tells us when a capture begins, and a fence could break
/// one: then every call is the driver's.
fn config(config: &Config, asking: Asking) -> Config {
    let mut config = config.clone();
    if asking == Asking::Api && !dlsym::is_in_front() {
        config.strategy = StrategyKind::Passthrough;
        config.free_sync = FreeSync::Deferred;
    }
    config
}

/// What the options want to be kept of an arena's past.
fn watch(settings: &Settings) -> Watch {
    Watch {
        events: settings.trace_events,
        ooms: settings.oom_report != OomReport::Off,
        call_stack: (settings.oom_report == OomReport::Full).then_some(stacks::take),
    }
}

/// What is known of a device, asked of the driver the first time.
fn device(handle: CUdevice) -> &'static Device {
    let known = |devices: &[&'static Device]| {
        devices
            .iter()
            .find(|device| device.handle == handle)
            .copied()
    };
    if let Some(device) = known(&DEVICES.lock()) {
        return device;
    }
    let mut total = 0_usize;
    // SAFETY: a place for the answer.
    let told = unsafe { real::cuDeviceTotalMem_v2(&raw mut total, handle) } == 0;
    let total = told.then(|| Bytes::new(total as u64));
    let device = Device {
        handle,
        name: name(handle),
        total,
        quota: Arc::new(Quota::new(limit(total))),
    };
    let mut devices = DEVICES.lock();
    if let Some(device) = known(&devices) {
        return device;
    }
    let device: &'static Device = Box::leak(Box::new(device));
    devices.push(device);
    device
}

/// The limit for a device of this size.
fn limit(total: Option<Bytes>) -> Bytes {
    let limit = life::options(|loaded| loaded.settings.config.limit);
    limit.map_or(Bytes::MAX, |limit| limit.of(total.unwrap_or(Bytes::MAX)))
}

/// Puts a limit in force that was changed, and gives idle memory beyond it
/// back.
pub(crate) fn obey_limit() {
    let devices = DEVICES.lock().clone();
    for device in devices {
        let limit = limit(device.total);
        device.quota.set_limit(limit);
        for home in homes_on(device.handle) {
            if device.quota.reserved() > limit {
                home.arena.trim();
            }
        }
    }
}

fn name(device: CUdevice) -> Option<String> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: room for as many bytes as are named; the last stays zero.
    let told = unsafe { real::cuDeviceGetName(name.as_mut_ptr(), 255, device) } == 0;
    if !told {
        return None;
    }
    // SAFETY: the text ends in zero at the latest in its last byte.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}

/// Whether a context is its device's primary one. Asks by retaining it, and
/// only while it exists, so that it is not made by the question.
pub(crate) fn is_primary(context: CUcontext, device: CUdevice) -> bool {
    own_call(|| {
        if lifecycle::is_active(device) != Some(true) {
            return false;
        }
        let mut primary: CUcontext = ptr::null_mut();
        // SAFETY: a place for the answer.
        if unsafe { real::cuDevicePrimaryCtxRetain(&raw mut primary, device) } != 0 {
            return false;
        }
        release_primary(device);
        primary == context
    })
}

/// Gives back a device's primary context, which was retained just now and is
/// retained elsewhere.
pub(crate) fn release_primary(device: CUdevice) {
    // SAFETY: as above. Drivers before CUDA 11 have the first form alone.
    unsafe {
        if real::cuDevicePrimaryCtxRelease_v2(device) == MISSING {
            real::cuDevicePrimaryCtxRelease(device);
        }
    }
}

/// Whether there is or was an arena.
pub(crate) fn any() -> bool {
    HOMES.all().next().is_some()
}

/// The homes that serve.
pub(crate) fn homes() -> Vec<&'static Home> {
    SERVING.read().clone()
}

/// The homes that serve on a device.
pub(crate) fn homes_on(device: CUdevice) -> Vec<&'static Home> {
    let mut homes = homes();
    homes.retain(|home| home.device.handle == device);
    homes
}

/// The limit in force on a device, if there is one.
pub(crate) fn limit_on(device: CUdevice) -> Option<Bytes> {
    let devices = DEVICES.lock();
    let device = devices.iter().find(|known| known.handle == device)?;
    device.quota.limit()
}

/// Whose an address is.
pub(crate) fn owner(address: CUdeviceptr) -> Owner {
    PAGES
        .get()
        .map_or(Owner::Foreign, |pages| pages.owner(Address::new(address)))
}

/// The arena with this number.
pub(crate) fn arena(id: ArenaId) -> Option<&'static Arena> {
    HOMES.get(id.0).map(|home| &home.arena)
}

/// Before a context ends: waits for the others where they can still be using
/// memory that was freed. The program relies on its free having waited for
/// them, and the end of a context waits for the context's own work alone.
/// Chunks go to the driver's own free, which waits for whoever does use them;
/// the others' work as a whole is waited for only where that leaves something.
pub(crate) fn wait_for_peers(context: CUcontext) {
    wait_for_peers_where(|home| home.context == context.addr());
}

/// The same before a device's primary context ends.
pub(crate) fn wait_for_peers_of_primary(device: CUdevice) {
    wait_for_peers_where(|home| home.primary && home.device.handle == device);
}

fn wait_for_peers_where(ends: impl Fn(&Home) -> bool) {
    let ending: Vec<&'static Home> = {
        let serving = SERVING.read();
        serving.iter().copied().filter(|home| ends(home)).collect()
    };
    for home in ending {
        let users = peers::others_than(ptr::with_exposed_provenance_mut(home.context));
        let in_use = || !home.arena.limbo().is_zero() || home.pinned.has_limbo();
        if users.is_empty() || !in_use() {
            continue;
        }
        home.arena.flush();
        home.pinned.flush();
        if in_use() {
            home.arena.trim();
            home.pinned.trim();
        }
        if !in_use() {
            continue;
        }
        for user in users {
            // A capture must not hear of it, and a context that cannot be
            // waited for is broken: then nothing can be done.
            let _ = capture::outside(|| user.synchronize());
        }
    }
}

/// The context ends: its arena forgets everything.
pub(crate) fn retire(context: CUcontext) -> Leftovers {
    retire_where(|home| home.context == context.addr())
}

/// The device's primary context ends.
pub(crate) fn retire_primary(device: CUdevice) -> Leftovers {
    retire_where(|home| home.primary && home.device.handle == device)
}

/// Whether the device's primary context has an arena.
pub(crate) fn has_primary(device: CUdevice) -> bool {
    SERVING
        .read()
        .iter()
        .any(|home| home.primary && home.device.handle == device)
}

fn retire_where(ends: impl Fn(&Home) -> bool) -> Leftovers {
    let retired: Vec<&'static Home> = {
        let mut serving = SERVING.write();
        let (retired, kept) = serving.drain(..).partition(|home| ends(home));
        *serving = kept;
        retired
    };
    let mut left = Leftovers::default();
    if retired.is_empty() {
        return left;
    }
    // Release: pairs with the Acquire in `current`.
    GENERATION.fetch_add(1, Ordering::Release);
    for home in retired {
        home.arena.retire();
        left = left.and(home.pinned.retire());
        capture::forget_context(ptr::with_exposed_provenance_mut(home.context));
    }
    left
}

/// A report of every arena there has been.
pub(crate) fn reports() -> Vec<ArenaReport> {
    HOMES
        .all()
        .map(|home| ArenaReport {
            device: ordinal(home),
            device_name: home.device.name.clone(),
            device_total: home.device.total,
            pinned: None,
            pageable: false,
            stats: home.arena.stats(),
            calls: home.arena.driver_calls(),
            ooms: home.arena.ooms(),
        })
        .chain(host_memory::reports())
        .collect()
}

/// Every arena there has been, with its device's ordinal.
pub(crate) fn arenas() -> impl Iterator<Item = (u32, &'static Arena)> {
    HOMES.all().map(|home| (ordinal(home), &home.arena))
}

fn ordinal(home: &Home) -> u32 {
    u32::try_from(home.device.handle).unwrap_or(0)
}
