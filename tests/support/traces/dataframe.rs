//! A trace of work on dataframes, made from a seed: what a query engine on a GPU
//! takes and gives back, with sizes that hardly ever repeat.
//!
//! What it models, after libraries for tables of columns:
//!
//! * A *table* has some columns, and a column up to three buffers: its values (1 to
//!   8 bytes a row, or offsets and characters) and a bit per row for what is missing.
//!   So blocks of one table have the same lifetime but very different sizes.
//! * Tables are read (compressed bytes first), filtered, joined, grouped, sorted and
//!   cut into parts; columns are added and dropped. How many rows come out depends on
//!   the data. Each of these takes temporaries that it gives back at its end: masks,
//!   maps of rows, hash tables, buffers to sort in.
//! * Tables live for as long as somebody wants them: some until the next operation,
//!   others for hundreds. What does not fit any more is *spilled*: tables are given
//!   back, whichever nobody works on, until it does. So memory stays nearly full.
//!
//! The numbers of rows, the lengths of texts and the shares of rows are drawn such that
//! each order of magnitude is about as likely as the next, as they are over the tables
//! of a warehouse: most blocks are small, and most bytes are in a few large ones. That
//! is what makes it hard: a freed block fits no later request, and what is left beside
//! the one that is put there is of use to nobody for long.
//!
//! Only integers are computed with, so a seed gives the same trace on every machine.

mod table;

use std::mem;

use super::Event;
use table::{Cells, Column, Shape, Table, bounded};
use vramalloc_core::address::Bytes;

/// The most that is live, each buffer rounded up to `SLOT`.
const MEMORY: u64 = 25 << 30;
const SLOT: u64 = 512;

/// A result with fewer rows is small.
const FEW: u64 = 4096;

/// How many operations there are.
const OPERATIONS: u64 = 1800;

/// Rows of what is read: from 2 to the power of the first on, below the second.
const SMALL_ROWS: (u32, u32) = (10, 20);
const LARGE_ROWS: (u32, u32) = (22, 27);

/// All events for a seed.
pub(super) fn events(seed: u64) -> Vec<Event> {
    let mut engine = Engine::new(seed);
    (0..OPERATIONS).for_each(|_| engine.operation());
    engine.memory.events
}

/// A seeded generator (splitmix64).
struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// From `least` to `most`.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn is_one_of(&mut self, chances: u64, of: u64) -> bool {
        self.below(of) < chances
    }

    /// A number below `2^high`, at least `2^low`: each doubling is as likely as the next.
    fn magnitude(&mut self, (low, high): (u32, u32)) -> u64 {
        let doubling = 1 << self.between(low.into(), u64::from(high) - 1);
        doubling + self.below(doubling)
    }

    /// A share of `rows`: of small shares each halving is as likely as the next.
    fn share(&mut self, rows: u64) -> u64 {
        (rows >> self.below(10)) * self.between(512, 1024) / 1024
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }
}

/// What is live, and the trace so far.
#[derive(Default)]
struct Memory {
    events: Vec<Event>,
    /// By the number of the buffer.
    sizes: Vec<u64>,
    live: u64,
}

/// The number of an allocation.
type Buffer = usize;

fn slots(size: u64) -> u64 {
    size.next_multiple_of(SLOT)
}

impl Memory {
    fn has_room_for(&self, size: u64) -> bool {
        self.live + slots(size) <= MEMORY
    }

    fn take(&mut self, size: u64) -> Buffer {
        let buffer = self.sizes.len();
        self.sizes.push(size);
        self.live += slots(size);
        (self.events).push((buffer as u64, Some(Bytes::new(size))));
        buffer
    }

    fn give(&mut self, buffer: Buffer) {
        self.live -= slots(self.sizes[buffer]);
        self.events.push((buffer as u64, None));
    }
}

/// Does one operation after the other, on the tables that are there.
struct Engine {
    random: Random,
    memory: Memory,
    /// Those that nobody works on.
    tables: Vec<Table>,
}

impl Engine {
    fn new(seed: u64) -> Engine {
        Engine {
            random: Random(seed),
            memory: Memory::default(),
            tables: Vec::new(),
        }
    }

    fn operation(&mut self) {
        match self.random.below(100) {
            0..=19 => self.read(),
            20..=37 => self.filter(),
            38..=57 => self.join(),
            58..=69 => self.group(),
            70..=78 => self.sort(),
            79..=85 => self.cut(),
            _ => self.compute(),
        }
    }

