//! Differences in words.

use super::super::grid::{Column, Grid};
use super::super::lines::Lines;
use super::super::units::{bytes, count, percent};
use super::changes::{Change, Changes, OwnerOf, SideName, SizeOf};

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
    if changes.peaks.is_empty() {
        out.exact("no device memory on either side");
    }
    table(changes).write_quietly(2, &mut out);
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
    let mut remark = |is_so: bool, text: String| {
        if is_so {
            out.wrapped(format_args!("   {text}"), 3);
        }
    };
    let (failed, unfinished) = (named.out_of_memory, named.unfinished);
    let requests = count(failed, "request");
    remark(failed > 0, format!("{requests} failed for want of memory."));
    remark(
        unfinished > 0,
        match unfinished {
            1 => "1 file is from before the end of its process: what came later is missing."
                .to_owned(),
            n => format!(
                "{n} files are from before the end of their processes: what came later is \
                 missing."
            ),
        },
    );
    remark(
        named.beside > 0,
        "Some files are of one rank: its peaks are the sums of theirs, also if these \
         processes ran one after the other."
            .to_owned(),
    );
}

const TABLE: [Column; 6] = [
    Column::text("").least(22),
    Column::number("A"),
    Column::number("B"),
    Column::number("change"),
    Column::number("").spare(1),
    Column::name(""),
];

/// All but the call stacks.
fn table(changes: &Changes) -> Grid<'static> {
    let mut grid = Grid::new(&TABLE);
    if !changes.peaks.is_empty() {
        grid.title("peaks");
    }
    for peak in &changes.peaks {
        let rank = match &*peak.what.rank {
            "" => String::new(),
            rank => format!("rank {rank} "),
        };
        let name = format!("{rank}device {} {}", peak.what.device, peak.what.of);
        let over = if peak.what.is_over { "over" } else { "" };
        row(name, peak, over, &mut grid);
    }
    let owner = |one: &OwnerOf| one.owner.clone();
    list(
        "by owner, when the most was live",
        &changes.owners,
        &mut grid,
        owner,
    );
    let size = |one: &SizeOf| match one.up_to_bytes {
        Some(largest) => format!("up to {}", bytes(largest)),
        None => "larger".to_owned(),
    };
    list(
        "by size, when the most was live",
        &changes.sizes,
        &mut grid,
        size,
    );
    grid
}

fn row<What>(name: String, change: &Change<What>, remark: &str, grid: &mut Grid<'_>) {
    let (before, after) = (change.before, change.after);
    grid.row([
        name,
        bytes(before),
        bytes(after),
        signed(before, after),
        share(before, after),
        remark.to_owned(),
    ]);
}

/// A list of what changed, if anything did.
fn list<What>(
    title: &'static str,
    changes: &[Change<What>],
    grid: &mut Grid<'_>,
    told: impl Fn(&What) -> String,
) {
    if changes.is_empty() {
        return;
    }
    grid.title(title);
    for change in changes.iter().take(MOST) {
        row(told(&change.what), change, "", grid);
    }
    if let Some(more) = more(changes.len()) {
        grid.row([more]);
    }
}

fn by_stack<What>(changes: &[Change<What>], out: &mut Lines, told: impl Fn(&What) -> &str) {
    if changes.is_empty() {
        return;
    }
    out.heading("by call stack, when the most was live");
    for change in changes.iter().take(MOST) {
        let (before, after) = (change.before, change.after);
        let from = match before {
            0 => "new".to_owned(),
            _ => format!("from {}", bytes(before)),
        };
        let name = format!("{:>12} {:>16}  ", signed(before, after), from);
        out.fact(&name, told(&change.what));
    }
    if let Some(more) = more(changes.len()) {
        out.exact(format_args!("  {more}"));
    }
}

/// What is said of those that are not shown.
fn more(all: usize) -> Option<String> {
    let rest = all.checked_sub(MOST).filter(|&rest| rest > 0)?;
    Some(format!("{rest} more changed less"))
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
