//! The recording of a process: the option `record`.
//!
//! Owns it, from the first arena until the end of the process. Invariant: a process
//! records to a file of its own, which it made; a forked child records nothing of its
//! parent's. Without the option, or where the file cannot be made, nothing is recorded,
//! and the program runs as without it. Cost: without the option, one look when an arena
//! is made.

mod file;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use vramalloc_core::config::{Loaded, RecordConfig, StatsTarget};
use vramalloc_core::recording::{Mark, RecordBound, Recorded, Recording, Standing};
use vramalloc_core::stats::{self, RecordedArena, RecordingReport, record_text};

use crate::process::say::{Once, warn, warn_once};
use crate::process::{self, cancel, forking};
use file::{Ended, MappedFile};

/// What was begun, or why it was not.
struct Begun {
    recording: Option<&'static Recording>,
    file: Option<PathBuf>,
    ended: Arc<Ended>,
}

static BEGUN: OnceLock<Begun> = OnceLock::new();

/// How arenas tell what they hold, by their place.
static TELL: [OnceLock<fn()>; 3] = [const { OnceLock::new() }; 3];

/// The recording, if there is one, and the number in it of a new arena. `tell` has all
/// arenas of its place tell what they hold. Nothing is held.
pub(crate) fn of(arena: &RecordedArena<'_>, tell: fn()) -> Option<(&'static Recording, u32)> {
    let recording = match BEGUN.get() {
        Some(begun) => begun.recording?,
        None => begin()?,
    };
    if let Some(place) = TELL.get(arena.place as usize) {
        place.get_or_init(|| tell);
    }
    Some((recording, recording.arena(&arena.to_text())))
}

/// Whether there is one.
pub(crate) fn is_there() -> bool {
    BEGUN.get().is_some_and(|begun| begun.recording.is_some())
}

/// Has all arenas tell the recording what they hold.
fn tell_all() {
    TELL.iter()
        .filter_map(OnceLock::get)
        .for_each(|tell| tell());
}

/// Tells the recording, if there is one, of something that is no event of an arena.
/// Nothing is held.
pub(crate) fn mark(mark: impl FnOnce() -> Option<Mark>) {
    if let Some(recording) = BEGUN.get().and_then(|begun| begun.recording) {
        recording.tend();
        if let Some(mark) = mark() {
            recording.mark(None, &mark);
        }
    }
}

/// The process comes to its end: the recording ends behind its last event.
pub(crate) fn end() {
    if let Some(recording) = BEGUN.get().and_then(|begun| begun.recording) {
        recording.end();
    }
}

/// What the statistics say of it; nothing without the option. `last` in those of the
/// end of the process, which may be written before the recording ends.
pub(crate) fn report(last: bool) -> Option<RecordingReport> {
    let begun = BEGUN.get()?;
    let recorded = begun.recording.map(Recording::recorded);
    let standing = match recorded.map_or(Standing::Failed, |recorded| recorded.standing) {
        Standing::Running if last => Standing::Ended,
        standing => standing,
    };
    let count = |of: fn(&Recorded) -> u64| recorded.as_ref().map_or(0, of);
    Some(RecordingReport {
        file: begun.file.clone()?,
        state: standing.word(),
        events: count(|recorded| recorded.events),
        bytes: count(|recorded| recorded.bytes),
        lost: count(|recorded| recorded.lost),
        came_round: recorded.is_some_and(|recorded| recorded.came_round),
        why: begun.ended.why(),
    })
}

#[cold]
fn begin() -> Option<&'static Recording> {
    let _held = cancel::Held::back();
    let (config, loaded) = process::options(|loaded| {
        let config = loaded.settings.record.clone();
        let echo = config.file.is_some().then(|| loaded.clone());
        (config, echo)
    });
    // A forked child is not to have what is begun now.
    if config.file.is_some() {
        forking::use_begins();
    }
    let begun = BEGUN.get_or_init(|| match (config.file, loaded) {
        (Some(pattern), Some(loaded)) => {
            let config = RecordConfig {
                file: None,
                ..config
            };
            begun(&pattern, &config, &loaded)
        }
        _ => Begun {
            recording: None,
            file: None,
            ended: Arc::default(),
        },
    });
    begun.recording
}

fn begun(pattern: &str, config: &RecordConfig, loaded: &Loaded) -> Begun {
    let process = process::this();
    let target = StatsTarget::File(pattern.to_owned()).within(process::first_folder());
    let asked = match &target {
        StatsTarget::File(pattern) => stats::file_of(pattern, &process),
        StatsTarget::Off | StatsTarget::Stderr => PathBuf::from(pattern),
    };
    let bound = RecordBound {
        most: config.most,
        ring: config.ring,
    };
    let ended = Arc::new(Ended::default());
    let fails = |error: &dyn std::fmt::Display| {
        ended.for_this(&error.to_string());
        warn_once(
            Once::Recording,
            &format!("record: {}: {error}; nothing is recorded", asked.display()),
        );
        Begun {
            recording: None,
            file: Some(asked.clone()),
            ended: Arc::clone(&ended),
        }
    };
    let mapped = match MappedFile::make(&asked, bound, Arc::clone(&ended), tell_all) {
        Ok(mapped) => mapped,
        Err(error) => return fails(&error),
    };
    let file = mapped.path().to_owned();
    let text = record_text(&process, loaded);
    let Some(recording) = Recording::begin(Box::new(mapped), bound, &text) else {
        // It has said why.
        file::remove_empty(&file);
        return Begun {
            recording: None,
            file: Some(file),
            ended,
        };
    };
    if file != asked {
        warn(&format!(
            "record: {} is there already; this process is recorded to {}",
            asked.display(),
            file.display()
        ));
    }
    Begun {
        recording: Some(Box::leak(Box::new(recording))),
        file: Some(file),
        ended,
    }
}
