//! Stacks and places by number.
//!
//! Owns every distinct stack and place that was seen, for the life of the process.
//! A stack that was seen is found without a lock, by 64 bits that are mixed from
//! its places and the epoch of the objects: two of 65536 stacks are taken for one
//! in one process of 10^10. Cost: some ten ns; for a new stack a lock and some
//! microseconds, and four bytes for each of its places.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use spin::mutex::SpinMutex;
use vramalloc_core::Bytes;
use vramalloc_core::lookup::{Numbers, Pairs};
use vramalloc_core::patience::Brief;
use vramalloc_core::stats::{Frame, Group, Object, StackId, Stacks, executable};

use crate::linker::unwind::modules::{self, Module};

/// The most stacks and the most places that are kept.
const MOST_STACKS: usize = 1 << 16;
const MOST_PLACES: usize = 1 << 17;

/// The most that are entered of each table: the rest of its slots stays free, so
/// that what is not there is found out soon.
const MOST_KEYS: usize = 3 << 15;
const MOST_LOOKS: usize = 1 << 15;

/// Marks the word of a place of Python, which is its number.
const OF_PYTHON: u64 = 1 << 63;

static STACKS: Numbers<{ 2 * MOST_STACKS }> = Numbers::new();

/// Those of the newest keys once that is full: where objects are loaded again and again,
/// each stack has a key for each of their epochs. One more than the number.
static NEWEST_KEYS: Pairs<{ 1 << 14 }> = Pairs::new();

/// Places of Python by what they look like in its memory; what looks different is
/// often one place.
static LOOKS: Numbers<{ 1 << 16 }> = Numbers::new();

/// Those of the newest looks once that is full, or that have no number, so that they
/// are not read at each stack: words of places, or [`NO_WORD`].
static NEWEST_LOOKS: Pairs<{ 1 << 14 }> = Pairs::new();
const NO_WORD: u64 = u64::MAX;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// In an object, by its number, or in none.
    Native(Option<u32>, usize),
    /// A file, a line and a function.
    Python(Arc<str>, Option<u32>, Arc<str>),
}

impl Place {
    /// Of Python, as people write it.
    fn in_words(&self) -> Option<String> {
        match self {
            Place::Native(..) => None,
            Place::Python(file, Some(line), function) => Some(format!("{file}:{line} {function}")),
            Place::Python(file, None, function) => Some(format!("{file} {function}")),
        }
    }
}

/// A stack, by the numbers of its places.
type Places = &'static [u32];

struct Kept {
    stacks: Vec<Places>,
    by_places: BTreeMap<Places, u32>,
    /// How many keys of stacks are in the table, and how many looks.
    keys: usize,
    looks: usize,
    places: Vec<Place>,
    numbers: BTreeMap<Place, u32>,
}

static KEPT: SpinMutex<Kept, Brief> = SpinMutex::new(Kept {
    stacks: Vec::new(),
    by_places: BTreeMap::new(),
    keys: 0,
    looks: 0,
    places: Vec::new(),
    numbers: BTreeMap::new(),
});

impl Kept {
    fn stack(&mut self, places: Places) -> Option<u32> {
        let number = u32::try_from(self.stacks.len()).ok()?;
        if self.stacks.len() >= MOST_STACKS {
            return None;
        }
        self.stacks.push(places);
        self.by_places.insert(places, number);
        Some(number)
    }

    fn place(&mut self, place: Place) -> Option<u32> {
        if let Some(&number) = self.numbers.get(&place) {
            return Some(number);
        }
        let number = u32::try_from(self.places.len()).ok()?;
        if self.places.len() >= MOST_PLACES {
            return None;
        }
        self.places.push(place.clone());
        self.numbers.insert(place, number);
        Some(number)
    }
}

/// Words and an epoch, mixed: four words at a time, of which none waits for another.
#[inline(always)]
fn mixed(words: &[u64], epoch: u16) -> u64 {
    let mix = |hash: u64, word: u64| product(hash ^ word, word);
    let (fours, rest) = words.as_chunks::<4>();
    let lanes = fours.iter().fold([1, 2, 3, 4], |lanes: [u64; 4], four| {
        std::array::from_fn(|at| mix(lanes[at], four[at]))
    });
    (lanes.into_iter().chain(rest.iter().copied())).fold(u64::from(epoch), mix)
}

