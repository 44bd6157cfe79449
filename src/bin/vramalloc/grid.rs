//! Tables, as wide as what they hold and no wider than where they are shown.
//!
//! Where there is too little room, texts are broken inside their cells, numbers and
//! names never; then columns are left out in the order that the table says, and a
//! line below names them.

use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets,
};
use textwrap::core::display_width;

use super::lines::Lines;
use super::output::plain;

/// The blanks between two columns.
const GAP: usize = 2;

/// Texts are broken to no less than this where their column says nothing else.
const BROKEN: usize = 12;

/// A column of a table.
#[derive(Copy, Clone)]
pub(super) struct Column {
    pub(super) head: &'static str,
    pub(super) holds: Holds,
    /// Columns with the highest number are left out first; 0: never.
    pub(super) spare: u8,
    /// Texts are broken to no less than this.
    least: usize,
}

/// What stands in a column.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Holds {
    /// To the left, and may be broken.
    Text,
    /// To the left.
    Name,
    /// To the right.
    Number,
}

impl Column {
    /// A column of texts that is always shown.
    pub(super) const fn text(head: &'static str) -> Column {
        let holds = Holds::Text;
        Column {
            head,
            holds,
            spare: 0,
            least: BROKEN,
        }
    }

    /// A column of names that is always shown.
    pub(super) const fn name(head: &'static str) -> Column {
        let holds = Holds::Name;
        Column {
            head,
            holds,
            spare: 0,
            least: BROKEN,
        }
    }

    /// A column of numbers that is always shown.
    pub(super) const fn number(head: &'static str) -> Column {
        let holds = Holds::Number;
        Column {
            head,
            holds,
            spare: 0,
            least: BROKEN,
        }
    }

    /// The same, left out before those with a lower number.
    pub(super) const fn spare(self, spare: u8) -> Column {
        Column { spare, ..self }
    }

    /// The same column, whose texts are not broken to fewer characters than this.
    pub(super) const fn least(self, least: usize) -> Column {
        Column { least, ..self }
    }
}

/// A table in the making.
pub(super) struct Grid<'a> {
    columns: &'a [Column],
    rows: Vec<Row>,
}

enum Row {
    /// A cell for each column.
    Cells(Vec<String>),
    /// The title of the rows below it.
    Title(&'static str),
}

/// Stands for a title while the table is laid out; no cell has it.
const TITLE: &str = "\u{1}";

impl<'a> Grid<'a> {
    pub(super) fn new(columns: &'a [Column]) -> Grid<'a> {
        let rows = Vec::new();
        Grid { columns, rows }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| plain(&cell));
        self.rows.push(Row::Cells(cells.collect()));
    }

    /// Adds the title of a part, whose columns are as wide as those of the others.
    pub(super) fn title(&mut self, title: &'static str) {
        self.rows.push(Row::Title(title));
    }

    /// The columns that a column needs to be shown whole.
    fn need(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| match row {
            Row::Cells(cells) => cells.get(column),
            Row::Title(_) => None,
        });
        let head = self.columns.get(column).map(|column| column.head);
        let widths = cells.map(|cell| display_width(cell));
        widths.chain(head.map(display_width)).max().unwrap_or(0)
    }

    /// The columns for which there is room, if texts are broken where all do not
    /// fit.
    fn shown(&self, width: usize) -> Vec<(usize, Column)> {
        let mut shown: Vec<_> = self.columns.iter().copied().enumerate().collect();
        let needed = |shown: &[(usize, Column)], is_broken: bool| {
            let needs = shown.iter().map(|&(at, column)| match column.holds {
                Holds::Text if is_broken => self.need(at).min(column.least),
                Holds::Text => self.need(at),
                Holds::Name | Holds::Number => self.need(at),
            });
            needs.sum::<usize>() + GAP * shown.len().saturating_sub(1)
        };
        if needed(&shown, false) <= width {
            return shown;
        }
        loop {
            let spare = shown.iter().enumerate();
            let spare = spare.max_by_key(|(_, (_, column))| column.spare);
            match spare {
                Some((at, (_, column))) if column.spare > 0 && needed(&shown, true) > width => {
                    shown.remove(at);
                }
                _ => return shown,
            }
        }
    }

