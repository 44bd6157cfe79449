//! Random programs do the same with and without us.
//!
//! `tests/programs/random.c` draws a program from each seed. It runs bare and
//! under every setting below; every code that a call answered and every sum
//! over a block's contents must be the same, the simulated device must find
//! nothing wrong, and the statistics must count what the program counted.
//!
//! `DIFFERENTIAL_SEEDS=FIRST:COUNT` says which seeds; `scripts/differential`
//! sets it. A seed that fails is run again by itself, and the message has the
//! command that repeats it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot set its stage has failed"
)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use vramalloc_tests::stage::{Kind, Outcome, Run, STRATEGIES};

/// Seeds that one process runs through: enough to make its start cheap, few
/// enough for the simulated device, which looks at all streams there were.
const BATCH: u64 = 25;

/// Where nothing else is said.
const SEEDS: (u64, u64) = (1, 100);

fn seeds() -> (u64, u64) {
    let Ok(text) = std::env::var("DIFFERENTIAL_SEEDS") else {
        return SEEDS;
    };
    (text.split_once(':'))
        .and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)))
        .unwrap_or_else(|| panic!("DIFFERENTIAL_SEEDS={text} is not FIRST:COUNT"))
}

/// Some seeds, in one kind of program.
#[derive(Copy, Clone)]
struct Batch {
    first: u64,
    count: u64,
    kind: Kind,
}

impl Batch {
    /// The batch that begins at a seed; the kinds take turns.
    fn at(first: u64, count: u64) -> Batch {
        let turn = usize::try_from(first / BATCH).unwrap() % Kind::ALL.len();
        Batch {
            first,
            count,
            kind: Kind::ALL[turn],
        }
    }

    fn run(self, change: impl Fn(Run) -> Run) -> Outcome {
        let run = Run::bare("random", self.kind)
            .args([&self.first.to_string(), &self.count.to_string()].map(String::as_str))
            .env("SIM_CUDA_SEED", &self.first.to_string())
            .env("SIM_CUDA_MEMORY", "512M")
            .env("SIM_CUDA_STRICT", "1");
        change(run).go()
    }
}

/// All seeds in batches that begin at multiples, so that a seed's kind does
/// not depend on where the range begins.
fn batches((first, count): (u64, u64)) -> Vec<Batch> {
    let end = first + count;
    let mut batches = Vec::new();
    let mut at = first;
    while at < end {
        let next = ((at / BATCH + 1) * BATCH).min(end);
        batches.push(Batch::at(at, next - at));
        at = next;
    }
    batches
}

/// Options that change when memory is taken, cut, given back and handed out;
/// together, so that they meet.
const POLICIES: [&str; 3] = [
    "roundup_power2_divisions:4,max_split_size_mb:20,large_segment_size_mb:20,\
     garbage_collection_threshold:0.05,decay_ms:0,pinned_use_cuda_host_register:True,\
     pinned_num_register_threads:2,pinned_max_cached_size_mb:1",
    "free_idle_chunk:True,alloc_fill_value:90,eager_delete_tensor_gb:0.01,\
     memory_fraction_of_eager_deletion:0.5,pinned_use_background_threads:True,\
     pinned_max_round_threshold_mb:4",
    "free_when_no_cache_hit:True,sync_after_alloc:True,gpu_allocator_retry_time:1,\
     auto_growth_chunk_size_in_mb:16,pinned_reserve_segment_size_mb:8,\
     fraction_of_cuda_pinned_memory_to_use:0.001",
];

/// Options, and a function that the driver lacks.
#[derive(Copy, Clone)]
struct Setting {
    strategy: &'static str,
    free_sync: &'static str,
    policy: &'static str,
    lacks: &'static str,
}

impl Setting {
    fn all() -> Vec<Setting> {
        let mut all = Vec::new();
        for strategy in STRATEGIES {
            for (free_sync, lacks) in [
                ("deferred", ""),
                ("strict", ""),
                ("deferred", "cuCtxRecordEvent"),
            ] {
                all.push(Setting {
                    strategy,
                    free_sync,
                    policy: "",
                    lacks,
                });
            }
        }
        all.extend(POLICIES.map(|policy| Setting {
            strategy: "auto_growth",
            free_sync: "deferred",
            policy,
            lacks: "",
        }));
        all
    }

    fn preload(self, run: Run) -> Run {
        let Setting {
            strategy,
            free_sync,
            policy,
            lacks,
        } = self;
        run.preload()
            .conf(&format!(
                "strategy:{strategy},free_sync:{free_sync},{policy}"
            ))
            .env("SIM_CUDA_LACKS", lacks)
    }
}

/// What asks the driver for page-locked memory, and gives it back.
const PINNED_CALLS: [&str; 3] = ["cuMemHostAlloc", "cuMemAllocHost_v2", "cuMemFreeHost"];

