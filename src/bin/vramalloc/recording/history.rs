//! What a recording tells over time, for the page of `vramalloc report --html`: how much
//! each place held and who held it, thinned to a number of steps, and what lay in its
//! chunks when the most was live.
//!
//! Two passes: the first finds how much there is and where the peaks are, the second
//! keeps it. A file that grows or is written anew meanwhile is read as far as the first
//! pass went; a peak that the second does not find again has no map. Cost: some 0.5 us an
//! event.

mod named;

use std::collections::HashMap;
use std::io::{Read, Seek};

use vramalloc_core::config::{DeviceShare, Loaded};
use vramalloc_core::recording::{Entry, Found, Mark, RecordReader, Standing};
use vramalloc_core::stats::{Action, StackId, size_class};
use vramalloc_core::{Address, Bytes};

use super::books::{Books, DEVICE, Held, Where};
use super::callers::Told;
use super::layout;
use super::summary::{self, Of};
use crate::html::map::{PartState, WholeChunk, WholePart, largest, map};
use crate::html::model::{Failure, PageRoom, PlaceShown, ProcessShown};
use crate::html::thin::{Moment, Thinner};
use crate::statistics::loaded;
use crate::symbols::Symbols;
use crate::units;

/// The most places of a recording that are shown, those that held most.
const MOST_PLACES: usize = 32;

/// The most failures of a place that are shown.
const MOST_FAILURES: usize = 1000;

/// Stands for all holders that are not told one by one.
const OTHERS: u32 = u32::MAX;

/// Who holds a block.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Holder {
    Stack(StackId),
    /// Where the recording has no call stacks.
    Size(usize),
}

/// What the first pass finds.
struct Survey {
    books: Books,
    /// Events of blocks and segments by arena.
    changes: HashMap<u32, u64>,
    /// The first events are gone; what is held is known once all was told anew.
    begins_unknown: bool,
}

/// The second pass.
struct History {
    /// The options in force.
    options: Loaded,
    books: Books,
    told: Told,
    places: Vec<PlaceHistory>,
    /// Of each arena where in `places` it counts; `None`: it is not shown.
    arenas: HashMap<u32, Option<usize>>,
    holders: HashMap<Holder, u32>,
    has_stacks: bool,
    /// Whether it is known what is held.
    is_known: bool,
    /// Pieces of chunks that each place has room for.
    pieces: usize,
    began_us: u64,
    /// The time of the newest event; clocks of several threads may be out of step.
    latest: u64,
}

/// A place in the making.
struct PlaceHistory {
    at: Where,
    thinner: Thinner,
    /// What each holder holds, by its number.
    held: Vec<i64>,
    shown: PlaceShown,
    peak: u64,
    peak_entry: u64,
}

/// What the page shows of a recording.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn process<R: Read + Seek>(
    mut file: R,
    name: &str,
    room: PageRoom,
    (symbols, shows_all): (&mut Symbols, bool),
) -> Result<ProcessShown, String> {
    let survey = survey(&mut file)?;
    let last_us = survey.books.last_us;
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let of = Of::read(reader.text());
    let mut shown = ProcessShown {
        notes: Vec::new(),
        ..titled(&of, name)
    };
    let mut history = History::new(&survey, room, loaded(&of.options, &[]));
    while history.books.entries < survey.books.entries {
        match reader.next_entry().map_err(|error| error.to_string())? {
            Some(entry) => history.enter(&entry),
            None => break,
        }
    }
    shown.notes = summary::whole(&reader, &history.books);
    if reader.is_ring() && reader.standing() == Standing::Running {
        let note = "the process still ran, or was killed: where it wrote over what was being \
                    read, frees are missing, and figures may be too high";
        shown.notes.push(note.to_owned());
    }
    let lines = summary::lines(name, &reader, &history.books);
    shown.said = lines.said;
    shown.began_us = history.began_us;
    history.finish(last_us, room, &mut shown, (symbols, shows_all));
    Ok(shown)
}

/// The process by its names.
fn titled(of: &Of, name: &str) -> ProcessShown {
    let Of {
        program,
        pid,
        host,
        rank,
        ..
    } = of;
    ProcessShown {
        identity: (program.clone(), *pid, host.clone()),
        is_recorded: true,
        label: match rank.as_str() {
            "" => format!("{program} {pid}"),
            rank => format!("rank {rank}"),
        },
        title: format!("{program} (process {pid} on {host})"),
        files: vec![name.to_owned()],
        ..ProcessShown::default()
    }
}

fn survey<R: Read + Seek>(file: &mut R) -> Result<Survey, String> {
    let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
    let mut survey = Survey {
        books: Books::default(),
        changes: HashMap::new(),
        begins_unknown: false,
    };
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        survey.books.enter(&entry);
        if survey.books.is_told && !survey.begins_unknown && reader.begins_late() {
            survey.begins_unknown = true;
            survey.books.forget_peaks();
        }
        if let Found::Event { .. } = entry.found {
            *survey.changes.entry(arena_of(&entry)).or_default() += 1;
        }
    }
    Ok(survey)
}

