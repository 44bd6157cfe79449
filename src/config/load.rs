//! An environment to settings: sources, their order, and the warnings.
//!
//! Lower to higher: defaults, the frameworks' variables, `VRAMALLOC_CONF`,
//! `VRAMALLOC_<OPTION>`. Invariant: nothing in an environment makes this
//! panic; what cannot be read is named in exactly one warning and changes
//! nothing. Cost: one pass over the environment.

use std::ffi::{OsStr, OsString};

use super::table::{OPTIONS, OptionRow, Role, find};
use super::value::{IMPORTS, named};
use super::{Import, Settings};

/// Starts the names of our own variables.
const PREFIX: &str = "VRAMALLOC_";

/// The variable that takes every option.
const CONF: &str = "VRAMALLOC_CONF";

/// Variables of ours that are not options: the command reads the second.
const OTHERS: &[&str] = &[CONF, "VRAMALLOC_LIBRARY"];

/// The origin of what nobody gave.
const DEFAULT: &str = "default";

/// What the process is, as far as options depend on it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Paddle is loaded and reads its `FLAGS_*` itself.
    pub paddle: bool,
    /// PyTorch is loaded with its own caching on, and reads its allocator
    /// variables itself.
    pub torch_caching: bool,
}

/// The effective value of one option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effective {
    /// The option.
    pub key: &'static str,
    /// Its value, in a form that the option accepts.
    pub value: String,
    /// Where it came from: `default`, or the variable (with the key that was
    /// used there, where that is another one).
    pub origin: String,
}

/// What an environment amounts to.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// The values in force.
    pub settings: Settings,
    /// Every option, in the order of the table.
    pub echo: Vec<Effective>,
    /// One line for each thing that could not be read, without the name in
    /// front and without its end.
    pub warnings: Vec<String>,
}

/// Where a text was given; the later beats the earlier.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Framework,
    Conf,
    Variable,
}

/// A text that was given for an option.
struct Given {
    row: &'static OptionRow,
    text: String,
    source: Source,
}

impl Given {
    /// What the warnings and the echo call the place it was given in.
    fn place(&self) -> String {
        match (self.source, self.row.paddle) {
            (Source::Framework, Some(flag)) => flag.to_owned(),
            (Source::Variable, _) => variable(self.row),
            _ => CONF.to_owned(),
        }
    }

    /// The place, and the key where the echo would not show it.
    fn origin(&self) -> String {
        match (self.source, &self.row.role) {
            (Source::Conf, Role::Sets(_)) => format!("{CONF} ({})", self.row.key),
            _ => self.place(),
        }
    }
}

/// The settings that `environment` gives to a process like `host`.
#[must_use]
pub fn load(environment: impl IntoIterator<Item = (OsString, OsString)>, host: Host) -> Loaded {
    let mut warnings = Vec::new();
    let mut given = collect(environment, &mut warnings);
    if !reads_paddle(&given, host) {
        given.retain(|given| given.source != Source::Framework);
    }
    // Later beats earlier: sources by rank, and within one source an option's
    // own name after its other names. The sort is stable, so of duplicates
    // the last wins.
    given.sort_by_key(|given| (given.source, matches!(given.row.role, Role::Own(_))));

    let mut settings = Settings::default();
    let mut origins = vec![None; OPTIONS.len()];
    let mut bad = Vec::new();
    for given in &given {
        if read(given.row, &mut settings, &given.text) {
            if let Some(origin) = origins.get_mut(index(given.row)) {
                *origin = Some(given.origin());
            }
        } else {
            bad.push(given);
        }
    }
    let echo: Vec<Effective> = OPTIONS
        .iter()
        .zip(origins)
        .filter(|(row, _)| matches!(row.role, Role::Own(_)))
        .map(|(row, origin)| Effective {
            key: row.key,
            value: row.show(&settings),
            origin: origin.unwrap_or_else(|| DEFAULT.to_owned()),
        })
        .collect();
    for given in bad {
        warnings.push(unreadable(given, &echo));
    }
    Loaded {
        settings,
        echo,
        warnings,
    }
}

/// Whether `text` can be read as the option `key`.
///
/// # Errors
/// One line that names the key, the text and what is accepted.
pub fn check(key: &str, text: &str) -> Result<(), String> {
    let row = find(key).ok_or_else(|| unknown_option(key, text))?;
    if read(row, &mut Settings::default(), text) {
        return Ok(());
    }
    Err(format!("{key}: {}", cannot_read(row, text)))
}

/// The environment variable of an option.
#[must_use]
pub fn variable(row: &OptionRow) -> String {
    format!("{PREFIX}{}", row.key.to_ascii_uppercase())
}

/// Splits the text of `VRAMALLOC_CONF` into its entries: key and value, or
/// the whole entry where it has no colon.
pub fn conf(text: &str) -> impl Iterator<Item = Result<(&str, &str), &str>> {
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            entry
                .split_once(':')
                .map(|(key, value)| (key.trim(), value.trim()))
                .ok_or(entry)
        })
}

