//! Risk: memory counts no longer before the streams get to its free, or longer; or a pool of
//! CUDA's keeps what it has beyond the limit.

use vramalloc_tests::stage::{Kind, Run};

use crate::families::{MIB, bytes, codes, done, number, peak, run};

/// A pool that is destroyed while some of it is in use counts until that is
/// freed.
#[test]
fn a_destroyed_pool_counts_as_long_as_it_is_used() {
    for kind in Kind::each() {
        let steps = "mine pool:40M pool:10M end virtual:70M give virtual:70M own \
                     give sync virtual:128M own";
        let outcome = done(&run(kind, "limit:128M", steps));
        let wanted = [0, 0, 0, 0, 2, 0, 2, 0, 0, 0, 0, 0];
        assert_eq!(codes(&outcome), wanted, "{}", outcome.what);
        let stats = outcome.stats();
        assert_eq!(bytes(&stats, "async_pools").0, 0, "{}", outcome.what);
    }
}

/// What was freed on a stream that is done with it is there again, whatever other streams do.
#[test]
fn what_a_stream_frees_waits_for_no_other_stream() {
    const LONG: u64 = 3_600_000_000_000;
    let pool = "mine keep:1G pool:20M give nap end ".repeat(4);
    let cases = [
        ("limit:100M,strategy:passthrough", "late:60M give plain:60M"),
        ("limit:96M", &pool),
    ];
    for (conf, steps) in cases {
        let outcome = done(&run(
            Kind::Driver,
            conf,
            &format!("work:{LONG} other {steps}"),
        ));
        assert!(
            codes(&outcome).iter().all(|code| *code == 0),
            "{}",
            outcome.what
        );
        let took = outcome.report()["simulated_ns"].as_u64();
        assert!(took < Some(LONG), "{}", outcome.what);
    }
}

/// What is kept of a pool's frees does not grow with them, also after some that have no mark.
#[test]
fn a_pool_of_many_frees_keeps_few_events() {
    let busy = "pool:64K ".repeat(40) + "work:5000000 " + &"give ".repeat(40);
    let many = "pool:64K give ".repeat(400);
    let steps = format!("mine keep:1G {busy}sync {many}");
    let outcome = done(&run(Kind::Driver, "limit:512M", &steps));
    assert!(
        codes(&outcome).iter().all(|code| *code == 0),
        "{}",
        outcome.what
    );
    let events = outcome.driver_calls("cuEventCreate");
    assert!(events < 200, "{events}: {}", outcome.what);
}

/// What a stream has yet to free counts, and is waited for.
#[test]
fn what_a_stream_has_yet_to_free_counts() {
    let work = "work:2000000 give ".repeat(3);
    let cases = [
        ("other work:5000000 late:60M give plain:60M", 0),
        ("other work:3600000000000 late:60M give virtual:60M", 2),
        ("mine pool:80M end work:3600000000000 give plain:90M", 2),
        // One after the other, until there is enough.
        (
            &format!("other late:30M late:30M late:30M {work}plain:90M"),
            0,
        ),
        (
            &format!("other late:30M late:30M late:30M {work}virtual:90M"),
            0,
        ),
    ];
    for (steps, code) in cases {
        let run = run(Kind::Driver, "limit:100M,strategy:passthrough", steps);
        // A question that the host asks takes as long there as here, or nearly.
        let outcome = done(&run.env("SIM_CUDA_CALL_NS", "20000"));
        assert_eq!(codes(&outcome).last(), Some(&code), "{}", outcome.what);
    }
}

/// Also where many pools find at once that their room is not in one piece.
#[test]
fn many_pools_pass_the_limit_by_one_piece_together() {
    for kind in Kind::each() {
        let run = Run::preloaded("pools_at_limit", kind).conf("limit:256M");
        let run = run.env("SIM_CUDA_SLOW", "cuMemPoolGetAttribute:5000000");
        let outcome = run.env("SIM_CUDA_MEMORY", "2G").arg("8").go();
        outcome.quiet(0).no_violations();
        let most = outcome.report()["devices"][0]["peak_bytes"]
            .as_u64()
            .unwrap();
        assert!(
            (256 * MIB..=290 * MIB).contains(&most),
            "{most}: {}",
            outcome.what
        );
    }
}

/// What a pool took beyond the limit and gave back in the order of a busy stream is waited
/// for by the requests that come after it, as the driver itself would wait; but that is
/// waited for once where it does not come back.
#[test]
fn what_a_pool_gives_back_that_passed_the_limit_is_waited_for() {
    const LONG: &str = "2000000000000";
    let cases = [
        ("32M", "50000", None, 2),
        ("66M", "50000", Some("plain"), 3),
        ("32M", LONG, None, 2),
        ("66M", LONG, Some("plain"), 3),
        // What was waited for in vain is forgotten with its pool.
        ("32M", "50000", Some("again"), 2),
    ];
    for kind in Kind::each() {
        for (limit, busy, mode, served) in cases {
            let conf = format!("limit:{limit},room_wait_ms:700");
            let run = Run::preloaded("pools_at_limit", kind).conf(&conf);
            let run = mode.into_iter().fold(run.args(["1", busy]), Run::arg);
            let outcome = done(&run);
            assert_eq!(number(&outcome, "served"), served, "{}", outcome.what);
            assert!(number(&outcome, "waited") < 500, "{}", outcome.stdout);
        }
    }
}

/// What a stream has freed and not yet got to serves that stream at once, also at the limit;
/// and where a pool passes nothing on, what it got to as well.
#[test]
fn what_a_stream_freed_serves_it_at_the_limit() {
    for kind in Kind::each() {
        let run = Run::preloaded("pools_at_limit", kind).conf("limit:64M,room_wait_ms:20");
        let run = run.env("SIM_CUDA_MEMORY", "2G").arg("again");
        for mode in [None, Some("apart")] {
            let outcome = done(&mode.into_iter().fold(run.clone(), Run::arg));
            assert_eq!(number(&outcome, "own"), 1, "{}", outcome.what);
            assert_eq!(number(&outcome, "other"), 0, "{}", outcome.what);
            assert!(peak(&outcome) <= 128 * MIB, "{}", outcome.what);
        }
    }
}

/// What a pool took beyond the limit goes back however often it is asked meanwhile: nothing
/// that the program keeps comes to lie there, nor in the rest of the piece that it grew by.
#[test]
fn a_pool_passes_the_limit_once_and_for_a_while() {
    let modes = [
        ("turns", 128),
        ("beside", 64),
        ("pending", 64),
        ("crowd", 128),
    ];
    for (mode, limit) in modes {
        for kind in Kind::each() {
            let conf = format!("limit:{limit}M,room_wait_ms:20");
            let run = Run::preloaded("pools_at_limit", kind).conf(&conf);
            let outcome = done(&run.env("SIM_CUDA_MEMORY", "2G").arg(mode));
            assert_eq!(number(&outcome, "reserved"), limit, "{}", outcome.what);
            assert!(peak(&outcome) <= (limit + 64) * MIB, "{}", outcome.what);
        }
    }
}
