//! One side of a comparison: what one run held, of all its ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::super::input::Input;
use super::super::output::{is_stream, of_file, plain, say};
use super::super::owners::Owned;
use super::super::progress::Progress;
use super::super::stacks::{At, CallStacks, OldStacks, Stacks};
use super::super::statistics::{self, Lifetime, most_together};
use super::super::symbols::Symbols;

/// The part of a file that is compared.
#[derive(Deserialize)]
struct Run {
    program: String,
    #[serde(default)]
    rank: String,
    #[serde(default)]
    started_unix_ms: u64,
    /// Whether it was written at the end of the process; all files were, before they
    /// said so.
    #[serde(default = "yes", rename = "final")]
    last: bool,
    arenas: Vec<Context>,
    #[serde(default)]
    families: Vec<Family>,
    #[serde(default)]
    owners: Vec<Owned>,
    call_stacks: Option<CallStacks>,
    snapshot: Option<OldStacks>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct Context {
    device: u64,
    #[serde(default)]
    made_unix_ms: u64,
    ended_unix_ms: Option<u64>,
    #[serde(default)]
    ooms: u64,
    live_bytes: Level,
    reserved_bytes: Level,
    #[serde(default)]
    size_classes: Vec<Sizes>,
}

impl Context {
    fn lifetime(&self) -> Lifetime {
        Lifetime {
            made: self.made_unix_ms,
            ended: self.ended_unix_ms,
        }
    }
}

#[derive(Copy, Clone, Deserialize)]
struct Level {
    peak: u64,
}

#[derive(Deserialize)]
struct Sizes {
    up_to_bytes: Option<u64>,
    #[serde(default)]
    peak_bytes: u64,
}

#[derive(Deserialize)]
struct Family {
    device: u64,
    bytes: Level,
}

/// A rank. Those that are numbers come in their order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RankName {
    number: u64,
    pub(super) text: String,
}

impl RankName {
    fn new(text: String) -> RankName {
        let number = text.parse().unwrap_or(u64::MAX);
        RankName { number, text }
    }
}

/// The peaks of one device. If it had several contexts at a time, or a rank several
/// processes, they are sums, which need not have been at one moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Peaks {
    pub(super) live: u64,
    pub(super) reserved: u64,
    pub(super) past: u64,
}

/// What one call stack held at the peak, as it is shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct StackHeld {
    pub(super) bytes: u64,
    pub(super) text: String,
    /// How much of the bytes the text stands for.
    largest: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Side {
    pub(super) name: String,
    pub(super) programs: BTreeSet<String>,
    /// Whether it is a folder, whose files are told apart by their ranks.
    is_folder: bool,
    /// Whether it is a recording, which tells neither of owners nor of what went past
    /// the pool.
    is_recording: bool,
    ranks: BTreeSet<RankName>,
    pub(super) files: u64,
    /// Files that were written before the end of their process: what came later is
    /// missing.
    pub(super) unfinished: u64,
    /// Requests that failed for want of memory.
    pub(super) ooms: u64,
    /// By rank and device.
    pub(super) peaks: BTreeMap<(RankName, u64), Peaks>,
    /// By owner, when the most was live; empty if the library did not tell.
    pub(super) owners: BTreeMap<String, u64>,
    /// By the largest request of the class, when the most was live.
    pub(super) sizes: BTreeMap<u64, u64>,
    /// By what stays the same from build to build; `None` if a file has none.
    pub(super) stacks: Option<BTreeMap<String, StackHeld>>,
}

impl Side {
    /// Reads a file, or those of a folder.
    ///
    /// # Errors
    /// One line that names the file and says what is wrong with it.
    pub(super) fn read(path: &Path, symbols: &mut Symbols) -> Result<Side, String> {
        let mut side = Side {
            name: plain(&path.to_string_lossy()),
            is_folder: path.is_dir(),
            stacks: Some(BTreeMap::new()),
            ..Side::default()
        };
        let files = match side.is_folder {
            true => files(path).map_err(|error| of_file(path, error))?,
            false => vec![path.to_owned()],
        };
        let progress = Progress::reading(files.iter().map(|file| &**file));
        for file in &files {
            let run = side
                .open(file, &progress)
                .map_err(|error| of_file(file, error))?;
            match run {
                Some(run) => side.add(run, symbols),
                None => say(of_file(
                    file,
                    "left out: no statistics of vramalloc".to_owned(),
                )),
            }
        }
        match side.ranks.is_empty() {
            true => Err(of_file(path, "no statistics that end in .json".to_owned())),
            false => Ok(side),
        }
    }

    /// None where a folder has a file of something else.
    fn open(&mut self, path: &Path, progress: &Progress) -> Result<Option<Run>, String> {
        let bytes = if is_stream(path) {
            let bytes = progress.read_input();
            self.statistics(bytes.and_then(|bytes| Input::of(Cursor::new(bytes))))
        } else {
            self.statistics(progress.open(path).and_then(Input::of))
        }?;
        if self.is_folder && statistics::is_of_others(&bytes) {
            return Ok(None);
        }
        statistics::read(&bytes).map(Some)
    }

