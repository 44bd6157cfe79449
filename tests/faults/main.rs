//! Whatever driver call fails, however: no crash, no hang, no block lost, no
//! damage to the books.
//!
//! `tests/programs/mixed.c` does a bit of everything and goes on after errors.
//! A run without faults tells which driver functions are called and how
//! often; then each of these calls fails in a run of its own, with out of
//! memory, with an error without a name, and with one that breaks the context
//! for good. The library is the debug build, which compares its books after
//! every step.
//!
//! `FAULTS=all` sweeps over every call; otherwise it is a selection. The
//! message of a failure has the environment that repeats it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot set its stage has failed"
)]

mod killed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use serde_json::Value;
use vramalloc_tests::stage::{Kind, Outcome, Run};

/// A kind of program, options, and a function that the driver lacks.
#[derive(Copy, Clone)]
struct Setting {
    kind: Kind,
    conf: &'static str,
    lacks: &'static str,
}

const SETTINGS: [Setting; 6] = [
    Setting {
        kind: Kind::Dynamic,
        conf: "strategy:auto_growth",
        lacks: "",
    },
    Setting {
        kind: Kind::Driver,
        conf: "strategy:naive_best_fit,pinned_use_cuda_host_register:True",
        lacks: "",
    },
    Setting {
        kind: Kind::Static,
        conf: "strategy:passthrough",
        lacks: "",
    },
    Setting {
        kind: Kind::Resolver,
        conf: "strategy:auto_growth,free_sync:strict,limit:48M",
        lacks: "",
    },
    Setting {
        kind: Kind::Driver,
        conf: "strategy:auto_growth,dedicated_min:4M",
        lacks: "cuCtxRecordEvent",
    },
    Setting {
        kind: Kind::Static,
        conf: "strategy:mapped",
        lacks: "",
    },
];

/// How a call fails.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Failure {
    OutOfMemory,
    Unknown,
    /// An illegal address: from then on the context is of no use.
    Sticky,
}

impl Failure {
    const ALL: [Failure; 3] = [Failure::OutOfMemory, Failure::Unknown, Failure::Sticky];

    fn text(self) -> &'static str {
        match self {
            Failure::OutOfMemory => "2",
            Failure::Unknown => "999",
            Failure::Sticky => "700:sticky",
        }
    }
}

/// One call that fails.
#[derive(Clone)]
struct Fault {
    function: String,
    n: u64,
    failure: Failure,
    /// Whether the strategy has pools, and so a reserve in each context.
    pools: bool,
}

impl Setting {
    fn bare(self) -> Run {
        Run::bare("mixed", self.kind)
            .env("SIM_CUDA_MEMORY", "64M")
            .env("SIM_CUDA_LACKS", self.lacks)
    }

    fn preloaded(self) -> Run {
        self.bare().preload_debug().conf(self.conf)
    }
}

impl Fault {
    fn on(&self, run: Run) -> Run {
        let Fault {
            function,
            n,
            failure,
            ..
        } = self;
        run.env(
            "SIM_CUDA_FAULT",
            &format!("{function}:{n}:{}", failure.text()),
        )
    }
}

/// How often each driver function was called.
fn calls(outcome: &Outcome) -> BTreeMap<String, u64> {
    let report = outcome.report();
    let calls = report["calls"].as_object().unwrap().iter();
    calls
        .map(|(name, n)| (name.clone(), n.as_u64().unwrap()))
        .collect()
}

/// Whether everything is tried.
fn all() -> bool {
    std::env::var("FAULTS").is_ok_and(|which| which == "all")
}

/// The calls of a function that are to fail, one at a time, and how: of a selection the
/// first in every way, and the last.
fn picked(count: u64) -> Vec<(u64, Failure)> {
    let in_all_ways = |n| Failure::ALL.map(|failure| (n, failure));
    if all() {
        return (1..=count).flat_map(in_all_ways).collect();
    }
    let mut picked = in_all_ways(1).to_vec();
    picked.extend((count > 1).then_some((count, Failure::Sticky)));
    picked
}

/// Blocks that a program got, and frees that were accepted.
#[derive(Copy, Clone)]
struct Counted {
    got: u64,
    freed: u64,
}

/// What a program's last line counts of device memory. None where it could not
/// begin.
fn counted(outcome: &Outcome) -> Option<Counted> {
    let line = outcome.stdout.lines().last()?;
    let (got, freed) = line.strip_prefix("allocated ")?.split_once(", freed ")?;
    Some(Counted {
        got: got.parse().ok()?,
        freed: freed.parse().ok()?,
    })
}

