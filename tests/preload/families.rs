//! Risk: memory that a program takes past our pools is not counted, passes the
//! limit, or is refused where the limit leaves enough.

use std::fmt::Write as _;

use serde_json::Value;
use vramalloc_tests::stage::{Kind, Outcome, Run};

pub(crate) const MIB: u64 = 1 << 20;

/// The families by their names in `families`, in the simulated driver, and in
/// the statistics.
const FAMILIES: [(&str, &str); 5] = [
    ("pool", "async_pools"),
    ("virtual", "virtual"),
    ("managed", "managed"),
    ("array", "arrays"),
    ("graph", "graphs"),
];

/// Those of which a request beyond the limit is refused.
const REFUSED: [&str; 4] = ["pool", "virtual", "managed", "array"];

pub(crate) fn run(kind: Kind, conf: &str, steps: &str) -> Run {
    let run = Run::preloaded("families", kind).conf(conf);
    steps.split_whitespace().fold(run, Run::arg)
}

/// Runs it to an end without violations.
#[track_caller]
pub(crate) fn done(run: &Run) -> Outcome {
    let outcome = run.go();
    outcome.quiet(0).no_violations();
    outcome
}

/// The codes of all steps.
pub(crate) fn codes(outcome: &Outcome) -> Vec<u32> {
    let codes = outcome.stdout.lines().filter_map(|line| {
        let (_, code) = line.rsplit_once(": ")?;
        code.parse().ok()
    });
    codes.collect()
}

/// The lines of the step `own`.
pub(crate) fn own(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stdout.lines();
    lines.filter(|line| line.contains(", all ")).collect()
}

/// The number behind the first `what` of the output, in KiB.
#[track_caller]
pub(crate) fn number(outcome: &Outcome, what: &str) -> u64 {
    let (_, rest) = (outcome.stdout.split_once(what)).expect(&outcome.what);
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit());
    digits.into_iter().next().unwrap().parse().unwrap()
}

/// A family in the statistics.
fn counted<'a>(stats: &'a Value, key: &str) -> Option<&'a Value> {
    let families = stats["families"].as_array().unwrap();
    families.iter().find(|family| family["family"] == key)
}

/// What is counted of a family, and the most that was.
pub(crate) fn bytes(stats: &Value, key: &str) -> (u64, u64) {
    counted(stats, key).map_or((0, 0), |family| {
        let bytes = |which| family["bytes"][which].as_u64().unwrap();
        (bytes("current"), bytes("peak"))
    })
}

/// What the simulated driver counts of a family, and the most that it did.
pub(crate) fn driver(outcome: &Outcome, name: &str) -> (u64, u64) {
    let family = &outcome.report()["devices"][0]["families"][name];
    let bytes = |which| family[which].as_u64().unwrap();
    (bytes("used_bytes"), bytes("peak_bytes"))
}

/// The most that was in use of the device.
pub(crate) fn peak(outcome: &Outcome) -> u64 {
    let device = &outcome.report()["devices"][0];
    device["peak_bytes"].as_u64().unwrap()
}

#[test]
fn a_request_beyond_the_limit_changes_nothing() {
    for kind in Kind::each() {
        for way in REFUSED {
            let steps = format!("{way}:40M own {way}:30M own {way}:24M own");
            let run = run(kind, "limit:64M", &steps).env("SIM_CUDA_POOL_GRAIN", "2M");
            let outcome = done(&run);
            assert_eq!(codes(&outcome), [0, 0, 2, 0, 0, 0], "{}", outcome.what);
            let told = own(&outcome);
            assert_eq!(told[0], told[1], "{}", outcome.what);
            assert_eq!(peak(&outcome), 64 * MIB, "{}", outcome.what);
            let stats = outcome.stats();
            let (_, key) = *FAMILIES.iter().find(|(name, _)| *name == way).unwrap();
            let family = counted(&stats, key).unwrap();
            assert_eq!(
                (&family["calls"], &family["refused"]),
                (&2.into(), &1.into())
            );
            assert_eq!(bytes(&stats, key), driver(&outcome, way));
        }
    }
}

/// The refusals are said in one line, which names the family.
#[test]
fn a_refusal_is_told_once() {
    let outcome = done(&run(
        Kind::Dynamic,
        "limit:8M",
        "managed:10M array:10M plain:10M",
    ));
    let line = "vramalloc: out of memory: 10 MiB needed for managed memory \
                (cudaMallocManaged), and the option limit (8 MiB) leaves less";
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with(line), "{}", outcome.stderr);
}

/// The steps after which the count of each family is compared with the
/// driver's own.
const LIFE: [&str; 22] = [
    "plain:3M",
    "pool:5M",
    "virtual:5M",
    "managed:5M",
    "array:2M",
    "graph:3M",
    "managed:100M",
    "pool:40M",
    "array:8M",
    "virtual:2M",
    "managed:1M",
    "graph:33M",
    "give",
    "give",
    "give",
    "give",
    "give",
    "give",
    "give",
    "all",
    "trim",
    "pool:1M",
];

