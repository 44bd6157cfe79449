//! Whether a recording can be believed: the allocator does what it did again, over a
//! driver that answers as the recording says that the driver answered.
//!
//! The program's calls are made again, in their order and on one thread. Each address
//! that comes out, and each call of the driver for memory, must be the recorded one: so
//! the peak is the same, and the driver's calls are. When fences were reached is taken
//! from the recording, too. Owns the arenas of the replay. Invariant: a driver's answer
//! is used once, and only by the arena that it was given to. Cost: that of the
//! allocator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Watch;
use vramalloc_core::config::{Config, OomReport, Settings, StrategyKind, ThreadCacheSize};
use vramalloc_core::driver::mapping::{Mapping, MappingTraits, Unit};
use vramalloc_core::driver::{Driver, MemInfo, PAGE, Whose};
use vramalloc_core::error::Code;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::recording::{ArenaOrder, Seen};
use vramalloc_core::{AllocError, Arena};

use super::tape::{Item, Tape, TapeArena, What};

/// Where the replay left the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    /// The item, from 1.
    pub(crate) item: usize,
    /// When, in microseconds since the first.
    pub(crate) time_us: u64,
    /// What was recorded, and what came instead.
    pub(crate) what: String,
}

/// Answers of one kind, each with its place on the tape, and how many were used.
#[derive(Default)]
struct Lane {
    answers: Vec<(usize, What)>,
    used: usize,
}

impl Lane {
    fn push(&mut self, at: usize, what: What) {
        self.answers.push((at, what));
    }

    fn next(&self) -> Option<(usize, What)> {
        self.answers.get(self.used).copied()
    }

    fn take(&mut self) -> Option<(usize, What)> {
        let next = self.next()?;
        self.used += 1;
        Some(next)
    }
}

/// The answers that an arena's driver gave.
#[derive(Default)]
struct Answers {
    taken: Lane,
    given_back: Lane,
    created: Lane,
    mapped: Lane,
    unmapped: Lane,
    memory: Lane,
    mapping: Lane,
    reserved: Lane,
    quiet: Lane,
    fences: Lane,
    /// The epochs whose fences were seen to be reached, where and how.
    reached: Vec<(u64, usize, Option<Seen>)>,
    /// How the next is.
    seen: Option<Seen>,
    /// How much of the answer in front is used: what is mapped and unmapped in one call
    /// may have been told in parts, and the other way round.
    of_mapped: u64,
    of_unmapped: u64,
    /// Units that are created before the refusal in front.
    units_left: Option<u64>,
    units: u64,
    difference: Option<String>,
}

impl Answers {
    fn differs(&mut self, what: impl FnOnce() -> String) {
        if self.difference.is_none() {
            self.difference = Some(what());
        }
    }

    /// Uses up what the recording says of memory that was mapped, or unmapped.
    fn consume(&mut self, at: u64, size: u64, maps: bool) {
        let word = if maps { "mapped" } else { "unmapped" };
        let (mut at, mut left) = (at, size);
        while left > 0 {
            let (lane, of) = if maps {
                (&mut self.mapped, &mut self.of_mapped)
            } else {
                (&mut self.unmapped, &mut self.of_unmapped)
            };
            let part = match lane.next() {
                Some((_, What::Mapped { address, size } | What::Unmapped { address, size }))
                    if address + *of == at =>
                {
                    (size - *of).min(left)
                }
                other => {
                    let told = other.map(|(_, what)| what);
                    return self.differs(|| {
                        format!(
                            "{left} bytes at {at:#x} are {word}; recorded is {}",
                            said(told)
                        )
                    });
                }
            };
            *of += part;
            if let Some((_, What::Mapped { size, .. } | What::Unmapped { size, .. })) = lane.next()
                && *of == size
            {
                lane.used += 1;
                *of = 0;
            }
            at += part;
            left -= part;
        }
    }

