//! The command `vramalloc`: runs programs under the library and reads what it
//! wrote.
//!
//! Every subcommand is a module with one function that returns the exit status.
//! Everything but the result goes to standard error, each line with
//! `vramalloc:` in front.
//!
//! # Floors
//!
//! From the ground up. A module imports from the floors below it, or from its
//! own without a circle; `ci/floors` reads this list.
//!
//! 1. `screen`, `output`, `lines`, `grid`, `gloss`, `progress`, `units`,
//!    `library`, `link`, `script`, `given`, `child`, `notes`, `written`, `target`, `statistics`,
//!    `owners`, `symbols`, `stacks`, `families`, `pauses`, `pages`, `probe`: the form of what
//!    is printed; the library's file, the program that runs under it with the options that
//!    were given, and what its processes said and wrote, with the names of functions and
//!    libraries; processes that run now, and what is in use of devices.
//! 2. `doctor`, `options`, `status`, `look`, `shells`, `snapshot`, `html`: subcommands, what
//!    the running processes have, and what `vramalloc report` writes with `--snapshot` and
//!    `--html`.
//! 3. `top`, `metrics`, `report`, `recording`, `input`, `diff`, `export`, `order`: the subcommands of
//!    these names, those that ask something of a running process, and what is read
//!    of statistics and recordings alike.
//! 4. `run`, `replay`: the subcommand `run`, which also prints a report; and what would
//!    have come of a recorded program elsewhere.
//! 5. `advise`: which options would have served it better.
//! 6. `parsers`: those of files, for tests.

mod advise;
mod child;
mod diff;
mod doctor;
mod export;
mod families;
mod given;
mod gloss;
mod grid;
mod html;
mod input;
mod library;
mod lines;
mod link;
mod look;
mod metrics;
mod notes;
mod options;
mod order;
mod output;
mod owners;
mod pages;
#[doc(hidden)]
pub mod parsers;
mod pauses;
mod probe;
mod progress;
mod recording;
mod replay;
mod report;
mod run;
mod screen;
mod script;
mod shells;
mod snapshot;
mod stacks;
mod statistics;
mod status;
mod symbols;
mod target;
mod top;
mod units;
mod written;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[derive(Parser)]
#[command(
    version,
    about = "GPU memory for unmodified CUDA programs: safe, observable, capped and fast",
    after_help = "Example: vramalloc run --report --limit 16G -- python train.py"
)]
struct Command {
    #[command(flatten)]
    color: colorchoice_clap::Color,

    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program with its GPU memory served by vramalloc
    Run(run::Arguments),
    /// Say what would be caught in a program, how, and what stands in the way
    Doctor(doctor::Arguments),
    /// List the options with the values in force in this environment
    Options(options::Arguments),
    /// Say what statistics that a program wrote mean
    Report(report::Arguments),
    /// Tell of a recording that a program wrote (option record)
    Recording(recording::Arguments),
    /// Replay a recording with other options, or on a smaller device
    Replay(replay::Arguments),
    /// Say which options would serve a recorded program better, and what device it needs
    Advise(advise::Arguments),
    /// Say what grew and what shrank from one run to another
    Diff(diff::Arguments),
    /// Write what a file holds in a form that another tool opens
    Export(export::Arguments),
    /// Show what your running processes have on their GPUs
    Status(status::Arguments),
    /// Watch what your running processes have, and act on them by keys
    Top(top::Arguments),
    /// Write what your running processes have for Prometheus (OpenMetrics)
    Metrics(metrics::Arguments),
    /// Have a running process write its statistics, and print the file's name
    Dump(order::DumpArguments),
    /// Have a running process give memory back that it does not use
    Trim(order::TrimArguments),
    /// Set the limit of a running process
    Limit(order::LimitArguments),
    /// Print what completes the command's arguments in a shell
    Completions(shells::CompletionsArguments),
    /// Write the manual's pages into a folder
    #[command(hide = true)]
    Man(shells::ManArguments),
}

/// The command, as wide as where its help is shown.
fn command() -> clap::Command {
    Command::command()
        .term_width(screen::width().min(screen::PROSE))
        .mut_arg("color", |color| {
            color.display_order(900).help("When text is coloured")
        })
}

/// An error of the arguments; whoever named a program is told of `run`.
fn with_run(mut error: clap::Error) -> clap::Error {
    let named = error.get(ContextKind::InvalidSubcommand).cloned();
    if let Some(ContextValue::String(name)) = named
        && script::is_program(&name)
    {
        let tip = format!("to run it with its GPU memory served: vramalloc run {name}");
        // The nearest subcommand, which nobody means by a file.
        if name.contains(['.', '/']) {
            error.remove(ContextKind::SuggestedSubcommand);
        }
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

/// Does what the arguments of the process say.
pub fn main() -> ExitCode {
    let matches = command()
        .try_get_matches()
        .unwrap_or_else(|error| with_run(error).exit());
    let parsed = Command::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    parsed.color.write_global();
    let status = match parsed.action {
        Action::Run(arguments) => run::run(&arguments),
        Action::Doctor(arguments) => doctor::doctor(&arguments),
        Action::Options(arguments) => options::options(&arguments),
        Action::Report(arguments) => report::report(&arguments),
        Action::Recording(arguments) => recording::recording(&arguments),
        Action::Replay(arguments) => replay::replay(&arguments),
        Action::Advise(arguments) => advise::advise(&arguments),
        Action::Diff(arguments) => diff::diff(&arguments),
        Action::Export(arguments) => export::export(&arguments),
        Action::Status(arguments) => status::status(&arguments),
        Action::Top(arguments) => top::top(&arguments),
        Action::Metrics(arguments) => metrics::metrics(&arguments),
        Action::Dump(arguments) => order::dump(&arguments),
        Action::Trim(arguments) => order::trim(&arguments),
        Action::Limit(arguments) => order::limit(&arguments),
        Action::Completions(arguments) => shells::completions(&arguments, command()),
        Action::Man(arguments) => shells::man(&arguments, command()),
    };
    ExitCode::from(status)
}
