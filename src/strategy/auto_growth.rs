//! `auto_growth`: a chunk for what is needed, when it is needed.
//!
//! A chunk is as large as the request in whole pages, because the driver takes
//! that from the device in any case, or as the configured minimum. The arena
//! caches what is freed. Requests that `max_split` keeps apart have chunks of
//! their own, and those between 1 MiB and 10 MiB can have chunks of a
//! configured size (PyTorch's rules).

use crate::address::Bytes;
use crate::config::{Config, FreeSync, Splitting, StrategyKind};
use crate::strategy::{AtGrowth, Pool, SMALL, Sharing, pages};

/// Requests above [`SMALL`] and below this are middling.
const MIDDLING: Bytes = Bytes::mib(10);

/// PyTorch's default chunk for a middling request.
const SEGMENT: Bytes = Bytes::mib(20);

/// Requests above [`SMALL`] and below this share chunks: a chunk for each would
/// waste its last page. A shared chunk is twice the largest of these requests,
/// and is taken only when it is at most an eighth of what is held, so that a
/// small program stays small. What requests of one size leave of it is for
/// smaller ones: where those do not come, it has whole requests alone.
const SHARING: Bytes = Bytes::mib(16);
const SHARED: Bytes = Bytes::mib(32);
const SHARED_FROM: Bytes = Bytes::mib(256);

pub(crate) struct AutoGrowth {
    least: Bytes,
    middling: Bytes,
    /// Requests of this size and more are oversize.
    oversize: Bytes,
    /// Why chunks are not packed; `None` if they are.
    not_packed: Option<&'static str>,
    /// Why memory is not mapped, where this serves in its stead.
    not_mapped: &'static str,
}

/// Why chunks are not packed, if they are not: an option says which are taken,
/// waited for or given back; or frees need no fence, and such an arena may make
/// none, since a lane does not learn of every capture that a fence would
/// disturb.
fn why_not_packed(config: &Config) -> Option<&'static str> {
    let usual = Config::default();
    let (split, unsplit) = (&config.splitting, &usual.splitting);
    let collects = config.garbage_collection_threshold != usual.garbage_collection_threshold;
    let chunk = config.auto_growth_chunk != usual.auto_growth_chunk;
    let batches = config.garbage_threshold != usual.garbage_threshold;
    let reasons = [
        (
            config.free_sync == FreeSync::Immediate,
            "free_sync:immediate",
        ),
        (split.max_split != unsplit.max_split, "max_split_size_mb"),
        (split.large_segment.is_some(), "large_segment_size_mb"),
        (split != unsplit, "max_non_split_rounding_mb"),
        (chunk, "auto_growth_chunk_size_in_mb"),
        (config.limbo_budget.is_some(), "limbo_budget"),
        (batches, "eager_delete_tensor_gb"),
        (collects, "garbage_collection_threshold"),
        (config.free_idle_chunk, "free_idle_chunk"),
        (config.free_when_no_cache_hit, "free_when_no_cache_hit"),
        (config.decay != usual.decay, "decay_ms"),
        (config.fail_at_limit, "throw_on_cudamalloc_oom"),
    ];
    let found = reasons.iter().find(|(is_so, _)| *is_so);
    found.map(|(_, reason)| *reason)
}

impl AutoGrowth {
    pub(crate) fn new(config: &Config) -> AutoGrowth {
        let least = config.auto_growth_chunk;
        let segment = config.splitting.large_segment.unwrap_or(least);
        AutoGrowth {
            least,
            middling: segment.max(least),
            // A request in whole slots is never as large as the largest number.
            oversize: config.splitting.max_split.unwrap_or(Bytes::MAX),
            not_packed: why_not_packed(config),
            not_mapped: match config.strategy {
                StrategyKind::Mapped => "free_sync:immediate",
                _ => "strategy:auto_growth",
            },
        }
    }

    /// Why memory is not mapped.
    pub(crate) fn not_mapped(&self) -> &'static str {
        self.not_mapped
    }

    /// Why reserved memory does not stay near live memory, by our own rules.
    pub(crate) fn not_packed(&self) -> Option<&'static str> {
        self.not_packed
    }

    #[inline]
    pub(crate) fn pool(&self, size: Bytes) -> Pool {
        if size <= SMALL {
            Pool::Small
        } else if size < self.oversize {
            Pool::Large
        } else {
            Pool::Oversize
        }
    }

    /// The chunk to take by an arena that stands so.
    pub(crate) fn chunk(&self, size: Bytes, at: AtGrowth) -> Bytes {
        let least = match self.pool(size) {
            Pool::Oversize => Bytes::ZERO,
            Pool::Large if size < MIDDLING => self.middling,
            Pool::Small | Pool::Large => self.least,
        };
        let shares = self.not_packed.is_none()
            && self.pool(size) == Pool::Large
            && size < SHARING
            && at.held >= SHARED_FROM;
        let whole = SHARED.get() / size.get();
        // In chunks of their own they would take less.
        let is_poor = whole * pages(size).get() < SHARED.get();
        let shared = match at.sharing {
            _ if !shares => Bytes::ZERO,
            Sharing::Alike if is_poor => Bytes::new(whole * size.get()),
            Sharing::All | Sharing::Alike => SHARED,
            Sharing::Nobody => Bytes::ZERO,
        };
        pages(size.max(least).max(shared))
    }
}

