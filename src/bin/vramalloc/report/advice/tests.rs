use std::time::{Duration, UNIX_EPOCH};

use vramalloc_core::Bytes;
use vramalloc_core::config::{Host, check, load};
use vramalloc_core::stats::{
    ArenaReport, ArenaStats, CallCount, ClassLive, Gauge, Metric, Parts, Process, Report,
};

use super::super::file::File;
use super::advice;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn gauge(current: u64, peak: u64) -> Gauge {
    Gauge {
        current: Bytes::mib(current),
        peak: Bytes::mib(peak),
    }
}

/// A run of 100 seconds that needs no other option: it held up to 8 GiB of the
/// 8.5 that it reserved.
fn healthy() -> ArenaReport {
    let mut arena = ArenaReport {
        device_total: Some(Bytes::gib(80)),
        stats: ArenaStats {
            live: gauge(4096, 8192),
            cached: gauge(4096, 8000),
            limbo: gauge(512, 1024),
            reserved: gauge(8704, 8704),
            at_reserved_peak: Parts {
                live: Bytes::mib(7680),
                cached: Bytes::mib(512),
                idle: Bytes::mib(256),
                limbo: Bytes::mib(512),
            },
            hits: 90_000,
            misses: 200,
            fragmented_misses: 100,
            limbo_misses: 5,
            idle_low: Bytes::mib(32),
            ..ArenaStats::default()
        },
        ..ArenaReport::default()
    };
    // Requests up to 16 and up to 256 MiB.
    for class in [15, 19] {
        arena.stats.classes[class].allocations = 45_100;
        arena.stats.classes_at_peak[class] = ClassLive {
            blocks: 100,
            bytes: 4096 * MIB,
        };
    }
    arena.calls.alloc = calls(200, 200 * MS);
    for (metric, peak) in [
        (Metric::ActiveBytes, 8200),
        (Metric::RequestedBytes, 8190),
        (Metric::InactiveSplitBytes, 2000),
    ] {
        arena.stats.memory.all[metric].peak = peak * MIB;
    }
    arena
}

fn calls(calls: u64, ns: u64) -> CallCount {
    CallCount {
        calls,
        ns,
        ..CallCount::default()
    }
}

/// The advice for a healthy run with the options `conf`, changed by `happened`.
fn advised(conf: &str, happened: impl FnOnce(&mut ArenaReport)) -> Vec<String> {
    advised_after(100, conf, happened)
}

/// As `advised`, for a run of so many seconds.
fn advised_after(seconds: u64, conf: &str, happened: impl FnOnce(&mut ArenaReport)) -> Vec<String> {
    let mut arena = healthy();
    happened(&mut arena);
    let json = Report {
        process: &Process {
            ended: UNIX_EPOCH + Duration::from_secs(seconds),
            ..Process::default()
        },
        loaded: &load([("VRAMALLOC_CONF".into(), conf.into())], Host::default()),
        last: true,
        doors: &[],
        lanes: "unused",
        control: "unused",
        recording: None,
        arenas: &[arena],
        families: &[],
        libraries: &[],
        elsewhere: &[],
        imports: &[],
        snapshots: None,
        stacks: None,
    }
    .to_json();
    let file = File::read(json.to_string().as_bytes()).unwrap();
    assert!(file.warnings.is_empty(), "{:?}", file.warnings);
    let arena = &file.arenas[0];
    let all = advice(&file, arena, arena.memory.as_ref().unwrap());
    for advice in &all {
        // The advice is an option with a value that it accepts.
        assert_eq!(check(advice.option, &advice.value), Ok(()));
    }
    let said = |advice: &super::Advice| format!("{}:{}", advice.option, advice.value);
    all.iter().map(said).collect()
}

const NONE: [String; 0] = [];

#[test]
fn a_healthy_run_gets_none() {
    assert_eq!(advised("", |_| {}), NONE);
    assert_eq!(advised("strategy:passthrough", |_| {}), NONE);
    assert_eq!(advised("limit:16G", |_| {}), NONE);
}

