//! Whether a recording can be believed: the allocator does what it did again, over a
//! driver that answers as the recording says that the driver answered.
//!
//! The program's calls are made again, in their order and on one thread. Each address
//! that comes out, and each call of the driver for memory, must be the recorded one: so
//! the peak is the same, and the driver's calls are. When fences were reached is taken
//! from the recording, too. Owns the arenas of the replay. Invariant: a driver's answer
//! is used once, and only by the arena that it was given to. Cost: that of the
//! allocator.

mod answers;
mod beside;
mod driver;
mod sort;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::arena::Watch;
use vramalloc_core::config::{
    Config, DeviceShare, OomReport, Settings, StrategyKind, ThreadCacheSize,
};
use vramalloc_core::driver::Driver;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_core::recording::ArenaOrder;
use vramalloc_core::{AllocError, Arena, Code};

use self::answers::{Answers, said};
use self::beside::{Beside, Stander, Standing, lock};
use self::driver::{Cursor, Witness};
use super::tape::{Item, Tape, TapeArena, What};

/// Where the replay left the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    /// The event of the file, from 1; 0: it is not one event.
    pub(crate) event: u32,
    /// When, in microseconds since the first.
    pub(crate) time_us: u64,
    /// What was recorded, and what came instead.
    pub(crate) what: String,
}

/// Makes the calls of a tape again; says where that leads elsewhere.
pub(crate) fn check(tape: &Tape) -> Result<(), Difference> {
    let start = |what: String| Difference {
        event: 0,
        time_us: 0,
        what,
    };
    if let Some(lacks) = &tape.lacks {
        return Err(start(lacks.clone()));
    }
    let loaded = tape.loaded(&[]).map_err(start)?;
    if let Some(lane) = tape.arenas.iter().position(|arena| arena.is_lane) {
        let at = tape
            .items
            .iter()
            .position(|item| item.arena as usize == lane);
        return Err(difference(tape, at.unwrap_or(0), lane_is_left_out()));
    }
    Replay::new(tape, &loaded.settings).run()
}

fn lane_is_left_out() -> String {
    "memory of a stream, which is not replayed".to_owned()
}

fn difference(tape: &Tape, at: usize, what: String) -> Difference {
    let item = tape.items.get(at);
    Difference {
        event: item.map_or(0, |item| item.event),
        time_us: item.map_or(0, |item| item.time_us),
        what,
    }
}

/// An arena of the replay.
struct Player {
    arena: Arc<Arena<Witness>>,
    answers: Arc<Mutex<Answers>>,
    beside: Beside,
    stands: bool,
    has_ended: bool,
}

struct Replay<'a> {
    tape: &'a Tape,
    players: Vec<Player>,
    quotas: BTreeMap<u32, Arc<Quota>>,
    shared: Arc<Cursor>,
    standing: Standing,
    /// For each item of the program the next one of its thread in its arena.
    ends: Vec<u32>,
    /// Whether an option has something to do after each free.
    follows_frees: bool,
}

