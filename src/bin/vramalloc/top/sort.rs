//! In what order processes stand below their device.

use std::cmp::Ordering;

use vramalloc_core::control::DeviceFigures;

use super::super::look::Watched;

/// What rows are sorted by.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum SortBy {
    /// What was taken of the device: the most first.
    Memory,
    /// What is live: the most first.
    Live,
    Pid,
    Program,
    /// The newest first.
    Start,
}

impl SortBy {
    pub(super) const ALL: [SortBy; 5] = [
        SortBy::Memory,
        SortBy::Live,
        SortBy::Pid,
        SortBy::Program,
        SortBy::Start,
    ];

    /// What is said of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            SortBy::Memory => "memory",
            SortBy::Live => "live",
            SortBy::Pid => "process id",
            SortBy::Program => "program",
            SortBy::Start => "start",
        }
    }

    /// The next one.
    pub(super) fn next(self) -> SortBy {
        let at = SortBy::ALL.iter().position(|&by| by == self);
        let mut all = SortBy::ALL.into_iter().cycle();
        all.nth(at.map_or(0, |at| at + 1)).unwrap_or(self)
    }
}

/// An order of rows.
#[derive(Copy, Clone, Debug)]
pub(super) struct Order {
    pub(super) by: SortBy,
    pub(super) is_reversed: bool,
}

impl Order {
    pub(super) fn sort(self, rows: &mut [(&Watched, &DeviceFigures)]) {
        rows.sort_by(|a, b| {
            let order = self.compare(*a, *b);
            let order = if self.is_reversed {
                order.reverse()
            } else {
                order
            };
            // One place for each, whatever else is the same.
            order.then_with(|| a.0.shown_id().cmp(&b.0.shown_id()))
        });
    }

    fn compare(self, a: (&Watched, &DeviceFigures), b: (&Watched, &DeviceFigures)) -> Ordering {
        let memory = |device: &DeviceFigures| device.reserved.saturating_add(device.past);
        match self.by {
            SortBy::Memory => memory(b.1).cmp(&memory(a.1)),
            SortBy::Live => b.1.live.cmp(&a.1.live),
            SortBy::Pid => a.0.shown_id().cmp(&b.0.shown_id()),
            SortBy::Program => a.0.owner.program.cmp(&b.0.owner.program),
            SortBy::Start => b.0.owner.started_ms.cmp(&a.0.owner.started_ms),
        }
    }
}
