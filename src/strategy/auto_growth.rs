//! `auto_growth`: what is needed, when it is needed.
//!
//! A chunk is as large as the request in whole pages, because the driver
//! takes that from the device in any case, or as the configured minimum. The
//! arena caches what is freed. Requests that `max_split` keeps apart have
//! chunks of their own, and those between 1 MiB and 10 MiB can have chunks of
//! a size of theirs (PyTorch's rules).

use crate::address::Bytes;
use crate::config::{Config, Splitting};
use crate::strategy::{Pool, SMALL, pages};

/// Requests above [`SMALL`] and below this are middling.
const MIDDLING: Bytes = Bytes::mib(10);

/// What PyTorch takes for a middling request where nothing else is said.
const SEGMENT: Bytes = Bytes::mib(20);

pub(crate) struct AutoGrowth {
    least: Bytes,
    middling: Bytes,
    /// Requests of this size and more are oversize.
    oversize: Bytes,
}

impl AutoGrowth {
    pub(crate) fn new(config: &Config) -> AutoGrowth {
        let least = config.auto_growth_chunk;
        let segment = config.splitting.large_segment.unwrap_or(least);
        AutoGrowth {
            least,
            middling: segment.max(least),
            // No request in whole slots is as large as the largest number.
            oversize: config.splitting.max_split.unwrap_or(Bytes::MAX),
        }
    }

    pub(crate) fn pool(&self, size: Bytes) -> Pool {
        if size <= SMALL {
            Pool::Small
        } else if size < self.oversize {
            Pool::Large
        } else {
            Pool::Oversize
        }
    }

    pub(crate) fn chunk(&self, size: Bytes) -> Bytes {
        let least = match self.pool(size) {
            Pool::Oversize => Bytes::ZERO,
            Pool::Large if size < MIDDLING => self.middling,
            Pool::Small | Pool::Large => self.least,
        };
        pages(size.max(least))
    }
}

/// What an oversize block may have more than the request that it is handed
/// out to is below this.
pub(crate) fn most_waste(splitting: &Splitting) -> Bytes {
    splitting
        .max_non_split_rounding
        .or(splitting.large_segment)
        .unwrap_or(SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_the_request_in_pages_or_the_minimum() {
        let growth = AutoGrowth::new(&Config::default());
        assert_eq!(growth.chunk(Bytes::new(512)), Bytes::mib(2));
        assert_eq!(growth.chunk(Bytes::mib(20)), Bytes::mib(20));
        assert_eq!(growth.chunk(Bytes::new((20 << 20) + 512)), Bytes::mib(22));
        let growth = AutoGrowth::new(&Config {
            auto_growth_chunk: Bytes::mib(64),
            ..Config::default()
        });
        assert_eq!(growth.chunk(Bytes::new(512)), Bytes::mib(64));
        assert_eq!(growth.chunk(Bytes::mib(65)), Bytes::mib(66));
    }

    #[test]
    fn middling_and_oversize_requests_have_chunks_of_their_own_size() {
        let growth = AutoGrowth::new(&Config {
            auto_growth_chunk: Bytes::mib(4),
            splitting: Splitting {
                max_split: Some(Bytes::mib(30)),
                large_segment: Some(Bytes::mib(20)),
                ..Splitting::default()
            },
            ..Config::default()
        });
        for (request, pool, chunk) in [
            (1 << 20, Pool::Small, 4),
            ((1 << 20) + 512, Pool::Large, 20),
            ((10 << 20) - 512, Pool::Large, 20),
            (10 << 20, Pool::Large, 10),
            ((30 << 20) - 512, Pool::Large, 30),
            (30 << 20, Pool::Oversize, 30),
            ((31 << 20) + 512, Pool::Oversize, 32),
        ] {
            let size = Bytes::new(request);
            assert_eq!(
                (growth.pool(size), growth.chunk(size)),
                (pool, Bytes::mib(chunk)),
                "{request}"
            );
        }
    }
}
