//! `vramalloc export`: what a file holds, in the forms that other tools open.
//!
//! What is read (statistics or a recording) and what is written know nothing of each
//! other: a form is made of call stacks, of the steps of memory over time, or of a
//! snapshot.

mod folded;
mod perfetto;

use std::io::{IsTerminal, Read, Seek, stdout};
use std::path::PathBuf;

use super::input::Input;
use super::output::{USAGE, is_stream, of_file, say};
use super::progress::Progress;
use super::stacks::At;
use super::symbols::Symbols;
use super::target;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// A file that a program wrote: statistics (VRAMALLOC_STATS) or a recording
    /// (option record)
    file: PathBuf,
    /// The form of the result
    #[arg(long, value_enum)]
    format: Format,
    /// For folded stacks: which memory [default: peak]
    #[arg(long, value_enum)]
    at: Option<At>,
    /// Where the result goes; - is standard output [default: -]
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "-",
        hide_default_value = true
    )]
    output: PathBuf,
    /// For folded stacks: every place, with those of allocators and of what lies
    /// between them and the program
    #[arg(long)]
    all_frames: bool,
}

#[derive(Copy, Clone, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A line for each call stack, with its bytes: for flame graphs, speedscope
    Folded,
    /// Live, limbo and reserved memory over time, as a Chrome trace: for Perfetto
    Perfetto,
    /// Blocks and events as a snapshot that PyTorch's memory_viz opens
    #[value(name = "memory_viz")]
    MemoryViz,
}

/// What a file holds in a form; of folded stacks at a moment, with every place or
/// those that say who asked.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn in_form<R: Read + Seek>(
    input: Input<R>,
    format: Format,
    (at, shows_all): (At, bool),
    symbols: &mut Symbols,
) -> Result<Vec<u8>, String> {
    match format {
        Format::Folded => {
            let stacks = input.stacks(symbols)?.with_all(shows_all);
            folded::text(&stacks, at).map(String::into_bytes)
        }
        Format::Perfetto => {
            let steps = input.steps()?;
            Ok(perfetto::text(&steps, perfetto::MOST).into_bytes())
        }
        Format::MemoryViz => Ok(input.snapshot(symbols)?.pickle),
    }
}

/// Writes a file in another form. Returns the exit status.
pub(super) fn export(arguments: &Arguments) -> u8 {
    let mut symbols = Symbols::new();
    let made = match made(arguments, &mut symbols) {
        Ok(made) => made,
        Err(error) => {
            say(error);
            return USAGE;
        }
    };
    symbols.notes().iter().for_each(say);
    target::write(&arguments.output, &made)
}

fn made(arguments: &Arguments, symbols: &mut Symbols) -> Result<Vec<u8>, String> {
    let Arguments {
        file,
        format,
        at,
        output,
        all_frames,
    } = arguments;
    let is_folded = *format == Format::Folded;
    if !is_folded && (at.is_some() || *all_frames) {
        return Err("--at and --all-frames are for --format folded".to_owned());
    }
    target::check(output, [&**file], "--output")?;
    if *format == Format::MemoryViz && is_stream(output) && stdout().is_terminal() {
        return Err("a snapshot is no text: give --output a name for it".to_owned());
    }
    let progress = Progress::reading([&**file].into_iter());
    let opened = progress.open(file).and_then(Input::of);
    let input = opened.map_err(|error| of_file(file, error))?;
    let which = (at.unwrap_or(At::Peak), *all_frames);
    in_form(input, *format, which, symbols).map_err(|error| of_file(file, error))
}
