//! What the user may choose, as typed values.
//!
//! The allocator reads a [`Config`]. Parsing, defaults and help texts of all
//! options come from one table, [`OPTIONS`]; [`load()`] applies an environment
//! to it. Whatever the environment holds, the result is a valid `Config`.
//! Nothing is printed here: warnings are returned.

mod change;
mod load;
mod names;
mod scheduler;
mod sources;
mod table;
mod target;
mod torch;
mod types;
mod value;
mod words;

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Bytes;

pub use change::Unchanged;
pub use load::{Effective, Host, Loaded, check, check_all, load};
pub(crate) use names::strategy_name;
pub use names::{free_syncs, strategies};
pub use sources::{NOTES, STATS_BY_RUN, variable};
pub use table::{OPTIONS, OptionRow, Role, Torch, find};
pub use target::StatsTarget;
pub use types::{
    Decay, DeviceShare, FamiliesConfig, Fill, FreeSync, GarbageThreshold, GroupConfig, Import,
    OomReport, PageableConfig, PinnedConfig, RecordConfig, Rounding, Splitting, StackChoice,
    StrategyKind, ThreadCacheSize,
};

/// The values of all options.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The options that arenas obey.
    pub config: Config,
    /// Where the statistics are written.
    pub stats: StatsTarget,
    /// The interval of writing statistics before the end of the process; zero:
    /// only at the end.
    pub stats_interval: Duration,
    /// The folder that holds one folder per user, for what memory handles carry
    /// between processes.
    pub ipc_dir: PathBuf,
    /// Whether the process has a page that others of its user read, and leave
    /// orders on.
    pub control: bool,
    /// What is done about memory that the program takes past the arenas.
    pub families: FamiliesConfig,
    /// Whether it is known which library of the program has what.
    pub owners: bool,
    /// What is reported when memory runs out.
    pub oom_report: OomReport,
    /// Which requests have their call stacks taken.
    pub stacks: StackChoice,
    /// The mean distance, in bytes of requests, of those of a sample.
    pub stack_distance: Bytes,
    /// How many of the newest events of an arena's history are kept; 0: none.
    pub trace_events: usize,
    /// The recording of every event.
    pub record: RecordConfig,
    /// The pool of page-locked host memory.
    pub pinned: PinnedConfig,
    /// The pool of pageable host memory.
    pub pageable: PageableConfig,
    /// How groups of buffers are packed.
    pub groups: GroupConfig,
    /// Whether the end of a scope of the C API frees the scope's memory before
    /// it returns; if not, a thread of the library does it.
    pub scopes_end_inline: bool,
    /// Whether the frameworks' own variables are read.
    pub import: Import,
    /// Whether PyTorch's own cache is switched off.
    pub torch_uncached: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            config: Config::default(),
            stats: StatsTarget::default(),
            stats_interval: Duration::ZERO,
            ipc_dir: PathBuf::from("/dev/shm"),
            control: true,
            families: FamiliesConfig::default(),
            owners: true,
            oom_report: OomReport::default(),
            stacks: StackChoice::default(),
            stack_distance: Bytes::kib(512),
            trace_events: 0,
            record: RecordConfig::default(),
            pinned: PinnedConfig::default(),
            pageable: PageableConfig::default(),
            groups: GroupConfig::default(),
            scopes_end_inline: true,
            import: Import::default(),
            torch_uncached: false,
        }
    }
}

/// The options that an arena obeys.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// When chunks are taken, and how large they are.
    pub strategy: StrategyKind,
    /// The most that may be reserved on a device; `None`: no limit but the
    /// device's memory.
    pub limit: Option<DeviceShare>,
    /// Limits of single devices, by CUDA's number; they hold in place of `limit`.
    pub device_limits: Vec<(u32, DeviceShare)>,
    /// When freed memory may be handed out again.
    pub free_sync: FreeSync,
    /// What threads keep of what they free.
    pub thread_cache: ThreadCacheSize,
    /// How much freed memory collects before an epoch is closed.
    pub garbage_threshold: GarbageThreshold,
    /// Share of a closing batch's bytes that is released with it, the largest
    /// blocks first; the rest waits for the next batch. 0 to 1.
    pub garbage_fraction: f64,
    /// The most that may lie in limbo before an allocation waits rather than
    /// takes a chunk; `None`: the arena chooses it by what is reserved.
    pub limbo_budget: Option<DeviceShare>,
    /// Requests of at least this size get a driver allocation of their own.
    pub dedicated_min: Option<Bytes>,
    /// `naive_best_fit`: share of the available memory that a chunk takes, 0 to
    /// 1; 0: every call goes to the driver.
    pub chunk_fraction: f64,
    /// `naive_best_fit`: size of the first chunk, instead of the fraction.
    pub initial_chunk: Option<Bytes>,
    /// `naive_best_fit`: size of later chunks, instead of the fraction.
    pub reallocate_chunk: Option<Bytes>,
    /// `auto_growth`: the least that is taken from the driver at a time.
    pub auto_growth_chunk: Bytes,
    /// How requests are rounded.
    pub rounding: Rounding,
    /// Which blocks may be cut.
    pub splitting: Splitting,
    /// Share of the limit (of the device if there is no limit) above which a
    /// miss first gives old idle memory back. Above 0 and below 1; `None`:
    /// never.
    pub garbage_collection_threshold: Option<f64>,
    /// Whether a request beyond the limit fails at once and leaves the cache as
    /// it is.
    pub fail_at_limit: bool,
    /// How long a request that cannot be served waits for other threads'
    /// frees before it fails.
    pub retry_time: Duration,
    /// Whether idle chunks go back to the driver after every free.
    pub free_idle_chunk: bool,
    /// Whether idle chunks go back to the driver before another is taken.
    pub free_when_no_cache_hit: bool,
    /// How long an idle chunk is kept.
    pub decay: Decay,
    /// What memory is filled with before it is handed out; `None`: it is not
    /// filled.
    pub fill: Option<Fill>,
    /// Whether an allocation waits until the device has done all its work.
    pub sync_after_alloc: bool,
}

impl Config {
    /// The limit for the device of this number, if there is one.
    #[must_use]
    pub fn limit_of(&self, device: Option<u32>) -> Option<DeviceShare> {
        let mut own = self.device_limits.iter();
        let own = own.find(|(number, _)| Some(*number) == device);
        own.map(|(_, limit)| *limit).or(self.limit)
    }

    /// Whether there is a limit for any device.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limit.is_some() || !self.device_limits.is_empty()
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            strategy: StrategyKind::default(),
            limit: None,
            device_limits: Vec::new(),
            free_sync: FreeSync::default(),
            thread_cache: ThreadCacheSize::default(),
            garbage_threshold: GarbageThreshold::default(),
            garbage_fraction: 1.0,
            limbo_budget: None,
            dedicated_min: None,
            chunk_fraction: 0.92,
            initial_chunk: None,
            reallocate_chunk: None,
            auto_growth_chunk: Bytes::ZERO,
            rounding: Rounding::default(),
            splitting: Splitting::default(),
            garbage_collection_threshold: None,
            fail_at_limit: false,
            retry_time: Duration::ZERO,
            free_idle_chunk: false,
            free_when_no_cache_hit: false,
            decay: Decay::Never,
            fill: None,
            sync_after_alloc: false,
        }
    }
}