#[test]
fn a_limit_that_was_too_low() {
    let failed = |arena: &mut ArenaReport| {
        arena.stats.ooms = 2;
        arena.stats.limit_ooms = 2;
        arena.stats.raisable_ooms = 2;
        arena.stats.limit_needed = Bytes::mib(9192);
    };
    assert_eq!(advised("limit:8704M", failed), ["limit:9G"]);
    // A request that no device could serve does not hide one that this device
    // could.
    let absurd = |arena: &mut ArenaReport| {
        failed(arena);
        arena.stats.ooms = 3;
        arena.stats.limit_ooms = 3;
        arena.stats.largest_oom = Bytes::gib(1 << 20);
    };
    assert_eq!(advised("limit:8704M", absurd), ["limit:9G"]);
    // That of the device alone, where it has one.
    let own = |limits: &str| advised(&format!("limit:1G,device_limits:{limits}"), failed);
    assert_eq!(own("[0:8704M,1:2G]"), ["device_limits:[0:9GiB,1:2GiB]"]);
    assert_eq!(own("[0:10G]"), NONE);
    assert_eq!(own("[1:2G]"), ["limit:9G"]);
    // Less than the present limit is no advice.
    assert_eq!(advised("limit:10G", failed), NONE);
    // Not if the device itself was full.
    let full = |arena: &mut ArenaReport| {
        failed(arena);
        arena.stats.limit_ooms = 0;
        arena.stats.raisable_ooms = 0;
    };
    assert_eq!(advised("limit:60G", full), NONE);
    assert_eq!(advised("", full), NONE);
}

#[test]
fn requests_that_were_refused_at_once() {
    let refused = |arena: &mut ArenaReport| arena.stats.memory.num_oom_rejections = 3;
    assert_eq!(
        advised("throw_on_cudamalloc_oom:True", refused),
        ["throw_on_cudamalloc_oom:False"]
    );
    assert_eq!(advised("throw_on_cudamalloc_oom:True", |_| {}), NONE);
}

#[test]
fn a_cache_that_had_to_be_emptied() {
    let retried = |arena: &mut ArenaReport| arena.stats.memory.num_alloc_retries = 4;
    assert_eq!(
        advised("limit:8704M", retried),
        ["garbage_collection_threshold:0.8"]
    );
    assert_eq!(advised("garbage_collection_threshold:0.9", retried), NONE);
    // The option would not have served what other threads' frees served.
    assert_eq!(advised("gpu_allocator_retry_time:1000", retried), NONE);
    // It did not help requests that failed all the same.
    let in_vain = |arena: &mut ArenaReport| {
        retried(arena);
        arena.stats.ooms = 4;
    };
    assert_eq!(advised("", in_vain), NONE);
}

#[test]
fn a_chunk_in_advance_that_was_too_large() {
    let large = |arena: &mut ArenaReport| arena.stats.reserved = gauge(71_000, 71_000);
    assert_eq!(
        advised("strategy:naive_best_fit", large),
        ["fraction_of_gpu_memory_to_use:0.12"]
    );
    assert_eq!(
        advised(
            "strategy:naive_best_fit,initial_gpu_memory_in_mb:71000",
            large
        ),
        ["initial_gpu_memory_in_mb:9012"]
    );
    let fitting = |arena: &mut ArenaReport| arena.stats.reserved = gauge(15_000, 15_000);
    assert_eq!(advised("strategy:naive_best_fit", fitting), NONE);
}

#[test]
fn large_blocks_that_were_cut_up() {
    let failed = |arena: &mut ArenaReport| {
        arena.stats.ooms = 3;
        arena.stats.limit_ooms = 3;
        arena.stats.fragmented_ooms = 3;
        arena.stats.largest_oom = Bytes::mib(300);
    };
    assert_eq!(advised("limit:8704M", failed), ["max_split_size_mb:128"]);
    assert_eq!(advised("limit:8704M,max_split_size_mb:64", failed), NONE);
    // If nothing large is live, there is nothing to keep whole.
    let small = |arena: &mut ArenaReport| {
        failed(arena);
        arena.stats.classes_at_peak[19] = ClassLive::default();
    };
    assert_eq!(advised("limit:8704M", small), NONE);
}

