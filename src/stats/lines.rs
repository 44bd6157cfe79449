//! JSON text that is written while it is made, entry by entry.
//!
//! At the end of a process there may be little memory, and JSON values would take
//! a kilobyte for each line, a text in memory a hundred bytes.

use std::fmt::Arguments;
use std::io::{self, Write};

use super::StackId;

/// A JSON text that is being written.
pub(super) struct Lines<'a> {
    out: &'a mut dyn Write,
}

impl<'a> Lines<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Lines<'a> {
        Lines { out }
    }

    pub(super) fn put(&mut self, words: Arguments<'_>) -> io::Result<()> {
        self.out.write_fmt(words)
    }

    /// A list, each entry on lines of its own, indented by two more than
    /// `indent`.
    pub(super) fn list<T>(
        &mut self,
        indent: usize,
        entries: &[T],
        mut write: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.put(format_args!("["))?;
        for (at, entry) in entries.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            self.put(format_args!("{comma}\n{:1$}", "", indent + 2))?;
            write(self, entry)?;
        }
        if !entries.is_empty() {
            self.put(format_args!("\n{:indent$}", ""))?;
        }
        self.put(format_args!("]"))
    }

    /// A text in quotes, or null.
    pub(super) fn quoted(&mut self, text: Option<&str>) -> io::Result<()> {
        let quoted = text.and_then(|text| serde_json::to_string(text).ok());
        self.put(format_args!("{}", quoted.as_deref().unwrap_or("null")))
    }

    pub(super) fn number(&mut self, number: Option<u64>) -> io::Result<()> {
        match number {
            Some(number) => self.put(format_args!("{number}")),
            None => self.put(format_args!("null")),
        }
    }

    /// The key of a call stack, if one was taken.
    pub(super) fn stack(&mut self, stack: StackId) -> io::Result<()> {
        match stack.number() {
            Some(number) => self.put(format_args!(", \"stack\": {number}")),
            None => Ok(()),
        }
    }
}