/// What differs from the bare run, in words; nothing where all is well.
fn difference(bare: &Outcome, outcome: &Outcome) -> Option<String> {
    if let Some(found) = wrong(outcome) {
        return Some(found);
    }
    if outcome.stdout != bare.stdout {
        let mut lines = (1..).zip(bare.stdout.lines().zip(outcome.stdout.lines()));
        let found = lines.find(|(_, (bare, here))| bare != here);
        return Some(found.map_or_else(
            || "one printed more than the other".to_owned(),
            |(number, (bare, here))| format!("line {number}: bare {bare:?}, here {here:?}"),
        ));
    }
    let stats = outcome.stats();
    let totals = &stats["totals"];
    let counted = format!(
        "allocated {}, freed {},",
        totals["allocations"], totals["frees"]
    );
    let mut last = outcome.stdout.lines().rev();
    let own = last.next().unwrap_or("");
    if !own.starts_with(&counted) || totals["ooms"] != 0 {
        return Some(format!("the program {own}; the statistics {totals}"));
    }
    let arenas = stats["host_arenas"].as_array()?;
    let sum = |key: &str| -> u64 { arenas.iter().filter_map(|a| a[key].as_u64()).sum() };
    let [allocated, freed, ooms] = ["allocations", "frees", "ooms"].map(sum);
    let counted = format!("pinned: allocated {allocated}, freed {freed},");
    let own = last.next().unwrap_or("");
    if ooms != 0 || !own.starts_with(&counted) {
        return Some(format!("the program {own}; the statistics {counted}"));
    }
    let passes_through = outcome.what.contains("strategy:passthrough");
    PINNED_CALLS.iter().find_map(|function| {
        let [bare, here] = [bare, outcome].map(|run| run.driver_calls(function));
        (passes_through && here > bare)
            .then(|| format!("{function}: bare {bare} times, here {here} times"))
    })
}

/// What is wrong with a run by itself.
fn wrong(outcome: &Outcome) -> Option<String> {
    let said = outcome.said().join("\n");
    if outcome.code() != 0 || !said.is_empty() {
        return Some(format!("ended with {}: {said}", outcome.code()));
    }
    // Wrong frees are part of the programs.
    let found = outcome.violations();
    let found = found.iter().find(|v| !v.contains("free of "));
    found.map(|v| format!("the device found: {v}"))
}

/// Runs a batch bare and under the settings; what goes wrong, with the setting
/// and the kind. Panics where the bare run is not sane.
fn differences(batch: Batch, settings: &[Setting]) -> Vec<(Setting, String)> {
    let bare = batch.run(|run| run);
    assert_eq!(wrong(&bare), None, "{}", bare.what);
    let each = settings.iter().filter_map(|&setting| {
        let outcome = batch.run(|run| setting.preload(run));
        let found = difference(&bare, &outcome)?;
        Some((setting, format!("{}\n  {found}", outcome.what)))
    });
    each.collect()
}

/// The first seed of a failing batch that fails by itself, told with how to
/// repeat it; else the whole batch.
fn told(batch: Batch, (setting, found): &(Setting, String)) -> String {
    for seed in batch.first..batch.first + batch.count {
        if let Some((_, alone)) = differences(Batch::at(seed, 1), &[*setting]).first() {
            return format!("{alone}\n  repeat it: scripts/differential {seed} 1");
        }
    }
    let Batch { first, count, .. } = batch;
    format!("{found}\n  no seed fails alone; repeat it: scripts/differential {first} {count}")
}

/// Does `work` for each batch, as many at a time as there are processors.
fn side_by_side(batches: &[Batch], work: impl Fn(Batch) + Sync) {
    let next = Mutex::new(batches.iter());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(&batch) = next.lock().unwrap().next() else {
                        return;
                    };
                    work(batch);
                }
            });
        }
    });
}

#[test]
#[ignore = "a step of its own: ci/differential"]
fn random_programs_do_the_same() {
    let settings = Setting::all();
    let failures = Mutex::new(Vec::new());
    let (first, count) = seeds();
    side_by_side(&batches((first, count)), |batch| {
        // One of a batch tells enough.
        if let Some(failure) = differences(batch, &settings).first() {
            failures.lock().unwrap().push(told(batch, failure));
        }
    });
    let failures = failures.into_inner().unwrap();
    println!(
        "{count} seeds from {first} on, each bare and under {} settings",
        settings.len()
    );
    assert!(
        failures.is_empty(),
        "{} batches of seeds fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// So the test above can fail: blocks that are handed out while the device
/// still uses them are found.
#[test]
#[ignore = "a step of its own: ci/differential"]
fn reuse_without_a_fence_is_found() {
    for strategy in ["naive_best_fit", "auto_growth"] {
        let setting = Setting {
            strategy,
            free_sync: "immediate",
            policy: "",
            lacks: "",
        };
        let found = AtomicU64::new(0);
        side_by_side(&batches((1, 300)), |batch| {
            let failed = !differences(batch, &[setting]).is_empty();
            found.fetch_add(u64::from(failed), Ordering::Relaxed);
        });
        let found = found.into_inner();
        assert!(found >= 2, "{strategy}: {found}");
    }
}
