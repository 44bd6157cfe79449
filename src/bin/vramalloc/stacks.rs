//! The call stacks of a statistics file, with the names of their functions.
//!
//! What the file says (`read`) gets its names from the files that the program
//! ran, all at once. A stack is shown without the places that say nothing of
//! who asked (`fold`), which can be had too.

mod fold;
mod place;
mod read;

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Deserialize;

use super::statistics;
use super::symbols::{Functions, Symbols};

pub(crate) use self::place::{Place, PlaceKind};
pub(crate) use self::read::{CallStacks, FrameList, OldFrame, OldStacks, Weight, check};

use self::read::{Raw, RawFrame};

/// The most places of a stack, which are written for each block of a snapshot;
/// more than the library takes, with what was inlined.
const MOST_PLACES: usize = 256;

/// How many places of a stack are shown in a line, from the innermost on.
const SHOWN: usize = 8;

/// The moments at which call stacks hold memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum At {
    /// When the statistics were taken
    Now,
    /// When the most was live
    Peak,
    /// Requests that failed
    Failed,
}

/// The call stacks of one process.
#[derive(Default)]
pub(crate) struct Stacks {
    /// By the number of the frame; several where calls were inlined.
    places: Vec<Vec<Place>>,
    /// The frames of each stack, the innermost first.
    stacks: BTreeMap<u64, Vec<usize>>,
    /// What the file says beside them; `None` if it is of a library that only
    /// named the stacks of blocks and of failed requests.
    said: Option<CallStacks>,
    /// Whether places that say nothing of who asked are shown.
    shows_all: bool,
}

/// The part of a file that call stacks are in.
#[derive(Deserialize)]
struct Kept {
    #[serde(default)]
    started_unix_ms: u64,
    call_stacks: Option<CallStacks>,
    snapshot: Option<OldStacks>,
}

