//! The identifiers of contexts and streams.

/// A context of the model; an identifier is never used twice.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContextId(u32);

/// A stream of the model; an identifier is never used twice.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(u32);

impl ContextId {
    pub(crate) const fn numbered(n: u32) -> ContextId {
        ContextId(n)
    }

    /// Its number, from 0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl StreamId {
    pub(crate) const fn numbered(n: u32) -> StreamId {
        StreamId(n)
    }

    /// Its number, from 0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}