    /// Adds the table to a text, indented, and what is left out of it.
    pub(super) fn write(&self, indent: usize, out: &mut Lines) {
        self.write_quietly(indent, out);
        let shown = self.shown(out.width.saturating_sub(indent));
        let gone = self.columns.iter().enumerate();
        let gone = gone.filter(|(at, _)| !shown.iter().any(|(shown, _)| shown == at));
        let gone: Vec<&str> = gone.map(|(_, column)| column.head).collect();
        if !gone.is_empty() {
            let gone = gone.join(", ");
            let blanks = " ".repeat(indent);
            let text = format!("(not shown for want of room: {gone})");
            out.after(&blanks, indent, &text);
        }
    }

    /// Adds the table to a text, indented.
    pub(super) fn write_quietly(&self, indent: usize, out: &mut Lines) {
        if self.rows.is_empty() {
            return;
        }
        let width = out.width.saturating_sub(indent);
        let shown = self.shown(width);
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width).unwrap_or(u16::MAX));
        let of = |cells: &dyn Fn(usize) -> String| {
            let cells = shown.iter().map(|&(at, column)| {
                Cell::new(cells(at)).set_alignment(match column.holds {
                    Holds::Text | Holds::Name => CellAlignment::Left,
                    Holds::Number => CellAlignment::Right,
                })
            });
            cells.collect::<Vec<_>>()
        };
        if shown.iter().any(|(_, column)| !column.head.is_empty()) {
            let head = |at: usize| self.columns.get(at).map_or("", |column| column.head);
            table.add_row(of(&|at| head(at).to_owned()));
        }
        for row in &self.rows {
            match row {
                Row::Cells(cells) => {
                    table.add_row(of(&|at| cells.get(at).cloned().unwrap_or_default()))
                }
                Row::Title(_) => table.add_row([TITLE]),
            };
        }
        for (place, &(at, kind)) in shown.iter().enumerate() {
            let gap = if place + 1 < shown.len() { GAP } else { 0 };
            if let Some(column) = table.column_mut(place) {
                column.set_padding((0, u16::try_from(gap).unwrap_or(0)));
                if kind.holds != Holds::Text {
                    let need = u16::try_from(self.need(at) + gap).unwrap_or(u16::MAX);
                    column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(need)));
                }
            }
        }
        let mut titles = self.rows.iter().filter_map(|row| match row {
            Row::Title(title) => Some(title),
            Row::Cells(_) => None,
        });
        for line in table.lines() {
            if line.trim() == TITLE {
                titles.next().iter().for_each(|title| out.heading(title));
            } else {
                out.exact(format!("{:indent$}{line}", "").trim_end());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("NAME"),
        Column::number("SIZE"),
        Column::number("MORE").spare(1),
        Column::number("MOST").spare(2),
    ];

    fn drawn(width: usize) -> String {
        let mut grid = Grid::new(&COLUMNS);
        grid.row(["a b".repeat(6), "10 B".into(), "5 B".into(), "7 B".into()]);
        grid.row(["c", "100.0 GiB", "5 B", ""].map(str::to_owned));
        let mut out = Lines::wide(width);
        grid.write(2, &mut out);
        let widest = out.text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(width), "{}", out.text);
        out.text
    }

    #[test]
    fn texts_are_broken_and_columns_go_where_there_is_no_room() {
        let all = "  NAME                     SIZE  MORE  MOST\n  \
                     a ba ba ba ba ba b       10 B   5 B   7 B\n  \
                     c                   100.0 GiB   5 B\n";
        assert_eq!(drawn(43), all);
        let broken = drawn(40);
        assert!(broken.contains("SIZE  MORE  MOST\n"), "{broken}");
        assert!(broken.contains("\n  ba b\n"), "{broken}");
        let most = drawn(36);
        assert!(most.contains("SIZE  MORE\n"), "{most}");
        assert!(
            most.ends_with("(not shown for want of room: MOST)\n"),
            "{most}"
        );
        let few = drawn(28);
        assert!(
            few.contains("100.0 GiB\n") && !few.contains("MORE\n"),
            "{few}"
        );
        assert!(few.ends_with("of\n  room: MORE, MOST)\n"), "{few}");
    }
}
