//! Differences in words.

use super::super::lines::Lines;
use super::super::units::{bytes, percent};
use super::changes::{Change, Changes, SideName};

/// How many lines a list has at most.
const MOST: usize = 10;

/// The report.
pub(super) fn text(changes: &Changes) -> String {
    let mut out = Lines::default();
    side("A", &changes.before, &mut out);
    side("B", &changes.after, &mut out);
    if changes.before.programs != changes.after.programs {
        out.item("They are of different programs.");
    }
    out.exact("");
    out.exact(format_args!(
        "{:<26}{:>12}{:>12}{:>13}",
        "peaks", "A", "B", "change"
    ));
    for peak in &changes.peaks {
        let rank = match &*peak.what.rank {
            "" => String::new(),
            rank => format!("rank {rank} "),
        };
        let name = format!("{rank}device {} {}", peak.what.device, peak.what.of);
        let over = if peak.what.is_over { "  over" } else { "" };
        line(&name, peak, over, &mut out);
    }
    if changes.peaks.is_empty() {
        out.exact("  no device memory on either side");
    }
    list(
        "by owner, when the most was live",
        &changes.owners,
        &mut out,
        |one| one.owner.clone(),
    );
    list(
        "by size, when the most was live",
        &changes.sizes,
        &mut out,
        |one| match one.up_to_bytes {
            Some(largest) => format!("up to {}", bytes(largest)),
            None => "larger".to_owned(),
        },
    );
    if let Some(stacks) = &changes.stacks {
        by_stack(stacks, &mut out, |one| &one.stack);
    }
    out.text
}

fn side(letter: &str, named: &SideName, out: &mut Lines) {
    let programs: Vec<&str> = named.programs.iter().map(String::as_str).collect();
    out.wrapped(
        format_args!("{letter}: {} ({})", named.name, programs.join(", ")),
        3,
    );
}

fn line<What>(name: &str, change: &Change<What>, remark: &str, out: &mut Lines) {
    let (before, after) = (change.before, change.after);
    let line = format!(
        "  {name:<24}{:>12}{:>12}{:>13}{:>10}{remark}",
        bytes(before),
        bytes(after),
        signed(before, after),
        share(before, after),
    );
    out.exact(line.trim_end());
}

/// A list of what changed, if anything did.
fn list<What>(
    name: &str,
    changes: &[Change<What>],
    out: &mut Lines,
    told: impl Fn(&What) -> String,
) {
    if changes.is_empty() {
        return;
    }
    out.exact(name);
    for change in changes.iter().take(MOST) {
        line(&told(&change.what), change, "", out);
    }
    more(changes.len(), out);
}

fn by_stack<What>(changes: &[Change<What>], out: &mut Lines, told: impl Fn(&What) -> &str) {
    if changes.is_empty() {
        return;
    }
    out.exact("by call stack, when the most was live");
    for change in changes.iter().take(MOST) {
        let (before, after) = (change.before, change.after);
        let from = match before {
            0 => "new".to_owned(),
            _ => format!("from {}", bytes(before)),
        };
        let name = format!("{:>12} {:>16}  ", signed(before, after), from);
        out.fact(&name, told(&change.what));
    }
    more(changes.len(), out);
}

fn more(all: usize, out: &mut Lines) {
    match all.saturating_sub(MOST) {
        0 => {}
        rest => out.exact(format_args!("  {rest} more changed less")),
    }
}

/// By how much, with a sign.
fn signed(before: u64, after: u64) -> String {
    let sign = match before.cmp(&after) {
        std::cmp::Ordering::Less => "+",
        std::cmp::Ordering::Equal => "",
        std::cmp::Ordering::Greater => "-",
    };
    format!("{sign}{}", bytes(before.abs_diff(after)))
}

#[allow(clippy::cast_precision_loss, reason = "shown with one digit")]
fn share(before: u64, after: u64) -> String {
    if before == 0 || before == after {
        return String::new();
    }
    let share = after as f64 / before as f64 - 1.0;
    let sign = if share > 0.0 { "+" } else { "" };
    format!("{sign}{}", percent(share))
}
