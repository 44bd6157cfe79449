//! Text that grows by lines of at most 80 columns.
//!
//! Invariant: no line does anything to a terminal, whatever it was made from.

use std::fmt::{Display, Write};

use super::output::plain;

/// The width of all text that has no form of its own.
pub(super) const WIDTH: usize = 80;

/// A text in the making.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) text: String,
}

impl Lines {
    /// Adds a line as it is.
    pub(super) fn exact(&mut self, line: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{}", plain(&line.to_string()));
    }

    /// Adds a line, broken between words if it is too long; its continuation is
    /// indented by `indent` more.
    pub(super) fn wrapped(&mut self, line: impl Display, indent: usize) {
        let line = line.to_string();
        let start = line.len() - line.trim_start_matches(' ').len();
        let mut at = start;
        let mut out = " ".repeat(start);
        let mut first = true;
        for word in words(&line) {
            let width = word.chars().count();
            if !first && at + 1 + width > WIDTH {
                self.exact(&out);
                at = start + indent;
                out = " ".repeat(at);
                first = true;
            }
            if !first {
                out.push(' ');
                at += 1;
            }
            out.push_str(&word);
            at += width;
            first = false;
        }
        self.exact(out);
    }

    /// Adds a sentence of a list.
    pub(super) fn item(&mut self, text: impl Display) {
        self.wrapped(format_args!("  - {text}"), 2);
    }

    /// Adds a name and a text about it.
    pub(super) fn fact(&mut self, name: &str, fact: impl Display) {
        self.wrapped_fact(&format!("  {name:<16}"), &fact.to_string());
    }

    /// Keeps the blanks of the name, which align a column.
    fn wrapped_fact(&mut self, name: &str, fact: &str) {
        let mut rest = Lines::default();
        let width = name.chars().count();
        rest.wrapped(format_args!("{}{fact}", " ".repeat(width)), 0);
        let rest = rest.text.get(width..).unwrap_or_default().to_owned();
        let _ = write!(self.text, "{name}{rest}");
    }
}

/// The words of a line; a number and its unit are one word.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        match words.last_mut() {
            Some(number) if number.ends_with(|c: char| c.is_ascii_digit()) && word.len() <= 4 => {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_with_its_unit() {
        for before in 0..8 {
            let mut lines = Lines::default();
            lines.item(format!("{}12.5 % and 1.5 GiB", "x ".repeat(28 + before)));
            let text = lines.text.trim_end();
            assert!(
                text.contains("12.5 %") && text.contains("1.5 GiB"),
                "{text}"
            );
        }
    }

    #[test]
    fn every_line_is_plain() {
        let mut lines = Lines::default();
        lines.exact("a\nb");
        lines.item("\u{1b}[31m c\td");
        lines.fact("name", "\n\r e");
        let rows: Vec<&str> = lines.text.lines().collect();
        let name = format!("  {:<16}\u{fffd}\u{fffd} e", "name");
        assert_eq!(rows, ["a\u{fffd}b", "  - \u{fffd}[31m c\u{fffd}d", &name]);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let mut lines = Lines::default();
        lines.item("word ".repeat(30));
        lines.fact("a name", "fact ".repeat(20));
        lines.item("x".repeat(100));
        assert!(lines.text.starts_with("  - word word"));
        let rows: Vec<&str> = lines.text.lines().collect();
        assert_eq!(rows[1].find("word"), Some(4));
        assert_eq!(rows[2].find("fact"), Some(18));
        assert_eq!(rows[3].find("fact"), Some(18));
        assert!(rows[2].starts_with("  a name    "));
        assert!(rows[..4].iter().all(|row| row.chars().count() <= WIDTH));
        assert_eq!(rows.last().map(|row| row.trim()), Some(&*"x".repeat(100)));
    }
}
