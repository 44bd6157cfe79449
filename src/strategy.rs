//! When chunks are taken from the driver, and how large they are.
//!
//! A strategy is a pure function of the configuration, the request and the
//! device's memory. The arena asks it where a request is served ([`Route`])
//! and, on a miss, how large the next chunk is. Cost: a few comparisons, and at
//! most one query to the driver if a size is a share of the available memory.

mod auto_growth;
pub(crate) mod mapped;
mod naive_best_fit;
pub(crate) mod packing;
mod pinned;
mod rounding;

use crate::address::Bytes;
use crate::config::{Config, FreeSync, StrategyKind};
use crate::driver::PAGE;
use crate::error::Code;
use crate::page_map::SLOT;

use auto_growth::AutoGrowth;
pub(crate) use auto_growth::most_waste;
use naive_best_fit::NaiveBestFit;
pub(crate) use pinned::Pinned;
pub use pinned::PinnedPlan;
pub(crate) use rounding::Rounder;

/// Requests up to this size are small: they share slabs of one page.
pub(crate) const SMALL: Bytes = Bytes::mib(1);

/// How an arena stands when it takes a chunk.
#[derive(Copy, Clone, Default)]
pub(crate) struct AtGrowth {
    pub(crate) held: Bytes,
    pub(crate) sharing: Sharing,
}

/// Who is to share a chunk that a request is too small for.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Sharing {
    /// Whatever is asked for next.
    #[default]
    All,
    /// Requests of its size.
    Alike,
    /// Nobody.
    Nobody,
}

/// A pool: each has a free index of its own in the arena.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pool {
    /// For requests up to [`SMALL`], if the strategy keeps them apart.
    Small,
    /// For requests that the option `max_split` keeps apart: each block is a
    /// whole chunk.
    Oversize,
    /// For all other requests.
    Large,
}

/// Where a request is served.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// From the chunks of a pool.
    Pool(Pool),
    /// By a direct allocation.
    Direct,
}

/// The strategy of an arena.
pub(crate) enum Strategy {
    NaiveBestFit(NaiveBestFit),
    AutoGrowth(AutoGrowth),
    /// As `AutoGrowth` where memory cannot be mapped.
    Mapped(AutoGrowth),
    Passthrough,
    /// Host memory; users do not choose it.
    Pinned(Pinned),
}

/// Asks the driver how many bytes are available now.
pub(crate) type Available<'a> = &'a dyn Fn() -> Result<Bytes, Code>;

impl Strategy {
    pub(crate) fn new(config: &Config) -> Strategy {
        match config.strategy {
            StrategyKind::NaiveBestFit => Strategy::NaiveBestFit(NaiveBestFit::new(config)),
            StrategyKind::AutoGrowth => Strategy::AutoGrowth(AutoGrowth::new(config)),
            // A free is not the end of all use there, so nothing may be unmapped.
            StrategyKind::Mapped if config.free_sync == FreeSync::Immediate => {
                Strategy::AutoGrowth(AutoGrowth::new(config))
            }
            StrategyKind::Mapped => Strategy::Mapped(AutoGrowth::new(config)),
            StrategyKind::Passthrough => Strategy::Passthrough,
        }
    }

    /// Its kind; `plain`: where memory cannot be mapped, or is not any more.
    pub(crate) fn kind(&self, plain: bool) -> StrategyKind {
        match self {
            Strategy::NaiveBestFit(_) => StrategyKind::NaiveBestFit,
            Strategy::Mapped(_) if !plain => StrategyKind::Mapped,
            Strategy::AutoGrowth(_) | Strategy::Mapped(_) => StrategyKind::AutoGrowth,
            Strategy::Passthrough | Strategy::Pinned(_) => StrategyKind::Passthrough,
        }
    }

    /// The size of the block that serves a request; `None` if that overflows.
    pub(crate) fn block(&self, request: Bytes) -> Option<Bytes> {
        match self {
            Strategy::Pinned(pinned) => pinned.block(request),
            _ => request.round_up(SLOT),
        }
    }

    /// The size of the smallest block that serves a request.
    pub(crate) fn least_block(&self, request: Bytes) -> Bytes {
        let unit = match self {
            Strategy::Pinned(_) => pinned::BLOCK,
            _ => SLOT,
        };
        request.round_up(unit).unwrap_or(request)
    }

    /// Where a request of `size` bytes is served.
    #[inline]
    pub(crate) fn route(&self, size: Bytes, available: Available<'_>) -> Result<Route, Code> {
        match self {
            Strategy::NaiveBestFit(naive) => naive.route(size, available),
            Strategy::AutoGrowth(growth) | Strategy::Mapped(growth) => {
                Ok(Route::Pool(growth.pool(size)))
            }
            Strategy::Passthrough => Ok(Route::Direct),
            Strategy::Pinned(pinned) => Ok(pinned.route(size)),
        }
    }

