//! `auto_growth`: what is needed, when it is needed.
//!
//! A chunk is as large as the request in whole pages, because the driver
//! takes that from the device in any case, or as the configured minimum. The
//! arena caches what is freed.

use crate::address::Bytes;
use crate::config::Config;
use crate::strategy::pages;

pub(crate) struct AutoGrowth {
    least: Bytes,
}

impl AutoGrowth {
    pub(crate) fn new(config: &Config) -> AutoGrowth {
        AutoGrowth {
            least: config.auto_growth_chunk,
        }
    }

    pub(crate) fn chunk(&self, size: Bytes) -> Bytes {
        pages(size.max(self.least))
    }
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
}
