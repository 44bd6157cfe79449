//! Tables: what columns they have, and how large each is.

use super::{Buffer, Random};

/// The most that a table takes, and its most rows. So an operation has room in any case:
/// it holds three tables, and temporaries of 48 bytes a row.
const TABLE: u64 = 3 << 30;
const ROWS: u64 = 1 << 27;

/// What is in the rows of a column.
#[derive(Copy, Clone)]
pub(super) enum Cells {
    /// Values of so many bytes.
    Plain(u64),
    /// Texts, whose characters take so many bytes in 16 rows.
    Text(u64),
}

/// A column without its memory.
#[derive(Copy, Clone)]
pub(super) struct Shape {
    pub(super) cells: Cells,
    /// Values can be missing.
    pub(super) has_gaps: bool,
}

impl Shape {
    pub(super) fn drawn(random: &mut Random) -> Shape {
        let cells = match random.below(20) {
            0..=7 => Cells::Plain(8),
            8..=13 => Cells::Plain(4),
            14 => Cells::Plain(2),
            15..=16 => Cells::Plain(1),
            _ => Cells::Text(random.magnitude((5, 10))),
        };
        let has_gaps = random.is_one_of(2, 5);
        Shape { cells, has_gaps }
    }

    /// The most that 16 rows take.
    pub(super) fn of_16_rows(self) -> u64 {
        let values = match self.cells {
            Cells::Plain(width) => 16 * width,
            // Some rows have longer texts than others; see `buffers`.
            Cells::Text(bytes) => 64 + bytes * 5 / 4,
        };
        values + 2
    }

    /// The sizes of the buffers of so many rows. Which rows they are decides how long
    /// their texts are.
    pub(super) fn buffers(self, rows: u64, random: &mut Random) -> Vec<u64> {
        let mut sizes = match self.cells {
            Cells::Plain(width) => vec![rows * width],
            Cells::Text(bytes) => {
                let characters = rows * bytes / 16 * random.between(768, 1280) / 1024;
                vec![4 * (rows + 1), characters.max(1)]
            }
        };
        if self.has_gaps {
            sizes.push(rows.div_ceil(8).next_multiple_of(64));
        }
        sizes
    }
}

pub(super) struct Column {
    pub(super) shape: Shape,
    pub(super) buffers: Vec<Buffer>,
}

pub(super) struct Table {
    pub(super) rows: u64,
    pub(super) columns: Vec<Column>,
}

impl Table {
    pub(super) fn shapes(&self) -> Vec<Shape> {
        self.columns.iter().map(|column| column.shape).collect()
    }
}

/// So many rows of these columns fit into a table.
pub(super) fn bounded(rows: u64, shapes: &[Shape]) -> u64 {
    let of_16_rows: u64 = shapes.iter().map(|shape| shape.of_16_rows()).sum();
    rows.clamp(1, ROWS.min(TABLE / of_16_rows * 16))
}
