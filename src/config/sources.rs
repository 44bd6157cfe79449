//! Where options are given, and which of them count.
//!
//! Owns the names of the variables and the rule of import. Invariant: the
//! options of an environment come out in one order, from the weakest to the
//! strongest, whatever the order of its variables.

use std::ffi::{OsStr, OsString};

use super::load::Host;
use super::names::{IMPORTS, SWITCH, named};
use super::table::{OPTIONS, OptionRow, Reading, Role, Torch, find};
use super::words::{IGNORED, cannot_read, quoted, unknown_option, unknown_variable};
use super::{Import, Settings, scheduler, torch};

/// The prefix of our own variables.
const PREFIX: &str = "VRAMALLOC_";

/// The variable that takes every option.
const CONF: &str = "VRAMALLOC_CONF";

/// The variable that says where a process is to write notes for `vramalloc
/// run`, which sets it.
pub const NOTES: &str = "VRAMALLOC_RUN";

/// The variable that says that the name of the statistics is one that `vramalloc run` chose,
/// which sets it.
pub const STATS_BY_RUN: &str = "VRAMALLOC_RUN_STATS";

/// The option for which schedulers have variables, and that for single devices.
const LIMIT: &str = "limit";
const DEVICE_LIMITS: &str = "device_limits";

/// Our variables that are not options. The command reads the second and
/// the third, and sets the last two.
const OTHERS: &[&str] = &[
    CONF,
    "VRAMALLOC_LIBRARY",
    "VRAMALLOC_PYTHON",
    NOTES,
    STATS_BY_RUN,
];

/// Where a text was given; a later source beats an earlier one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Paddle,
    Torch,
    /// What a scheduler allows holds over what a framework would like.
    Scheduler,
    Conf,
    Variable,
}

/// A text that was given for an option.
pub(super) struct Given {
    pub(super) row: &'static OptionRow,
    pub(super) text: String,
    source: Source,
    /// The variable.
    place: String,
    /// Whether that variable takes several options.
    one_of_many: bool,
}

impl Given {
    /// The place as warnings name it.
    pub(super) fn told(&self) -> String {
        if self.one_of_many {
            format!("{}: {}", self.place, self.row.key)
        } else {
            self.place.clone()
        }
    }

    /// The place, and the key if the echo would not show it.
    pub(super) fn origin(&self) -> String {
        match self.row.role {
            Role::Sets(_) if self.one_of_many => format!("{} ({})", self.place, self.row.key),
            _ => self.place.clone(),
        }
    }

    /// Reads the text into `settings`.
    pub(super) fn read(&self, settings: &mut Settings) -> Reading {
        if self.in_torch_conf() && !torch::accepts(self.row, &self.text) {
            return Reading::Unreadable;
        }
        if self.is_schedulers_limit() {
            return scheduler::read(settings, &self.text);
        }
        read(self.row, settings, &self.text)
    }

    /// The texts that are accepted there.
    pub(super) fn accepted(&self) -> &'static str {
        if self.in_torch_conf() {
            torch::accepted(self.row)
        } else if self.is_schedulers_limit() {
            scheduler::ACCEPTED
        } else {
            self.row.accepted
        }
    }

    fn is_schedulers_limit(&self) -> bool {
        self.source == Source::Scheduler && self.row.key == LIMIT
    }

    fn in_torch_conf(&self) -> bool {
        self.source == Source::Torch && self.one_of_many
    }
}

/// The environment variable of an option.
#[must_use]
pub fn variable(row: &OptionRow) -> String {
    format!("{PREFIX}{}", row.key.to_ascii_uppercase())
}

/// Splits the text of a variable that takes several options into its entries:
/// key and value, or the whole entry if it has no colon. A value that begins
/// with a bracket may contain commas up to the closing bracket; without a
/// closing bracket it takes the rest.
fn split(text: &str) -> impl Iterator<Item = Result<(&str, &str), &str>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (entry, after) = text.split_at(entry_end(text));
        rest = after.strip_prefix(',');
        Some(entry.trim())
    })
    .filter(|entry| !entry.is_empty())
    .map(|entry| {
        entry
            .split_once(':')
            .map(|(key, value)| (key.trim(), value.trim()))
            .ok_or(entry)
    })
}