impl Stacks {
    /// Reads those of a file of statistics.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn of_file(bytes: &[u8], symbols: &mut Symbols) -> Result<Stacks, String> {
        let Kept {
            started_unix_ms,
            call_stacks,
            snapshot,
        } = statistics::read(bytes)?;
        Ok(Stacks::new(
            call_stacks,
            snapshot,
            started_unix_ms / 1000,
            symbols,
        ))
    }

    /// Finds the names. `began`: when the process did, in seconds since 1970.
    pub(crate) fn new(
        said: Option<CallStacks>,
        old: Option<OldStacks>,
        began: u64,
        symbols: &mut Symbols,
    ) -> Stacks {
        let mut said = said;
        let raw = match (&mut said, old) {
            (Some(said), _) => said.take_raw(),
            (None, Some(old)) => old.into_raw(),
            (None, None) => Raw::default(),
        };
        let places = named(&raw, began, symbols);
        let stacks = raw.stacks.into_iter();
        Stacks {
            places,
            stacks: stacks.map(|one| (one.stack, one.frames)).collect(),
            said,
            shows_all: false,
        }
    }

    /// The same with every place shown.
    pub(crate) fn with_all(mut self, shows_all: bool) -> Stacks {
        self.shows_all = shows_all;
        self
    }

    /// What the file says of the stacks; `None` in files of older libraries.
    pub(crate) fn said(&self) -> Option<&CallStacks> {
        self.said.as_ref()
    }

    /// What each stack held, the largest first.
    pub(crate) fn held(&self, at: At) -> &[Weight] {
        match (&self.said, at) {
            (None, _) => &[],
            (Some(said), At::Now) => &said.live,
            (Some(said), At::Peak) => &said.peak,
            (Some(said), At::Failed) => &said.failed,
        }
    }

    /// Whether the file has a stack.
    pub(crate) fn has(&self, stack: u64) -> bool {
        self.stacks.contains_key(&stack)
    }

    /// All places of a stack, the innermost first.
    pub(crate) fn places(&self, stack: u64) -> impl Iterator<Item = &Place> {
        let frames = self.stacks.get(&stack).into_iter().flatten();
        let places = frames.filter_map(|&frame| self.places.get(frame));
        places.flatten().take(MOST_PLACES)
    }

    /// The places that are shown of a stack, the innermost first.
    pub(crate) fn shown(&self, stack: u64) -> Vec<&Place> {
        let places = self.places(stack).collect();
        match self.shows_all {
            true => places,
            false => fold::folded(places),
        }
    }

    /// A stack in one line.
    pub(crate) fn in_words(&self, stack: Option<u64>) -> String {
        let Some(stack) = stack else {
            return "(no call stack)".to_owned();
        };
        let shown = self.shown(stack);
        if shown.is_empty() {
            return "a call stack that is not in the file".to_owned();
        }
        let join = |texts: &[String]| texts.join(" < ");
        if self.shows_all {
            let texts: Vec<String> = shown.iter().map(|place| place.text()).collect();
            return join(&texts);
        }
        let Some((near, far)) = shown.split_at_checked(SHOWN) else {
            let texts = shown.iter().map(|place| place.short_text());
            return join(&texts.collect::<Vec<_>>());
        };
        let mut texts: Vec<String> = near.iter().map(|place| place.short_text()).collect();
        // Where packages call each other for long, the program's own line is told.
        let own = |place: &&&Place| place.kind == PlaceKind::Python && !place.is_installed();
        match far.iter().position(|place| own(&place)) {
            _ if far.is_empty() => {}
            Some(at) if near.iter().find(own).is_none() => {
                texts.extend((at > 0).then(|| "…".to_owned()));
                texts.extend(far.get(at).map(|place| place.short_text()));
                texts.extend((at + 1 < far.len()).then(|| "…".to_owned()));
            }
            _ => texts.push("…".to_owned()),
        }
        join(&texts)
    }

    /// The innermost Python place of a stack.
    pub(crate) fn python(&self, stack: u64) -> Option<&Place> {
        self.places(stack)
            .find(|place| place.kind == PlaceKind::Python)
    }

    /// Whether a stack made the pool of `PyTorch`'s own cache grow.
    pub(crate) fn is_of_a_pool(&self, stack: u64) -> bool {
        self.places(stack).any(Place::is_of_a_pool)
    }
}

/// The places of each frame.
fn named(raw: &Raw, began: u64, symbols: &mut Symbols) -> Vec<Vec<Place>> {
    let mut asked: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for frame in &raw.frames {
        if let RawFrame::Native {
            object,
            offset,
            name: None,
        } = frame
        {
            asked.entry(*object).or_default().push(*offset);
        }
    }
    let mut found: BTreeMap<usize, (Vec<u64>, Vec<Functions>)> = BTreeMap::new();
    for (object, mut addresses) in asked {
        let Some(binary) = raw.objects.get(object) else {
            continue;
        };
        addresses.sort_unstable();
        addresses.dedup();
        let functions = symbols.functions(binary, &addresses, Some(began));
        found.insert(object, (addresses, functions));
    }
    let at = |object: usize, offset: u64| {
        let (addresses, functions) = found.get(&object)?;
        functions.get(addresses.binary_search(&offset).ok()?)
    };
    let files = raw
        .objects
        .iter()
        .map(|binary| binary.file.to_string_lossy().into());
    let (files, none): (Vec<Rc<str>>, Rc<str>) = (files.collect(), "".into());
    let one = |frame: &RawFrame| match frame {
        RawFrame::Python {
            file,
            line,
            function,
        } => {
            vec![Place::python(file, *line, function)]
        }
        RawFrame::Unknown { address } => vec![Place::unknown(*address)],
        RawFrame::Native {
            object,
            offset,
            name,
        } => {
            let file = files.get(*object).unwrap_or(&none);
            let functions = at(*object, *offset).map(|functions| &**functions);
            Place::native(
                file,
                *offset,
                name.as_deref(),
                functions.unwrap_or_default(),
            )
        }
    };
    raw.frames.iter().map(one).collect()
}