fn arena_of(entry: &Entry) -> u32 {
    entry.arena.unwrap_or(u32::MAX)
}

impl History {
    fn new(survey: &Survey, room: PageRoom, options: Loaded) -> History {
        let books = &survey.books;
        let mut sums: Vec<_> = books.sums.iter().collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.peak.max(sum.reserved_peak)));
        sums.truncate(MOST_PLACES);
        sums.sort_by_key(|(at, _)| (at.0 != DEVICE, *at));
        let steps = (room.steps / sums.len().max(1)).clamp(20, 2000);
        let pieces = room.pieces / sums.len().max(1);
        let began_us = books.first_us.unwrap_or(0);
        let places = sums.into_iter().map(|(at, sum)| {
            let arenas = books.arenas.iter().filter(|(n, _)| books.place(**n) == *at);
            let changes = survey.changes.iter();
            let changes = changes.filter(|(arena, _)| books.place(**arena) == *at);
            let limit = arenas.clone().find_map(|(_, told)| told.limit);
            PlaceHistory {
                at: at.clone(),
                thinner: Thinner::new(changes.map(|(_, count)| count).sum(), steps),
                held: Vec::new(),
                shown: PlaceShown {
                    name: summary::title(at, sum),
                    device: (at.0 == DEVICE).then_some(at.1).flatten().map(u64::from),
                    total: arenas.clone().find_map(|(_, told)| told.total),
                    limits: vec![(0, limit)],
                    ..PlaceShown::default()
                },
                peak: sum.peak,
                peak_entry: sum.peak_entry,
            }
        });
        History {
            places: places.collect(),
            options,
            books: Books::knowing(books.arenas.clone()),
            told: Told::default(),
            arenas: HashMap::new(),
            holders: HashMap::new(),
            has_stacks: books.stacks > 0,
            is_known: !survey.begins_unknown,
            pieces,
            began_us,
            latest: 0,
        }
    }

    /// Where an arena counts.
    fn place_of(&mut self, arena: u32) -> Option<usize> {
        let (books, places) = (&self.books, &self.places);
        *self.arenas.entry(arena).or_insert_with(|| {
            let at = books.place(arena);
            places.iter().position(|place| place.at == at)
        })
    }

    /// The number of who holds a block.
    fn holder(&mut self, held: &Held) -> u32 {
        let holder = match self.has_stacks {
            true => Holder::Stack(held.stack),
            false => Holder::Size(size_class(Bytes::new(held.size))),
        };
        let next = u32::try_from(self.holders.len()).unwrap_or(OTHERS);
        *self.holders.entry(holder).or_insert(next)
    }

    /// What a live block is to who holds it.
    fn weight(&mut self, held: Option<Held>) -> Option<(u32, i64)> {
        let live = held.filter(|held| !held.waits)?;
        let bytes = i64::try_from(live.size).unwrap_or(i64::MAX);
        Some((self.holder(&live), bytes))
    }

    fn enter(&mut self, entry: &Entry) {
        let arena = arena_of(entry);
        let since = entry.time_us.saturating_sub(self.began_us);
        self.latest = self.latest.max(since);
        let address = match &entry.found {
            Found::Event { event, .. } => block_of(&event.action),
            Found::Mark(_) => None,
        };
        let key = address.map(|address| (arena, address.get()));
        let block = |books: &Books| key.and_then(|key| books.blocks.get(&key).copied());
        let before = block(&self.books);
        self.books.enter(entry);
        self.told.enter(entry);
        let after = block(&self.books);
        match &entry.found {
            Found::Event { .. } => {
                let (before, after) = (self.weight(before), self.weight(after));
                let before = before.map(|(holder, bytes)| (holder, -bytes));
                let changes: Vec<(u32, i64)> = before.into_iter().chain(after).collect();
                if let Some(place) = self.place_of(arena) {
                    self.push(place, &changes);
                    self.keep_peak(place);
                }
            }
            // Much may be gone at once.
            Found::Mark(Mark::Ended | Mark::Telling { begins: false }) => {
                self.is_known |= self.books.is_told;
                self.count_anew();
                (0..self.places.len()).for_each(|place| self.keep_peak(place));
            }
            Found::Mark(Mark::Oom { size, stack, .. }) => {
                let held = Held::asked(size.get(), *stack);
                let holder = self.has_stacks.then(|| self.holder(&held));
                if let Some(place) = self.place_of(arena) {
                    self.fail(place, size.get(), holder);
                }
            }
            Found::Mark(Mark::Option { key, value })
                if matches!(&**key, "limit" | "device_limits") =>
            {
                // The program could change it: so it can be read.
                let _unread = self.options.change(key, value, |_| true);
                let (time, config) = (self.latest, &self.options.settings.config);
                for PlaceHistory { at, shown, .. } in &mut self.places {
                    if shown.device.is_some() {
                        shown
                            .limits
                            .push((time, limit(config.limit_of(at.1), shown.total)));
                    }
                }
            }
            Found::Mark(_) => {}
        }
    }

    /// The place is as the books say from now on.
    fn push(&mut self, place: usize, changes: &[(u32, i64)]) {
        if !self.is_known {
            return;
        }
        let Some(place) = self.places.get_mut(place) else {
            return;
        };
        let Some(sum) = self.books.sums.get(&place.at) else {
            return;
        };
        for &(holder, bytes) in changes {
            let number = holder as usize;
            if place.held.len() <= number {
                place.held.resize(number + 1, 0);
            }
            if let Some(held) = place.held.get_mut(number) {
                *held += bytes;
            }
        }
        let moment = Moment {
            time: self.latest,
            live: sum.live,
            limbo: sum.limbo,
            reserved: sum.reserved,
            past: 0,
        };
        place.thinner.push(moment, changes);
    }

    /// Keeps what lies in the chunks of a place, if the most is live now.
    fn keep_peak(&mut self, at: usize) {
        let entries = self.books.entries;
        let is_peak = |place: &&PlaceHistory| place.peak_entry == entries;
        let Some(place) = self.places.get(at).filter(is_peak) else {
            return;
        };
        let sum = self.books.sums.get(&place.at);
        if sum.is_none_or(|sum| sum.live != place.peak) {
            return;
        }
        let arenas: Vec<u32> = self.books.arenas.keys().copied().collect();
        let mut chunks = Vec::new();
        for arena in arenas {
            if self.place_of(arena) == Some(at) {
                for laid in layout::segments(&self.books, arena) {
                    chunks.push(self.whole(&laid));
                }
            }
        }
        let when = format!("when the most was live, {}", self.after());
        let map = map(when.clone(), &chunks, self.pieces);
        if let Some(PlaceHistory { shown, .. }) = self.places.get_mut(at) {
            shown.largest = largest(&chunks);
            shown.largest_when = when;
            shown.map = Some(map);
        }
    }

    fn after(&self) -> String {
        format!(
            "after {}",
            units::duration(self.latest.saturating_mul(1000))
        )
    }

    fn whole(&mut self, laid: &layout::LaidSegment) -> WholeChunk {
        let parts = laid.blocks.iter().map(|block| WholePart {
            address: block.address,
            size: block.size,
            state: match block.held {
                None => PartState::Free,
                Some(held) if held.waits => PartState::Limbo,
                Some(_) => PartState::Live,
            },
            asked: block.held.map_or(0, |held| held.size),
            since: block
                .held
                .map(|held| held.time_us.saturating_sub(self.began_us)),
            holder: block.held.map(|held| self.holder(&held)),
        });
        WholeChunk {
            start: laid.start,
            size: laid.size,
            is_mapped: laid.is_mapped,
            parts: parts.collect(),
        }
    }

    /// Counts what all holders hold anew.
    fn count_anew(&mut self) {
        let mut now: Vec<Vec<i64>> = vec![Vec::new(); self.places.len()];
        let blocks: Vec<(u32, Held)> = self
            .books
            .blocks
            .iter()
            .map(|((arena, _), held)| (*arena, *held))
            .collect();
        for (arena, held) in blocks {
            let Some(place) = self.place_of(arena) else {
                continue;
            };
            let weight = self.weight(Some(held));
            if let (Some((holder, bytes)), Some(now)) = (weight, now.get_mut(place)) {
                let number = holder as usize;
                if now.len() <= number {
                    now.resize(number + 1, 0);
                }
                if let Some(sum) = now.get_mut(number) {
                    *sum += bytes;
                }
            }
        }
        for (place, now) in now.into_iter().enumerate() {
            let before = self.places.get(place).map(|place| place.held.clone());
            let before = before.unwrap_or_default();
            let at = |all: &[i64], number: usize| all.get(number).copied().unwrap_or(0);
            let numbers = 0..now.len().max(before.len());
            let changes = numbers.filter_map(|number| {
                let change = at(&now, number) - at(&before, number);
                (change != 0).then_some((u32::try_from(number).ok()?, change))
            });
            let changes: Vec<(u32, i64)> = changes.collect();
            self.push(place, &changes);
        }
    }

    fn fail(&mut self, place: usize, size: u64, holder: Option<u32>) {
        let time = self.latest;
        let Some(PlaceHistory { shown, .. }) = self.places.get_mut(place) else {
            return;
        };
        if shown.failures.len() < MOST_FAILURES {
            shown.failures.push(Failure { time, size, holder });
        } else {
            shown.failures_left_out += 1;
        }
    }
}

/// The block that something happened to.
fn block_of(action: &Action) -> Option<Address> {
    match action {
        Action::Alloc(address)
        | Action::FreeRequested(address)
        | Action::FreeCompleted(address) => Some(*address),
        _ => None,
    }
}

/// A limit in bytes; `None`: there is none.
fn limit(limit: Option<DeviceShare>, total: Option<u64>) -> Option<u64> {
    let limit = limit?.of(total.map_or(Bytes::MAX, Bytes::new)).get();
    Some(limit).filter(|&limit| limit < u64::MAX)
}