#[test]
fn chunks_of_the_wrong_size() {
    let idle = |arena: &mut ArenaReport| {
        arena.stats.reserved = gauge(10_400, 10_400);
        arena.stats.at_reserved_peak.cached = Bytes::mib(2188);
        arena.stats.at_reserved_peak.idle = Bytes::mib(2700);
    };
    assert_eq!(advised("", idle), ["free_when_no_cache_hit:True"]);
    // Memory that the device still uses cannot go back.
    let in_use = |arena: &mut ArenaReport| {
        idle(arena);
        arena.stats.at_reserved_peak.limbo = Bytes::mib(2700);
        arena.stats.limbo_misses = 0;
    };
    assert_eq!(advised("", in_use), NONE);
    assert_eq!(advised("free_when_no_cache_hit:True", idle), NONE);
    assert_eq!(advised("strategy:naive_best_fit", idle), NONE);
    // Less than the peak of live memory cannot be reserved.
    let needed = |arena: &mut ArenaReport| {
        idle(arena);
        arena.stats.live = gauge(4096, 9000);
    };
    assert_eq!(advised("", needed), NONE);
}

#[test]
fn sizes_that_differ_a_little() {
    let pieces = |arena: &mut ArenaReport| {
        arena.stats.reserved = gauge(10_400, 10_400);
        arena.stats.at_reserved_peak.cached = Bytes::mib(2200);
        arena.stats.at_reserved_peak.idle = Bytes::mib(100);
    };
    assert_eq!(advised("", pieces), ["roundup_power2_divisions:8"]);
    assert_eq!(advised("roundup_power2_divisions:16", pieces), NONE);
    // Memory that no request missed is no reason.
    let unmissed = |arena: &mut ArenaReport| {
        pieces(arena);
        arena.stats.fragmented_misses = 10;
    };
    assert_eq!(advised("", unmissed), NONE);
    // No freed block could have served a miss.
    let unfreed = |arena: &mut ArenaReport| {
        pieces(arena);
        for class in [15, 19] {
            arena.stats.classes[class].allocations = 100;
        }
    };
    assert_eq!(advised("", unfreed), NONE);
}

#[test]
fn rounding_that_took_much() {
    let rounded = |arena: &mut ArenaReport| {
        arena.stats.memory.all[Metric::RequestedBytes].peak = 7000 * MIB;
    };
    assert_eq!(
        advised("roundup_power2_divisions:2", rounded),
        ["roundup_power2_divisions:4"]
    );
    assert_eq!(advised("roundup_power2_divisions:2", |_| {}), NONE);
    assert_eq!(advised("", rounded), NONE);
}

#[test]
fn limbo_that_memory_was_taken_for() {
    let behind = |arena: &mut ArenaReport| {
        arena.stats.reserved = gauge(11_000, 11_000);
        arena.stats.at_reserved_peak.limbo = Bytes::mib(2400);
    };
    assert_eq!(advised("limbo_budget:8G", behind), ["limbo_budget:600M"]);
    // A budget that is hardly larger than the default does the same already.
    assert_eq!(advised("", behind), NONE);
    // Advice never goes in both directions at once.
    let both = |arena: &mut ArenaReport| {
        behind(arena);
        arena.stats.budget_waits = 50;
        arena.stats.budget_wait_ns = 9000 * MS;
    };
    assert_eq!(advised("limbo_budget:8G", both), ["limbo_budget:600M"]);
    // Advice against waits is not taken back.
    assert_eq!(advised("limbo_budget:2G", behind), NONE);
    let unmissed = |arena: &mut ArenaReport| {
        behind(arena);
        arena.stats.limbo_misses = 0;
    };
    assert_eq!(advised("limbo_budget:8G", unmissed), NONE);
}