    /// Whether the epoch's fence is seen to be reached now, in a call that ends before
    /// this place: not before all that the call did until then is done again.
    fn is_reached(&self, epoch: u64, ends: usize, how: Asking) -> bool {
        let first = self.reached.partition_point(|&(number, ..)| number < epoch);
        let Some(&(_, seen, told)) = self.reached.get(first) else {
            return false;
        };
        let is_so = match (how, told) {
            (Asking::Waits, told) => told == Some(Seen::ByWaiting),
            (Asking::Frees, told) => told == Some(Seen::InFree),
            (Asking::Needs, told) => told.is_none(),
        };
        if !is_so {
            return false;
        }
        let lanes = [
            &self.taken,
            &self.given_back,
            &self.created,
            &self.mapped,
            &self.unmapped,
            &self.memory,
            &self.quiet,
            &self.fences,
        ];
        let comes_before = |lane: &&Lane| lane.next().is_some_and(|(at, _)| at < seen);
        seen < ends && !lanes.iter().any(comes_before)
    }
}

/// A code as it was recorded.
fn refusal(code: u32) -> Code {
    Code::check(code).err().unwrap_or(Code::OUT_OF_MEMORY)
}

/// Whether a driver allocation that counts as so much was one of this size: it takes
/// whole pages from the device.
fn is_taken_for(counted: u64, size: Bytes) -> bool {
    (size.get()..size.get().saturating_add(PAGE.get())).contains(&counted)
}

fn said(what: Option<What>) -> String {
    what.map_or_else(|| "nothing more".to_owned(), |what| format!("{what:?}"))
}

/// What the drivers of a replay share.
struct Shared {
    /// Where on the tape the call that is being made begins, and where the next of its
    /// thread does.
    begins: AtomicUsize,
    ends: AtomicUsize,
    /// Captures that are open.
    captures: AtomicUsize,
    /// The call is a free, whose options leave it at that.
    is_free: AtomicBool,
}

/// Who asks whether a fence is reached.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Asking {
    Needs,
    Frees,
    Waits,
}

/// A mark in the work of a context, as recorded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// That of an epoch.
    Epoch(u64),
    /// Another, by which it was asked whether the device is quiet.
    Other { is_quiet: bool },
}

/// A driver that answers as recorded.
struct Witness {
    answers: Arc<Mutex<Answers>>,
    shared: Arc<Shared>,
    quota: Arc<Quota>,
}

impl Witness {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the program had past the arenas counts towards the limit, too.
    fn reserve_as_told(&self, told: Bytes) {
        let reserved = self.quota.reserved();
        if told > reserved {
            self.quota.take_anyway(told.saturating_sub(reserved));
        } else {
            self.quota.put_back(reserved.saturating_sub(told));
        }
    }

    // All on one thread: the orderings are of no account.
    fn window(&self) -> (usize, usize) {
        let begins = self.shared.begins.load(Ordering::Relaxed);
        (begins, self.shared.ends.load(Ordering::Relaxed))
    }
}

impl Mapping for Witness {
    fn mapping_traits(&self) -> Result<Option<MappingTraits>, Code> {
        match self.answers().mapping.take() {
            Some((
                _,
                What::Mapping {
                    granule,
                    unmaps_runs,
                },
            )) => Ok((granule > 0).then_some(MappingTraits {
                granule: Bytes::new(granule),
                unmaps_runs,
            })),
            _ => Ok(None),
        }
    }

    fn reserve(&self, size: Bytes) -> Result<Address, Code> {
        let mut answers = self.answers();
        match answers.reserved.next() {
            Some((
                _,
                What::Reserved {
                    address,
                    size: told,
                },
            )) if told == size.get() => {
                answers.reserved.used += 1;
                Ok(Address::new(address))
            }
            _ => Err(Code::OUT_OF_MEMORY),
        }
    }

    fn unreserve(&self, _at: Address, _size: Bytes) -> Result<(), Code> {
        Ok(())
    }

    fn create(&self, size: Bytes) -> Result<Unit, Code> {
        let (_, ends) = self.window();
        let answers = &mut *self.answers();
        if answers.units_left.is_none()
            && let Some((at, What::Created(units))) = answers.created.next()
            && at < ends
        {
            answers.created.used += 1;
            answers.units_left = Some(units);
        }
        match answers.units_left {
            Some(0) => {
                answers.units_left = None;
                match answers.created.take() {
                    Some((_, What::Refused { size: told, code })) if told == size.get() => {
                        Err(refusal(code))
                    }
                    _ => Err(Code::OUT_OF_MEMORY),
                }
            }
            left => {
                answers.units_left = left.map(|left| left - 1);
                answers.units += 1;
                Ok(Unit(answers.units))
            }
        }
    }

