//! `naive_best_fit`: a large chunk in advance.
//!
//! The first chunk has the configured initial size, later ones the reallocation
//! size. A size that is not configured is a fraction of the memory available at
//! that moment, of which a twentieth is left alone (Paddle's formulas,
//! gpu_info.cc). Requests above the larger of both sizes, as computed at the
//! first request, go to the driver, and all do if no size is configured and the
//! fraction is zero. If a chunk cannot be had, Paddle gives up; the arena tries
//! half of it.

use crate::address::Bytes;
use crate::config::Config;
use crate::driver::PAGE;
use crate::error::Code;
use crate::strategy::{Available, Pool, Route, pages};
use crate::sync::OnceLock;

/// The share of the available memory that no chunk takes.
const RESERVE: f64 = 0.05;

pub(crate) struct NaiveBestFit {
    initial: Option<Bytes>,
    reallocate: Option<Bytes>,
    fraction: f64,
    /// Requests above this go to the driver; computed at the first request.
    largest: OnceLock<Bytes>,
}

impl NaiveBestFit {
    pub(crate) fn new(config: &Config) -> NaiveBestFit {
        NaiveBestFit {
            initial: config.initial_chunk,
            reallocate: config.reallocate_chunk,
            fraction: config.chunk_fraction,
            largest: OnceLock::new(),
        }
    }

    /// Whether any request is served from a chunk.
    pub(crate) fn takes_chunks(&self) -> bool {
        self.fraction > 0.0 || self.initial.is_some() || self.reallocate.is_some()
    }

    pub(crate) fn route(&self, size: Bytes, available: Available<'_>) -> Result<Route, Code> {
        let largest = match self.largest.get() {
            Some(&largest) => largest,
            None => {
                let initial = self.size(self.initial, available)?;
                let later = self.size(self.reallocate, available)?;
                *self.largest.get_or_init(|| initial.max(later))
            }
        };
        Ok(if size > largest {
            Route::Direct
        } else {
            Route::Pool(Pool::Large)
        })
    }

    pub(crate) fn chunk(
        &self,
        size: Bytes,
        held: Bytes,
        available: Available<'_>,
    ) -> Result<Bytes, Code> {
        let configured = if held.is_zero() {
            self.initial
        } else {
            self.reallocate
        };
        Ok(self.size(configured, available)?.max(pages(size)))
    }

    fn size(&self, configured: Option<Bytes>, available: Available<'_>) -> Result<Bytes, Code> {
        if let Some(size) = configured {
            return Ok(pages(size));
        }
        if self.fraction <= 0.0 {
            return Ok(Bytes::ZERO);
        }
        let available = available()?;
        let usable = available.saturating_sub(available.scaled(RESERVE));
        Ok(usable.scaled(self.fraction).round_down(PAGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(bytes: Bytes) -> String {
        #[allow(clippy::cast_precision_loss)]
        let gib = bytes.get() as f64 / f64::from(1 << 30);
        format!("{gib:.3}")
    }

    /// The chunks that Paddle would take from 139 GiB, one after the other.
    #[test]
    fn chunks_follow_the_memory_that_is_left() {
        let naive = NaiveBestFit::new(&Config::default());
        let (mut free, mut held, mut chunks) = (Bytes::gib(139), Bytes::ZERO, Vec::new());
        for _ in 0..4 {
            let chunk = naive.chunk(Bytes::new(512), held, &|| Ok(free)).unwrap();
            chunks.push(gib(chunk));
            free = free.saturating_sub(chunk);
            held = held.saturating_add(chunk);
        }
        // Paddle's own are 121.486, 15.307, 1.929 and 0.243; ours are whole
        // pages.
        assert_eq!(chunks, ["121.484", "15.309", "1.928", "0.242"]);
    }

    #[test]
    fn sizes_replace_the_fraction() {
        let config = Config {
            initial_chunk: Some(Bytes::mib(500)),
            reallocate_chunk: Some(Bytes::mib(100)),
            ..Config::default()
        };
        let naive = NaiveBestFit::new(&config);
        let never = || Err(Code::UNKNOWN);
        assert_eq!(
            naive.chunk(Bytes::new(512), Bytes::ZERO, &never),
            Ok(Bytes::mib(500))
        );
        assert_eq!(
            naive.chunk(Bytes::new(512), Bytes::mib(500), &never),
            Ok(Bytes::mib(100))
        );
        assert_eq!(
            naive.chunk(Bytes::mib(300), Bytes::mib(500), &never),
            Ok(Bytes::mib(300))
        );
        assert_eq!(
            naive.route(Bytes::mib(500), &never),
            Ok(Route::Pool(Pool::Large))
        );
        assert_eq!(naive.route(Bytes::mib(501), &never), Ok(Route::Direct));
    }

    #[test]
    fn the_bound_for_the_driver_is_settled_once() {
        let naive = NaiveBestFit::new(&Config::default());
        assert_eq!(
            naive.route(Bytes::gib(8), &|| Ok(Bytes::gib(10))),
            Ok(Route::Pool(Pool::Large))
        );
        assert_eq!(
            naive.route(Bytes::gib(8), &|| Ok(Bytes::ZERO)),
            Ok(Route::Pool(Pool::Large))
        );
        assert_eq!(
            naive.route(Bytes::gib(9), &|| Ok(Bytes::gib(20))),
            Ok(Route::Direct)
        );
    }

    #[test]
    fn fraction_zero_sends_everything_to_the_driver() {
        let naive = NaiveBestFit::new(&Config {
            chunk_fraction: 0.0,
            ..Config::default()
        });
        assert_eq!(
            naive.route(Bytes::new(512), &|| Ok(Bytes::gib(10))),
            Ok(Route::Direct)
        );
    }
}