#[test]
fn waits_for_the_limbo_budget() {
    let waited = |arena: &mut ArenaReport| {
        arena.stats.waits = 50;
        arena.stats.budget_waits = 50;
        arena.stats.wait_ns = 9000 * MS;
        arena.stats.budget_wait_ns = 9000 * MS;
    };
    assert_eq!(advised("", waited), ["limbo_budget:2G"]);
    // Not more than the device has.
    let full = |arena: &mut ArenaReport| {
        waited(arena);
        arena.device_total = Some(Bytes::mib(8192 + 1200));
    };
    assert_eq!(advised("", full), NONE);
    assert_eq!(advised("limit:9G", waited), NONE);
    // More limbo does not help if memory is short.
    let short = |arena: &mut ArenaReport| {
        waited(arena);
        arena.stats.ooms = 1;
    };
    assert_eq!(advised("", short), NONE);
    let little = |arena: &mut ArenaReport| {
        waited(arena);
        arena.stats.budget_wait_ns = 900 * MS;
    };
    assert_eq!(advised("", little), NONE);
}

#[test]
fn frees_that_waited() {
    let waited = |arena: &mut ArenaReport| {
        arena.stats.waits = 90_000;
        arena.stats.wait_ns = 9000 * MS;
    };
    assert_eq!(advised("free_sync:strict", waited), ["free_sync:deferred"]);
    assert_eq!(advised("free_sync:deferred", waited), NONE);
    assert_eq!(advised("free_sync:strict", |_| {}), NONE);
}

#[test]
fn pauses_of_memory_that_is_not_mapped() {
    let failed = |why| {
        move |arena: &mut ArenaReport| {
            arena.stats.pause.failures = 1;
            arena.not_mapped = why;
        }
    };
    assert_eq!(
        advised("", failed(Some("strategy:auto_growth"))),
        ["strategy:mapped"]
    );
    // Another strategy would have done no better.
    let mapped = "strategy:mapped";
    assert_eq!(advised(mapped, failed(Some("the device"))), NONE);
    assert_eq!(advised(mapped, failed(None)), NONE);
    assert_eq!(
        advised("", |arena| arena.not_mapped = Some("strategy:auto_growth")),
        NONE
    );
}

#[test]
fn idle_memory_that_was_kept() {
    let idle = |arena: &mut ArenaReport| arena.stats.idle_low = Bytes::mib(2300);
    assert_eq!(advised("", idle), ["decay_ms:10000"]);
    assert_eq!(advised("decay_ms:60000", idle), NONE);
    assert_eq!(advised_after(20, "", idle), NONE);
}

#[test]
fn everything_through_the_driver() {
    let slow = |arena: &mut ArenaReport| {
        arena.stats.direct = 90_000;
        arena.stats.misses = 0;
        arena.calls.alloc = calls(90_000, 5000 * MS);
        arena.calls.free = calls(90_000, 5000 * MS);
    };
    assert_eq!(
        advised("strategy:passthrough", slow),
        ["strategy:auto_growth"]
    );
    assert_eq!(advised("dedicated_min:1M", slow), ["dedicated_min:none"]);
    // Calls that are not for memory are not saved.
    let fences = |arena: &mut ArenaReport| arena.calls.fence = calls(90_000, 9000 * MS);
    assert_eq!(advised("strategy:passthrough", fences), NONE);
    assert_eq!(advised("dedicated_min:1M", fences), NONE);
}

#[test]
fn growth_in_many_steps() {
    let steps = |arena: &mut ArenaReport| {
        arena.stats.misses = 9000;
        arena.stats.fragmented_misses = 0;
        arena.calls.alloc = calls(9000, 9000 * MS);
    };
    assert_eq!(advised("", steps), ["auto_growth_chunk_size_in_mb:64"]);
    assert_eq!(advised("auto_growth_chunk_size_in_mb:128", steps), NONE);
    // A few slow calls would not be fewer.
    let slow = |arena: &mut ArenaReport| {
        steps(arena);
        arena.stats.misses = 50;
    };
    assert_eq!(advised("", slow), NONE);
}