    fn release(&self, _unit: Unit) -> Result<(), Code> {
        Ok(())
    }

    fn map(&self, at: Address, size: Bytes, _unit: Unit) -> Result<(), Code> {
        self.answers().consume(at.get(), size.get(), true);
        Ok(())
    }

    fn admit(&self, _at: Address, _size: Bytes) -> Result<(), Code> {
        Ok(())
    }

    fn unmap(&self, at: Address, size: Bytes) -> Result<(), Code> {
        self.answers().consume(at.get(), size.get(), false);
        Ok(())
    }
}

impl Driver for Witness {
    type Fence = Told;

    fn alloc(&self, size: Bytes) -> Result<Address, Code> {
        let answers = &mut *self.answers();
        let next = answers.taken.take().map(|(_, what)| what);
        match next {
            Some(What::Taken {
                address,
                size: told,
            }) if is_taken_for(told, size) => Ok(Address::new(address)),
            Some(What::Refused { size: told, code }) if is_taken_for(told, size) => {
                Err(refusal(code))
            }
            other => {
                let wanted = size.get();
                answers.differs(|| {
                    format!(
                        "the driver is asked for {wanted} bytes; recorded is {}",
                        said(other)
                    )
                });
                Err(Code::OUT_OF_MEMORY)
            }
        }
    }

    fn free(&self, address: Address) -> Result<(), Code> {
        let answers = &mut *self.answers();
        let at = address.get();
        match answers.given_back.take().map(|(_, what)| what) {
            Some(What::GivenBack { address: told, .. }) if told == at => {}
            other => answers.differs(|| {
                format!(
                    "memory at {at:#x} goes back to the driver; recorded is {}",
                    said(other)
                )
            }),
        }
        Ok(())
    }

    fn mem_info(&self) -> Result<MemInfo, Code> {
        let (begins, _) = self.window();
        let answers = &mut *self.answers();
        // What was asked for by calls that are not made again is passed over.
        while answers.memory.next().is_some_and(|(at, _)| at < begins) {
            answers.memory.used += 1;
        }
        match answers.memory.take() {
            Some((
                _,
                What::Memory {
                    free,
                    total,
                    reserved,
                },
            )) => {
                self.reserve_as_told(Bytes::new(reserved));
                Ok(MemInfo {
                    free: Bytes::new(free),
                    total: Bytes::new(total),
                })
            }
            _ => {
                answers.differs(|| {
                    "the driver is asked what the device has; no such question is recorded"
                        .to_owned()
                });
                Err(Code::UNKNOWN)
            }
        }
    }

    fn is_alone(&self) -> bool {
        let (_, ends) = self.window();
        let quiet = self.answers().quiet.next();
        quiet.is_some_and(|(at, _)| at < ends)
    }

    fn may_fence(&self) -> bool {
        self.shared.captures.load(Ordering::Relaxed) == 0
    }

    fn fence(&self) -> Result<Told, Code> {
        let (_, ends) = self.window();
        let answers = &mut *self.answers();
        let fence = answers.fences.next().filter(|&(at, _)| at < ends);
        let quiet = answers.quiet.next().filter(|&(at, _)| at < ends);
        // What comes first is what this fence is.
        match (fence, quiet) {
            (Some((at, What::Fence(number) | What::Reached(number))), quiet)
                if quiet.is_none_or(|(other, _)| at < other) =>
            {
                answers.fences.used += 1;
                Ok(Told::Epoch(number))
            }
            (_, Some((_, What::Quiet(is_quiet)))) => {
                answers.quiet.used += 1;
                Ok(Told::Other { is_quiet })
            }
            _ => Ok(Told::Other { is_quiet: false }),
        }
    }

