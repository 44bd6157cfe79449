//! The one table of options.
//!
//! Owns the names, ranges and help texts of all options. Reading an
//! environment, the warnings, the documentation, `vramalloc options` and the
//! echo in the statistics are made from these rows, so one more option is one
//! more row. Cost: none, it is constant.

use super::value::{
    FREE_SYNCS, IMPORTS, STRATEGIES, boolean, folder, fraction, garbage, mebibytes, name_of, named,
    optional_mebibytes, optional_share, optional_size, seconds, show_garbage, show_mebibytes,
    show_optional_share, show_optional_size,
};
use super::{DeviceShare, FreeSync, Settings};
use crate::address::Bytes;
use crate::stats::StatsTarget;

/// What a row is to the settings.
#[derive(Copy, Clone, Debug)]
pub enum Role {
    /// An option of its own; the function writes its value in a form that
    /// reading accepts.
    Own(fn(&Settings) -> String),
    /// Another way to set the option with this key. Where both are given in
    /// one source, that option wins.
    Sets(&'static str),
}

/// One option.
#[derive(Copy, Clone, Debug)]
pub struct OptionRow {
    /// Its name in `VRAMALLOC_CONF`; in capitals after `VRAMALLOC_` it is its
    /// environment variable.
    pub key: &'static str,
    /// Paddle's variable for it.
    pub paddle: Option<&'static str>,
    /// What it is to the settings.
    pub role: Role,
    /// Kind of value, in a word or two.
    pub kind: &'static str,
    /// What can be read, as a phrase that completes "accepted: ".
    pub accepted: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Reads a text into the settings; false, and nothing changed, where it
    /// cannot be read.
    pub(super) read: fn(&mut Settings, &str) -> bool,
}

impl OptionRow {
    /// The option whose value this row sets: itself, or the one named by
    /// [`Role::Sets`].
    #[must_use]
    pub fn target(&'static self) -> &'static OptionRow {
        match self.role {
            Role::Own(_) => self,
            // The table's test proves that the name is one of the table's.
            Role::Sets(key) => find(key).unwrap_or(self),
        }
    }

    /// The value in `settings`, as text.
    #[must_use]
    pub fn show(&'static self, settings: &Settings) -> String {
        match self.target().role {
            Role::Own(show) => show(settings),
            Role::Sets(_) => String::new(),
        }
    }

    /// The value where nothing is given, as text.
    #[must_use]
    pub fn default_value(&'static self) -> String {
        self.show(&Settings::default())
    }
}

/// The row with this key.
#[must_use]
pub fn find(key: &str) -> Option<&'static OptionRow> {
    OPTIONS.iter().find(|row| row.key == key)
}

/// Stores what was read; false where nothing was.
fn set<T>(field: &mut T, value: Option<T>) -> bool {
    value.map(|value| *field = value).is_some()
}

const SHARE: &str = "a size such as 16G or 512MiB, a share above 0 and up to 1, or none";
const MEBIBYTES: &str = "a whole number of MiB from 0 to 17592186044415";
const ZERO_TO_ONE: &str = "a number from 0 to 1";

/// All options: first our own, then those that bear a framework's name.
pub static OPTIONS: &[OptionRow] = &[
    OptionRow {
        key: "strategy",
        paddle: None,
        role: Role::Own(|s| name_of(STRATEGIES, &s.config.strategy)),
        kind: "choice",
        accepted: "naive_best_fit, auto_growth, passthrough",
        help: "When memory is taken from the driver and how much: a large chunk in advance, \
               what is needed when it is needed, or every call by itself.",
        read: |s, text| set(&mut s.config.strategy, named(STRATEGIES, text)),
    },
    OptionRow {
        key: "limit",
        paddle: None,
        role: Role::Own(|s| show_optional_share(s.config.limit)),
        kind: "size or share",
        accepted: SHARE,
        help: "The most that may be reserved on each device; a request beyond it is out of \
               memory, and the device seems to be that small.",
        read: |s, text| set(&mut s.config.limit, optional_share(text)),
    },
    OptionRow {
        key: "free_sync",
        paddle: None,
        role: Role::Own(|s| name_of(FREE_SYNCS, &s.config.free_sync)),
        kind: "choice",
        accepted: "deferred, strict, immediate",
        help: "When freed memory may be handed out again: when the device is done with it, \
               without or with waiting inside the free, or at once. The last is unsafe where \
               more than one stream is used.",
        read: |s, text| set(&mut s.config.free_sync, named(FREE_SYNCS, text)),
    },
    OptionRow {
        key: "dedicated_min",
        paddle: None,
        role: Role::Own(|s| show_optional_size(s.config.dedicated_min)),
        kind: "size",
        accepted: "a size such as 16G or 512MiB, or none",
        help: "Requests of at least this size get a driver allocation of their own.",
        read: |s, text| set(&mut s.config.dedicated_min, optional_size(text)),
    },
    OptionRow {
        key: "limbo_budget",
        paddle: None,
        role: Role::Own(|s| show_optional_share(s.config.limbo_budget)),
        kind: "size or share",
        accepted: SHARE,
        help: "The most freed memory that may wait for the device before an allocation waits \
               rather than takes more from the driver; none: chosen from what is reserved.",
        read: |s, text| set(&mut s.config.limbo_budget, optional_share(text)),
    },
    OptionRow {
        key: "stats",
        paddle: None,
        role: Role::Own(|s| s.stats.to_string()),
        kind: "file pattern",
        accepted: "a file name in which %e is the program, %p the process id, %h the host, %r \
                   the rank and %% a percent sign; stderr; or off",
        help: "Where the statistics go at exit.",
        read: |s, text| set(&mut s.stats, StatsTarget::read(text)),
    },
    OptionRow {
        key: "stats_interval_s",
        paddle: None,
        role: Role::Own(|s| s.stats_interval.as_secs().to_string()),
        kind: "seconds",
        accepted: "a whole number from 0 to 86400",
        help: "How often the statistics are also written before the end, by a thread that \
               sleeps meanwhile, so that they are there after a kill or an _exit; 0: never. \
               Only where they go to a file.",
        read: |s, text| set(&mut s.stats_interval, seconds(text)),
    },
    OptionRow {
        key: "ipc_dir",
        paddle: None,
        role: Role::Own(|s| s.ipc_dir.display().to_string()),
        kind: "folder",
        accepted: "the path of a folder, from the root",
        help: "Where what CUDA's memory handles cannot carry is left for the other process, in \
               a folder that only the user can enter. All processes that share memory need \
               the same.",
        read: |s, text| set(&mut s.ipc_dir, folder(text)),
    },
    OptionRow {
        key: "import",
        paddle: None,
        role: Role::Own(|s| name_of(IMPORTS, &s.import)),
        kind: "choice",
        accepted: "auto, always, never",
        help: "Whether the frameworks' own variables are read; auto: not those that the \
               program itself obeys.",
        read: |s, text| set(&mut s.import, named(IMPORTS, text)),
    },
    OptionRow {
        key: "allocator_strategy",
        paddle: Some("FLAGS_allocator_strategy"),
        role: Role::Sets("strategy"),
        kind: "choice",
        accepted: "naive_best_fit, auto_growth, passthrough",
        help: "Paddle's name for strategy.",
        read: |s, text| set(&mut s.config.strategy, named(STRATEGIES, text)),
    },
    OptionRow {
        key: "fraction_of_gpu_memory_to_use",
        paddle: Some("FLAGS_fraction_of_gpu_memory_to_use"),
        role: Role::Own(|s| s.config.chunk_fraction.to_string()),
        kind: "number",
        accepted: ZERO_TO_ONE,
        help: "naive_best_fit: the share of the available memory that a chunk takes; 0: every \
               call goes to the driver.",
        read: |s, text| set(&mut s.config.chunk_fraction, fraction(text)),
    },
    OptionRow {
        key: "initial_gpu_memory_in_mb",
        paddle: Some("FLAGS_initial_gpu_memory_in_mb"),
        role: Role::Own(|s| show_mebibytes(s.config.initial_chunk.unwrap_or(Bytes::ZERO))),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "naive_best_fit: the size of the first chunk; 0: by the fraction.",
        read: |s, text| set(&mut s.config.initial_chunk, optional_mebibytes(text)),
    },
    OptionRow {
        key: "reallocate_gpu_memory_in_mb",
        paddle: Some("FLAGS_reallocate_gpu_memory_in_mb"),
        role: Role::Own(|s| show_mebibytes(s.config.reallocate_chunk.unwrap_or(Bytes::ZERO))),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "naive_best_fit: the size of later chunks; 0: by the fraction.",
        read: |s, text| set(&mut s.config.reallocate_chunk, optional_mebibytes(text)),
    },
    OptionRow {
        key: "gpu_memory_limit_mb",
        paddle: Some("FLAGS_gpu_memory_limit_mb"),
        role: Role::Sets("limit"),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "Paddle's name for limit, in MiB; 0: none.",
        read: |s, text| {
            let limit = optional_mebibytes(text).map(|size| size.map(DeviceShare::Bytes));
            set(&mut s.config.limit, limit)
        },
    },
    OptionRow {
        key: "auto_growth_chunk_size_in_mb",
        paddle: Some("FLAGS_auto_growth_chunk_size_in_mb"),
        role: Role::Own(|s| show_mebibytes(s.config.auto_growth_chunk)),
        kind: "MiB",
        accepted: MEBIBYTES,
        help: "auto_growth: the least that is taken from the driver at a time; 0: what is \
               needed.",
        read: |s, text| set(&mut s.config.auto_growth_chunk, mebibytes(text)),
    },
    OptionRow {
        key: "eager_delete_tensor_gb",
        paddle: Some("FLAGS_eager_delete_tensor_gb"),
        role: Role::Own(|s| show_garbage(s.config.garbage_threshold)),
        kind: "GiB",
        accepted: "a number of GiB up to 17179869183, or a negative one",
        help: "How much freed memory collects before it is put behind one fence; 0: at the next \
               opportunity; negative: only when memory is short, at an explicit flush, or when \
               limbo_budget is used up.",
        read: |s, text| set(&mut s.config.garbage_threshold, garbage(text)),
    },
    OptionRow {
        key: "fast_eager_deletion_mode",
        paddle: Some("FLAGS_fast_eager_deletion_mode"),
        role: Role::Sets("free_sync"),
        kind: "boolean",
        accepted: "True, true, TRUE, 1, False, false, FALSE, 0",
        help: "Paddle's switch: True is free_sync deferred, False is strict.",
        read: |s, text| {
            let sync = boolean(text).map(|fast| {
                if fast {
                    FreeSync::Deferred
                } else {
                    FreeSync::Strict
                }
            });
            set(&mut s.config.free_sync, sync)
        },
    },
    OptionRow {
        key: "memory_fraction_of_eager_deletion",
        paddle: Some("FLAGS_memory_fraction_of_eager_deletion"),
        role: Role::Own(|s| s.config.garbage_fraction.to_string()),
        kind: "number",
        accepted: ZERO_TO_ONE,
        help: "The share of a batch of freed memory that is released with it, the largest \
               blocks first; the rest waits for the next batch.",
        read: |s, text| set(&mut s.config.garbage_fraction, fraction(text)),
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_unique_and_aliases_lead_to_options() {
        let mut seen = HashSet::new();
        for row in OPTIONS {
            assert!(seen.insert(row.key), "{} stands twice", row.key);
            assert!(
                row.key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{}",
                row.key
            );
            assert!(matches!(row.target().role, Role::Own(_)), "{}", row.key);
            if let Some(flag) = row.paddle {
                assert_eq!(flag.strip_prefix("FLAGS_"), Some(row.key));
            }
        }
    }

    #[test]
    fn every_default_can_be_written_as_an_option() {
        for row in OPTIONS
            .iter()
            .filter(|row| matches!(row.role, Role::Own(_)))
        {
            let mut settings = Settings::default();
            assert!(
                (row.read)(&mut settings, &row.default_value()),
                "{}: {}",
                row.key,
                row.default_value()
            );
            assert_eq!(settings, Settings::default(), "{}", row.key);
        }
    }
}