/// Two words as one.
#[inline(always)]
pub(super) fn product(one: u64, two: u64) -> u64 {
    let (one, two) = (one ^ 0xa076_1d64_78bd_642f, two ^ 0xe703_7ed1_a0b4_28db);
    let product = u128::from(one) * u128::from(two);
    #[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
    let (low, high) = (product as u64, (product >> 64) as u64);
    low ^ high
}

/// The number of a stack with these words in this epoch; none if there are too many.
pub(super) fn number(words: &[u64], epoch: u16) -> Option<StackId> {
    let key = mixed(words, epoch).max(1);
    let number = STACKS.get(key).or_else(|| newest_key(words, key))?;
    Some(StackId::new(number))
}

#[cold]
#[inline(never)]
fn newest_key(words: &[u64], key: u64) -> Option<u32> {
    let known = NEWEST_KEYS.get(key).map(|number| number - 1);
    let known = known.and_then(|number| u32::try_from(number).ok());
    known.or_else(|| enter(words, key))
}

fn enter(words: &[u64], key: u64) -> Option<u32> {
    let native = |&word: &u64| {
        let address = usize::try_from(word)
            .ok()
            .filter(|_| word & OF_PYTHON == 0)?;
        // A call returns behind itself, which may be in another function.
        let call = address.wrapping_sub(1);
        Some(match modules::around(call) {
            Some(module) => Place::Native(Some(module.number), call.wrapping_sub(module.bias)),
            None => Place::Native(None, call),
        })
    };
    let natives: Vec<Option<Place>> = words.iter().map(native).collect();
    let kept = &mut *KEPT.lock();
    // Another thread may have been faster.
    if let Some(number) = STACKS.get(key) {
        return Some(number);
    }
    let numbered = words
        .iter()
        .zip(natives)
        .map(|(&word, native)| match native {
            Some(place) => kept.place(place),
            None => u32::try_from(word & !OF_PYTHON).ok(),
        });
    let places = numbered.collect::<Option<Box<[u32]>>>()?;
    // In another epoch, the same places have another key.
    let number = match kept.by_places.get(&*places) {
        Some(&number) => number,
        None => kept.stack(Box::leak(places))?,
    };
    if kept.keys < MOST_KEYS && STACKS.put(key, number) {
        kept.keys += 1;
    } else {
        NEWEST_KEYS.put(key, u64::from(number) + 1);
    }
    Some(number)
}

/// The word of the place of Python that looks like this; `read` says its file, line
/// and function. None where it cannot, or there are too many.
#[inline(always)]
pub(super) fn python_word(
    look: u64,
    read: impl FnOnce() -> Option<(String, Option<u32>, String)>,
) -> Option<u64> {
    let key = look.max(1);
    match LOOKS.get(key) {
        Some(number) => Some(OF_PYTHON | u64::from(number)),
        None => newest_look(key, read),
    }
}

#[cold]
#[inline(never)]
fn newest_look(
    key: u64,
    read: impl FnOnce() -> Option<(String, Option<u32>, String)>,
) -> Option<u64> {
    let word = match NEWEST_LOOKS.get(key) {
        Some(word) => word,
        None => enter_python(key, read()?),
    };
    (word != NO_WORD).then_some(word)
}

fn enter_python(key: u64, (file, line, function): (String, Option<u32>, String)) -> u64 {
    let place = Place::Python(file.into(), line, function.into());
    let kept = &mut *KEPT.lock();
    let Some(number) = kept.place(place) else {
        NEWEST_LOOKS.put(key, NO_WORD);
        return NO_WORD;
    };
    let word = OF_PYTHON | u64::from(number);
    if LOOKS.get(key).is_none() {
        if kept.looks < MOST_LOOKS && LOOKS.put(key, number) {
            kept.looks += 1;
        } else {
            NEWEST_LOOKS.put(key, word);
        }
    }
    word
}

/// A stack that was taken.
pub(crate) struct Taken {
    /// The addresses of the calls in machine code, the innermost first; 0 where what
    /// they were in is no longer loaded.
    pub(crate) calls: Vec<usize>,
    /// Its places of Python in words, the innermost first.
    pub(crate) python: Vec<String>,
}

