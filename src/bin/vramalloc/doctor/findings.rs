//! What the doctor has found, a line each.
//!
//! Owns the text until it is shown. Invariant: one finding is one line, and
//! nothing in it does anything to a terminal.

use std::fmt::Display;

use super::super::output::plain;

/// Findings, in the order in which they were made.
#[derive(Default)]
pub(crate) struct Findings {
    text: String,
    problems: usize,
}

impl Findings {
    /// Something that is as it should be.
    pub(crate) fn ok(&mut self, subject: &str, text: impl Display) {
        self.line("ok", subject, text);
    }

    /// Something to know, which stands in nobody's way.
    pub(crate) fn note(&mut self, subject: &str, text: impl Display) {
        self.line("note", subject, text);
    }

    /// Something that stands in the way, and what to do about it.
    pub(crate) fn problem(&mut self, subject: &str, text: impl Display) {
        self.problems += 1;
        self.line("problem", subject, text);
    }

    /// What stands in the way only where the program uses CUDA.
    pub(crate) fn hindrance(&mut self, uses_cuda: bool, subject: &str, text: impl Display) {
        if uses_cuda {
            self.problem(subject, text);
        } else {
            self.note(subject, text);
        }
    }

    /// How many problems there were, those shown before counted.
    pub(crate) fn problems(&self) -> usize {
        self.problems
    }

    /// The lines since this was last asked.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn line(&mut self, level: &str, subject: &str, text: impl Display) {
        let line = format!("{level:<9}{subject:<9}{text}");
        self.text.push_str(&plain(&line));
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_plain_line() {
        let mut findings = Findings::default();
        findings.ok("driver", "a\nb\u{1b}[31m");
        findings.problem("preload", "c");
        let expected = "ok       driver   a\u{fffd}b\u{fffd}[31m\nproblem  preload  c\n";
        assert_eq!(findings.take(), expected);
        assert_eq!((findings.take(), findings.problems()), (String::new(), 1));
    }
}
