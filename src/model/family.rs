//! What a device's memory is used for.

/// A way to get device memory; each byte in use belongs to one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// Plain allocations, and the globals of modules.
    Plain,
    /// What the pools of stream-ordered memory have reserved.
    Pool,
    /// Physical memory that is mapped by the program itself.
    Virtual,
    /// The part of managed memory that lies on the device.
    Managed,
    /// Arrays.
    Array,
    /// What is reserved for the allocations of graphs.
    Graph,
    /// What contexts take for themselves.
    Context,
}

impl Family {
    /// All of them, in the order of their numbers.
    pub const ALL: [Family; 7] = [
        Family::Plain,
        Family::Pool,
        Family::Virtual,
        Family::Managed,
        Family::Array,
        Family::Graph,
        Family::Context,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Plain => "plain",
            Family::Pool => "pool",
            Family::Virtual => "virtual",
            Family::Managed => "managed",
            Family::Array => "array",
            Family::Graph => "graph",
            Family::Context => "context",
        }
    }
}

/// An amount that goes up and down, and the most that it was.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Amount {
    pub(crate) now: u64,
    pub(crate) peak: u64,
}

impl Amount {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
    }

    pub(crate) fn subtract(&mut self, bytes: u64) {
        self.now -= bytes;
    }
}
