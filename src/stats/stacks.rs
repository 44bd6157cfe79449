//! Call stacks, by number and in words.
//!
//! Owns nothing. Whoever takes call stacks numbers them and keeps them; the
//! arena only passes the numbers on, and what they stand for is asked when
//! something is reported. Cost: none.

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

    /// The number; none where no stack was taken.
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
    /// The file that the code was loaded from; empty where it came from none.
    pub object: String,
    /// The address of the call in that file, as its own tables count; where
    /// there is no file, in the process.
    pub offset: u64,
    /// The function, where the file exports its name.
    pub name: Option<String>,
}

/// Call stacks that a report refers to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stacks {
    /// Every place once.
    pub frames: Vec<Frame>,
    /// Each stack's places, the innermost first, by their position in
    /// `frames`.
    pub stacks: Vec<(StackId, Vec<usize>)>,
}
