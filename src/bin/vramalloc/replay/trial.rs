//! What would have come of a recorded program with other options, or on a device of
//! another size: the program's calls go to the allocator over a model GPU.
//!
//! When the device would have been done with its work nobody knows who did not record
//! it. A trial takes one end of what is possible: [`Lag::None`], a device that is done
//! at once; or [`Lag::AsSeen`], where work lasts until the program saw its end, which is
//! the longest that it can have lasted. Owns a model GPU. Cost: some 300 ns an event.

use std::sync::Arc;

use vramalloc_core::Arena;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, DeviceShare, Settings as Options, ThreadCacheSize};
use vramalloc_core::driver::PAGE;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::stats::DriverCalls;
use vramalloc_model::{Gpu, Settings, SimDriver, StreamId};

use super::price::{memory_calls, price};
use super::tape::{Item, Tape, TapeArena, What};
use super::witness::obey;

/// How the device lags behind the program.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lag {
    /// Its work is done when it is given.
    None,
    /// Its work lasts as long as the program can have waited for it.
    AsSeen,
}

/// The memory of the devices of a trial.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// As much as there was.
    AsRecorded,
    /// This many bytes for the program; what CUDA takes is not counted.
    Usable(Bytes),
}

/// A device of which no recording says how large it is, and more than there are.
const UNKNOWN: Bytes = Bytes::gib(512);

/// What a trial is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) options: &'a Options,
    pub(crate) room: Room,
    pub(crate) lag: Lag,
    /// How often the program does what was recorded.
    pub(crate) passes: u32,
}

/// What came of a trial.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct Outcome {
    /// The event at which memory was short, if it was.
    pub(crate) failed_at: Option<u32>,
    /// The most bytes that were taken from a device, in whole pages, of all devices
    /// together.
    pub(crate) reserved: u64,
    /// Calls for memory.
    pub(crate) memory_calls: u64,
    /// What all calls of the driver take, in ns.
    pub(crate) price: u64,
    pub(crate) calls: DriverCalls,
}

/// Makes a trial.
pub(crate) fn trial(tape: &Tape, setup: &Setup<'_>) -> Outcome {
    let mut stage = Stage::new(tape, setup);
    let failed_at = (0..setup.passes.max(1)).find_map(|_| stage.pass());
    stage.outcome(failed_at)
}

