//! Running a case in all its cells, a few at a time.
//!
//! A cell is one kind, one strategy and one driver mode. Cost: a process each,
//! and one bare process for each kind and mode.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cases::Case;
use crate::judge::Seen;
use crate::naive;
use vramalloc_tests::stage::{self, Kind, Run, STRATEGIES};

/// What the simulated driver lacks.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    /// Nothing.
    Full,
    /// The event over a whole context, as before CUDA 12.5.
    NoContextEvent,
    /// That and the resolver, and allocation ordered in streams, as 10.2.
    NoResolver,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::Full, Mode::NoContextEvent, Mode::NoResolver];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Mode::Full => "full",
            Mode::NoContextEvent => "before 12.5",
            Mode::NoResolver => "10.2",
        }
    }

    fn lacks(self) -> &'static str {
        match self {
            Mode::Full => "",
            Mode::NoContextEvent => "cuCtxRecordEvent",
            Mode::NoResolver => {
                "cuCtxRecordEvent,cuGetProcAddress,cuMemAllocAsync,cuMemFreeAsync,\
                 cuMemAllocFromPoolAsync,cuCtxGetId,cuStreamGetCaptureInfo_v3,cuCtxGetDevice_v2,\
                 cuCtxSynchronize_v2,cuCtxCreate_v3,cuCtxCreate_v4"
            }
        }
    }

    /// Whether a program of this kind can run at all.
    fn has(self, kind: Kind) -> bool {
        self != Mode::NoResolver || kind != Kind::Resolver
    }
}

/// Which library is preloaded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pool {
    Ours,
    Naive(naive::Variant),
}

/// What became of a cell.
pub(crate) struct Verdict {
    pub(crate) case: &'static str,
    pub(crate) hazards: &'static [u8],
    pub(crate) kind: Kind,
    pub(crate) strategy: &'static str,
    pub(crate) mode: Mode,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the text of a failed assertion instead of printing it.
pub(crate) fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        LAST_PANIC.set(info.to_string());
    }));
}

/// What a failed assertion said, if one failed.
pub(crate) fn caught(what: impl FnOnce()) -> Option<String> {
    catch_unwind(AssertUnwindSafe(what))
        .err()
        .map(|_| LAST_PANIC.take())
}

/// Runs these cases; the verdicts in the order of the cases.
pub(crate) fn all(cases: &[Case], pool: Pool, quick: bool) -> Vec<Verdict> {
    stage::library();
    let mut groups = Vec::new();
    for case in cases {
        for &mode in case.modes {
            let kinds = case.kinds.iter().filter(|&&kind| match pool {
                Pool::Ours => mode.has(kind),
                Pool::Naive(_) => naive::takes_part(kind, mode),
            });
            groups.extend(kinds.map(|&kind| (case, kind, mode)));
        }
    }
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(case, kind, mode)) = groups.get(index) else {
                        break;
                    };
                    let found = group(case, kind, mode, pool, quick);
                    verdicts.lock().unwrap().insert(index, found);
                }
            });
        }
    });
    let verdicts = verdicts.into_inner().unwrap();
    verdicts.into_values().flatten().collect()
}

/// One kind in one mode: bare once, then under each strategy.
fn group(case: &Case, kind: Kind, mode: Mode, pool: Pool, quick: bool) -> Vec<Verdict> {
    let plain = || {
        let mut run = Run::bare(case.program, kind).env("SIM_CUDA_LACKS", mode.lacks());
        for argument in case.arguments {
            run = run.arg(argument);
        }
        for (name, value) in case.environment {
            run = run.env(name, value);
        }
        run
    };
    let mut bare = None;
    let bare_failure = caught(|| bare = Some(case.bare(plain()).go()));
    let strategies: &[&str] = match pool {
        Pool::Naive(_) => &["naive"],
        Pool::Ours if quick => &["naive_best_fit", "auto_growth"],
        Pool::Ours => &STRATEGIES,
    };
    let strategies = strategies.iter().filter(|s| case.takes(s));
    let verdict = |&strategy: &&'static str| {
        let failure = bare_failure.clone().or_else(|| {
            caught(|| {
                let preload = match pool {
                    Pool::Ours => stage::library(),
                    Pool::Naive(_) => naive::library(),
                };
                let mut run = case.with(plain(), &preload);
                run = match pool {
                    Pool::Ours => run.conf(&case.conf(strategy)),
                    Pool::Naive(variant) => run.env("NAIVE_POOL", variant.name()),
                };
                let seen = Seen {
                    bare: bare.as_ref().unwrap(),
                    with: &run.go(),
                    ours: pool == Pool::Ours,
                    files: case.files,
                };
                (case.judge)(&seen);
            })
        });
        Verdict {
            case: case.name,
            hazards: case.hazards,
            kind,
            strategy,
            mode,
            failure,
        }
    };
    strategies.map(verdict).collect()
}