    fn statistics<R: Read + Seek>(
        &mut self,
        input: std::io::Result<Input<R>>,
    ) -> Result<Vec<u8>, String> {
        let input = input.map_err(|error| error.to_string())?;
        self.is_recording = matches!(input, Input::Recording(_));
        if self.is_folder && self.is_recording {
            return Err("a recording; compare recordings one by one".to_owned());
        }
        input.into_statistics()
    }

    fn add(&mut self, run: Run, symbols: &mut Symbols) {
        self.programs.insert(plain(&run.program));
        self.files += 1;
        self.unfinished += u64::from(!run.last);
        let ooms = run.arenas.iter().map(|context| context.ooms);
        self.ooms = ooms.fold(self.ooms, u64::saturating_add);
        // A file that is compared with a file need not be of the same rank.
        let rank = if self.is_folder {
            plain(&run.rank)
        } else {
            String::new()
        };
        let rank = RankName::new(rank);
        let mut peaks = |device: u64, change: &dyn Fn(&mut Peaks)| {
            change(self.peaks.entry((rank.clone(), device)).or_default());
        };
        let mut devices: BTreeMap<u64, Vec<&Context>> = BTreeMap::new();
        for context in &run.arenas {
            devices.entry(context.device).or_default().push(context);
        }
        for (&device, contexts) in &devices {
            let lifetimes: Vec<Lifetime> = contexts.iter().map(|one| one.lifetime()).collect();
            let (live, there) = most_together(&lifetimes, |at| contexts[at].live_bytes.peak);
            let (reserved, _) = most_together(&lifetimes, |at| contexts[at].reserved_bytes.peak);
            peaks(device, &|peaks| {
                peaks.live = peaks.live.saturating_add(live);
                peaks.reserved = peaks.reserved.saturating_add(reserved);
            });
            for class in there.iter().flat_map(|&at| &contexts[at].size_classes) {
                let largest = class.up_to_bytes.unwrap_or(u64::MAX);
                let bytes = self.sizes.entry(largest).or_default();
                *bytes = bytes.saturating_add(class.peak_bytes);
            }
        }
        for family in &run.families {
            peaks(family.device, &|peaks| {
                peaks.past = peaks.past.saturating_add(family.bytes.peak);
            });
        }
        self.ranks.insert(rank);
        for one in &run.owners {
            let sum = self.owners.entry(plain(one.called())).or_default();
            *sum = sum.saturating_add(one.peak_bytes);
        }
        let began = run.started_unix_ms / 1000;
        let stacks = Stacks::new(run.call_stacks, run.snapshot, began, symbols);
        self.add_stacks(&stacks);
    }

    fn add_stacks(&mut self, stacks: &Stacks) {
        if stacks.said().is_none() {
            self.stacks = None;
        }
        let Some(all) = &mut self.stacks else { return };
        for held in stacks.held(At::Peak) {
            let shown = held.stack.map(|stack| stacks.shown(stack));
            let parts: Vec<String> = shown
                .iter()
                .flatten()
                .map(|place| place.lasting())
                .collect();
            let one = all.entry(parts.join(" < ")).or_default();
            one.bytes = one.bytes.saturating_add(held.bytes);
            if one.text.is_empty() || held.bytes > one.largest {
                one.text = stacks.in_words(held.stack);
                one.largest = held.bytes;
            }
        }
    }

    /// How many ranks there are.
    pub(super) fn ranks(&self) -> u64 {
        self.ranks.len() as u64
    }

    /// Whether another side is of the same kind.
    ///
    /// # Errors
    /// One line that says what differs.
    pub(super) fn fits(&self, other: &Side) -> Result<(), String> {
        let kind = |side: &Side| (side.is_folder, side.is_recording);
        if kind(self) == kind(other) && self.ranks == other.ranks {
            return Ok(());
        }
        let what = |side: &Side| {
            let ranks: Vec<&str> = side.ranks.iter().map(|rank| &*rank.text).collect();
            match (kind(side), ranks.as_slice()) {
                ((_, true), _) => "a recording".to_owned(),
                ((false, _), _) => "one file of statistics".to_owned(),
                ((true, _), [rank]) => format!("a folder with rank {rank}"),
                ((true, _), ranks) => format!("a folder with ranks {}", ranks.join(", ")),
            }
        };
        let (one, two) = (what(self), what(other));
        Err(format!(
            "{} is {one}, and {} is {two}: compare statistics with statistics, a recording with a \
             recording, or folders with the same ranks",
            self.name, other.name
        ))
    }
}

/// The files of a folder that can be statistics, in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "json") && path.is_file())
        .collect();
    files.sort();
    Ok(files)
}
