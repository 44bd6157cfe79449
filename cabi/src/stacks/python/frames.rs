//! The frames of a thread of CPython.
//!
//! A place is known by how it looks: its code object, where in it, its texts, each
//! with its hash, and its table of lines, of which that is compared which most have,
//! since objects are made where others were. Only a look that is new is
//! turned into text.

use super::super::{MOST_PYTHON, table};
use super::layout::{At, BYTES, FLAGS, HASH, KIND, LENGTH, Layout, NO_HASH, OF_TEXT, TYPE};
use super::memory::{Checked, Memory};
use super::{Types, lines};

/// More frames than a thread has.
const MOST_FRAMES: usize = 1 << 16;

/// What a frame may belong to that is none of the program's (from 3.12 on).
const OF_INTERPRETER: u8 = 3;
const OF_GENERATOR: u8 = 1;

/// The longest table of lines and the longest text that are read.
const LONGEST_TABLE: usize = 1 << 20;
const LONGEST_TEXT: usize = 4096;

/// How much of a table of lines tells it from another of its length in its place.
const LONGEST_COMPARED: usize = 512;

/// A code object and where in it.
struct Look {
    code: usize,
    /// In bytes of instructions.
    at: i64,
    /// While a debugger follows it (3.10).
    line: u32,
    file: usize,
    name: usize,
    /// The marks of both.
    texts: [u64; 2],
    first_line: u32,
    lines: usize,
    length: usize,
    /// The mark of that table.
    table: u64,
}

/// What a frame is.
enum Found {
    Place(Look),
    /// None of the program's, or not begun yet.
    Passed,
}

/// Passes the words of the places to `push`, the innermost first; whether there
/// are any. Nothing is passed where anything is strange.
#[inline]
pub(super) fn each(
    memory: &impl Memory,
    layout: &Layout,
    types: &Types,
    state: usize,
    mut push: impl FnMut(u64),
) -> bool {
    let mut words = [0; MOST_PYTHON];
    let mut count = 0;
    let is_whole = walk(memory, layout, types, state, |look| {
        let word = table::python_word(look.mixed(), || look.read(layout));
        match (word, words.get_mut(count)) {
            (Some(word), Some(place)) => {
                *place = word;
                count += 1;
                Some(count < MOST_PYTHON)
            }
            _ => None,
        }
    });
    if is_whole.is_none() {
        return false;
    }
    words.iter().take(count).for_each(|&word| push(word));
    count > 0
}

/// Passes the file of each place to `visit`, the innermost first, as long as it returns
/// true: what tells it from others, and a way to read its name. Ends where anything is
/// strange.
pub(super) fn each_file(
    memory: &impl Memory,
    layout: &Layout,
    types: &Types,
    state: usize,
    mut visit: impl FnMut(u64, &dyn Fn() -> Option<String>) -> bool,
) {
    let mut count = 0;
    let _is_whole = walk(memory, layout, types, state, |look| {
        count += 1;
        let [file, _] = look.texts;
        let key = table::product(look.file as u64, file);
        Some(visit(key, &|| text(layout, look.file)) && count < MOST_PYTHON)
    });
}

/// Passes each frame to `visit`, as long as it returns true; none where anything is
/// strange, or it returns that.
#[inline(always)]
fn walk(
    memory: &impl Memory,
    layout: &Layout,
    types: &Types,
    state: usize,
    mut visit: impl FnMut(&Look) -> Option<bool>,
) -> Option<()> {
    if memory.word(state, layout.thread)? != this_thread() {
        return None;
    }
    let mut frame = memory.word(state, layout.frame)?;
    if let Some(through) = layout.through {
        frame = memory.word(frame, through)?;
    }
    for _ in 0..MOST_FRAMES {
        if frame == 0 {
            return Some(());
        }
        if let Found::Place(look) = look(memory, layout, types, frame)?
            && !visit(&look)?
        {
            return Some(());
        }
        frame = memory.word(frame, layout.previous)?;
    }
    None
}

/// The number that CPython knows the thread by.
#[inline]
fn this_thread() -> usize {
    // SAFETY: no arguments, and it cannot fail.
    let number = unsafe { libc::pthread_self() };
    usize::try_from(number).unwrap_or(0)
}