    /// The size of the chunk to take for a request of `size` bytes of an arena that
    /// stands so; at least the request, in whole units.
    pub(crate) fn chunk(
        &self,
        size: Bytes,
        at: AtGrowth,
        available: Available<'_>,
    ) -> Result<Bytes, Code> {
        match self {
            Strategy::NaiveBestFit(naive) => naive.chunk(size, at.held, available),
            Strategy::AutoGrowth(growth) | Strategy::Mapped(growth) => Ok(growth.chunk(size, at)),
            Strategy::Passthrough => Ok(size),
            Strategy::Pinned(pinned) => Ok(pinned.chunk(size, at.held)),
        }
    }

    /// The pool of the chunks that small requests are served from.
    pub(crate) fn pool_of_small(&self) -> Pool {
        match self {
            Strategy::AutoGrowth(_) | Strategy::Mapped(_) => Pool::Small,
            _ => Pool::Large,
        }
    }

    /// The unit of chunk sizes.
    pub(crate) fn chunk_unit(&self) -> Bytes {
        match self {
            Strategy::Pinned(_) => pinned::CHUNK,
            _ => PAGE,
        }
    }

    /// The size of the smallest chunk that serves a request.
    pub(crate) fn least_chunk(&self, size: Bytes) -> Bytes {
        size.round_up(self.chunk_unit()).unwrap_or(size)
    }

    /// Whether the strategy ever takes a chunk.
    pub(crate) fn takes_chunks(&self) -> bool {
        match self {
            Strategy::NaiveBestFit(naive) => naive.takes_chunks(),
            Strategy::AutoGrowth(_) | Strategy::Mapped(_) | Strategy::Pinned(_) => true,
            Strategy::Passthrough => false,
        }
    }

    /// Whether a chunk's size follows from the sizes of the other chunks, so
    /// that direct allocations do not count as held.
    pub(crate) fn grows_by_chunks(&self) -> bool {
        matches!(self, Strategy::Pinned(_))
    }

    /// Whether the first chunk is never given back.
    pub(crate) fn keeps_first(&self) -> bool {
        matches!(self, Strategy::Pinned(pinned) if pinned.keeps_first())
    }

    /// The most that may lie idle or in limbo after a free; `None`: no bound.
    /// Host memory has one: the program may need the memory where the library
    /// is not asked.
    pub(crate) fn most_idle(&self) -> Option<Bytes> {
        match self {
            Strategy::Pinned(pinned) => Some(pinned.most_idle()),
            _ => None,
        }
    }

    /// Whether the driver serves requests beyond the limit, so that no request
    /// waits for another thread's free there.
    pub(crate) fn has_soft_limit(&self) -> bool {
        matches!(self, Strategy::Pinned(_))
    }

    /// Why chunks are not taken and given back so that reserved memory stays
    /// near live memory; `None` if they are.
    pub(crate) fn not_packed(&self) -> Option<&'static str> {
        match self {
            Strategy::AutoGrowth(growth) | Strategy::Mapped(growth) => growth.not_packed(),
            Strategy::NaiveBestFit(_) => Some("strategy:naive_best_fit"),
            Strategy::Pinned(_) => Some("memory of the host"),
            Strategy::Passthrough => Some("strategy:passthrough"),
        }
    }

    /// Why no memory is mapped, by the options; `None` where it may be.
    pub(crate) fn not_mapped(&self) -> Option<&'static str> {
        match self {
            Strategy::Mapped(_) => None,
            Strategy::AutoGrowth(growth) => Some(growth.not_mapped()),
            Strategy::NaiveBestFit(_) => Some("strategy:naive_best_fit"),
            Strategy::Pinned(_) => Some("memory of the host"),
            Strategy::Passthrough => Some("strategy:passthrough"),
        }
    }

    /// Whether only one thread may grow at a time, because each would take a
    /// large share of the available memory.
    pub(crate) fn grows_alone(&self) -> bool {
        matches!(self, Strategy::NaiveBestFit(_)) || self.keeps_first()
    }

    /// Whether a chunk takes a share of what the driver has.
    pub(crate) fn takes_shares(&self) -> bool {
        matches!(self, Strategy::NaiveBestFit(_))
    }

    /// Whether free blocks of chunks in use are reported to the program as free
    /// memory: they are if the chunk was taken in advance.
    pub(crate) fn offers_parts_of_chunks(&self) -> bool {
        matches!(self, Strategy::NaiveBestFit(_))
    }
}

/// The least chunk that serves a request: whole pages.
pub(crate) fn pages(size: Bytes) -> Bytes {
    size.round_up(PAGE).unwrap_or(size)
}