impl<'a> Replay<'a> {
    fn new(tape: &'a Tape, settings: &Settings) -> Replay<'a> {
        let shared = Arc::new(Cursor {
            begins: AtomicUsize::new(0),
            ends: AtomicUsize::new(0),
            thread: AtomicU32::new(0),
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
        let standing = Standing::default();
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
                Arc::clone(&quota),
            );
            let gives = Beside {
                standing: Arc::clone(&standing),
                device: told.device,
                context: told.context,
                number,
                quota,
                answers: Arc::clone(&answers),
                shared: Arc::clone(&shared),
            };
            let [holds, shares, beside] = [gives.clone(), gives.clone(), gives.clone()];
            let arena = (arena.watched(watch))
                .relieved_by(move || gives.gives(), move || holds.live())
                .shared_when(move || shares.is_shared());
            players.push(Player {
                arena: Arc::new(arena),
                answers,
                beside,
                stands: false,
                has_ended: false,
            });
        }
        for (answers, player) in sort::answers(tape).into_iter().zip(&players) {
            *player.answers() = answers;
        }
        Replay {
            tape,
            players,
            quotas,
            shared,
            standing,
            ends: sort::ends(&tape.items),
            follows_frees: grows && config.free_idle_chunk || !config.retry_time.is_zero(),
        }
    }

    fn run(&mut self) -> Result<(), Difference> {
        let mut begun: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        for (at, item) in self.tape.items.iter().enumerate() {
            self.stands(item.arena as usize);
            match item.what {
                What::Capture { begins: true } => {
                    self.shared.captures.fetch_add(1, Ordering::Relaxed);
                }
                What::Capture { begins: false } => {
                    let open = self.shared.captures.load(Ordering::Relaxed);
                    let open = open.saturating_sub(1);
                    self.shared.captures.store(open, Ordering::Relaxed);
                }
                What::Limit(limit) => self.limit(item.arena, limit),
                what if what.is_of_program() => {
                    let key = (item.arena, item.thread);
                    let before = begun.insert(key, at).unwrap_or(0);
                    let before = if matches!(what, What::Alloc { .. } | What::Oom { .. }) {
                        (before, at)
                    } else {
                        (at, self.ends.get(at).map_or(at, |&end| end as usize))
                    };
                    self.shared.thread.store(item.thread, Ordering::Relaxed);
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

    /// An arena did something, and is there from then on. It was told of before, but so
    /// are those that another thread made for a context that has one already.
    fn stands(&mut self, number: usize) {
        let arenas = (self.tape.arenas.get(number)).zip(self.players.get_mut(number));
        if let Some((told, player)) = arenas
            && !std::mem::replace(&mut player.stands, true)
        {
            let mut standing = lock(&self.standing);
            standing.push(Stander {
                device: told.device,
                context: told.context,
                number,
                arena: Arc::downgrade(&player.arena),
            });
        }
    }

    fn limit(&self, arena: u32, limit: Option<DeviceShare>) {
        let Some(arena) = self.tape.arenas.get(arena as usize) else {
            return;
        };
        if let Some(quota) = self.quotas.get(&arena.device) {
            let total = Bytes::new(arena.total);
            quota.set_limit(limit.map_or(Bytes::MAX, |share| share.of(total)));
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
        if player.beside.is_any() {
            player.beside.reserve_as_told();
        }
        let mut wrong = None;
        match item.what {
            What::Alloc { address, size, .. } => match arena.allocate(Bytes::new(size)) {
                Ok(got) if got.get() == address => {}
                got => {
                    let got = match got {
                        Ok(got) => format!("{:#x}", got.get()),
                        Err(error) => none_because(error),
                    };
                    wrong = Some(format!(
                        "{size} bytes are at {got}; recorded is {address:#x}"
                    ));
                }
            },
            What::Free { address, .. } => {
                let refused = arena.free(Address::new(address)).is_err();
                wrong = refused.then(|| format!("the block at {address:#x} cannot be freed"));
            }
            What::Oom { size } => {
                let served = arena.allocate(Bytes::new(size)).is_ok();
                wrong = served.then(|| format!("{size} bytes are there; they were not"));
            }
            What::Trim => _ = arena.trim(),
            What::Order(order) => obey(arena, order),
            What::Ended => {
                arena.retire();
                player.has_ended = true;
                let mut standing = lock(&self.standing);
                standing.retain(|stander| stander.number != item.arena as usize);
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
            let lanes = answers.all().flat_map(|lanes| {
                [
                    &lanes.taken,
                    &lanes.given_back,
                    &lanes.mapped,
                    &lanes.unmapped,
                ]
            });
            for left in lanes.filter_map(|lane| lane.next()) {
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
                let what = format!("recorded is {}, which does not come", said(Some(what)));
                Err(difference(self.tape, at, what))
            }
            _ => Ok(()),
        }
    }
}

impl Player {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        lock(&self.answers)
    }
}

/// What a request got that failed, in words.
fn none_because(error: AllocError) -> String {
    match error {
        AllocError::Limit => "nothing (the limit)".to_owned(),
        AllocError::Paused => "nothing (memory is paused)".to_owned(),
        AllocError::Driver(Code::OUT_OF_MEMORY) => "nothing (the device has no more)".to_owned(),
        AllocError::Driver(code) => format!("nothing (CUDA's error {})", code.get()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_there_was_nothing_is_said_in_words() {
        let out = AllocError::Driver(Code::OUT_OF_MEMORY);
        assert_eq!(none_because(out), "nothing (the device has no more)");
        let other = AllocError::Driver(Code::ILLEGAL_STATE);
        assert_eq!(none_because(other), "nothing (CUDA's error 401)");
    }
}
