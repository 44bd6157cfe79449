//! Running a case in all its cells, a few at a time.
//!
//! A cell is one kind, one strategy and one driver mode. Cost: a process each,
//! and one bare process for each kind and mode.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::case::Case;
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

/// How many of a case's cells are run.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Every combination of a kind, a mode and a strategy.
    All,
    /// Each of them once at least; the combinations change from case to case.
    Each,
}

/// One kind in one mode, and the strategies under which it runs.
struct Group<'a> {
    case: &'a Case,
    kind: Kind,
    mode: Mode,
    strategies: Vec<&'static str>,
}

/// What is run of the case of this number.
fn groups<'a>(
    number: usize,
    case: &'a Case,
    pool: Pool,
    extent: Extent,
    only: Option<&str>,
) -> Vec<Group<'a>> {
    let strategies: Vec<_> = match pool {
        Pool::Naive(_) => vec!["naive"],
        Pool::Ours => (STRATEGIES.into_iter())
            .filter(|s| case.takes(s) && only.is_none_or(|only| only == *s))
            .collect(),
    };
    if strategies.is_empty() {
        return Vec::new();
    }
    let takes_part = |kind, mode: Mode| match pool {
        Pool::Ours => mode.has(kind),
        Pool::Naive(_) => naive::takes_part(kind, mode),
    };
    let group = |kind, mode, strategies| Group {
        case,
        kind,
        mode,
        strategies,
    };
    let mut groups = Vec::new();
    match extent {
        Extent::All => {
            for &mode in case.modes {
                let kinds = case.kinds.iter().filter(|&&kind| takes_part(kind, mode));
                groups.extend(kinds.map(|&kind| group(kind, mode, strategies.clone())));
            }
        }
        Extent::Each => {
            let lengths = [case.kinds.len(), case.modes.len(), strategies.len()];
            for turn in 0..lengths.into_iter().max().unwrap_or(0) {
                let kind = case.kinds[turn % case.kinds.len()];
                let strategy = strategies[(turn + number / 3) % strategies.len()];
                // The next mode that this kind can run in.
                let modes = case.modes.iter().cycle().skip(turn + number);
                let mut modes = modes.take(case.modes.len()).copied();
                if let Some(mode) = modes.find(|&mode| takes_part(kind, mode)) {
                    groups.push(group(kind, mode, vec![strategy]));
                }
            }
        }
    }
    groups
}

/// Runs these cases, under one strategy where one is named; the verdicts in their
/// order.
pub(crate) fn all(cases: &[Case], pool: Pool, extent: Extent, only: Option<&str>) -> Vec<Verdict> {
    stage::library();
    let cases = cases.iter().enumerate();
    let groups: Vec<_> = cases
        .flat_map(|(number, case)| groups(number, case, pool, extent, only))
        .collect();
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(group) = groups.get(index) else {
                        break;
                    };
                    let found = verdicts_of(group, pool);
                    verdicts.lock().unwrap().insert(index, found);
                }
            });
        }
    });
    let verdicts = verdicts.into_inner().unwrap();
    verdicts.into_values().flatten().collect()
}

/// One kind in one mode: bare once, then under each strategy.
fn verdicts_of(group: &Group<'_>, pool: Pool) -> Vec<Verdict> {
    let &Group {
        case, kind, mode, ..
    } = group;
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
                    Pool::Naive(variant) => run
                        .env("NAIVE_POOL", variant.name())
                        .patience(naive::PATIENCE),
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
    group.strategies.iter().map(verdict).collect()
}
