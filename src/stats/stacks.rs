//! Call stacks, by number and in words.
//!
//! The code that takes call stacks numbers them and keeps them; the arena only
//! passes the numbers on. They are resolved when something is reported.

/// The number of a call stack, the same for all arenas of a process.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackId(u32);

impl StackId {
    /// No call stack was taken.
    pub const NONE: StackId = StackId(u32::MAX);

    /// The stack with this number; the largest number is [`StackId::NONE`].
    #[must_use]
    pub const fn new(number: u32) -> StackId {
        StackId(number)
    }

    /// The number; `None` if no stack was taken.
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        if self.0 == u32::MAX {
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

/// A place in the program's code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// The file that the code was loaded from; empty if it came from no file.
    pub object: String,
    /// The address of the call in that file, as its own tables count; without a
    /// file, its address in the process.
    pub offset: u64,
    /// The function, if the file exports its name.
    pub name: Option<String>,
}

/// Call stacks that a report refers to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stacks {
    /// Every place, once.
    pub frames: Vec<Frame>,
    /// Each stack's places, the innermost first, as indexes in `frames`.
    pub stacks: Vec<(StackId, Vec<usize>)>,
}