#[inline(always)]
fn look(memory: &impl Memory, layout: &Layout, types: &Types, frame: usize) -> Option<Found> {
    let mut owner = 0;
    if let Some(offset) = layout.owner {
        // The byte, from the word that it is in.
        let word = memory.word(frame, offset & !7)?;
        [owner, ..] = (word >> (8 * (offset % 8))).to_le_bytes();
        if owner == OF_INTERPRETER {
            return Some(Found::Passed);
        }
    }
    let code = memory.word(frame, layout.code)?;
    if memory.word(code, TYPE)? != types.code {
        return None;
    }
    let (at, line) = match layout.at_is {
        At::Number { line } => {
            let number = memory.half(frame, layout.at)?.cast_signed();
            (2 * i64::from(number), memory.half(frame, line)?)
        }
        At::Address => {
            let address = memory.word(frame, layout.at)?;
            let begin = code + layout.instructions;
            let at = i64::try_from(address).ok()? - i64::try_from(begin).ok()?;
            let preceding = 2 * i64::from(memory.half(code, layout.preceding)?.cast_signed());
            if owner != OF_GENERATOR && at < preceding {
                return Some(Found::Passed);
            }
            (at, 0)
        }
    };
    let lines = memory.word(code, layout.lines)?;
    let length = memory.word(lines, LENGTH)?;
    if length > LONGEST_TABLE {
        return None;
    }
    let table = hash_of(memory, lines, BYTES, length.min(LONGEST_COMPARED))?;
    let (file, name) = (
        memory.word(code, layout.file)?,
        memory.word(code, layout.name)?,
    );
    Some(Found::Place(Look {
        code,
        at,
        line,
        file,
        name,
        texts: [mark(memory, layout, file)?, mark(memory, layout, name)?],
        first_line: memory.half(code, layout.first_line)?,
        lines,
        length,
        table,
    }))
}

/// A text of Python's.
struct Text {
    /// Where its characters begin, how many are read, and how wide each is.
    start: usize,
    length: usize,
    width: usize,
}

impl Text {
    #[inline(always)]
    fn at(memory: &impl Memory, layout: &Layout, at: usize) -> Option<Text> {
        let kind = memory.half(at, KIND)?;
        let (width, is_compact, is_ascii) = (kind >> 2 & 7, kind >> 5 & 1 == 1, kind >> 6 & 1 == 1);
        // One of a class that is derived from `str` has its characters elsewhere.
        let start = match (is_compact, is_ascii) {
            (true, true) => at + layout.ascii,
            (true, false) => at + layout.wide,
            (false, _) => memory.word(at, layout.wide)?,
        };
        [1, 2, 4].contains(&width).then_some(Text {
            start,
            length: memory.word(at, LENGTH)?.min(LONGEST_TEXT),
            width: width as usize,
        })
    }

    fn bytes(&self) -> usize {
        self.length * self.width
    }
}

/// What tells a text from another of the same place in memory: the hash that it has for
/// Python, or where it has none, one of all that is read of it.
#[inline(always)]
fn mark(memory: &impl Memory, layout: &Layout, at: usize) -> Option<u64> {
    let hash = memory.word(at, HASH)?;
    if hash != NO_HASH {
        return Some(hash as u64);
    }
    mark_of_all(memory, layout, at)
}

#[inline(never)]
fn mark_of_all(memory: &impl Memory, layout: &Layout, at: usize) -> Option<u64> {
    let text = Text::at(memory, layout, at)?;
    hash_of(memory, text.start, 0, text.bytes())
}

/// A hash of `bytes` bytes, which begin at `offset` in the object at `of`, two words at
/// a time.
#[inline(always)]
fn hash_of(memory: &impl Memory, of: usize, offset: usize, bytes: usize) -> Option<u64> {
    let word = |at| memory.word(of, offset + 8 * at).map(|word| word as u64);
    let whole = bytes / 8;
    let mut hash = bytes as u64;
    let mut with = |one, two| hash = hash.rotate_left(5) ^ table::product(one, two);
    for at in 0..whole / 2 {
        with(word(2 * at)?, word(2 * at + 1)?);
    }
    let last = if whole % 2 == 1 { word(whole - 1)? } else { 0 };
    // The last bytes are less than a word; what follows them in memory is shifted out.
    let rest = match bytes % 8 {
        0 => 0,
        rest => word(whole)? << (64 - 8 * rest),
    };
    with(last, rest);
    Some(hash)
}