/// The smallest memory of each device, in whole pages and without what CUDA takes, on
/// which a program completes; none where it does on no device. Found by growing steps
/// and then by bisection, which takes it that a larger device never does worse.
pub(crate) fn smallest(tape: &Tape, setup: &Setup<'_>, live: u64) -> Option<Bytes> {
    let completes = |pages: u64| {
        let room = Room::Usable(Bytes::new(pages * PAGE.get()));
        let setup = Setup {
            room,
            ..setup.clone()
        };
        trial(tape, &setup).failed_at.is_none()
    };
    let mut low = (live / PAGE.get()).saturating_sub(1);
    let mut step = 1 + low / 256;
    let most = UNKNOWN.get() / PAGE.get();
    let mut high = loop {
        if low + step > most {
            return None;
        }
        if completes(low + step) {
            break low + step;
        }
        low += step;
        step *= 2;
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if completes(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(Bytes::new(high * PAGE.get()))
}

/// What CUDA and others had of each device before the program took any is not to be had
/// in a trial either.
fn occupy(tape: &Tape, devices: &[u32], gpu: &Gpu, room: Room, memory: Bytes) {
    for (place, device) in (0..).zip(devices) {
        let of_device = || tape.arenas.iter().find(|arena| arena.device == *device);
        let usable = match room {
            Room::Usable(usable) => Some(usable),
            Room::AsRecorded => of_device()
                .and_then(|arena| Some(arena.total.saturating_sub(arena.elsewhere?)))
                .map(Bytes::new),
        };
        if let Some(usable) = usable {
            gpu.occupy(place, memory.saturating_sub(usable));
        }
    }
}

/// For each item that is an epoch's fence, the time in microseconds at which the program
/// saw that it was reached; 0 for all else, and where it never did.
fn seen(tape: &Tape) -> Vec<u64> {
    let mut seen = vec![0; tape.items.len()];
    let mut waiting: Vec<Vec<(u64, usize)>> = vec![Vec::new(); tape.arenas.len()];
    for (at, item) in tape.items.iter().enumerate() {
        let Some(waiting) = waiting.get_mut(item.arena as usize) else {
            continue;
        };
        match item.what {
            What::Fence(number) => waiting.push((number, at)),
            What::Reached(number) => waiting.retain(|&(fence, fence_at)| {
                if fence <= number {
                    seen[fence_at] = item.time_us;
                }
                fence > number
            }),
            _ => {}
        }
    }
    seen
}

/// An arena of a trial, and the stream that stands for all of its context's work.
struct Player {
    arena: Arena<SimDriver>,
    stream: StreamId,
    has_ended: bool,
    /// The newest epoch of which it is known when it was reached.
    lags_until: u64,
}

struct Stage<'a> {
    tape: &'a Tape,
    gpu: Gpu,
    devices: Vec<u32>,
    /// Of each device, with what CUDA has of it.
    memory: Bytes,
    config: Config,
    map: Arc<PageMap>,
    players: Vec<Option<Player>>,
    /// By block.
    live: Vec<Option<Address>>,
    lag: Lag,
    /// By device.
    quotas: Vec<Arc<Quota>>,
    /// What they begin with.
    limits: Vec<Bytes>,
    /// When each epoch of an arena was seen to be reached, by its fence's item.
    reached: Vec<u64>,
    captures: u32,
}

impl<'a> Stage<'a> {
    fn new(tape: &'a Tape, setup: &Setup<'_>) -> Stage<'a> {
        let devices = tape.devices();
        let of_cuda = tape.of_cuda().unwrap_or(0);
        let totals = |arena: &TapeArena| match setup.room {
            // The whole device: shares are of it.
            Room::Usable(bytes) => bytes.saturating_add(Bytes::new(of_cuda)),
            Room::AsRecorded if arena.total > 0 => Bytes::new(arena.total),
            Room::AsRecorded => UNKNOWN,
        };
        let memory = tape.arenas.iter().map(totals).max().unwrap_or(UNKNOWN);
        let memory = memory.round_up(PAGE).unwrap_or(memory);
        let settings = Settings {
            devices: u32::try_from(devices.len()).unwrap_or(u32::MAX).max(1),
            memory,
            // Of addresses there are many more than of memory: a strategy may reserve
            // several ranges as large as the device.
            span: Bytes::new(memory.get().saturating_mul(16)),
            ..Settings::default()
        };
        let gpu = Gpu::new(settings);
        occupy(tape, &devices, &gpu, setup.room, memory);
        let config = Config {
            thread_cache: ThreadCacheSize::Most(Bytes::ZERO),
            ..setup.options.config.clone()
        };
        let limits = |device: u32, total: Bytes| {
            let limit = config.limit_of(Some(device));
            limit.map_or(Bytes::MAX, |share| share.of(total))
        };
        let limits: Vec<Bytes> = (devices.iter())
            .map(|&device| limits(device, memory))
            .collect();
        let quotas: Vec<Arc<Quota>> = (limits.iter())
            .map(|&limit| Arc::new(Quota::new(limit)))
            .collect();
        let map = Arc::new(PageMap::new());
        let reached = match setup.lag {
            Lag::None => Vec::new(),
            Lag::AsSeen => seen(tape),
        };
        let mut stage = Stage {
            tape,
            gpu,
            devices,
            memory,
            config,
            map,
            players: Vec::new(),
            live: vec![None; tape.blocks as usize],
            lag: setup.lag,
            quotas,
            limits,
            reached,
            captures: 0,
        };
        stage.players = (0..tape.arenas.len())
            .map(|number| stage.player(number))
            .collect();
        stage
    }

    /// An arena of the tape by its number, in a context of its own.
    fn player(&self, number: usize) -> Option<Player> {
        let told = self.tape.arenas.get(number)?;
        let place = self.devices.binary_search(&told.device).ok()?;
        let driver = self.gpu.driver(u32::try_from(place).ok()?).ok()?;
        let stream = self.gpu.stream(driver.context(), false).ok()?;
        let id = ArenaId(u32::try_from(number).ok()?);
        let quota = Arc::clone(self.quotas.get(place)?);
        Some(Player {
            arena: Arena::new(id, driver, &self.config, Arc::clone(&self.map), quota),
            stream,
            has_ended: false,
            lags_until: 0,
        })
    }

    /// Makes all calls of the program; the event at which memory was short. What is live
    /// in the end is freed.
    fn pass(&mut self) -> Option<u32> {
        for (quota, limit) in self.quotas.iter().zip(&self.limits) {
            quota.set_limit(*limit);
        }
        for number in 0..self.players.len() {
            let has_ended = |player: &Player| player.has_ended;
            if self.players[number].as_ref().is_some_and(has_ended) {
                self.players[number] = self.player(number);
            }
        }
        let offset = self.gpu.now();
        for (at, item) in self.tape.items.iter().enumerate() {
            if let Err(failed) = self.play(at, item, offset) {
                return failed.then_some(item.event);
            }
        }
        let left = std::mem::replace(&mut self.live, vec![None; self.tape.blocks as usize]);
        let mut of_arena = vec![0; left.len()];
        for item in &self.tape.items {
            if let What::Alloc { block, .. } = item.what {
                of_arena[block as usize] = item.arena as usize;
            }
        }
        for (block, address) in left.into_iter().enumerate() {
            let player = self.players.get(of_arena[block]).and_then(Option::as_ref);
            let player = player.filter(|player| !player.has_ended);
            if let (Some(address), Some(player)) = (address, player) {
                let _gone = player.arena.free(address);
            }
        }
        None
    }

    /// Does what an item says. An error ends the pass: `true` where memory was short.
    fn play(&mut self, at: usize, item: &Item, offset: u64) -> Result<(), bool> {
        if let What::Capture { begins } = item.what {
            self.capture(begins);
            return Ok(());
        }
        if self.lag == Lag::AsSeen {
            let time = offset.saturating_add(item.time_us.saturating_mul(1000));
            self.gpu.pass(time.saturating_sub(self.gpu.now()));
        }
        if let What::Limit(limit) = item.what {
            self.limit(item.arena, limit);
            return Ok(());
        }
        let lasts = self.reached.get(at).copied().unwrap_or(0);
        let Some(Some(player)) = self.players.get_mut(item.arena as usize) else {
            return Ok(());
        };
        if player.has_ended {
            return Ok(());
        }
        match item.what {
            What::Fence(_) if lasts > player.lags_until => {
                player.lags_until = lasts;
                let ends = offset.saturating_add(lasts.saturating_mul(1000));
                let now = self
                    .gpu
                    .now()
                    .max(self.gpu.tail(player.arena.driver().context()));
                // A stream that is gone has nothing to do.
                let _gone = (self.gpu).launch(player.stream, ends.saturating_sub(now), &[]);
            }
            What::Alloc { block, size, .. } => match player.arena.allocate(Bytes::new(size)) {
                Ok(address) => {
                    if let Some(place) = self.live.get_mut(block as usize) {
                        *place = Some(address);
                    }
                }
                Err(_) => return Err(true),
            },
            What::Free { block, .. } => {
                let place = self.live.get_mut(block as usize);
                if let Some(address) = place.and_then(Option::take) {
                    let _gone = player.arena.free(address);
                }
            }
            What::Trim => _ = player.arena.trim(),
            What::Order(order) => obey(&player.arena, order),
            What::Ended => {
                self.gpu.destroy_context(player.arena.driver().context());
                player.arena.retire();
                player.has_ended = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// The program has set the limit of an arena's device.
    fn limit(&self, arena: u32, limit: Option<DeviceShare>) {
        let device = self.tape.arenas.get(arena as usize);
        let place = device.and_then(|arena| self.devices.binary_search(&arena.device).ok());
        if let Some(quota) = place.and_then(|place| self.quotas.get(place)) {
            quota.set_limit(limit.map_or(Bytes::MAX, |share| share.of(self.memory)));
        }
    }

    /// While a stream captures, the allocator makes no fence. Captures of the model are
    /// of a stream of their own.
    fn capture(&mut self, begins: bool) {
        let first = self
            .players
            .iter()
            .flatten()
            .next()
            .map(|player| player.stream);
        let Some(stream) = first else {
            return;
        };
        let before = self.captures;
        self.captures = if begins {
            before + 1
        } else {
            before.saturating_sub(1)
        };
        match (before, self.captures) {
            (0, 1) => self.gpu.begin_capture(stream),
            (1, 0) => _ = self.gpu.end_capture(stream),
            _ => {}
        }
    }

    fn outcome(&self, failed_at: Option<u32>) -> Outcome {
        let mut calls = DriverCalls::default();
        for player in self.players.iter().flatten() {
            calls.add(&player.arena.driver_calls());
        }
        let devices = 0..u32::try_from(self.devices.len()).unwrap_or(0);
        Outcome {
            failed_at,
            reserved: devices.map(|device| self.gpu.peak(device).get()).sum(),
            memory_calls: memory_calls(&calls),
            price: price(&calls),
            calls,
        }
    }
}
