//! The doctor's findings.
//!
//! What is as it should be is counted, and told only where all is asked for.

use std::fmt::Display;

use anstyle::Style;

use super::super::gloss;
use super::super::lines::Lines;
use super::super::screen::{GOOD, NOTED, WRONG};

/// Where the text of a finding begins.
const INDENT: usize = 18;

/// The findings, in the order in which they were made.
#[derive(Default)]
pub(crate) struct Findings {
    lines: Lines,
    /// What was taken before.
    taken: String,
    tells_all: bool,
    untold: usize,
    problems: usize,
}

impl Findings {
    /// Findings of which all are told, or those that matter.
    pub(crate) fn new(tells_all: bool) -> Findings {
        Findings {
            tells_all,
            ..Findings::default()
        }
    }

    /// Adds something that is as it should be.
    pub(crate) fn ok(&mut self, subject: &str, text: impl Display) {
        match self.tells_all {
            true => self.line(GOOD, "ok", subject, text),
            false => self.untold += 1,
        }
    }

    /// Adds something that is as it should be and is told in any case.
    pub(crate) fn told(&mut self, subject: &str, text: impl Display) {
        self.line(GOOD, "ok", subject, text);
    }

    /// Adds something to know that prevents nothing.
    pub(crate) fn note(&mut self, subject: &str, text: impl Display) {
        self.line(NOTED, "note", subject, text);
    }

    /// Adds something that prevents the program from being served, and what to
    /// do about it.
    pub(crate) fn problem(&mut self, subject: &str, text: impl Display) {
        self.problems += 1;
        self.line(WRONG, "problem", subject, text);
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

    /// How many findings were not told.
    pub(crate) fn untold(&self) -> usize {
        self.untold
    }

    /// Explains the words in all lines so far.
    pub(crate) fn explain(&mut self) {
        self.taken += &self.lines.text;
        gloss::explain_words_of(&self.taken, &mut self.lines);
    }

    /// The lines since the last call.
    pub(crate) fn take(&mut self) -> String {
        let text = std::mem::take(&mut self.lines).text;
        self.taken += &text;
        text
    }

    fn line(&mut self, style: Style, level: &str, subject: &str, text: impl Display) {
        let beginning = format!("{style}{level:<9}{style:#}{subject:<9}");
        self.lines.after(&beginning, INDENT, &text.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_told_in_plain_lines() {
        for (tells_all, first) in [
            (true, "ok       driver   a\u{fffd}b\u{fffd}[31m\n"),
            (false, ""),
        ] {
            let mut findings = Findings::new(tells_all);
            findings.ok("driver", "a\nb\u{1b}[31m");
            findings.problem("preload", "c");
            let told = anstream::adapter::strip_str(&findings.take()).to_string();
            assert_eq!(told, format!("{first}problem  preload  c\n"));
            assert_eq!(findings.untold(), usize::from(!tells_all));
            assert_eq!((findings.take(), findings.problems()), (String::new(), 1));
        }
    }
}