impl Look {
    #[inline(always)]
    fn mixed(&self) -> u64 {
        let [file, name] = self.texts;
        let numbers = u64::from(self.line) << 32 | u64::from(self.first_line);
        // One does not wait for another.
        let parts = [
            table::product(self.code as u64 ^ numbers, self.at.cast_unsigned()),
            table::product(self.file as u64 ^ file, self.name as u64 ^ name),
            table::product(self.lines as u64, self.length as u64 ^ self.table),
        ];
        let [one, two, three] = parts;
        table::product(one ^ two.rotate_left(32), three)
    }

    /// Its file, line and function, by way of the system.
    #[cold]
    #[inline(never)]
    fn read(&self, layout: &Layout) -> Option<(String, Option<u32>, String)> {
        let line = if self.line != 0 {
            Some(self.line)
        } else if self.at < 0 {
            Some(self.first_line)
        } else {
            let mut table = vec![0; self.length];
            if !Checked.bytes(self.lines + BYTES, &mut table) {
                return None;
            }
            let of = match layout.at_is {
                At::Number { .. } => lines::of_3_10,
                At::Address => lines::of_3_11,
            };
            of(&table, self.first_line, self.at)
        };
        Some((text(layout, self.file)?, line, text(layout, self.name)?))
    }
}

/// A text of Python's, up to a length that names have.
fn text(layout: &Layout, at: usize) -> Option<String> {
    let text = Text::at(&Checked, layout, at)?;
    let mut bytes = vec![0; text.bytes()];
    if !Checked.bytes(text.start, &mut bytes) {
        return None;
    }
    let number = |character: &[u8]| {
        let mut all = [0; 4];
        if let Some(some) = all.get_mut(..character.len()) {
            some.copy_from_slice(character);
        }
        // No text of C's has the first of all characters.
        let known = char::from_u32(u32::from_le_bytes(all)).filter(|&known| known != '\0');
        known.unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    Some(bytes.chunks_exact(text.width).map(number).collect())
}

/// What a check found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Right,
    Wrong,
    /// There was nothing to look at.
    Unsaid,
}

/// Whether the frames of a thread that are read are what they should be.
pub(super) fn check(
    memory: &impl Memory,
    layout: &Layout,
    types: &Types,
    state: usize,
    main: usize,
) -> Verdict {
    match memory.word(state, layout.interpreter) {
        Some(interpreter) if interpreter == main && main != 0 => {}
        // An interpreter within the interpreter: others will do.
        Some(_) => return Verdict::Unsaid,
        None => return Verdict::Wrong,
    }
    // A program may hand the state of one thread to another.
    if memory
        .word(state, layout.thread)
        .is_some_and(|thread| thread != this_thread())
    {
        return Verdict::Unsaid;
    }
    let (mut seen, mut count) = (0, 0);
    let is_text = |object: usize| {
        let kind = memory.word(object, TYPE)?;
        let is_derived = || Some(memory.word(kind, FLAGS)? & OF_TEXT != 0);
        Some(kind == types.text || is_derived()?)
    };
    let looked = walk(memory, layout, types, state, |look| {
        seen += 1;
        let is_right = is_text(look.file)?
            && is_text(look.name)?
            && memory.word(look.lines, TYPE)? == types.bytes;
        let read = is_right.then(|| look.read(layout)).flatten();
        let (file, line, function) = read?;
        // Code that a program makes may have other names and lines, which say nothing.
        let is_usual = !file.is_empty() && !function.is_empty();
        count += u32::from(is_usual && line.is_none_or(|line| line < 1 << 24));
        Some(seen < MOST_PYTHON)
    });
    match (looked, count) {
        (None, _) => Verdict::Wrong,
        (Some(()), 0) => Verdict::Unsaid,
        (Some(()), _) => Verdict::Right,
    }
}