/// Everything that was given, in the order of the environment.
fn collect(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    warnings: &mut Vec<String>,
) -> Vec<Given> {
    let mut given = Vec::new();
    for (name, value) in environment {
        let name = name.to_string_lossy();
        if name == CONF {
            collect_conf(&value, &mut given, warnings);
        } else if let Some(option) = name.strip_prefix(PREFIX) {
            // The other variables of ours are not options.
            if OTHERS.contains(&name.as_ref()) {
                continue;
            }
            match OPTIONS
                .iter()
                .find(|row| row.key.to_ascii_uppercase() == option)
            {
                Some(row) => push(&mut given, row, &value, Source::Variable),
                None => warnings.push(unknown_variable(&name, option, &value)),
            }
        } else if let Some(row) = OPTIONS.iter().find(|row| row.paddle == Some(&*name)) {
            push(&mut given, row, &value, Source::Framework);
        }
    }
    given
}

/// Notes a variable's text; an empty variable counts as not set.
fn push(given: &mut Vec<Given>, row: &'static OptionRow, value: &OsStr, source: Source) {
    let text = value.to_string_lossy().trim().to_owned();
    if !text.is_empty() {
        given.push(Given { row, text, source });
    }
}

/// Notes the entries of `VRAMALLOC_CONF`.
fn collect_conf(value: &OsStr, given: &mut Vec<Given>, warnings: &mut Vec<String>) {
    for entry in conf(&value.to_string_lossy()) {
        match entry {
            Ok((key, text)) => match find(key) {
                Some(row) => given.push(Given {
                    row,
                    text: text.to_owned(),
                    source: Source::Conf,
                }),
                None => warnings.push(format!("{CONF}: {}", unknown_option(key, text))),
            },
            Err(entry) => warnings.push(format!(
                "{CONF}: cannot read {}; accepted: key:value, separated by commas; \
                 ignored",
                quoted(entry)
            )),
        }
    }
}

/// Whether Paddle's variables are read: `import` as our own sources have it.
fn reads_paddle(given: &[Given], host: Host) -> bool {
    let chosen = [Source::Variable, Source::Conf].iter().find_map(|&source| {
        given
            .iter()
            .rev()
            .filter(|given| given.source == source && given.row.key == "import")
            .find_map(|given| named(IMPORTS, &given.text))
    });
    match chosen.unwrap_or_default() {
        Import::Always => true,
        Import::Never => false,
        Import::Auto => !host.paddle,
    }
}

/// Reads a text that may have held what is not UTF-8.
fn read(row: &OptionRow, settings: &mut Settings, text: &str) -> bool {
    !text.contains(char::REPLACEMENT_CHARACTER) && (row.read)(settings, text)
}

/// The place of the option that a row sets.
fn index(row: &'static OptionRow) -> usize {
    let key = row.target().key;
    OPTIONS
        .iter()
        .position(|row| row.key == key)
        .unwrap_or(OPTIONS.len())
}

/// The warning for a text that could not be read.
fn unreadable(given: &Given, echo: &[Effective]) -> String {
    let place = given.place();
    let key = given.row.key;
    let target = given.row.target().key;
    let using = match echo.iter().find(|effective| effective.key == target) {
        Some(effective) if effective.origin != DEFAULT => {
            format!("{} from {}", printable(&effective.value), effective.origin)
        }
        Some(effective) => format!("the default ({})", effective.value),
        None => "the default".to_owned(),
    };
    // The place alone says which option it is, unless it takes all of them.
    let key = match given.source {
        Source::Conf => format!("{key}: "),
        _ => String::new(),
    };
    format!(
        "{place}: {key}{}; using {using}",
        cannot_read(given.row, &given.text)
    )
}

fn cannot_read(row: &OptionRow, text: &str) -> String {
    format!("cannot read {}; accepted: {}", quoted(text), row.accepted)
}

fn unknown_variable(name: &str, option: &str, value: &OsStr) -> String {
    let meant = nearest(&option.to_ascii_lowercase()).map(variable);
    unknown("variable", name, &value.to_string_lossy(), meant)
}

fn unknown_option(key: &str, value: &str) -> String {
    unknown(
        "option",
        key,
        value,
        nearest(key).map(|row| row.key.to_owned()),
    )
}

/// The warning for a name that is no option's, with the option that may have
/// been meant.
fn unknown(what: &str, name: &str, value: &str, meant: Option<String>) -> String {
    let end = match meant {
        Some(meant) => format!("did you mean {meant}?"),
        None => "accepted: what `vramalloc options` lists".to_owned(),
    };
    format!(
        "unknown {what} {} with value {}, ignored; {end}",
        quoted(name),
        quoted(value)
    )
}

/// A text in quotes, printable and not longer than a line.
fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text))
}

/// A text that does nothing to a terminal and is not longer than a line.
fn printable(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut short: String = text
        .chars()
        .take(LONGEST)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

/// The option whose name differs in two letters, or in a third of them.
fn nearest(name: &str) -> Option<&'static OptionRow> {
    OPTIONS
        .iter()
        // Spares the comparison with a name of any length.
        .filter(|row| row.key.len().abs_diff(name.len()) <= slack(row))
        .map(|row| (distance(row.key.as_bytes(), name.as_bytes()), row))
        .filter(|(distance, row)| *distance <= slack(row))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, row)| row)
}

/// In how many letters a name may differ.
fn slack(row: &OptionRow) -> usize {
    (row.key.len() / 3).max(2)
}

/// Letters to insert, remove or replace to turn one name into the other.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, &y) in row.iter_mut().skip(1).zip(b) {
            let above = *cell;
            left = (diagonal + usize::from(x != y))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(a.len())
}
