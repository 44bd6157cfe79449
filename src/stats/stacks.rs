//! Call stacks, by number and in words.
//!
//! The code that takes call stacks numbers them and keeps them; the arena only
//! passes the numbers on. They are resolved when something is reported, to places:
//! no names of functions but Python's.

use std::io::{self, Write};

use super::Group;
use super::lines::Lines;
use crate::address::Bytes;

/// The number of a call stack, the same for all arenas of a process.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackId(u32);

impl StackId {
    /// No call stack was taken.
    pub const NONE: StackId = StackId(u32::MAX);

    /// No call stack was taken because the request was left out of a sample.
    pub const LEFT_OUT: StackId = StackId(u32::MAX - 1);

    /// The stack with this number; the largest two stand for none.
    #[must_use]
    pub const fn new(number: u32) -> StackId {
        StackId(number)
    }

    /// The number; `None` if no stack was taken.
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        if self.0 >= StackId::LEFT_OUT.0 {
            None
        } else {
            Some(self.0)
        }
    }
}

impl Default for StackId {
    fn default() -> StackId {
        StackId::NONE
    }
}

/// A file that code was loaded from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Object {
    /// Its path.
    pub file: String,
    /// Its build id, in hexadecimal digits, if it has one.
    pub build_id: Option<String>,
}

/// A place in the program's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Machine code.
    Native {
        /// Its file, as an index in [`Stacks::objects`]; code of no file has none.
        object: Option<usize>,
        /// The address of the call in that file, as its own tables count; without
        /// a file, its address in the process.
        offset: u64,
    },
    /// Python.
    Python {
        /// The file, as Python names it.
        file: String,
        /// The line, if the code has one.
        line: Option<u32>,
        /// The function.
        function: String,
    },
}

/// Call stacks that a report refers to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stacks {
    /// Every file, once.
    pub objects: Vec<Object>,
    /// Every place, once.
    pub frames: Vec<Frame>,
    /// Each stack's places, the innermost first, as indexes in `frames`.
    pub stacks: Vec<(StackId, Vec<usize>)>,
}

/// What call stacks hold: blocks and their bytes, in the sizes that were handed
/// out. Each list has the largest first, and [`StackId::NONE`] for what has no
/// stack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StackSums {
    /// Now.
    pub live: Vec<Group<StackId>>,
    /// When all of it together was at its highest.
    pub peak: Vec<Group<StackId>>,
    /// Requests that failed, with the bytes that were asked for.
    pub failed: Vec<Group<StackId>>,
}

impl StackSums {
    /// The call stacks that have something; one may come several times.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + '_ {
        let groups = [&self.live, &self.peak, &self.failed];
        groups.into_iter().flatten().map(|group| group.key)
    }
}

/// What was done about call stacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StackReport {
    /// The option `stacks`.
    pub mode: &'static str,
    /// The mean distance of samples; zero: every request has its stack.
    pub distance: Bytes,
    /// How many were taken.
    pub taken: u64,
    /// Of these, how many end at code that we cannot follow.
    pub cut: u64,
    /// Requests whose stack could not be taken.
    pub untaken: u64,
    /// Requests whose stack there was no number left for.
    pub dropped: u64,
    /// The version of Python, if there is one on any of them.
    pub python: Option<String>,
    /// Why its places are not read, if they are not.
    pub unread: Option<String>,
    /// What they hold.
    pub sums: StackSums,
    /// What the above and the rest of the report refer to.
    pub stacks: Stacks,
}

impl StackReport {
    /// Writes it as a JSON object, indented as a member of the top-level object of
    /// a file.
    ///
    /// # Errors
    /// What `out` answers.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut out = Lines::new(out);
        out.put(format_args!("{{\n    \"mode\": "))?;
        out.quoted(Some(self.mode))?;
        out.put(format_args!(
            ",\n    \"sample_bytes\": {},\n    \"taken\": {},\n    \"cut\": {},\n    \
             \"untaken\": {},\n    \"dropped\": {},\n    \"python\": {{ \"version\": ",
            self.distance.get(),
            self.taken,
            self.cut,
            self.untaken,
            self.dropped,
        ))?;
        out.quoted(self.python.as_deref())?;
        let is_read = self.python.is_some() && self.unread.is_none();
        out.put(format_args!(", \"read\": {is_read}, \"reason\": "))?;
        out.quoted(self.unread.as_deref())?;
        out.put(format_args!(" }},\n    \"objects\": "))?;
        out.list(4, &self.stacks.objects, |out, object| {
            out.put(format_args!("{{ \"file\": "))?;
            out.quoted(Some(&object.file))?;
            out.put(format_args!(", \"build_id\": "))?;
            out.quoted(object.build_id.as_deref())?;
            out.put(format_args!(" }}"))
        })?;
        out.put(format_args!(",\n    \"frames\": "))?;
        out.list(4, &self.stacks.frames, frame)?;
        out.put(format_args!(",\n    \"stacks\": "))?;
        out.list(4, &self.stacks.stacks, |out, (id, frames)| {
            out.put(format_args!("{{ \"stack\": "))?;
            out.number(id.number().map(u64::from))?;
            out.put(format_args!(", \"frames\": {frames:?} }}"))
        })?;
        let sums = [
            ("live", &self.sums.live),
            ("peak", &self.sums.peak),
            ("failed", &self.sums.failed),
        ];
        for (name, groups) in sums {
            out.put(format_args!(",\n    \"{name}\": "))?;
            out.list(4, groups, |out, group| {
                out.put(format_args!("{{ \"stack\": "))?;
                out.number(group.key.number().map(u64::from))?;
                let (count, bytes) = (group.count, group.bytes.get());
                out.put(format_args!(", \"count\": {count}, \"bytes\": {bytes} }}"))
            })?;
        }
        out.put(format_args!("\n  }}"))
    }
}

fn frame(out: &mut Lines<'_>, frame: &Frame) -> io::Result<()> {
    match frame {
        Frame::Native { object, offset } => {
            out.put(format_args!("{{ \"object\": "))?;
            out.number(object.map(|at| at as u64))?;
            out.put(format_args!(", \"offset\": {offset} }}"))
        }
        Frame::Python {
            file,
            line,
            function,
        } => {
            out.put(format_args!("{{ \"file\": "))?;
            out.quoted(Some(file))?;
            out.put(format_args!(", \"line\": "))?;
            out.number(line.map(u64::from))?;
            out.put(format_args!(", \"function\": "))?;
            out.quoted(Some(function))?;
            out.put(format_args!(" }}"))
        }
    }
}
