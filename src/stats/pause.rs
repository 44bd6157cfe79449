//! What was paused, and what a pause or its end did.

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

use crate::address::Bytes;

/// What stays with an arena that is paused, by the reason.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Stays {
    /// In plain allocations of the driver: only mapped memory can go while its
    /// addresses stay.
    pub plain: Bytes,
    /// In units that the program has given a handle of: others may have them mapped.
    pub exported: Bytes,
    /// In units that the driver did not unmap or take back.
    pub refused: Bytes,
}

/// What a pause of an arena did, or its end.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Bytes that went to the device, or came from it.
    pub bytes: Bytes,
    /// Bytes that were copied to the host, or from there.
    pub copied: Bytes,
    /// What stayed; of a pause alone.
    pub stays: Stays,
}

impl Moved {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Moved) -> Moved {
        let sum = Bytes::saturating_add;
        Moved {
            bytes: sum(self.bytes, other.bytes),
            copied: sum(self.copied, other.copied),
            stays: Stays {
                plain: sum(self.stays.plain, other.stays.plain),
                exported: sum(self.stays.exported, other.stays.exported),
                refused: sum(self.stays.refused, other.stays.refused),
            },
        }
    }
}

/// The pauses of an arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct PauseStats {
    /// Whether it is paused.
    pub is_paused: bool,
    /// Bytes of blocks' memory that the device has while it is: live, cached and limbo
    /// together are `reserved` and this.
    pub paused: Bytes,
    /// What did not go when it was last paused, as far as it is paused.
    pub stays: Stays,
    /// Bytes of the host that hold what blocks held, or wait for the next pause.
    pub backups: Bytes,
    /// How often it was paused.
    pub pauses: u64,
    /// How often it was resumed.
    pub resumes: u64,
    /// How often either failed.
    pub failures: u64,
    /// Nanoseconds in all pauses.
    pub pause_ns: u64,
    /// Nanoseconds in their ends.
    pub resume_ns: u64,
    /// What the last pause did.
    pub last: Moved,
}

/// The pauses of an arena, of which most have none: those take no memory.
#[derive(Clone, Debug, Default)]
pub struct Pauses(Option<Box<PauseStats>>);

impl Pauses {
    /// The context is gone: what happened stays.
    pub(crate) fn end(&mut self) {
        if let Some(stats) = &mut self.0 {
            stats.is_paused = false;
            stats.paused = Bytes::ZERO;
            stats.stays = Stays::default();
            stats.backups = Bytes::ZERO;
        }
    }

    /// Adds how often another arena was paused, and for how long that took.
    pub(super) fn add(&mut self, other: &Pauses) {
        let Some(other) = &other.0 else {
            return;
        };
        let sum = &mut **self;
        for (sum, more) in [
            (&mut sum.pauses, other.pauses),
            (&mut sum.resumes, other.resumes),
            (&mut sum.failures, other.failures),
            (&mut sum.pause_ns, other.pause_ns),
            (&mut sum.resume_ns, other.resume_ns),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl From<PauseStats> for Pauses {
    fn from(stats: PauseStats) -> Pauses {
        Pauses(Some(Box::new(stats)))
    }
}

impl PartialEq for Pauses {
    fn eq(&self, other: &Pauses) -> bool {
        **self == **other
    }
}

impl Deref for Pauses {
    type Target = PauseStats;

    fn deref(&self) -> &PauseStats {
        static NONE: LazyLock<PauseStats> = LazyLock::new(PauseStats::default);
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Pauses {
    fn deref_mut(&mut self) -> &mut PauseStats {
        self.0.get_or_insert_default()
    }
}