#[test]
fn what_is_counted_is_what_the_driver_counts() {
    for kind in Kind::each() {
        for last in 0..LIFE.len() {
            let steps = LIFE[..=last].join(" ");
            let outcome = done(&run(kind, "limit:1G", &steps));
            let stats = outcome.stats();
            for (name, key) in FAMILIES {
                let what = format!("{name}: {}", outcome.what);
                assert_eq!(bytes(&stats, key), driver(&outcome, name), "{what}");
            }
        }
    }
}

/// Memory of a part of a device, which later drivers know, is the device's.
#[test]
fn memory_of_a_part_counts_on_the_device() {
    for kind in Kind::each() {
        let steps = "part virtual:40M virtual:30M give virtual:60M";
        let run = run(kind, "limit:64M", steps).env("SIM_CUDA_VERSION", "13040");
        let outcome = done(&run);
        assert_eq!(codes(&outcome), [0, 0, 2, 0, 0], "{}", outcome.what);
        let counted = bytes(&outcome.stats(), "virtual");
        assert_eq!(counted, driver(&outcome, "virtual"), "{}", outcome.what);
    }
}

/// Graphs share what they reserve: one that is captured after another needs no
/// more.
#[test]
fn a_graph_is_captured_beside_what_others_have_reserved() {
    for kind in Kind::each() {
        let steps = "graph:40M begin:2 pool:40M give done";
        let outcome = done(&run(kind, "limit:64M", steps));
        assert_eq!(codes(&outcome), [0; 5], "{}", outcome.what);
    }
}

/// What is given back can be had again, by each of the others.
#[test]
fn what_is_given_back_counts_no_more() {
    for kind in Kind::each() {
        for (name, _) in FAMILIES {
            for other in REFUSED {
                let steps = format!("{name}:60M {other}:60M all sync {other}:60M");
                let run = run(kind, "limit:64M", &steps).env("SIM_CUDA_POOL_GRAIN", "2M");
                let codes = codes(&done(&run));
                assert_eq!(codes[2..], [0, 0, 0], "{run}");
                // What graphs keep and do not run goes back at once.
                assert_eq!(codes[1] == 2, name != "graph", "{run}: {codes:?}");
            }
        }
    }
}

#[test]
fn the_device_is_as_large_as_the_limit() {
    for kind in Kind::each() {
        let outcome = done(&run(kind, "limit:128M", "managed:28M info"));
        for (what, size) in [("total", 128), ("size", 128)] {
            assert_eq!(number(&outcome, what), size << 10, "{}", outcome.what);
        }
        // Our own marks of the device's work may take a page.
        let free = number(&outcome, "free") >> 10;
        assert!((98..=100).contains(&free), "{free}: {}", outcome.what);
        // What a pool gave back in a wait is free at once.
        let outcome = done(&run(kind, "limit:128M", "pool:100M give sync info"));
        let free = number(&outcome, "free") >> 10;
        assert!((126..=128).contains(&free), "{free}: {}", outcome.what);
        let large = run(kind, "limit:64G", "info").env("SIM_CUDA_MEMORY", "1G");
        let outcome = done(&large);
        assert_eq!(number(&outcome, "size"), 1 << 20, "{}", outcome.what);
    }
}

/// Memory of graphs is known after the launch; the next request hears of it.
#[test]
fn memory_of_graphs_counts() {
    for kind in Kind::each() {
        let busy = "work:1000000000 graph:60M array:8M sync array:8M graph:80M";
        let outcome = done(&run(kind, "limit:64M", busy));
        assert_eq!(codes(&outcome), [0, 0, 2, 0, 0, 2], "{}", outcome.what);
        let stats = outcome.stats();
        let graphs = counted(&stats, "graphs").unwrap();
        assert_eq!(graphs["bytes"]["peak"], 60 * MIB, "{}", outcome.what);
        assert_eq!(graphs["refused"], 1, "{}", outcome.what);
    }
}

/// A call that a later driver has in the place of one is the same call.
#[test]
fn memory_of_graphs_counts_whichever_call_adds_it() {
    for version in ["12020", "12030", "13041"] {
        let outcome = done(
            &run(Kind::Driver, "limit:64M", "graph:60M graph:80M")
                .env("SIM_CUDA_VERSION", "13050")
                .env("NODES", version),
        );
        assert_eq!(codes(&outcome), [0, 2], "{}", outcome.what);
    }
}

/// Requests that are counted and refused during a capture leave it valid.
#[test]
fn a_capture_stays_valid() {
    for kind in Kind::each() {
        for mode in 0..3 {
            let steps = format!(
                "plain:8M give pool:8M virtual:8M begin:{mode} pool:16M pool:99M virtual:64M \
                 array:64M managed:64M pool:98M info done own"
            );
            let outcome = done(&run(kind, "limit:96M", &steps));
            let wanted = [0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 0, 0, 0];
            assert_eq!(codes(&outcome), wanted, "{}", outcome.what);
            assert!(peak(&outcome) <= 96 * MIB, "{}", outcome.what);
        }
    }
}

