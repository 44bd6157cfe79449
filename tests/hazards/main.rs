//! Every known way in which an interposer of CUDA memory breaks programs,
//! each as a program that is run bare and under the preload.
//!
//! A [`case::Case`] names the hazards it stands for, by the numbers of
//! `docs/compatibility.md`. It runs in each of its kinds (how a program speaks
//! to CUDA), under each strategy and in each driver mode (what the driver
//! lacks), and is judged against the bare run. A naive pool runs through the
//! same cases and must fail the ones named in [`naive`]: so the suite can
//! fail.
//!
//! The runner is its own because its result is a table, not a list of tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot set its stage has failed, and this one prints a table"
)]

mod case;
mod cases;
mod checks;
mod judge;
mod naive;
mod run;
mod shims;
#[allow(
    dead_code,
    reason = "shared with the preload tests, which use all of it"
)]
mod table;

use std::process::ExitCode;

use run::{Extent, Pool};
use table::Table;

const USAGE: &str = "\
usage: hazards [--quick] [--list] [--ours | --naive] [--strategy NAME] [NAME…]
  --quick  each kind, mode and strategy of a case once, not every combination
  --list   name the cases and what they stand for
  --ours   leave the naive pool out
  --naive  only run the naive pool and say where it fails
  --strategy NAME  only run cells of this strategy
  NAME     only cases whose name contains one of these";

/// What the command line asks for.
#[derive(Default)]
struct Asked {
    quick: bool,
    list: bool,
    ours: bool,
    naive: bool,
    strategy: Option<String>,
    names: Vec<String>,
}

fn asked() -> Option<Asked> {
    let mut asked = Asked::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => asked.quick = true,
            "--list" => asked.list = true,
            "--ours" => asked.ours = true,
            "--naive" => asked.naive = true,
            "--strategy" => asked.strategy = Some(arguments.next()?),
            // Cargo's own, which every test is given.
            "--nocapture" | "--quiet" | "-q" => {}
            option if option.starts_with('-') => return None,
            name => asked.names.push(name.to_owned()),
        }
    }
    Some(asked)
}

fn main() -> ExitCode {
    let Some(asked) = asked() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let cases = cases::all().into_iter().filter(|case| {
        asked.names.is_empty() || asked.names.iter().any(|n| case.name.contains(n.as_str()))
    });
    let cases: Vec<_> = cases.collect();
    if asked.list {
        for case in &cases {
            println!("{:<44} {}", case.name, case.hazards_text());
        }
        return ExitCode::SUCCESS;
    }
    run::keep_panics_quiet();
    let extent = if asked.quick {
        Extent::Each
    } else {
        Extent::All
    };
    let mut table = Table::default();
    if !asked.naive {
        let only = asked.strategy.as_deref();
        table.take(run::all(&cases, Pool::Ours, extent, only));
        if asked.names.is_empty() {
            table.take_checks(checks::all());
        }
    }
    if !asked.ours {
        table.take_naive(&naive::judge(&cases, extent));
    }
    table.print();
    if table.failed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
