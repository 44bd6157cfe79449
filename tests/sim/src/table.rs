//! Every function of the interface: its name, the version that introduced it,
//! and the symbol of this ABI.
//!
//! Owns the one table from which look-ups, exports and the functions that are
//! not implemented are made. Invariant: a name of the interface is exported,
//! also if this driver answers `NOT_SUPPORTED`. Cost: a look-up is a linear
//! search.

mod absent;
pub(crate) mod look_up;
mod served;

use std::ffi::c_void;
use std::sync::OnceLock;

use crate::env;
use absent::ABSENT;
use served::SERVED;

/// One ABI of a function.
struct Name {
    base: &'static str,
    version: i32,
    symbol: &'static str,
    address: fn() -> *const c_void,
    /// The twin for which stream 0 is the thread's own default stream.
    twin: Option<fn() -> *const c_void>,
}

/// The whole table.
fn names() -> impl Iterator<Item = &'static Name> {
    SERVED.iter().chain(ABSENT)
}

/// The results of a look-up: found, unknown, or newer than the requested
/// version.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const TOO_NEW: u32 = 2;

/// The flag of a look-up that asks for the twins.
const PER_THREAD: u64 = 2;

/// The newest ABI of a function that is not newer than `version`, and the
/// result to report.
fn find(base: &str, version: i32, flags: u64) -> (*const c_void, u32) {
    let driver = *DRIVER.get_or_init(env::version);
    let named = || names().filter(|n| n.base == base && n.version <= driver);
    let found = named()
        .filter(|n| n.version <= version && !env::lacks(n.symbol) && !env::lacks(base))
        .max_by_key(|n| n.version);
    match found {
        Some(name) if flags & PER_THREAD != 0 => (name.twin.unwrap_or(name.address)(), FOUND),
        Some(name) => ((name.address)(), FOUND),
        None if named().next().is_some() && !env::lacks(base) => (std::ptr::null(), TOO_NEW),
        None => (std::ptr::null(), NOT_FOUND),
    }
}

/// The functions that this driver is to lack: those that the environment names,
/// and those that are newer than its version.
pub(crate) fn lacking() -> Vec<*const c_void> {
    let driver = env::version();
    let there = |n: &Name| {
        let named = |other: &&Name| other.symbol == n.symbol && other.version <= driver;
        names().any(|other| named(&other)) && !env::lacks(n.symbol) && !env::lacks(n.base)
    };
    let gone = names().filter(|n| !there(n));
    gone.flat_map(|n| [Some((n.address)()), n.twin.map(|t| t())])
        .flatten()
        .collect()
}

static DRIVER: OnceLock<i32> = OnceLock::new();