    /// Takes memory, and spills tables for it.
    fn take(&mut self, size: u64) -> Buffer {
        while !self.memory.has_room_for(size) {
            let spilled = self.random.index(self.tables.len());
            let spilled = self.tables.swap_remove(spilled);
            self.drop_table(spilled);
        }
        self.memory.take(size)
    }

    fn drop_column(&mut self, column: Column) {
        (column.buffers.into_iter()).for_each(|buffer| self.memory.give(buffer));
    }

    fn drop_table(&mut self, table: Table) {
        (table.columns.into_iter()).for_each(|column| self.drop_column(column));
    }

    /// Some small buffers: what kernels are told, sums by block, sizes of results.
    fn notes(&mut self) -> Vec<Buffer> {
        let count = self.random.between(1, 4);
        let mut note = || {
            let size = self.random.magnitude((6, 18));
            self.take(size)
        };
        (0..count).map(|_| note()).collect()
    }

    fn give_all(&mut self, buffers: Vec<Buffer>) {
        (buffers.into_iter()).for_each(|buffer| self.memory.give(buffer));
    }

    fn column(&mut self, shape: Shape, rows: u64) -> Column {
        let sizes = shape.buffers(rows, &mut self.random);
        let buffers = sizes.into_iter().map(|size| self.take(size)).collect();
        Column { shape, buffers }
    }

    /// A column of the same rows in another order.
    fn reordered(&mut self, column: &Column) -> Column {
        let take = |&buffer: &Buffer| self.take(self.memory.sizes[buffer]);
        Column {
            buffers: column.buffers.iter().map(take).collect(),
            ..*column
        }
    }

    fn table(&mut self, shapes: &[Shape], rows: u64) -> Table {
        let columns = shapes.iter().map(|&shape| self.column(shape, rows));
        Table {
            columns: columns.collect(),
            rows,
        }
    }

    /// A table to work on. Where there is none, it is read first.
    fn pick(&mut self) -> Table {
        if self.tables.is_empty() {
            self.read();
        }
        let picked = self.random.index(self.tables.len());
        self.tables.swap_remove(picked)
    }

    /// Puts a result to the tables. Of small ones most are wanted on the host alone.
    fn put(&mut self, table: Table) {
        if table.rows >= FEW || self.random.is_one_of(1, 4) {
            self.tables.push(table);
        } else {
            self.drop_table(table);
        }
    }

    /// Ends the work on a table, which is wanted afterwards with these chances.
    fn leave(&mut self, table: Table, chances: u64, of: u64) {
        if self.random.is_one_of(chances, of) {
            self.tables.push(table);
        } else {
            self.drop_table(table);
        }
    }

    /// Reads a table: all of its compressed bytes, then column by column.
    fn read(&mut self) {
        let is_large = self.random.is_one_of(3, 4);
        let magnitude = if is_large { LARGE_ROWS } else { SMALL_ROWS };
        let rows = self.random.magnitude(magnitude);
        let count = self.random.between(2, 10);
        let shapes: Vec<Shape> = (0..count).map(|_| Shape::drawn(&mut self.random)).collect();
        let rows = bounded(rows, &shapes);
        let mut packed = |shape: &Shape| {
            let size = rows.div_ceil(16) * shape.of_16_rows();
            let size = size * self.random.between(100, 700) / 1024;
            self.take(size.max(64))
        };
        let packed: Vec<Buffer> = shapes.iter().map(&mut packed).collect();
        let notes = self.notes();
        let table = self.table(&shapes, rows);
        self.give_all(packed);
        self.give_all(notes);
        self.tables.push(table);
    }

    /// Keeps some rows: a byte for each says which, and a map where they were.
    fn filter(&mut self) {
        let table = self.pick();
        let mask = self.take(table.rows);
        let notes = self.notes();
        let rows = self.random.share(table.rows).max(1);
        let map = self.take(4 * rows);
        self.memory.give(mask);
        let kept = self.table(&table.shapes(), rows);
        self.memory.give(map);
        self.give_all(notes);
        self.put(kept);
        self.leave(table, 2, 5);
    }

