//! Memory of other processes, and of other libraries, that is mapped here.
//!
//! It counts where it was made. Here it is listed, so that a reader sees it.
//! Cost: two atomic additions for each.

use std::sync::atomic::{AtomicU64, Ordering};

use vramalloc_core::Bytes;

use crate::process;

/// How memory comes from elsewhere.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// `cuIpcOpenMemHandle`.
    Ipc,
    /// `cuMemImportFromShareableHandle`.
    Virtual,
    /// `cuMemPoolImportFromShareableHandle` and `cuMemPoolImportPointer`.
    Pool,
    /// `cuImportExternalMemory`.
    External,
}

impl Way {
    const ALL: [(Way, &str); 4] = [
        (Way::Ipc, "ipc"),
        (Way::Virtual, "virtual"),
        (Way::Pool, "async_pools"),
        (Way::External, "external"),
    ];
}

// Relaxed throughout: they are told at the end.
static COUNTS: [AtomicU64; Way::ALL.len()] = [const { AtomicU64::new(0) }; Way::ALL.len()];
static BYTES: [AtomicU64; Way::ALL.len()] = [const { AtomicU64::new(0) }; Way::ALL.len()];

/// Notes that memory came from elsewhere; `size` is zero where it is not told.
pub(crate) fn note(way: Way, size: Bytes) {
    // The first use of a device that this process makes may be this one.
    process::options(|_| ());
    COUNTS[way as usize].fetch_add(1, Ordering::Relaxed);
    BYTES[way as usize].fetch_add(size.get(), Ordering::Relaxed);
}

/// What came from elsewhere, by the key of the statistics: how often, and how
/// many bytes as far as that was told.
pub(crate) fn counts() -> impl Iterator<Item = (&'static str, u64, Bytes)> {
    Way::ALL.into_iter().filter_map(|(way, key)| {
        let count = COUNTS[way as usize].load(Ordering::Relaxed);
        let bytes = Bytes::new(BYTES[way as usize].load(Ordering::Relaxed));
        (count > 0).then_some((key, count, bytes))
    })
}
