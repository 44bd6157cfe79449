//! Where text is shown: how wide that is, and its colours.
//!
//! What is written to a file or a pipe is as wide as `COLUMNS` says, else 80
//! columns. Whether there are colours is `anstream`'s business: a terminal has
//! them, unless `NO_COLOR` or `--color` says otherwise.

use std::env;
use std::io;

use anstyle::{AnsiColor, Style};
use terminal_size::{Height, Width, terminal_size_of};

/// The width where nobody says one.
const USUAL: usize = 80;

/// Narrower text cannot be read, and wider is no help.
const BOUNDS: [usize; 2] = [40, 400];

/// The most columns of running text, on the widest screen.
pub(crate) const PROSE: usize = 100;

/// The titles of parts.
pub(crate) const HEADING: Style = Style::new().bold();
/// What is as it should be.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What is worth knowing.
pub(crate) const NOTED: Style = AnsiColor::Yellow.on_default();
/// What is wrong.
pub(crate) const WRONG: Style = AnsiColor::Red.on_default().bold();

/// The columns of standard output.
pub(crate) fn width() -> usize {
    columns(terminal_size_of(io::stdout()))
}

/// The columns of standard error.
pub(crate) fn error_width() -> usize {
    columns(terminal_size_of(io::stderr()))
}

fn columns(terminal: Option<(Width, Height)>) -> usize {
    let terminal = terminal.map(|(Width(columns), _)| usize::from(columns));
    let asked = || env::var("COLUMNS").ok()?.trim().parse().ok();
    let known = terminal.filter(|&columns| columns > 0).or_else(asked);
    let [least, most] = BOUNDS;
    known.unwrap_or(USUAL).clamp(least, most)
}
