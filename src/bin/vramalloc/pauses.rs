//! What statistics say of pauses, in words.

use serde::Deserialize;

use super::units::{bytes, count, duration};

/// The pauses of an arena; those that older files lack.
#[derive(Copy, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pauses {
    pub(super) is_paused: bool,
    /// What the device has until the program resumes it.
    #[serde(rename = "paused_bytes")]
    pub(super) paused: u64,
    #[serde(rename = "backup_bytes")]
    backups: u64,
    pauses: u64,
    resumes: u64,
    pub(super) failures: u64,
    pause_ns: u64,
    resume_ns: u64,
    last: LastPause,
}

/// What the last pause did.
#[derive(Copy, Clone, Default, Deserialize)]
#[serde(default)]
struct LastPause {
    #[serde(rename = "given_bytes")]
    given: u64,
    #[serde(rename = "copied_bytes")]
    copied: u64,
    #[serde(rename = "stays_plain_bytes")]
    plain: u64,
    #[serde(rename = "stays_exported_bytes")]
    exported: u64,
    #[serde(rename = "stays_refused_bytes")]
    refused: u64,
}

impl Pauses {
    /// Sentences about all of it; none where nothing was paused or tried to be.
    pub(super) fn sentences(&self) -> Vec<String> {
        let all = [
            self.cycles(),
            self.stayed(),
            self.paused_now(),
            self.failed(),
            self.kept(),
        ];
        all.into_iter().flatten().collect()
    }

    /// How often it was paused and resumed.
    pub(super) fn cycles(&self) -> Option<String> {
        if self.pauses == 0 {
            return None;
        }
        let copied = match self.last.copied {
            0 => "nothing was copied".to_owned(),
            copied => format!("{} were copied to the host", bytes(copied)),
        };
        let resumed = match self.resumes {
            0 => "and never resumed".to_owned(),
            n => format!("and resumed {} in {}", times(n), duration(self.resume_ns)),
        };
        Some(format!(
            "Its memory was paused {} in {}, {resumed}. The last pause gave {} to the device; \
             {copied}.",
            times(self.pauses),
            duration(self.pause_ns),
            bytes(self.last.given),
        ))
    }

    /// What the last pause left where it was, and why.
    pub(super) fn stayed(&self) -> Option<String> {
        let LastPause {
            plain,
            exported,
            refused,
            ..
        } = self.last;
        let reasons = [
            (
                plain,
                "in plain allocations of the driver, whose addresses would have gone with them",
            ),
            (exported, "that the program has given a handle of"),
            (refused, "that the driver did not take back"),
        ];
        let reasons = reasons.into_iter().filter(|(size, _)| *size > 0);
        let reasons: Vec<String> = reasons
            .map(|(size, why)| format!("{} {why}", bytes(size)))
            .collect();
        (!reasons.is_empty()).then(|| format!("The last pause left {}.", reasons.join("; ")))
    }

    /// Whether it is paused still.
    pub(super) fn paused_now(&self) -> Option<String> {
        self.is_paused.then(|| {
            format!(
                "It was paused when this was written: {} were the device's until the program \
                 resumes it.",
                bytes(self.paused)
            )
        })
    }

    /// How many failed.
    pub(super) fn failed(&self) -> Option<String> {
        (self.failures > 0).then(|| match self.failures {
            1 => "One pause or resume failed.".to_owned(),
            n => format!("{n} pauses or resumes failed."),
        })
    }

    /// What is kept of the host.
    fn kept(&self) -> Option<String> {
        let why = match self.is_paused {
            true => "hold what was saved",
            false => "are kept for the next pause",
        };
        (self.backups > 0).then(|| format!("{} of the host's memory {why}.", bytes(self.backups)))
    }
}

fn times(n: u64) -> String {
    match n {
        1 => "once".to_owned(),
        n => count(n, "time"),
    }
}
