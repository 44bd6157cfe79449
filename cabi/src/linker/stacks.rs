//! Call stacks of the threads that ask for memory, for `oom_report:full`.
//!
//! Owns every distinct call stack that was seen, for the life of the process.
//! Invariant: the number of a stack never changes; no file is read and no name
//! looked up before a report is made, and no lock is held while a stack is
//! walked. Cost: none without the option; with it a walk of the stack for each
//! allocation, some microseconds, and up to 300 bytes for each distinct stack.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::hash::{BuildHasherDefault, DefaultHasher};

use spin::mutex::SpinMutex;
use vramalloc_core::patience::Brief;
use vramalloc_core::recording::Place;
use vramalloc_core::stats::{Frame, StackId, Stacks};

use super::objects::{self, Object};
use super::unwind;

/// The most return addresses kept of a stack: the innermost ones.
const DEEPEST: usize = 32;

/// The most stacks that are kept; requests beyond get none.
const MOST_STACKS: usize = 1 << 16;

/// The most addresses whose names are looked up: for each, the linker compares
/// all symbols of a library.
const MOST_NAMES: usize = 4096;

type Places = &'static [usize];

struct Table {
    numbers: HashMap<Places, u32, BuildHasherDefault<DefaultHasher>>,
    stacks: Vec<Places>,
}

static TABLE: SpinMutex<Table, Brief> = SpinMutex::new(Table {
    numbers: HashMap::with_hasher(BuildHasherDefault::new()),
    stacks: Vec::new(),
});

/// The call stack of this thread, without our own frames.
pub(crate) fn take() -> StackId {
    let (mut places, mut count) = ([0; DEEPEST], 0);
    unwind::callers(|place| {
        if let Some(free) = places.get_mut(count) {
            *free = place;
            count += 1;
        }
        count < DEEPEST
    });
    places.get(..count).map_or(StackId::NONE, number)
}

/// The number of a stack; [`StackId::NONE`] if there are too many.
fn number(places: &[usize]) -> StackId {
    if places.is_empty() {
        return StackId::NONE;
    }
    if let Some(&number) = TABLE.lock().numbers.get(places) {
        return StackId::new(number);
    }
    let kept: Box<[usize]> = places.into();
    let table = &mut *TABLE.lock();
    // Another thread may have been faster.
    if let Some(&number) = table.numbers.get(places) {
        return StackId::new(number);
    }
    match u32::try_from(table.stacks.len()) {
        Ok(number) if table.stacks.len() < MOST_STACKS => {
            let kept: Places = Box::leak(kept);
            table.stacks.push(kept);
            table.numbers.insert(kept, number);
            StackId::new(number)
        }
        _ => StackId::NONE,
    }
}

/// The places of a stack, for a recording: without names.
pub(crate) fn places(id: StackId) -> Vec<Place> {
    let places = id.number().and_then(|number| {
        let number = usize::try_from(number).ok()?;
        TABLE.lock().stacks.get(number).copied()
    });
    let Some(places) = places else {
        return Vec::new();
    };
    let objects = objects::loaded();
    let program = fs::read_link("/proc/self/exe").unwrap_or_default();
    let at = |&place: &usize| {
        let frame = frame(place, &objects, &program.to_string_lossy(), false);
        if frame.object.is_empty() {
            return Place::Address(frame.offset);
        }
        Place::Object {
            file: frame.object,
            build_id: String::new(),
            offset: frame.offset,
        }
    };
    places.iter().map(at).collect()
}

/// Describes these stacks, with the names of their functions.
pub(crate) fn described(numbers: &BTreeSet<StackId>) -> Stacks {
    let stacks: Vec<(StackId, Places)> = {
        let table = TABLE.lock();
        let places = |id: &StackId| {
            let number = usize::try_from(id.number()?).ok()?;
            Some((*id, *table.stacks.get(number)?))
        };
        numbers.iter().filter_map(places).collect()
    };
    if stacks.is_empty() {
        return Stacks::default();
    }
    let objects = objects::loaded();
    let program = fs::read_link("/proc/self/exe").unwrap_or_default();
    let mut frames = Vec::new();
    let mut known: BTreeMap<usize, usize> = BTreeMap::new();
    let mut at = |place: usize| {
        *known.entry(place).or_insert_with(|| {
            let named = frames.len() < MOST_NAMES;
            frames.push(frame(place, &objects, &program.to_string_lossy(), named));
            frames.len() - 1
        })
    };
    let stacks = (stacks.iter())
        .map(|(id, places)| (*id, places.iter().map(|&place| at(place)).collect()))
        .collect();
    Stacks { frames, stacks }
}

/// Describes one return address.
fn frame(place: usize, objects: &[Object], program: &str, named: bool) -> Frame {
    // A call returns behind itself, which may be in another function.
    let call = place - 1;
    let around = objects.iter().find(|object| object.range.contains(&call));
    let Some(object) = around else {
        return Frame {
            offset: call as u64,
            ..Frame::default()
        };
    };
    Frame {
        object: if object.path.is_empty() {
            program.to_owned()
        } else {
            object.path.to_string_lossy().into_owned()
        },
        offset: call.wrapping_sub(object.bias) as u64,
        name: named.then(|| objects::function_around(call)).flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_has_one_number_and_its_places_in_words() {
        let getpid = libc::getpid as *const () as usize;
        let places = [getpid + 1, 9];
        let id = number(&places);
        assert_eq!(number(&places), id);
        assert_ne!(number(&places[..1]), id);
        assert_eq!(number(&[]), StackId::NONE);
        let stacks = described(&BTreeSet::from([id, StackId::NONE, StackId::new(1 << 30)]));
        assert_eq!(stacks.stacks, [(id, vec![0, 1])]);
        let (known, unknown) = (&stacks.frames[0], &stacks.frames[1]);
        assert!(known.name.as_ref().unwrap().ends_with("getpid"));
        assert!(known.object.contains("libc") && known.offset < getpid as u64);
        assert_eq!((unknown.object.as_str(), unknown.offset), ("", 8));
        assert_eq!(described(&BTreeSet::new()), Stacks::default());
    }
}
