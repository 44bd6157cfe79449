//! The table: one line for each case, with a count for each driver mode and a
//! mark for each failure.

use std::fmt::Write as _;

use crate::run::{Mode, Verdict};
use vramalloc_tests::stage::Kind;

/// A line of the table.
struct Line {
    hazards: &'static [u8],
    name: String,
    kinds: String,
    /// Passed and tried, by mode.
    counts: [(usize, usize); Mode::ALL.len()],
    /// What failed, in short.
    marks: Vec<String>,
}

/// Everything that was found.
#[derive(Default)]
pub(crate) struct Table {
    lines: Vec<Line>,
    passed: usize,
    /// What failed, at length.
    failures: Vec<String>,
    /// Things that hold or not, without cells.
    checks: Vec<String>,
}

fn letter(kind: Kind) -> char {
    match kind {
        Kind::Dynamic => 'd',
        Kind::Static => 's',
        Kind::Driver => 'v',
        Kind::Resolver => 'r',
    }
}

impl Table {
    pub(crate) fn take(&mut self, verdicts: Vec<Verdict>) {
        for verdict in verdicts {
            let known = self.lines.last().is_some_and(|l| l.name == verdict.case);
            if !known {
                self.lines.push(Line {
                    hazards: verdict.hazards,
                    name: verdict.case.to_owned(),
                    kinds: String::new(),
                    counts: [(0, 0); Mode::ALL.len()],
                    marks: Vec::new(),
                });
            }
            let line = self.lines.last_mut().unwrap();
            let letter = letter(verdict.kind);
            if !line.kinds.contains(letter) {
                line.kinds.push(letter);
            }
            let count = &mut line.counts[verdict.mode as usize];
            count.1 += 1;
            let cell = format!("{:?}/{}", verdict.kind, verdict.strategy);
            match verdict.failure {
                None => {
                    count.0 += 1;
                    self.passed += 1;
                }
                Some(failure) => {
                    let place = format!("{cell}/{}", verdict.mode.title());
                    line.marks.push(place.clone());
                    self.failures
                        .push(format!("{} {place}: {failure}", verdict.case));
                }
            }
        }
    }

    pub(crate) fn take_checks(&mut self, checks: Vec<(&'static str, Option<String>)>) {
        for (name, failure) in checks {
            let result = if failure.is_none() { "ok" } else { "FAILED" };
            self.checks.push(format!("{name}: {result}"));
            match failure {
                None => self.passed += 1,
                Some(failure) => self.failures.push(format!("{name}: {failure}")),
            }
        }
    }

    pub(crate) fn take_naive(&mut self, findings: &[(String, bool)]) {
        for (finding, expected) in findings {
            let result = if *expected { "ok" } else { "FAILED" };
            self.checks.push(format!("{finding}: {result}"));
            if *expected {
                self.passed += 1;
            } else {
                self.failures.push(finding.clone());
            }
        }
    }

    pub(crate) fn failed(&self) -> usize {
        self.failures.len()
    }

    pub(crate) fn print(&self) {
        if !self.lines.is_empty() {
            println!(
                "kinds: d dynamic, s static, v driver, r driver by cuGetProcAddress; \
                 passed/tried by driver mode\n"
            );
            let mut head = format!("{:<12} {:<46} {:<5}", "hazards", "case", "kinds");
            for mode in Mode::ALL {
                write!(head, " {:>11}", mode.title()).unwrap();
            }
            println!("{head}");
        }
        for line in &self.lines {
            let numbers: Vec<_> = line.hazards.iter().map(u8::to_string).collect();
            let mut text = format!(
                "{:<12} {:<46} {:<5}",
                numbers.join(","),
                line.name,
                line.kinds
            );
            for (passed, tried) in line.counts {
                let count = if tried == 0 {
                    "-".to_owned()
                } else {
                    format!("{passed}/{tried}")
                };
                write!(text, " {count:>11}").unwrap();
            }
            println!("{text}");
            for mark in &line.marks {
                println!("{:<12} FAILED {mark}", "");
            }
        }
        println!();
        for check in &self.checks {
            println!("{check}");
        }
        for failure in &self.failures {
            println!("\n{failure}");
        }
        println!("\n{} passed, {} failed", self.passed, self.failed());
    }
}