/// The end of the first entry.
fn entry_end(text: &str) -> usize {
    let find = |from: usize, what: char| {
        let rest = text.get(from..)?;
        rest.find(what).map(|at| from + at)
    };
    let comma = find(0, ',').unwrap_or(text.len());
    let Some(colon) = find(0, ':').filter(|&colon| colon < comma) else {
        return comma;
    };
    let value = text.get(colon + 1..).unwrap_or_default().trim_start();
    if !value.starts_with('[') {
        return comma;
    }
    find(colon, ']')
        .and_then(|bracket| find(bracket, ','))
        .unwrap_or(text.len())
}

/// Every option that is given and counts in a process like `host`, from the
/// weakest to the strongest.
pub(super) fn collect(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    host: Host,
    warnings: &mut Vec<String>,
) -> Vec<Given> {
    let mut given = Vec::new();
    let mut torch_confs = vec![None; torch::CONFS.len()];
    let mut by_device = Vec::new();
    for (name, value) in environment {
        let name = name.to_string_lossy();
        if name == CONF {
            entries(
                CONF,
                Source::Conf,
                &value.to_string_lossy(),
                &mut given,
                warnings,
            );
        } else if let Some(option) = name.strip_prefix(PREFIX) {
            // Some variables of ours are not options.
            if OTHERS.contains(&name.as_ref()) {
                continue;
            }
            match of_variable(option) {
                Some(row) => push(&mut given, row, &name, &value, Source::Variable),
                None if value.is_empty() => {}
                None => warnings.push(unknown_variable(&name, option, &value)),
            }
        } else if let Some(at) = torch::CONFS.iter().position(|conf| *conf == name) {
            if let Some(conf) = torch_confs.get_mut(at) {
                *conf = Some(value);
            }
        } else if let Some(device) = scheduler::device_of(&name) {
            by_device.push((device, name.into_owned(), value));
        } else if let Some((row, source)) = of_others(&name) {
            push(&mut given, row, &name, &value, source);
        }
    }
    // Only the first that is set counts, even if it is empty.
    let torch_conf = torch::CONFS
        .iter()
        .zip(torch_confs)
        .find_map(|(name, value)| Some((*name, value?)));
    if let Some((name, value)) = torch_conf.filter(|_| reads(Source::Torch, &given, host)) {
        let text = torch::condensed(&value.to_string_lossy());
        entries(name, Source::Torch, &text, &mut given, warnings);
    }
    let sources = [Source::Paddle, Source::Torch, Source::Scheduler];
    let read = sources.map(|source| reads(source, &given, host));
    if read[2] {
        device_limits(by_device, &mut given, warnings);
    }
    given.retain(|given| match given.source {
        Source::Paddle => read[0],
        Source::Torch => read[1],
        Source::Scheduler => read[2],
        Source::Conf | Source::Variable => true,
    });
    // A later entry beats an earlier one: sources by rank; within one source an
    // option's own name comes after its other names, and those in the order of
    // the table. The sort is stable, so of duplicates the last wins.
    given.sort_by_key(|given| {
        let own = matches!(given.row.role, Role::Own(_));
        let rank = scheduler::rank(&given.place);
        (given.source, own, given.row.place(), rank)
    });
    given
}

/// The option of one of our variables, by the name behind the prefix.
fn of_variable(option: &str) -> Option<&'static OptionRow> {
    // Only capitals: variable names are case-sensitive elsewhere too.
    let capitals = !option.bytes().any(|b| b.is_ascii_lowercase());
    find(&option.to_ascii_lowercase()).filter(|_| capitals)
}