    /// Finds the rows of two tables that belong together. How many there are is known
    /// only when they were found, and so the maps grow: they are taken for a guess, and
    /// then once more.
    fn join(&mut self) {
        let (one, other) = (self.pick(), self.pick());
        let (built, probed) = if one.rows < other.rows {
            (one, other)
        } else {
            (other, one)
        };
        let hash = self.take(16 * 2 * built.rows);
        let notes = self.notes();
        let guess = [0; 2].map(|_| self.take(4 * probed.rows));
        let mut shapes = probed.shapes();
        shapes.extend(&built.shapes()[1..]);
        let rows = self.random.share(4 * probed.rows);
        let rows = bounded(rows, &shapes);
        let maps = [0; 2].map(|_| self.take(4 * rows));
        self.give_all(guess.to_vec());
        self.memory.give(hash);
        let joined = self.table(&shapes, rows);
        self.give_all(maps.to_vec());
        self.give_all(notes);
        self.leave(built, 3, 5);
        self.leave(probed, 2, 5);
        // Rarely all columns are wanted.
        let joined = self.without_some(joined);
        self.put(joined);
    }

    fn without_some(&mut self, mut table: Table) -> Table {
        for column in mem::take(&mut table.columns) {
            if table.columns.is_empty() || self.random.is_one_of(1, 2) {
                table.columns.push(column);
            } else {
                self.drop_column(column);
            }
        }
        table
    }

    /// Sums by groups: into a sparse table first, then into as many rows as there are
    /// groups.
    fn group(&mut self) {
        let table = self.pick();
        let hash = self.take(16 * 2 * table.rows);
        let sums = self.random.between(1, 5);
        let sums = vec![
            Shape {
                cells: Cells::Plain(8),
                has_gaps: true,
            };
            usize::try_from(sums).unwrap()
        ];
        let sparse = self.table(&sums, bounded(table.rows, &sums));
        let notes = self.notes();
        let most = table.rows >> self.random.below(8);
        let rows = self.random.share(most).max(1);
        let mut shapes = vec![table.columns[0].shape];
        shapes.extend(&sums);
        let grouped = self.table(&shapes, rows);
        self.drop_table(sparse);
        self.memory.give(hash);
        self.give_all(notes);
        self.put(grouped);
        self.leave(table, 1, 2);
    }

    /// Puts rows in order: the keys are sorted between two buffers, then column after
    /// column follows, the old one going as soon as the new one is there.
    fn sort(&mut self) {
        let mut table = self.pick();
        let keys = [0; 2].map(|_| self.take(8 * table.rows));
        let map = self.take(4 * table.rows);
        let notes = self.notes();
        self.give_all(keys.to_vec());
        for column in mem::take(&mut table.columns) {
            let sorted = self.reordered(&column);
            self.drop_column(column);
            table.columns.push(sorted);
        }
        self.memory.give(map);
        self.give_all(notes);
        self.tables.push(table);
    }

    /// Cuts a table into parts by the hash of a key, which are very unequal, and gives
    /// some of them to others.
    fn cut(&mut self) {
        let table = self.pick();
        let notes = self.notes();
        let map = self.take(4 * table.rows);
        let shapes = table.shapes();
        let mut left = table.rows;
        for _ in 0..self.random.between(2, 12) {
            let rows = self.random.between(1, 1 + left / 3);
            left = left.saturating_sub(rows);
            let part = self.table(&shapes, rows);
            self.leave(part, 3, 4);
        }
        self.memory.give(map);
        self.drop_table(table);
        self.give_all(notes);
    }

    /// Computes columns out of others, step by step, and drops some that are not wanted
    /// any more.
    fn compute(&mut self) {
        let mut table = self.pick();
        for _ in 0..self.random.between(1, 3) {
            let steps: Vec<Buffer> = (0..self.random.between(0, 2))
                .map(|_| self.take(8 * table.rows))
                .collect();
            let shape = Shape::drawn(&mut self.random);
            let shapes: Vec<Shape> = table.shapes().into_iter().chain([shape]).collect();
            if bounded(table.rows, &shapes) == table.rows {
                let column = self.column(shape, table.rows);
                table.columns.push(column);
            }
            self.give_all(steps);
            if table.columns.len() > 1 && self.random.is_one_of(2, 3) {
                let dropped = self.random.index(table.columns.len());
                let dropped = table.columns.swap_remove(dropped);
                self.drop_column(dropped);
            }
        }
        self.tables.push(table);
    }
}