/// The same of page-locked memory, by the line before.
fn counted_host(outcome: &Outcome) -> Option<Counted> {
    let line = outcome.stdout.lines().rev().nth(1)?;
    let (got, freed) = line.strip_prefix("pinned ")?.split_once(", unpinned ")?;
    Some(Counted {
        got: got.parse().ok()?,
        freed: freed.parse().ok()?,
    })
}

fn sum(arenas: &[Value], number: impl Fn(&Value) -> &Value) -> u64 {
    arenas.iter().map(|a| number(a).as_u64().unwrap()).sum()
}

/// Holds for every run: the program came to its end, and what it freed is
/// free. What is wrong, in words.
fn damage(fault: &Fault, outcome: &Outcome, bare: &Outcome) -> Option<String> {
    // The program cannot begin without its functions; which of them the n-th
    // look-up is for is not the same as bare.
    let looks_up = fault.function.starts_with("cuGetProcAddress");
    let expected = |code: i32| code == bare.code() || (looks_up && (code == 0 || code == 1));
    if !expected(outcome.code()) {
        return Some(format!("ended with {}: {}", outcome.code(), outcome.stderr));
    }
    // A program that cannot begin says why; that is its own.
    let told = |line: &&&str| line.contains("strategy:mapped is not possible");
    let ours =
        |line: &&&str| (line.starts_with("vramalloc") && !told(line)) || line.contains("panic");
    if let Some(line) = outcome.said().iter().find(ours) {
        return Some(format!("said {line}"));
    }
    if outcome.written.is_empty() {
        return None;
    }
    let stats = outcome.stats();
    let arenas = stats["arenas"].as_array().unwrap();
    let hosts = stats["host_arenas"].as_array().unwrap();
    let (of_devices, of_host) = (counted(outcome)?, counted_host(outcome)?);
    miscounted(arenas, of_devices)
        .or_else(|| miscounted(hosts, of_host))
        .or_else(|| unaccounted(fault, outcome, arenas, of_devices))
        .or_else(|| unaccounted_host(fault, outcome, hosts, of_host))
}

/// Whether the books say something else than the program.
fn miscounted(arenas: &[Value], Counted { got, freed }: Counted) -> Option<String> {
    let live = sum(arenas, |a| &a["live_bytes"]["current"]);
    let [allocations, frees] = ["allocations", "frees"].map(|key| sum(arenas, |a| &a[key]));
    if allocations > got {
        return Some(format!(
            "the program got {got} blocks, {allocations} are counted"
        ));
    }
    (got == freed && (live != 0 || allocations != frees)).then(|| {
        format!("all was freed, {live} bytes are live, {allocations} allocations, {frees} frees")
    })
}

/// Whether the driver holds more page-locked memory than the chunks, what it
/// refused to take back, what the program kept, and the page that stands in for
/// registered memory in each arena.
fn unaccounted_host(
    fault: &Fault,
    outcome: &Outcome,
    hosts: &[Value],
    Counted { got, freed }: Counted,
) -> Option<String> {
    let forgotten = fault.function.starts_with("cuDevicePrimaryCtxReset");
    if forgotten || sum(hosts, |a| &a["limbo_bytes"]["current"]) > 0 {
        return None;
    }
    let held = outcome.report()["host"]["blocks"].as_u64().unwrap();
    let chunks = sum(hosts, |a| &a["chunks"]);
    let refused = sum(hosts, |a| &a["driver_calls"]["free"]["failures"])
        + u64::from(fault.function.starts_with("cuMemFreeHost"))
        + u64::from(fault.function.starts_with("cuMemHostUnregister"));
    let stand_ins = hosts.len() as u64;
    (held > chunks + refused + stand_ins + got - freed)
        .then(|| format!("the driver holds {held} blocks of the host, {chunks} are chunks"))
}

/// Whether the driver holds more than the chunks, what it refused to take
/// back and the `kept` blocks of the program.
fn unaccounted(
    fault: &Fault,
    outcome: &Outcome,
    arenas: &[Value],
    Counted { got, freed }: Counted,
) -> Option<String> {
    let kept = got - freed;
    // A reset that fails leaves what the arena has forgotten before it.
    let forgotten = fault.function.starts_with("cuDevicePrimaryCtxReset");
    // Whole allocations of the program's may be in limbo, too.
    if forgotten || sum(arenas, |a| &a["limbo_bytes"]["current"]) > 0 {
        return None;
    }
    let held = outcome.report()["live_allocations"].as_u64().unwrap();
    let chunks = sum(arenas, |a| &a["chunks"]);
    // A free that is made to wait for the device is in no count of frees.
    let refused = sum(arenas, |a| &a["driver_calls"]["free"]["failures"])
        + u64::from(fault.function == "cuMemFree_v2");
    let in_order = outcome.stdout.contains("in order: 0")
        && !outcome
            .stdout
            .contains("gpu_free_async(ordered, stream): 0");
    // Kept back in each context, in two halves, also where its pool has given all back.
    let reserves = if fault.pools {
        2 * arenas.len() as u64
    } else {
        0
    };
    if held > chunks + refused + kept + reserves + u64::from(in_order) {
        return Some(format!(
            "the driver holds {held} allocations, {chunks} are chunks, {refused} it kept"
        ));
    }
    None
}