#[test]
fn what_a_context_owned_is_put_back_when_it_ends() {
    for kind in Kind::each() {
        let steps = "enter managed:24M array:24M virtual:8M leave managed:56M managed:2M own";
        let outcome = done(&run(kind, "limit:64M", steps));
        assert_eq!(codes(&outcome)[4..], [0, 0, 2, 0], "{}", outcome.what);
        let stats = outcome.stats();
        assert_eq!(bytes(&stats, "arrays").0, 0, "{}", outcome.what);
        assert_eq!(bytes(&stats, "virtual").0, 8 * MIB, "{}", outcome.what);
    }
}

/// A pool gives memory back at a synchronisation, which no call of ours sees: the next
/// call that is no hit does.
#[test]
fn what_a_pool_gave_back_by_itself_counts_no_more() {
    for kind in Kind::each() {
        let outcome = done(&run(kind, "", "pool:64M all sync nap nap plain:3M own"));
        let stats = outcome.stats();
        assert_eq!(
            bytes(&stats, "async_pools"),
            (0, 64 * MIB),
            "{}",
            outcome.what
        );
    }
}

/// Managed memory can be left out.
#[test]
fn uncounted_managed_memory_passes_the_limit() {
    let conf = "limit:64M,managed:uncounted";
    let outcome = done(&run(Kind::Static, conf, "managed:80M array:64M array:1M"));
    assert_eq!(codes(&outcome), [0, 0, 2], "{}", outcome.what);
}

/// What other processes and interfaces made is listed, and counts nothing.
#[test]
fn imports_are_listed() {
    for kind in Kind::each() {
        // The exporter's own 2 MiB, and a piece of its pool.
        let outcome = done(&run(kind, "limit:34M", "import own"));
        assert_eq!(codes(&outcome), [0, 0], "{}", outcome.what);
        let imports = outcome.stats()["imports"].clone();
        let mut listed = String::new();
        for import in imports.as_array().unwrap() {
            let (way, count) = (&import["way"], &import["count"]);
            write!(listed, "{} {count}, ", way.as_str().unwrap()).unwrap();
        }
        assert_eq!(listed, "virtual 1, async_pools 2, ", "{}", outcome.what);
        assert_eq!(peak(&outcome), 34 * MIB, "{}", outcome.what);
    }
}

/// In small steps each family gets all that the limit leaves.
#[test]
fn the_limit_can_be_reached() {
    const LIMIT: u64 = 1 << 20;
    for kind in [Kind::Driver, Kind::Static] {
        for way in REFUSED {
            let steps = format!("fill-{way}:256K all sync fill-{way}:256K own");
            let in_pages = ["virtual", "managed"].contains(&way);
            let steps = steps.replace("256K", if in_pages { "2M" } else { "256K" });
            let outcome = done(&run(kind, "limit:1G", &steps));
            assert_eq!(codes(&outcome), [2, 0, 0, 2, 0], "{}", outcome.what);
            for line in outcome.stdout.lines().filter(|line| line.contains("KiB")) {
                let (reached, _) = line.split_once(" KiB").unwrap();
                let reached: u64 = reached.parse().unwrap();
                let least = LIMIT - LIMIT / 1000;
                assert!(
                    (least..=LIMIT).contains(&reached),
                    "{line}: {}",
                    outcome.what
                );
            }
            assert_eq!(peak(&outcome), LIMIT << 10, "{}", outcome.what);
        }
    }
}

/// An array of a page and a half takes two, of the limit as well.
#[test]
fn arrays_take_whole_pages_of_the_limit() {
    for kind in Kind::each() {
        let outcome = done(&run(kind, "limit:64M", "fill-array:3M own"));
        assert_eq!(number(&outcome, ""), 48 << 10, "{}", outcome.what);
        assert_eq!(peak(&outcome), 64 * MIB, "{}", outcome.what);
        assert_eq!(bytes(&outcome.stats(), "arrays").1, 64 * MIB);
    }
}

/// Threads that take all kinds of memory pass the limit by one piece of a pool
/// at most: where the pool had room, but not in one piece.
#[test]
fn the_limit_holds_for_all_families_together() {
    const LIMIT: u64 = 256;
    for kind in Kind::each() {
        for seed in ["1", "2", "3"] {
            let run = Run::preloaded("families_mix", kind).conf("limit:256M");
            let outcome = done(&run.args(["4", "400", seed]));
            let most = number(&outcome, "peak");
            assert!(most <= (LIMIT + 32) * MIB, "{most}: {}", outcome.what);
            assert!(most >= (LIMIT - 32) * MIB, "{most}: {}", outcome.what);
        }
    }
}
