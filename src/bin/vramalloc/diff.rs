//! `vramalloc diff`: what grew and what shrank from one run to another.
//!
//! A side is a file of statistics, a folder with those of the ranks of a job, or a
//! recording.
//! Invariant: only like is compared with like: a rank with the same rank, a
//! device with the same device, a call stack with those of the same functions,
//! whatever their addresses and lines.

mod changes;
mod read;
mod shown;

use std::path::PathBuf;

use vramalloc_core::config::{DeviceShare, Host, load};

use self::changes::Changes;
use self::read::Side;
use super::output::{USAGE, say, show};
use super::symbols::Symbols;

/// The exit status if a peak is over.
const OVER: u8 = 1;

#[derive(clap::Args)]
#[command(after_help = "\
The exit status is 0, or 1 if --fail-over is given and a peak of B (of what the \
program held, of what was reserved for it, or of memory past the pool) is over \
that of A by more, or more requests of B failed for want of memory; 2 if the files \
cannot be compared.

Example: vramalloc diff --fail-over 5% before.json after.json")]
pub(super) struct Arguments {
    /// The statistics of one run: a file, or a folder with those of its ranks; or a
    /// recording of it (option record); - is standard input
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The same of another run
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Exit with 1 if a peak grew by more than a share (5%) or a size (64M)
    #[arg(long, value_name = "AMOUNT", value_parser = Tolerance::parse,
          allow_negative_numbers = true)]
    fail_over: Option<Tolerance>,
    /// Print the differences as JSON
    #[arg(long)]
    json: bool,
}

/// How much a peak may grow.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Tolerance {
    /// By this part of what it was.
    Share(f64),
    Bytes(u64),
}

impl Tolerance {
    fn parse(text: &str) -> Result<Tolerance, String> {
        let wrong = || format!("{text} is neither a share, such as 5%, nor a size, such as 64M");
        if let Some(percent) = text.trim().strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| wrong())?;
            let is_one = percent.is_finite() && percent >= 0.0;
            return is_one
                .then_some(Tolerance::Share(percent / 100.0))
                .ok_or_else(wrong);
        }
        if text.trim() == "0" {
            return Ok(Tolerance::Bytes(0));
        }
        // A limit takes the same sizes.
        let limit = load([("VRAMALLOC_LIMIT".into(), text.into())], Host::default());
        match limit.settings.config.limit {
            Some(DeviceShare::Bytes(bytes)) if limit.warnings.is_empty() => {
                Ok(Tolerance::Bytes(bytes.get()))
            }
            _ => Err(wrong()),
        }
    }

    /// Whether one peak is over another by more.
    #[allow(clippy::cast_precision_loss, reason = "a share is not exact either")]
    fn is_passed(self, before: u64, after: u64) -> bool {
        match self {
            Tolerance::Share(share) => after as f64 > before as f64 * (1.0 + share),
            Tolerance::Bytes(bytes) => after > before.saturating_add(bytes),
        }
    }
}

/// Prints the differences. Returns the exit status.
pub(super) fn diff(arguments: &Arguments) -> u8 {
    let mut symbols = Symbols::new();
    let sides = Side::read(&arguments.before, &mut symbols).and_then(|before| {
        let after = Side::read(&arguments.after, &mut symbols)?;
        before.fits(&after).map(|()| (before, after))
    });
    let (before, after) = match sides {
        Ok(sides) => sides,
        Err(error) => {
            say(error);
            return USAGE;
        }
    };
    symbols.notes().iter().for_each(say);
    let mut changes = Changes::between(&before, &after);
    if let Some(tolerance) = arguments.fail_over {
        changes.judge(|before, after| tolerance.is_passed(before, after));
    }
    let text = match arguments.json {
        true => changes.to_json(),
        false => shown::text(&changes),
    };
    let status = if changes.is_over() { OVER } else { 0 };
    show(&text).max(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_a_share_or_a_size() {
        for (text, expected) in [
            ("5%", Tolerance::Share(0.05)),
            ("0%", Tolerance::Share(0.0)),
            ("200 %", Tolerance::Share(2.0)),
            ("64M", Tolerance::Bytes(64 << 20)),
            ("1GiB", Tolerance::Bytes(1 << 30)),
            ("0", Tolerance::Bytes(0)),
        ] {
            assert_eq!(Tolerance::parse(text), Ok(expected));
        }
        for text in ["", "-1%", "nan%", "much", "0.5", "none", "5 apples"] {
            assert!(Tolerance::parse(text).is_err(), "{text}");
        }
        let share = Tolerance::Share(0.05);
        assert!(!share.is_passed(100, 105) && share.is_passed(100, 106));
        assert!(Tolerance::Bytes(0).is_passed(7, 8) && !Tolerance::Bytes(1).is_passed(7, 8));
        assert!(share.is_passed(0, 1) && !share.is_passed(0, 0));
    }
}