/// The lines that are not about how much there is or was got.
fn codes(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stdout.lines();
    lines
        .filter(|l| !l.starts_with("allocated ") && !l.starts_with("pinned "))
        .collect()
}

/// Whether the line says that the program was refused memory.
fn is_shortage(line: &str) -> bool {
    line.contains(": 2") || line.ends_with("again: 0")
}

/// What a faulty run printed and should not. Of a call that only the program
/// makes it hears the same as bare; of one that only we make nothing, unless
/// it is out of memory; and a failure that we tried again is not heard of.
/// `plain`: the preloaded run without faults; `bare`: the bare one with the
/// same fault; `own` and `all`: how often the function is called bare and
/// preloaded.
fn difference(
    fault: &Fault,
    outcome: &Outcome,
    [plain, bare]: [&Outcome; 2],
    [own, all]: [u64; 2],
) -> Option<String> {
    if fault.failure == Failure::Sticky || (own != all && own != 0) {
        return None;
    }
    let odd = |expected: &Outcome| {
        // Who is refused memory also prints less or more lines.
        let expected: BTreeSet<&str> = codes(expected).into_iter().collect();
        // Or gets it after all, where the fault has left the device emptier.
        let got_after_all = |line: &str| {
            let what = line.strip_suffix(": 0");
            what.is_some_and(|what| expected.contains(format!("{what}: 2").as_str()))
                // What is only freed where it was got.
                || (line == "gpu_free_async(ordered, stream): 0" && expected.contains("in order: 2"))
        };
        let mut found = codes(outcome).into_iter();
        let odd = found
            .find(|line| !expected.contains(line) && !is_shortage(line) && !got_after_all(line));
        odd.map(|line| format!("printed {line:?}"))
    };
    let from_plain = odd(plain);
    if own == all {
        from_plain.and_then(|_| odd(bare))
    } else {
        from_plain
    }
}

/// Each call of each function fails in turn; how many did, and what went wrong
/// then.
fn sweep(setting: Setting) -> (usize, Vec<String>) {
    let plain = setting.preloaded().go();
    assert_eq!(plain.code(), 0, "{}", plain.what);
    let own = calls(&setting.bare().go());
    let mut faults = Vec::new();
    for (function, count) in calls(&plain) {
        faults.extend(picked(count).into_iter().map(|(n, failure)| Fault {
            function: function.clone(),
            n,
            failure,
            pools: setting.conf != "strategy:passthrough",
        }));
    }
    let all = calls(&plain);
    let failures = Mutex::new(Vec::new());
    side_by_side(&faults, |fault| {
        let outcome = fault.on(setting.preloaded()).go();
        let bare = fault.on(setting.bare()).go();
        let count = |calls: &BTreeMap<String, u64>| calls.get(&fault.function).copied();
        let both = [&own, &all].map(|calls| count(calls).unwrap_or(0));
        let found = damage(fault, &outcome, &bare)
            .or_else(|| difference(fault, &outcome, [&plain, &bare], both));
        if let Some(found) = found {
            let text = format!("{}\n  {found}", outcome.what);
            failures.lock().unwrap().push(text);
        }
    });
    (faults.len(), failures.into_inner().unwrap())
}

/// Does `work` for each fault, as many at a time as there are processors.
fn side_by_side<T: Sync>(faults: &[T], work: impl Fn(&T) + Sync) {
    let next = Mutex::new(faults.iter());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(fault) = next.lock().unwrap().next() else {
                        return;
                    };
                    work(fault);
                }
            });
        }
    });
}

#[test]
#[ignore = "a step of its own: ci/faults"]
fn no_fault_does_damage() {
    let mut failures = Vec::new();
    for setting in SETTINGS {
        let (count, found) = sweep(setting);
        println!("{:?}, {}: {count} faults", setting.kind, setting.conf);
        failures.extend(found);
    }
    assert!(
        failures.is_empty(),
        "{} runs went wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
