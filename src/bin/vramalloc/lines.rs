//! Text that grows by lines, no wider than where it is shown.
//!
//! Invariant: no line does anything to a terminal but to colour itself, whatever
//! it was made from.

use std::fmt::{Display, Write};

use serde::Serialize;
use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use super::output::plain;
use super::screen::{self, HEADING, PROSE};

/// Where the text of a fact begins.
const FACT: usize = 18;

/// Stands between a number and its unit until the line is broken.
const GLUE: char = '\u{a0}';

/// What was added to a text, before it was broken into lines: for what is shown
/// otherwise than on a terminal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TextPart {
    Heading(String),
    /// A name and a text about it.
    Fact(String, String),
    /// A sentence of a list.
    Item(String),
    /// Words of other lines.
    Text(String),
    /// A line of a table, or one that is as it is.
    Row(String),
}

/// A text in the making.
pub(super) struct Lines {
    pub(super) text: String,
    /// What it is made of.
    pub(super) said: Vec<TextPart>,
    /// Of where it is shown.
    pub(super) width: usize,
}

impl Default for Lines {
    /// Text for standard output.
    fn default() -> Lines {
        Lines::wide(screen::width())
    }
}

impl Lines {
    /// Text of at most this width.
    pub(super) fn wide(width: usize) -> Lines {
        Lines {
            text: String::new(),
            said: Vec::new(),
            width,
        }
    }

    /// Adds a line as it is.
    pub(super) fn exact(&mut self, line: impl Display) {
        let line = plain(&line.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
        self.said.push(TextPart::Row(line));
    }

    /// Adds the title of a part.
    pub(super) fn heading(&mut self, line: impl Display) {
        let line = line.to_string();
        self.said.push(TextPart::Heading(plain(&line)));
        let mut rows = Lines::wide(self.width);
        rows.wrapped(line, 2);
        for row in rows.text.lines() {
            let _ = writeln!(self.text, "{HEADING}{row}{HEADING:#}");
        }
    }

    /// Adds a line, broken between words if it is too long; its continuation is
    /// indented by `indent` more.
    pub(super) fn wrapped(&mut self, line: impl Display, indent: usize) {
        let line = line.to_string();
        let start = line.len() - line.trim_start_matches(' ').len();
        self.after(&" ".repeat(start), start + indent, &line);
    }

    /// Adds a sentence of a list.
    pub(super) fn item(&mut self, text: impl Display) {
        let text = text.to_string();
        self.said.push(TextPart::Item(plain(&text)));
        self.broken("  - ", 4, &text);
    }

    /// Adds a name and a text about it.
    pub(super) fn fact(&mut self, name: &str, fact: impl Display) {
        let fact = fact.to_string();
        let (name, said) = (plain(name), plain(&fact));
        self.said.push(TextPart::Fact(name.trim().to_owned(), said));
        let name = format!("  {name:<width$}", width = FACT - 2);
        let width = display_width(&name);
        // Further lines stand below the text where that leaves half of the room.
        let is_roomy = width * 2 <= self.width;
        let indent = if is_roomy { width } else { FACT };
        self.broken(&name, indent, &fact);
    }

    /// Adds a text after a beginning that may be coloured, and its further lines
    /// indented.
    pub(super) fn after(&mut self, beginning: &str, indent: usize, text: &str) {
        self.said.push(TextPart::Text(plain(text.trim())));
        self.broken(beginning, indent, text);
    }

    fn broken(&mut self, beginning: &str, indent: usize, text: &str) {
        let further = " ".repeat(indent);
        let options = Options::new(self.width.min(PROSE))
            .initial_indent(beginning)
            .subsequent_indent(&further)
            .break_words(false)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation)
            .wrap_algorithm(WrapAlgorithm::FirstFit);
        let room = (options.width).saturating_sub(indent.max(display_width(beginning)));
        for row in textwrap::wrap(&glued(&plain(text), room), options) {
            let _ = writeln!(self.text, "{}", row.trim_end().replace(GLUE, " "));
        }
    }
}

/// A text with one blank between words. One word are a number and its unit, and, where
/// it fits into a line, a place of a call stack: `train.py:41 forward <`.
fn glued(text: &str, room: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = "";
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let is_unit = word.len() <= 4 && before.ends_with(|c: char| c.is_ascii_digit());
        let is_place = is_line(before) && before.len() + word.len() + "  <".len() <= room;
        if !out.is_empty() {
            let is_end = word == "<" && before.len() + " <".len() <= room;
            let is_one = is_unit || is_place || is_end;
            out.push(if is_one { GLUE } else { ' ' });
        }
        out.push_str(word);
        before = word;
    }
    out
}

/// Whether a word is a file and a line in it.
fn is_line(word: &str) -> bool {
    let parts = word.rsplit_once(':');
    parts.is_some_and(|(file, line)| file.contains('.') && line.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_with_its_unit() {
        for before in 0..8 {
            let mut lines = Lines::wide(80);
            lines.item(format!("{}12.5 % and 1.5 GiB", "x ".repeat(28 + before)));
            let text = lines.text.trim_end();
            assert!(
                text.contains("12.5 %") && text.contains("1.5 GiB"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_line_of_a_file_stays_with_its_function_where_both_fit() {
        let places = "train.py:41 forward < ".repeat(8);
        let broken = |width: usize| {
            let mut lines = Lines::wide(width);
            lines.fact("held most", &places);
            lines.after(&" ".repeat(24), 4, &places);
            let rows = lines.text.lines().map(|row| row.trim_end().to_owned());
            let rows: Vec<String> = rows.collect();
            assert!(rows.iter().all(|row| row.len() <= width), "{rows:?}");
            assert!(!rows.iter().any(|row| row.trim() == "<"), "{rows:?}");
            rows.iter().any(|row| row.ends_with(":41"))
        };
        assert!((48..120).all(|width| !broken(width)));
        assert!(broken(40));
    }

    #[test]
    fn every_line_is_plain() {
        let mut lines = Lines::wide(80);
        lines.exact("a\nb");
        lines.item("\u{1b}[31m c\td");
        lines.fact("name", "\n\r e");
        lines.exact("\u{202e}txt\u{2066}\u{200b}\u{200f}\u{2028}\u{feff}.é");
        let rows: Vec<&str> = lines.text.lines().collect();
        let name = format!("  {:<16}\u{fffd}\u{fffd} e", "name");
        let unseen = "\u{fffd}txt\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}.é";
        let item = "  - \u{fffd}[31m c\u{fffd}d";
        assert_eq!(rows, ["a\u{fffd}b", item, &name, unseen]);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        for width in [60, 80, 100, 200] {
            let mut lines = Lines::wide(width);
            lines.item("word ".repeat(30));
            lines.fact("a name", "fact ".repeat(40));
            lines.item("x".repeat(210));
            let rows: Vec<&str> = lines.text.lines().collect();
            assert!(rows[0].starts_with("  - word word"));
            assert_eq!(rows[1].find("word"), Some(4));
            let fact = rows.iter().position(|row| row.starts_with("  a name    "));
            let fact = fact.unwrap();
            assert_eq!(rows[fact].find("fact"), Some(18));
            assert_eq!(rows[fact + 1].find("fact"), Some(18));
            let last = rows.len() - 1;
            let widest = rows[..last].iter().map(|row| row.len()).max();
            assert!(widest <= Some(width.min(PROSE)), "{width}: {widest:?}");
            assert!(widest > Some(width.min(PROSE) - 6), "{width}: {widest:?}");
            assert_eq!(rows[last], format!("  - {}", "x".repeat(210)));
        }
    }
}