/// Puts a scheduler's limits of single devices together to one option, unless
/// the user has set a limit.
fn device_limits(
    mut by_device: Vec<(u32, String, OsString)>,
    given: &mut Vec<Given>,
    warnings: &mut Vec<String>,
) {
    let is_set = |given: &Given| {
        let is_own = matches!(given.source, Source::Conf | Source::Variable);
        is_own
            && [LIMIT, DEVICE_LIMITS].contains(&given.row.target().key)
            && given.read(&mut Settings::default()) != Reading::Unreadable
    };
    let Some(row) = find(DEVICE_LIMITS).filter(|_| !given.iter().any(is_set)) else {
        return;
    };
    by_device.sort();
    let (mut entries, mut places) = (Vec::new(), Vec::new());
    for (device, name, value) in by_device {
        let text = value.to_string_lossy().trim().to_owned();
        match scheduler::entry(device, &text) {
            _ if text.is_empty() => {}
            Some(entry) if entry.is_empty() => {}
            Some(entry) => {
                entries.push(entry);
                places.push(name);
            }
            None => warnings.push(format!(
                "{name}: {}; ignored",
                cannot_read(row, &text, scheduler::ACCEPTED)
            )),
        }
    }
    if let Some(first) = places.first() {
        let more = if places.len() > 1 { ", …" } else { "" };
        given.push(Given {
            row,
            text: format!("[{}]", entries.join(",")),
            source: Source::Scheduler,
            place: format!("{first}{more}"),
            one_of_many: false,
        });
    }
}

/// The option that a framework's or a scheduler's variable of this name sets.
fn of_others(name: &str) -> Option<(&'static OptionRow, Source)> {
    OPTIONS.iter().find_map(|row| {
        if row.paddle == Some(name) {
            Some((row, Source::Paddle))
        } else if row.schedulers.contains(&name) {
            Some((row, Source::Scheduler))
        } else {
            matches!(row.torch, Torch::Variable(variable) if variable == name)
                .then_some((row, Source::Torch))
        }
    })
}

/// Adds a variable's text; an empty variable counts as not set.
fn push(
    given: &mut Vec<Given>,
    row: &'static OptionRow,
    name: &str,
    value: &OsStr,
    source: Source,
) {
    let text = value.to_string_lossy().trim().to_owned();
    if !text.is_empty() {
        given.push(Given {
            row,
            text,
            source,
            place: name.to_owned(),
            one_of_many: false,
        });
    }
}

/// Adds the entries of a variable that takes several options.
fn entries(
    name: &str,
    source: Source,
    text: &str,
    given: &mut Vec<Given>,
    warnings: &mut Vec<String>,
) {
    let listed = |row: &OptionRow| source == Source::Conf || !row.torch_keys().is_empty();
    let known = |key: &str| find(key).filter(|row| listed(row));
    for entry in split(text) {
        match entry {
            Ok((key, text)) => match known(key) {
                Some(row) => given.push(Given {
                    row,
                    text: text.to_owned(),
                    source,
                    place: name.to_owned(),
                    one_of_many: true,
                }),
                None => warnings.push(format!(
                    "{name}: {}",
                    unknown_option(key, text, IGNORED, listed)
                )),
            },
            Err(entry) => warnings.push(format!(
                "{name}: cannot read {}; accepted: key:value, separated by commas; ignored",
                quoted(entry)
            )),
        }
    }
}

/// Whether the variables of this source are read.
fn reads(source: Source, given: &[Given], host: Host) -> bool {
    let chosen = last(given, "import", |text| named(IMPORTS, text));
    match chosen.unwrap_or_default() {
        Import::Always => true,
        Import::Never => false,
        Import::Auto if source == Source::Scheduler => true,
        Import::Auto if source == Source::Paddle => !host.paddle,
        Import::Auto => {
            let uncached = last(given, "no_cuda_memory_caching", |text| named(SWITCH, text));
            !host.torch || uncached.unwrap_or(false)
        }
    }
}

/// The strongest text for an option that `read` accepts, as a value.
fn last<T>(given: &[Given], key: &str, read: fn(&str) -> Option<T>) -> Option<T> {
    let mut given: Vec<&Given> = given.iter().filter(|given| given.row.key == key).collect();
    given.sort_by_key(|given| given.source);
    given.iter().rev().find_map(|given| read(&given.text))
}

/// Reads a text. Refuses one with a replacement character, which stands for
/// bytes that were not UTF-8.
pub(super) fn read(row: &OptionRow, settings: &mut Settings, text: &str) -> Reading {
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Reading::Unreadable;
    }
    (row.read)(settings, text)
}
