//! When chunks are taken from the driver, and how large.
//!
//! A strategy is a pure function of the configuration, the request and what
//! the device has: it owns no memory and no list. The arena asks it where a
//! request is to be served ([`Route`]) and, on a miss, for the size of the
//! next chunk. Cost: a few comparisons; at most one question to the driver
//! where a size is a share of the available memory.

mod auto_growth;
mod naive_best_fit;
mod rounding;

use crate::address::Bytes;
use crate::config::{Config, StrategyKind};
use crate::driver::PAGE;
use crate::error::Code;
use crate::page_map::SLOT;

use auto_growth::AutoGrowth;
pub(crate) use auto_growth::most_waste;
use naive_best_fit::NaiveBestFit;
pub(crate) use rounding::Rounder;

/// Requests up to this size are small: they share slabs of one page.
pub(crate) const SMALL: Bytes = Bytes::mib(1);

/// Which free index of the arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pool {
    /// Requests up to [`SMALL`], where the strategy keeps them apart.
    Small,
    /// Requests that the option `max_split` keeps apart: each block is a chunk
    /// of its own.
    Oversize,
    /// All others.
    Large,
}

/// Where a request is to be served.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// From the chunks of a pool.
    Pool(Pool),
    /// By a driver allocation of its own.
    Direct,
}

/// The strategy of an arena.
pub(crate) enum Strategy {
    NaiveBestFit(NaiveBestFit),
    AutoGrowth(AutoGrowth),
    Passthrough,
}

/// Asks the driver how many bytes could be had now.
pub(crate) type Available<'a> = &'a dyn Fn() -> Result<Bytes, Code>;

impl Strategy {
    pub(crate) fn new(config: &Config) -> Strategy {
        match config.strategy {
            StrategyKind::NaiveBestFit => Strategy::NaiveBestFit(NaiveBestFit::new(config)),
            StrategyKind::AutoGrowth => Strategy::AutoGrowth(AutoGrowth::new(config)),
            StrategyKind::Passthrough => Strategy::Passthrough,
        }
    }

    /// Where a request of `size` bytes is to be served.
    pub(crate) fn route(&self, size: Bytes, available: Available<'_>) -> Result<Route, Code> {
        match self {
            Strategy::NaiveBestFit(naive) => naive.route(size, available),
            Strategy::AutoGrowth(growth) => Ok(Route::Pool(growth.pool(size))),
            Strategy::Passthrough => Ok(Route::Direct),
        }
    }

    /// The size of the chunk to take for a request of `size` bytes while
    /// chunks of `held` bytes are there; at least the request, in whole pages.
    pub(crate) fn chunk(
        &self,
        size: Bytes,
        held: Bytes,
        available: Available<'_>,
    ) -> Result<Bytes, Code> {
        match self {
            Strategy::NaiveBestFit(naive) => naive.chunk(size, held, available),
            Strategy::AutoGrowth(growth) => Ok(growth.chunk(size)),
            Strategy::Passthrough => Ok(size),
        }
    }

    /// Whether two threads must not grow at the same time, because each would
    /// take a large share of what is there.
    pub(crate) fn grows_alone(&self) -> bool {
        matches!(self, Strategy::NaiveBestFit(_))
    }

    /// Whether free blocks of chunks in use count as memory that the program
    /// could get: they do where the chunk was taken in advance.
    pub(crate) fn offers_parts_of_chunks(&self) -> bool {
        matches!(self, Strategy::NaiveBestFit(_))
    }
}

/// The least block that serves a request: whole slots.
pub(crate) fn slots(request: Bytes) -> Bytes {
    request.round_up(SLOT).unwrap_or(request)
}

/// The least chunk that serves a request: whole pages.
pub(crate) fn pages(size: Bytes) -> Bytes {
    size.round_up(PAGE).unwrap_or(size)
}