/// An oversize block serves a request only if it is larger by less than this.
pub(crate) fn most_waste(splitting: &Splitting) -> Bytes {
    splitting
        .max_non_split_rounding
        .or(splitting.large_segment)
        .unwrap_or(SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Decay, DeviceShare, GarbageThreshold};
    use std::time::Duration;

    #[test]
    fn a_chunk_is_the_request_in_pages_or_the_minimum() {
        let growth = AutoGrowth::new(&Config::default());
        let nothing = AtGrowth::default();
        assert_eq!(growth.chunk(Bytes::new(512), nothing), Bytes::mib(2));
        assert_eq!(growth.chunk(Bytes::mib(20), nothing), Bytes::mib(20));
        assert_eq!(
            growth.chunk(Bytes::new((20 << 20) + 512), nothing),
            Bytes::mib(22)
        );
        let growth = AutoGrowth::new(&Config {
            auto_growth_chunk: Bytes::mib(64),
            ..Config::default()
        });
        assert_eq!(growth.chunk(Bytes::new(512), nothing), Bytes::mib(64));
        assert_eq!(growth.chunk(Bytes::mib(65), nothing), Bytes::mib(66));
    }

    #[test]
    fn what_is_small_for_a_large_program_shares_chunks() {
        let growth = AutoGrowth::new(&Config::default());
        // Also where the rest of shared chunks stays free.
        for (request, all, alike, own) in [
            (1 << 20, 2, 2, 2),
            ((1 << 20) + 512, 32, 32, 2),
            (6 << 20, 32, 30, 6),
            (11 << 20, 32, 22, 12),
            ((11 << 20) - 512, 32, 22, 12),
            (15 << 20, 32, 32, 16),
            ((16 << 20) - 512, 32, 32, 16),
            (16 << 20, 16, 16, 16),
            (33 << 20, 34, 34, 34),
        ] {
            for (sharing, chunk) in [
                (Sharing::All, all),
                (Sharing::Alike, alike),
                (Sharing::Nobody, own),
            ] {
                let at = AtGrowth {
                    held: SHARED_FROM,
                    sharing,
                };
                let taken = growth.chunk(Bytes::new(request), at);
                assert_eq!(taken, Bytes::mib(chunk), "{request}");
            }
        }
        let before = AtGrowth {
            held: SHARED_FROM.saturating_sub(Bytes::new(1)),
            sharing: Sharing::All,
        };
        assert_eq!(growth.chunk(Bytes::mib(3), before), Bytes::mib(4));
    }

    /// A user who says how chunks are taken, waited for or given back gets that
    /// and nothing else.
    #[test]
    fn an_option_about_chunks_ends_our_own_rules() {
        assert!(AutoGrowth::new(&Config::default()).not_packed().is_none());
        let usual = Config::default;
        for (why, config) in [
            (
                "auto_growth_chunk_size_in_mb",
                Config {
                    auto_growth_chunk: Bytes::mib(4),
                    ..usual()
                },
            ),
            (
                "limbo_budget",
                Config {
                    limbo_budget: Some(DeviceShare::Bytes(Bytes::mib(64))),
                    ..usual()
                },
            ),
            (
                "eager_delete_tensor_gb",
                Config {
                    garbage_threshold: GarbageThreshold::Pressure,
                    ..usual()
                },
            ),
            (
                "garbage_collection_threshold",
                Config {
                    garbage_collection_threshold: Some(0.8),
                    ..usual()
                },
            ),
            (
                "throw_on_cudamalloc_oom",
                Config {
                    fail_at_limit: true,
                    ..usual()
                },
            ),
            (
                "free_sync:immediate",
                Config {
                    free_sync: FreeSync::Immediate,
                    ..usual()
                },
            ),
            (
                "free_idle_chunk",
                Config {
                    free_idle_chunk: true,
                    ..usual()
                },
            ),
            (
                "free_when_no_cache_hit",
                Config {
                    free_when_no_cache_hit: true,
                    ..usual()
                },
            ),
            (
                "decay_ms",
                Config {
                    decay: Decay::After(Duration::from_secs(1)),
                    ..usual()
                },
            ),
            (
                "max_split_size_mb",
                Config {
                    splitting: Splitting {
                        max_split: Some(Bytes::mib(64)),
                        ..Splitting::default()
                    },
                    ..usual()
                },
            ),
        ] {
            let growth = AutoGrowth::new(&config);
            assert_eq!(growth.not_packed(), Some(why));
            let at = AtGrowth {
                held: SHARED_FROM,
                sharing: Sharing::All,
            };
            assert!(growth.chunk(Bytes::mib(3), at) < SHARED);
        }
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
                (growth.pool(size), growth.chunk(size, AtGrowth::default())),
                (pool, Bytes::mib(chunk)),
                "{request}"
            );
        }
    }
}