/// The stack with this number.
pub(super) fn taken(id: StackId) -> Option<Taken> {
    let places: Vec<Place> = {
        let kept = KEPT.lock();
        let numbers = kept.stacks.get(usize::try_from(id.number()?).ok()?)?;
        let of = |&number: &u32| kept.places.get(number as usize).cloned();
        numbers.iter().filter_map(of).collect()
    };
    let modules = modules::all();
    let address = |object: u32, offset: usize| {
        // One that was loaded again has another entry with its number.
        let is_it = |module: &&&Module| module.number == object && module.is_there();
        let module = modules.iter().find(is_it);
        module.map_or(0, |module| module.bias.wrapping_add(offset))
    };
    let mut taken = Taken {
        calls: Vec::new(),
        python: Vec::new(),
    };
    for place in &places {
        match place {
            Place::Native(Some(object), offset) => taken.calls.push(address(*object, *offset)),
            Place::Native(None, address) => taken.calls.push(*address),
            Place::Python(..) => taken.python.extend(place.in_words()),
        }
    }
    Some(taken)
}

/// The place of Python that has most in these groups: of each stack the innermost
/// one counts.
pub(super) fn largest_of_python(groups: &[Group<StackId>]) -> Option<(String, Bytes)> {
    let kept = KEPT.lock();
    let innermost = |id: StackId| {
        let numbers = kept.stacks.get(usize::try_from(id.number()?).ok()?)?;
        let mut places = numbers
            .iter()
            .filter_map(|&number| kept.places.get(number as usize));
        places.find(|place| matches!(place, Place::Python(..)))
    };
    let mut sums = BTreeMap::<&Place, Bytes>::new();
    for group in groups {
        if let Some(place) = innermost(group.key) {
            let sum = sums.entry(place).or_insert(Bytes::ZERO);
            *sum = sum.saturating_add(group.bytes);
        }
    }
    let (place, bytes) = sums.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    Some((place.in_words()?, bytes))
}

/// Describes these stacks.
pub(super) fn described(numbers: &BTreeSet<StackId>) -> Stacks {
    let (stacks, places) = {
        let kept = KEPT.lock();
        let places = |id: &StackId| {
            let number = usize::try_from(id.number()?).ok()?;
            Some((*id, *kept.stacks.get(number)?))
        };
        let stacks: Vec<(StackId, Places)> = numbers.iter().filter_map(places).collect();
        let wanted: BTreeSet<u32> = stacks
            .iter()
            .flat_map(|(_, places)| places.iter().copied())
            .collect();
        let of = |&number: &u32| Some((number, kept.places.get(number as usize)?.clone()));
        (stacks, wanted.iter().filter_map(of).collect::<Vec<_>>())
    };
    let mut objects = Objects::default();
    let at: BTreeMap<u32, usize> = (places.iter().enumerate())
        .map(|(at, (number, _))| (*number, at))
        .collect();
    let frames = places.into_iter().map(|(_, place)| match place {
        Place::Native(object, offset) => Frame::Native {
            object: object.and_then(|number| objects.at(number)),
            offset: offset as u64,
        },
        Place::Python(file, line, function) => Frame::Python {
            file: file.to_string(),
            line,
            function: function.to_string(),
        },
    });
    let frames = frames.collect();
    let of = |places: &[u32]| {
        places
            .iter()
            .filter_map(|number| at.get(number).copied())
            .collect()
    };
    Stacks {
        frames,
        objects: objects.listed,
        stacks: stacks
            .iter()
            .map(|(id, places)| (*id, of(places)))
            .collect(),
    }
}

/// The objects that a report names.
struct Objects {
    all: Vec<&'static Module>,
    /// By the number of an object, where it stands in the list.
    at: BTreeMap<u32, usize>,
    listed: Vec<Object>,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects {
            all: modules::all(),
            at: BTreeMap::new(),
            listed: Vec::new(),
        }
    }
}

