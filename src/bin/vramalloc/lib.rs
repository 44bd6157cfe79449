//! The command `vramalloc`: runs programs under the library and reads what
//! it wrote.
//!
//! Every subcommand is a module with one function that answers with the exit
//! status. What the command has to say beside its result goes to standard
//! error, each line with `vramalloc:` in front.

mod child;
mod doctor;
#[cfg(fuzzing)]
pub mod fuzzing;
mod library;
mod notes;
mod options;
mod report;
mod run;
mod snapshot;
mod units;
mod written;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit status where the command was called wrongly or could not read what it
/// was given.
const USAGE: u8 = 2;

#[derive(Parser)]
#[command(
    version,
    about = "GPU memory for unmodified CUDA programs: safe, observable, capped and fast",
    after_help = "Example: vramalloc run --limit 16G -- python train.py"
)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program with its GPU memory served by vramalloc
    Run(run::Arguments),
    /// Say what would be caught in a program, how, and what stands in the way
    Doctor(doctor::Arguments),
    /// List all options with the values in force in this environment
    Options,
    /// Summarise statistics that a program wrote
    Report(report::Arguments),
}

/// Does what the arguments of the process say.
pub fn main() -> ExitCode {
    let status = match Command::parse().action {
        Action::Run(arguments) => run::run(&arguments),
        Action::Doctor(arguments) => doctor::doctor(&arguments),
        Action::Options => options::options(),
        Action::Report(arguments) => report::report(&arguments),
    };
    ExitCode::from(status)
}

/// Says something on standard error. Where that is closed, nobody listens.
fn say(text: impl Display) {
    let line = plain(&format!("vramalloc: {text}"));
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A text that does nothing to a terminal.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Writes a result to standard output and answers with the exit status. A
/// reader that has seen enough and closed the pipe is no failure.
fn show(text: &str) -> u8 {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("standard output: {error}"));
            1
        }
        _ => 0,
    }
}
