//! The doctor's findings, one line each.
//!
//! Invariant: one finding is one line without control characters.

use std::fmt::Display;

use super::super::lines::Lines;

/// The findings, in the order in which they were made.
#[derive(Default)]
pub(crate) struct Findings {
    lines: Lines,
    problems: usize,
}

impl Findings {
    /// Adds something that is as it should be.
    pub(crate) fn ok(&mut self, subject: &str, text: impl Display) {
        self.line("ok", subject, text);
    }

    /// Adds something to know that prevents nothing.
    pub(crate) fn note(&mut self, subject: &str, text: impl Display) {
        self.line("note", subject, text);
    }

    /// Adds something that prevents the program from being served, and what to
    /// do about it.
    pub(crate) fn problem(&mut self, subject: &str, text: impl Display) {
        self.problems += 1;
        self.line("problem", subject, text);
    }

    /// Adds a problem, or a note if the program does not use CUDA.
    pub(crate) fn hindrance(&mut self, uses_cuda: bool, subject: &str, text: impl Display) {
        if uses_cuda {
            self.problem(subject, text);
        } else {
            self.note(subject, text);
        }
    }

    /// The number of problems, including those already shown.
    pub(crate) fn problems(&self) -> usize {
        self.problems
    }

    /// The lines since the last call.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.lines).text
    }

    fn line(&mut self, level: &str, subject: &str, text: impl Display) {
        let line = format_args!("{level:<9}{subject:<9}{text}");
        self.lines.exact(line);
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