    fn fence_unless_done(&self) -> Result<Option<Told>, Code> {
        let is_done = {
            let answers = self.answers();
            matches!(answers.fences.next(), Some((_, What::Reached(_))))
        };
        let fence = self.fence()?;
        Ok((!is_done || !matches!(fence, Told::Epoch(_))).then_some(fence))
    }

    fn reached(&self, fence: &Told) -> Result<bool, Code> {
        let (_, ends) = self.window();
        match fence {
            Told::Epoch(number) => {
                let is_free = self.shared.is_free.load(Ordering::Relaxed);
                let how = if is_free {
                    Asking::Frees
                } else {
                    Asking::Needs
                };
                Ok(self.answers().is_reached(*number, ends, how))
            }
            Told::Other { is_quiet } => Ok(*is_quiet),
        }
    }

    fn wait(&self, _fence: &Told, _whose: Whose) -> Result<bool, Code> {
        Ok(true)
    }

    fn wait_within(&self, fence: &Told, _most: Duration) -> Result<bool, Code> {
        let (_, ends) = self.window();
        match fence {
            Told::Epoch(number) => Ok(self.answers().is_reached(*number, ends, Asking::Waits)),
            Told::Other { is_quiet } => Ok(*is_quiet),
        }
    }

    fn synchronize(&self) -> Result<(), Code> {
        Ok(())
    }

    fn wait_by_free(&self, _whose: Whose) -> Result<bool, Code> {
        Ok(true)
    }
}

/// Makes the calls of a tape again; says where that leads elsewhere.
pub(crate) fn check(tape: &Tape) -> Result<(), Difference> {
    let start = |what: String| Difference {
        item: 0,
        time_us: 0,
        what,
    };
    if let Some(lacks) = &tape.lacks {
        return Err(start(lacks.clone()));
    }
    let loaded = tape.loaded(&[]).map_err(start)?;
    if let Some(lane) = tape.arenas.iter().position(|arena| arena.is_lane) {
        let at = tape.items.iter().position(|item| item.arena == lane as u32);
        return Err(difference(tape, at.unwrap_or(0), lane_is_left_out()));
    }
    Replay::new(tape, &loaded.settings).run()
}

fn lane_is_left_out() -> String {
    "memory of a stream, which is not replayed".to_owned()
}

fn difference(tape: &Tape, at: usize, what: String) -> Difference {
    Difference {
        item: at + 1,
        time_us: tape.items.get(at).map_or(0, |item| item.time_us),
        what,
    }
}

/// An arena of the replay.
struct Player {
    arena: Arena<Witness>,
    answers: Arc<Mutex<Answers>>,
    has_ended: bool,
}

struct Replay<'a> {
    tape: &'a Tape,
    players: Vec<Player>,
    quotas: BTreeMap<u32, Arc<Quota>>,
    shared: Arc<Shared>,
    /// For each item of the program the next one of its thread in its arena.
    ends: Vec<u32>,
    /// Whether an option has something to do after each free.
    follows_frees: bool,
}