impl Objects {
    fn at(&mut self, number: u32) -> Option<usize> {
        if let Some(&at) = self.at.get(&number) {
            return Some(at);
        }
        let module = self.all.get(number as usize)?;
        let file = if module.path.is_empty() {
            let program = executable().unwrap_or_default();
            program.to_string_lossy().into_owned()
        } else {
            String::from_utf8_lossy(&module.path).into_owned()
        };
        let digits = module.build_id.iter().map(|byte| format!("{byte:02x}"));
        let build_id = (!module.build_id.is_empty()).then(|| digits.collect());
        self.at.insert(number, self.listed.len());
        self.listed.push(Object { file, build_id });
        Some(self.listed.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::getpid;

    fn of(words: &[u64]) -> StackId {
        number(words, 7).unwrap()
    }

    #[test]
    fn a_stack_has_one_number_and_its_places() {
        let getpid = libc::getpid as *const () as usize;
        // Not where the newest looks are in the test of a full table.
        let look = |line| u64::from(line) << 8;
        let python =
            |line| python_word(look(line), || Some(("a.py".into(), Some(line), "f".into())));
        let words = [getpid as u64 + 1, 9, python(4).unwrap()];
        let id = of(&words);
        assert_eq!(of(&words), id);
        assert_ne!(of(&words[..1]), id);
        // As in another epoch.
        assert_eq!(number(&words, 8), Some(id));
        let again = python_word(look(4), || unreachable!("it is known"));
        assert_eq!(python(4), again);
        assert_ne!(python(4), python(5));
        assert_eq!(python_word(look(6), || None), None);
        let stacks = described(&BTreeSet::from([id, StackId::NONE, StackId::new(1 << 30)]));
        let [(only, places)] = &stacks.stacks[..] else {
            panic!("{stacks:?}");
        };
        assert_eq!((*only, places.len()), (id, 3));
        let at = |place: usize| &stacks.frames[places[place]];
        let Frame::Native {
            object: Some(object),
            offset,
        } = at(0)
        else {
            panic!("{stacks:?}");
        };
        assert!(stacks.objects[*object].file.contains("libc") && *offset < getpid as u64);
        let build_id = stacks.objects[*object].build_id.as_ref().unwrap();
        assert!(build_id.len() == 40 && build_id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(
            *at(1),
            Frame::Native {
                object: None,
                offset: 8
            }
        );
        let python = Frame::Python {
            file: "a.py".into(),
            line: Some(4),
            function: "f".into(),
        };
        assert_eq!(*at(2), python);
        assert_eq!(described(&BTreeSet::new()), Stacks::default());
        let taken = taken(id).unwrap();
        assert_eq!(taken.calls, [getpid, 8]);
        assert_eq!(taken.python, ["a.py:4 f"]);
        let group = |key, mib| Group {
            key,
            count: 1,
            bytes: Bytes::mib(mib),
        };
        let groups = [
            group(of(&words[..1]), 9),
            group(id, 2),
            group(of(&words[1..]), 3),
        ];
        let largest = Some(("a.py:4 f".to_owned(), Bytes::mib(5)));
        assert_eq!(largest_of_python(&groups), largest);
        assert_eq!(largest_of_python(&groups[..1]), None);
    }

    #[test]
    fn a_stack_is_not_entered_twice_although_the_table_is_full() {
        let words = [getpid as *const () as u64 + 1, 77];
        let epochs = 0..u16::MAX;
        let id = number(&words, 0).unwrap();
        // As many keys as there are epochs, for two stacks.
        for other in [&words[..], &words[..1]] {
            epochs.clone().for_each(|epoch| _ = number(other, epoch));
        }
        let last = mixed(&words[..1], u16::MAX - 1).max(1);
        assert!(STACKS.get(last).is_none() && NEWEST_KEYS.get(last).is_some());
        assert_eq!(number(&words[..1], u16::MAX - 1), number(&words[..1], 0));
        assert_eq!(number(&words, 9), Some(id));
    }

    #[test]
    fn a_look_is_not_read_twice_although_the_table_is_full() {
        let read = || Some(("b.py".into(), Some(1), "g".into()));
        let keys = (1..=MOST_LOOKS as u64 + 9).map(|number| number << 32 | number);
        let words: Vec<Option<u64>> = keys.clone().map(|key| python_word(key, read)).collect();
        assert!(words.iter().all(|word| word.is_some() && *word == words[0]));
        assert!(LOOKS.get(keys.clone().next_back().unwrap()).is_none());
        for key in keys {
            assert_eq!(python_word(key, || unreachable!("it is known")), words[0]);
        }
    }
}
