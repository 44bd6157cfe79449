//! PyTorch's `memory_summary()`, character by character.
//!
//! Every line has 77 columns: a bar, 75 columns, a bar. The unit of a column is
//! chosen by the first row of its group, so that the rows can be compared. Where
//! there is no room for that, the two columns of totals are left out.

use vramalloc_core::stats::Metric;

use super::super::lines::Lines;
use super::file::{Four, Memory};

/// Columns between the bars.
const WIDTH: usize = 75;

/// The same without the totals.
const NARROW: usize = 49;

/// The groups in their order, and whether they are sizes.
const GROUPS: [(Metric, &str, Unit); Metric::COUNT] = [
    (Metric::AllocatedBytes, "Allocated memory", SIZE),
    (Metric::ActiveBytes, "Active memory", SIZE),
    (Metric::RequestedBytes, "Requested memory", SIZE),
    (Metric::ReservedBytes, "GPU reserved memory", SIZE),
    (Metric::InactiveSplitBytes, "Non-releasable memory", SIZE),
    (Metric::Allocation, "Allocations", COUNT),
    (Metric::Active, "Active allocs", COUNT),
    (Metric::Segment, "GPU reserved segments", COUNT),
    (Metric::InactiveSplit, "Non-releasable allocs", COUNT),
];

/// How numbers of a group are written.
#[derive(Copy, Clone)]
struct Unit {
    /// From this value on the next unit is used.
    most: f64,
    step: u64,
    width: usize,
    names: &'static [&'static str],
}

const SIZE: Unit = Unit {
    most: 768.0 * 1024.0,
    step: 1024,
    width: 6,
    names: &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"],
};

const COUNT: Unit = Unit {
    most: 750_000.0,
    step: 1000,
    width: 7,
    names: &["  ", "K ", "M "],
};

impl Unit {
    /// `value` in the unit that fits `leading`. `PyTorch` divides in floating
    /// point, which rounds above 2^53.
    #[allow(clippy::cast_precision_loss, reason = "as in PyTorch")]
    fn written(self, mut value: u64, leading: u64) -> String {
        let mut leading = leading as f64;
        let mut names = self.names.iter();
        let mut name = names.next();
        for larger in names {
            if leading < self.most {
                break;
            }
            name = Some(larger);
            value /= self.step;
            leading /= self.step as f64;
        }
        let name = name.copied().unwrap_or_default();
        format!("{value:>width$} {name}", width = self.width)
    }

    fn row(self, name: &str, values: Four, leading: Four) -> String {
        let [current, peak, allocated, freed] = values;
        let [for_current, for_peak, for_allocated, for_freed] = leading;
        format!(
            " {name:<21} | {} | {} | {} | {} ",
            self.written(current, for_current),
            self.written(peak, for_peak),
            self.written(allocated, for_allocated),
            self.written(freed, for_freed),
        )
    }
}

pub(super) fn table(device: u64, memory: &Memory, out: &mut Lines) {
    let whole = out.width >= WIDTH + 2;
    let width = if whole { WIDTH } else { NARROW };
    // What does not fit its column makes the line wider, as in PyTorch's, where there
    // is room for the table.
    let most = if whole { usize::MAX } else { width };
    let mut line = |text: String| {
        let shown: String = text.chars().take(most).collect();
        out.exact(format_args!("|{shown:width$}|"));
    };
    let (double, single) = ("=".repeat(WIDTH), "-".repeat(WIDTH));
    let blanks = if whole { [16, 9, 6] } else { [3, 0, 0] };
    let [title, ooms, retries] = blanks.map(|blanks| " ".repeat(blanks));
    let wide = if whole { 12 } else { 6 };
    line(double.clone());
    line(format!(
        " {title} PyTorch CUDA memory summary, device ID {device:<17} "
    ));
    line(single.clone());
    line(format!(
        "  {ooms} CUDA OOMs: {:<wide$} | {retries} cudaMalloc retries: {:<8}  ",
        memory.number("num_ooms"),
        memory.number("num_alloc_retries")
    ));
    line(double.clone());
    line("        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ".to_owned());
    for (metric, name, unit) in GROUPS {
        line(single.clone());
        let [all, large, small] = memory.pools(metric);
        line(unit.row(name, all, all));
        line(unit.row("      from large pool", large, all));
        line(unit.row("      from small pool", small, all));
    }
    for (name, key) in [
        ("Oversize allocations", "oversize_allocations"),
        ("Oversize GPU segments", "oversize_segments"),
    ] {
        line(single.clone());
        let values = memory.four(key);
        line(COUNT.row(name, values, values));
    }
    line(double);
}