impl<'a> Replay<'a> {
    fn new(tape: &'a Tape, settings: &Settings) -> Replay<'a> {
        let shared = Arc::new(Shared {
            begins: AtomicUsize::new(0),
            ends: AtomicUsize::new(0),
            captures: AtomicUsize::new(0),
            is_free: AtomicBool::new(false),
        });
        let config = Config {
            // A program that is recorded keeps no blocks by threads.
            thread_cache: ThreadCacheSize::Most(Bytes::ZERO),
            ..settings.config.clone()
        };
        let watch = Watch {
            ooms: settings.oom_report != OomReport::Off,
            events: usize::from(settings.trace_events > 0),
            ..Watch::default()
        };
        let grows = matches!(
            config.strategy,
            StrategyKind::AutoGrowth | StrategyKind::Mapped
        );
        let quotas = quotas(&tape.arenas);
        let map = Arc::new(PageMap::new());
        let mut players = Vec::new();
        for (number, told) in tape.arenas.iter().enumerate() {
            let answers = Arc::new(Mutex::new(Answers::default()));
            let quota = quotas.get(&told.device).map(Arc::clone);
            let quota = quota.unwrap_or_else(|| Arc::new(Quota::new(Bytes::MAX)));
            let driver = Witness {
                answers: Arc::clone(&answers),
                shared: Arc::clone(&shared),
                quota: Arc::clone(&quota),
            };
            let arena = Arena::new(
                ArenaId(u32::try_from(number).unwrap_or(u32::MAX)),
                driver,
                &config,
                Arc::clone(&map),
                quota,
            );
            players.push(Player {
                arena: arena.watched(watch),
                answers,
                has_ended: false,
            });
        }
        let mut replay = Replay {
            tape,
            players,
            quotas,
            shared,
            ends: Vec::new(),
            follows_frees: grows && config.free_idle_chunk || !config.retry_time.is_zero(),
        };
        replay.sort();
        replay
    }

    /// Gives each arena's driver its answers.
    fn sort(&mut self) {
        let items = &self.tape.items;
        // How many epochs of each arena have a fence so far.
        let mut fenced = vec![0; self.players.len()];
        // Where a request has failed, the program gets the driver's own answer.
        let mut fails = vec![false; self.players.len()];
        let is_created = |at: usize| {
            let before = at.checked_sub(1).and_then(|at| items.get(at));
            before.is_some_and(|item| matches!(item.what, What::Created(_)))
        };
        for (at, item) in items.iter().enumerate() {
            let place = item.arena as usize;
            let Some(player) = self.players.get_mut(place) else {
                continue;
            };
            if item.what.is_of_program() {
                fails[place] = matches!(item.what, What::Oom { .. });
            }
            let answers = &mut *player.answers();
            let lane = match item.what {
                What::Refused { .. } if fails[place] => continue,
                What::Refused { .. } if is_created(at) => &mut answers.created,
                What::Taken { .. } | What::Refused { .. } => &mut answers.taken,
                What::Created(_) => &mut answers.created,
                What::GivenBack { .. } => &mut answers.given_back,
                What::Mapped { .. } => &mut answers.mapped,
                What::Unmapped { .. } => &mut answers.unmapped,
                What::Memory { .. } => &mut answers.memory,
                What::Mapping { .. } => &mut answers.mapping,
                What::Reserved { .. } => &mut answers.reserved,
                What::Quiet(_) => &mut answers.quiet,
                What::Fence(number) => {
                    fenced[place] = number + 1;
                    &mut answers.fences
                }
                What::Seen(seen) => {
                    answers.seen = Some(seen);
                    continue;
                }
                What::Reached(number) => {
                    let seen = answers.seen.take();
                    answers.reached.push((number, at, seen));
                    if number < fenced[place] {
                        continue;
                    }
                    fenced[place] = number + 1;
                    &mut answers.fences
                }
                _ => continue,
            };
            lane.push(at, item.what);
        }
        let mut next = BTreeMap::new();
        let last = u32::try_from(items.len()).unwrap_or(u32::MAX);
        self.ends = vec![last; items.len()];
        for (at, item) in items.iter().enumerate().rev() {
            if item.what.is_of_program() {
                let at_number = u32::try_from(at).unwrap_or(u32::MAX);
                let end = next.insert((item.arena, item.thread), at_number);
                self.ends[at] = end.unwrap_or(last);
            }
        }
    }

    fn run(&mut self) -> Result<(), Difference> {
        let mut begun: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        for (at, item) in self.tape.items.iter().enumerate() {
            match item.what {
                What::Capture { begins: true } => {
                    self.shared.captures.fetch_add(1, Ordering::Relaxed);
                }
                What::Capture { begins: false } => {
                    let open = self.shared.captures.load(Ordering::Relaxed);
                    let open = open.saturating_sub(1);
                    self.shared.captures.store(open, Ordering::Relaxed);
                }
                What::Limit(limit) => self.limit(limit),
                what if what.is_of_program() => {
                    let key = (item.arena, item.thread);
                    let before = begun.insert(key, at).unwrap_or(0);
                    let before = if matches!(what, What::Alloc { .. } | What::Oom { .. }) {
                        (before, at)
                    } else {
                        (at, self.ends.get(at).map_or(at, |&end| end as usize))
                    };
                    self.shared.begins.store(before.0, Ordering::Relaxed);
                    self.shared.ends.store(before.1, Ordering::Relaxed);
                    let is_free = matches!(what, What::Free { .. }) && !self.follows_frees;
                    self.shared.is_free.store(is_free, Ordering::Relaxed);
                    self.play(at, item)?;
                }
                _ => {}
            }
        }
        self.is_complete()
    }

    fn limit(&self, limit: Option<u64>) {
        for quota in self.quotas.values() {
            quota.set_limit(limit.map_or(Bytes::MAX, Bytes::new));
        }
    }

    fn play(&mut self, at: usize, item: &Item) -> Result<(), Difference> {
        let Some(player) = self.players.get_mut(item.arena as usize) else {
            return Ok(());
        };
        if player.has_ended {
            return Ok(());
        }
        let arena = &player.arena;
        let mut wrong = None;
        match item.what {
            What::Alloc { address, size, .. } => match arena.allocate(Bytes::new(size)) {
                Ok(got) if got.get() == address => {}
                got => {
                    let got = match got {
                        Ok(got) => format!("{:#x}", got.get()),
                        Err(AllocError::Limit) => "nothing (the limit)".to_owned(),
                        Err(error) => format!("nothing ({error:?})"),
                    };
                    wrong = Some(format!(
                        "{size} bytes are at {got}; recorded is {address:#x}"
                    ));
                }
            },
            What::Free { address, .. } => {
                if arena.free(Address::new(address)).is_err() {
                    wrong = Some(format!("the block at {address:#x} cannot be freed"));
                }
            }
            What::Oom { size } => {
                if arena.allocate(Bytes::new(size)).is_ok() {
                    wrong = Some(format!("{size} bytes are there; they were not"));
                }
            }
            What::Trim => _ = arena.trim(),
            What::Order(order) => obey(arena, order),
            What::Ended => {
                arena.retire();
                player.has_ended = true;
                return Ok(());
            }
            _ => {}
        }
        let told = player.answers().difference.take();
        match told.or(wrong) {
            None => Ok(()),
            Some(what) => Err(difference(self.tape, at, what)),
        }
    }

    /// All that the driver did was done again.
    fn is_complete(&self) -> Result<(), Difference> {
        let mut first: Option<(usize, What)> = None;
        for player in self.players.iter().filter(|player| !player.has_ended) {
            let answers = player.answers();
            let lanes = [
                &answers.taken,
                &answers.given_back,
                &answers.mapped,
                &answers.unmapped,
            ];
            for left in lanes.iter().filter_map(|lane| lane.next()) {
                if first.is_none_or(|(at, _)| left.0 < at) {
                    first = Some(left);
                }
            }
        }
        // What a process did in its last call, which it was killed in, is not known.
        let last = self
            .tape
            .items
            .iter()
            .rposition(|item| item.what.is_of_program());
        match first {
            Some((at, what)) if self.tape.is_ended || last.is_some_and(|last| at < last) => {
                let what = format!("recorded is {what:?}, which does not come");
                Err(difference(self.tape, at, what))
            }
            _ => Ok(()),
        }
    }
}

impl Player {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The quotas of the devices, by their number.
fn quotas(arenas: &[TapeArena]) -> BTreeMap<u32, Arc<Quota>> {
    let quota = |told: &TapeArena| {
        let limit = told.limit.map_or(Bytes::MAX, Bytes::new);
        (told.device, Arc::new(Quota::new(limit)))
    };
    arenas.iter().map(quota).collect()
}

/// Does what an arena was asked for.
pub(super) fn obey<D: Driver>(arena: &Arena<D>, order: ArenaOrder) {
    match order {
        ArenaOrder::Flush => arena.flush(),
        ArenaOrder::GiveBackIdle => _ = arena.give_back_idle(),
        ArenaOrder::GiveBackWhenQuiet => _ = arena.give_back_when_quiet(),
        ArenaOrder::GiveRoom => _ = arena.give_room(Duration::ZERO),
        ArenaOrder::GrowPlainly => arena.grow_plainly(),
        ArenaOrder::MemInfo => _ = arena.mem_info(),
    }
}
