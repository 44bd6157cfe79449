//! The frames of a thread of CPython.
//!
//! A place is known by how it looks: its code object, where in it, its texts, each
//! with its length and its end, and of its table of lines the address, the length and
//! both ends, since objects are made where others were. Only a look that is new is
//! turned into text.

use super::super::{MOST_PYTHON, table};
use super::layout::{At, BYTES, KIND, LENGTH, Layout, TYPE};
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

/// A code object and where in it.
struct Look {
    code: usize,
    /// In bytes of instructions.
    at: i64,
    /// While a debugger follows it (3.10).
    line: u32,
    file: usize,
    name: usize,
    /// The ends of both.
    texts: [u64; 2],
    first_line: u32,
    lines: usize,
    length: usize,
    ends: [usize; 2],
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
    // The last word, without what lies behind the end.
    let last = length.saturating_sub(1);
    let behind = 56 - 8 * (last % 8);
    let end = memory.word(lines, BYTES + (last & !7))? << behind;
    let ends = [memory.word(lines, BYTES)?, end];
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
        texts: [end_of(memory, layout, file)?, end_of(memory, layout, name)?],
        first_line: memory.half(code, layout.first_line)?,
        lines,
        length,
        ends,
    }))
}

/// What tells a text from another of the same place in memory: its length and its last
/// 16 bytes, some of which are not its own where it is shorter.
#[inline(always)]
fn end_of(memory: &impl Memory, layout: &Layout, at: usize) -> Option<u64> {
    let kind = memory.half(at, KIND)?;
    let (width, is_compact, is_ascii) = (kind >> 2 & 7, kind >> 5 & 1 == 1, kind >> 6 & 1 == 1);
    if !is_compact {
        return None;
    }
    let length = memory.word(at, LENGTH)?;
    let offset = if is_ascii { layout.ascii } else { layout.wide };
    let end = offset + length.min(LONGEST_TEXT) * width as usize;
    let [one, two] = [memory.word(at, end - 16)?, memory.word(at, end - 8)?];
    Some(table::product((one ^ length) as u64, two as u64))
}

impl Look {
    #[inline(always)]
    fn mixed(&self) -> u64 {
        let ([begin, end], [file, name]) = (self.ends, self.texts);
        let numbers = u64::from(self.line) << 32 | u64::from(self.first_line);
        // One does not wait for another.
        let parts = [
            table::product(self.code as u64 ^ numbers, self.at.cast_unsigned()),
            table::product(self.file as u64 ^ file, self.name as u64 ^ name),
            table::product(self.lines as u64, self.length as u64),
            table::product(begin as u64, end as u64),
        ];
        let [one, two, three, four] = parts;
        table::product(one ^ two.rotate_left(32), three ^ four.rotate_left(32))
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
    let kind = Checked.half(at, KIND)?;
    let (width, is_compact, is_ascii) = (kind >> 2 & 7, kind >> 5 & 1 == 1, kind >> 6 & 1 == 1);
    let length = Checked.word(at, LENGTH)?.min(LONGEST_TEXT);
    if !is_compact || ![1, 2, 4].contains(&width) {
        return None;
    }
    let offset = if is_ascii { layout.ascii } else { layout.wide };
    let mut bytes = vec![0; length * width as usize];
    if !Checked.bytes(at + offset, &mut bytes) {
        return None;
    }
    let number = |character: &[u8]| {
        let mut all = [0; 4];
        if let Some(some) = all.get_mut(..character.len()) {
            some.copy_from_slice(character);
        }
        char::from_u32(u32::from_le_bytes(all)).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    Some(bytes.chunks_exact(width as usize).map(number).collect())
}

/// What a check found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Right,
    Wrong,
    /// There was nothing to look at.
    Unsaid,
}

/// Whether all frames of a thread are what they should be.
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
    let mut count = 0;
    let is_of = |object: usize, kind: usize| memory.word(object, TYPE) == Some(kind);
    let looked = walk(memory, layout, types, state, |look| {
        count += 1;
        let is_right = is_of(look.file, types.text)
            && is_of(look.name, types.text)
            && is_of(look.lines, types.bytes);
        let read = is_right.then(|| look.read(layout)).flatten();
        let (file, line, function) = read?;
        let is_named = !file.is_empty() && !function.is_empty();
        (is_named && line.is_none_or(|line| line < 1 << 24)).then_some(true)
    });
    match (looked, count) {
        (None, _) => Verdict::Wrong,
        (Some(()), 0) => Verdict::Unsaid,
        (Some(()), _) => Verdict::Right,
    }
}
