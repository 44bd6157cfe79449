//! What the user may choose, as typed values.
//!
//! `Config` is what the allocator reads. [`OPTIONS`] is the one table from
//! which everything about options is made; [`load()`] applies an environment to
//! it. Invariant: whatever the environment holds, the result is a valid
//! `Config`. Cost: once per process, a few microseconds; nothing is printed
//! here.

mod load;
mod table;
mod value;

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Bytes;
use crate::stats::StatsTarget;

pub use load::{Effective, Host, Loaded, check, conf, load, variable};
pub use table::{OPTIONS, OptionRow, Role, find};

/// Whether the frameworks' own variables are read too.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Import {
    /// Where the framework that obeys them is not the host itself.
    #[default]
    Auto,
    /// In any process.
    Always,
    /// In none.
    Never,
}

/// Everything that an option can set.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// What the arena obeys.
    pub config: Config,
    /// Where the statistics go.
    pub stats: StatsTarget,
    /// How often they are written before the end; zero: not at all.
    pub stats_interval: Duration,
    /// The folder in which each user has one of their own for what handles of
    /// memory carry between processes.
    pub ipc_dir: PathBuf,
    /// Whether the frameworks' own variables are read.
    pub import: Import,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            config: Config::default(),
            stats: StatsTarget::default(),
            stats_interval: Duration::ZERO,
            ipc_dir: PathBuf::from("/dev/shm"),
            import: Import::default(),
        }
    }
}

/// When chunks are taken from the driver and how large they are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum StrategyKind {
    /// A large chunk in advance, by fraction or by size.
    NaiveBestFit,
    /// What is needed, when it is needed; frees are cached.
    #[default]
    AutoGrowth,
    /// Every call goes to the driver.
    Passthrough,
}

/// When memory that the program freed may be handed out again.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum FreeSync {
    /// When a fence later than the free was reached; the free returns at once.
    #[default]
    Deferred,
    /// The same, and the free waits for it, as CUDA's own does.
    Strict,
    /// At once. Unsafe where more than one stream is used.
    Immediate,
}

/// How much garbage collects before an epoch is closed.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub enum GarbageThreshold {
    /// Close at the next opportunity.
    #[default]
    NextOpportunity,
    /// Close when this many bytes were freed.
    Bytes(Bytes),
    /// Close only under memory pressure, at an explicit flush, or when the
    /// limbo budget is used up.
    Pressure,
}

/// A size that may be given as a share of the device.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum DeviceShare {
    /// So many bytes.
    Bytes(Bytes),
    /// This share of the device's total memory, above 0 and up to 1.
    Fraction(f64),
}

impl DeviceShare {
    /// The size in bytes on a device of `total` bytes.
    #[must_use]
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            DeviceShare::Bytes(bytes) => bytes,
            DeviceShare::Fraction(fraction) => total.scaled(fraction),
        }
    }
}

/// What the allocator obeys.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// When chunks are taken and how large.
    pub strategy: StrategyKind,
    /// The most that may be reserved on a device; none: all it has.
    pub limit: Option<DeviceShare>,
    /// When freed memory may be handed out again.
    pub free_sync: FreeSync,
    /// How much garbage collects before an epoch is closed.
    pub garbage_threshold: GarbageThreshold,
    /// Share of a closing batch's bytes that is released with it, the largest
    /// blocks first; the rest waits for the next batch. 0 to 1.
    pub garbage_fraction: f64,
    /// The most that may lie in limbo before an allocation waits rather than
    /// grows; none: chosen by the arena from what is reserved.
    pub limbo_budget: Option<DeviceShare>,
    /// Requests of at least this size get a driver allocation of their own.
    pub dedicated_min: Option<Bytes>,
    /// `naive_best_fit`: share of the available memory that a chunk takes;
    /// 0: every call goes to the driver. 0 to 1.
    pub chunk_fraction: f64,
    /// `naive_best_fit`: size of the first chunk, instead of the fraction.
    pub initial_chunk: Option<Bytes>,
    /// `naive_best_fit`: size of later chunks, instead of the fraction.
    pub reallocate_chunk: Option<Bytes>,
    /// `auto_growth`: the least that is taken from the driver at a time.
    pub auto_growth_chunk: Bytes,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            strategy: StrategyKind::default(),
            limit: None,
            free_sync: FreeSync::default(),
            garbage_threshold: GarbageThreshold::default(),
            garbage_fraction: 1.0,
            limbo_budget: None,
            dedicated_min: None,
            chunk_fraction: 0.92,
            initial_chunk: None,
            reallocate_chunk: None,
            auto_growth_chunk: Bytes::ZERO,
        }
    }
}
