//! A case: one program, what it runs beside and under which options, and its judge.

use std::path::Path;

use crate::judge::{self, Seen};
use crate::run::Mode;
use crate::shims;
use vramalloc_tests::stage::{self, Kind, Run};

/// Another library that is preloaded with the one under test.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    /// It stands before.
    Before(&'static str),
    /// It stands behind.
    Behind(&'static str),
    /// It is the driver, and stands before the true one.
    Driver,
}

/// One program in all its cells.
#[derive(Copy, Clone)]
pub(crate) struct Case {
    /// Numbers of the hazards, as in `docs/compatibility.md`.
    pub(crate) hazards: &'static [u8],
    pub(crate) name: &'static str,
    /// Of `tests/programs`.
    pub(crate) program: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) kinds: &'static [Kind],
    pub(crate) modes: &'static [Mode],
    pub(crate) judge: fn(&Seen<'_>),
    /// Statistics files that a run leaves.
    pub(crate) files: usize,
    /// Options besides the strategy.
    options: &'static str,
    /// Only under these strategies; empty: all.
    strategies: &'static [&'static str],
    beside: Beside,
}

impl Case {
    /// A program without arguments, everywhere.
    pub(crate) fn new(hazards: &'static [u8], name: &'static str, program: &'static str) -> Case {
        Case {
            hazards,
            name,
            program,
            arguments: &[],
            environment: &[],
            kinds: &Kind::ALL,
            modes: &Mode::ALL,
            judge: judge::same_and_clean,
            files: 1,
            options: "",
            strategies: &[],
            beside: Beside::Nothing,
        }
    }

    pub(crate) fn args(self, arguments: &'static [&'static str]) -> Case {
        Case { arguments, ..self }
    }

    pub(crate) fn env(self, environment: &'static [(&'static str, &'static str)]) -> Case {
        Case {
            environment,
            ..self
        }
    }

    pub(crate) fn kinds(self, kinds: &'static [Kind]) -> Case {
        Case { kinds, ..self }
    }

    pub(crate) fn modes(self, modes: &'static [Mode]) -> Case {
        Case { modes, ..self }
    }

    pub(crate) fn judge(self, judge: fn(&Seen<'_>)) -> Case {
        Case { judge, ..self }
    }

    pub(crate) fn files(self, files: usize) -> Case {
        Case { files, ..self }
    }

    pub(crate) fn options(self, options: &'static str) -> Case {
        Case { options, ..self }
    }

    pub(crate) fn strategies(self, strategies: &'static [&'static str]) -> Case {
        Case { strategies, ..self }
    }

    pub(crate) fn beside(self, beside: Beside) -> Case {
        Case { beside, ..self }
    }

    pub(crate) fn takes(&self, strategy: &str) -> bool {
        self.strategies.is_empty() || strategy == "naive" || self.strategies.contains(&strategy)
    }

    /// The options of a run under a strategy.
    pub(crate) fn conf(&self, strategy: &str) -> String {
        match self.options {
            "" => format!("strategy:{strategy}"),
            more => format!("strategy:{strategy},{more}"),
        }
    }

    /// The run without the library under test.
    pub(crate) fn bare(&self, run: Run) -> Run {
        match self.beside {
            Beside::Nothing => run,
            Beside::Before(shim) | Beside::Behind(shim) => preload(run, &[&shims::built(shim)]),
            Beside::Driver => behind_shim(run),
        }
    }

    /// The run with it.
    pub(crate) fn with(&self, run: Run, library: &Path) -> Run {
        match self.beside {
            Beside::Nothing => preload(run, &[library]),
            Beside::Driver => preload(behind_shim(run), &[library]),
            Beside::Before(shim) => preload(run, &[&shims::built(shim), library]),
            Beside::Behind(shim) => preload(run, &[library, &shims::built(shim)]),
        }
    }

    pub(crate) fn hazards_text(&self) -> String {
        let numbers: Vec<_> = self.hazards.iter().map(u8::to_string).collect();
        numbers.join(",")
    }
}

fn preload(run: Run, libraries: &[&Path]) -> Run {
    let paths: Vec<_> = libraries.iter().map(|l| l.to_string_lossy()).collect();
    run.env("LD_PRELOAD", &paths.join(":"))
}

fn behind_shim(run: Run) -> Run {
    let (shim, simulated) = (shims::driver(), stage::simulated_cuda());
    let folders = format!("{}:{}", shim.display(), simulated.display());
    run.env("LD_LIBRARY_PATH", &folders)
}
