//! An environment to settings: sources, their order, and the warnings.
//!
//! Lower to higher: defaults, Paddle's variables, PyTorch's, `VRAMALLOC_CONF`,
//! `VRAMALLOC_<OPTION>`. Invariant: nothing in an environment makes this
//! panic; what cannot be read is named in exactly one warning and changes
//! nothing. Cost: one pass over the environment.

use std::ffi::{OsStr, OsString};

use super::table::{OPTIONS, OptionRow, Reading, Role, Torch, find};
use super::value::{IMPORTS, named};
use super::{Import, Settings, torch};

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
    /// PyTorch is loaded and reads its allocator's variables itself, unless
    /// the environment takes its cache away.
    pub torch: bool,
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
    /// Why it changes nothing, where it is an option that cannot.
    pub no_effect: Option<&'static str>,
}

/// What an environment amounts to.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// The values in force.
    pub settings: Settings,
    /// Every option that has an effect, and those without one that were
    /// given, in the order of the table.
    pub echo: Vec<Effective>,
    /// One line for each thing that could not be read, without the name in
    /// front and without its end.
    pub warnings: Vec<String>,
}

/// Where a text was given; the later beats the earlier.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Paddle,
    Torch,
    Conf,
    Variable,
}

/// A text that was given for an option.
struct Given {
    row: &'static OptionRow,
    text: String,
    source: Source,
    /// The variable.
    place: String,
    /// Whether that variable takes several options.
    one_of_many: bool,
}

impl Given {
    /// Where the warnings say that it was given.
    fn told(&self) -> String {
        if self.one_of_many {
            format!("{}: {}", self.place, self.row.key)
        } else {
            self.place.clone()
        }
    }

    /// The place, and the key where the echo would not show it.
    fn origin(&self) -> String {
        match self.row.role {
            Role::Sets(_) if self.one_of_many => format!("{} ({})", self.place, self.row.key),
            _ => self.place.clone(),
        }
    }

    /// Reads it into `settings`.
    fn read(&self, settings: &mut Settings) -> Reading {
        if self.in_torch_conf() && !torch::accepts(self.row, &self.text) {
            return Reading::Unreadable;
        }
        read(self.row, settings, &self.text)
    }

    fn accepted(&self) -> &'static str {
        if self.in_torch_conf() {
            torch::accepted(self.row)
        } else {
            self.row.accepted
        }
    }

    fn in_torch_conf(&self) -> bool {
        self.source == Source::Torch && self.one_of_many
    }
}

/// The settings that `environment` gives to a process like `host`.
#[must_use]
pub fn load(environment: impl IntoIterator<Item = (OsString, OsString)>, host: Host) -> Loaded {
    let mut warnings = Vec::new();
    let given = collect(environment, host, &mut warnings);
    let mut settings = Settings::default();
    let mut origins = vec![None; OPTIONS.len()];
    let mut bad = Vec::new();
    let mut idle = Vec::new();
    for late in [false, true] {
        let given = given.iter().filter(|given| given.row.late == late);
        for given in strongest(given, &settings, &mut bad) {
            let at = place_in_table(given.row.target());
            match (given.read(&mut settings), given.row.role) {
                (Reading::Set, _) => {
                    if let Some(origin) = origins.get_mut(at) {
                        *origin = Some(given.origin());
                    }
                }
                (Reading::Kept, Role::NoEffect(_)) => idle.push(given),
                (Reading::Kept | Reading::Unreadable, _) => {}
            }
        }
    }
    let echo = OPTIONS
        .iter()
        .zip(origins)
        .filter_map(|(row, origin)| match row.role {
            Role::Own(show) => Some(Effective {
                key: row.key,
                value: show(&settings),
                origin: origin.unwrap_or_else(|| DEFAULT.to_owned()),
                no_effect: None,
            }),
            Role::NoEffect(why) => {
                let given = idle.iter().find(|given| given.row.key == row.key)?;
                Some(Effective {
                    key: row.key,
                    value: given.text.clone(),
                    origin: given.origin(),
                    no_effect: Some(why),
                })
            }
            Role::Sets(_) => None,
        })
        .collect::<Vec<_>>();
    for given in bad {
        warnings.push(unreadable(given, &echo));
    }
    Loaded {
        settings,
        echo,
        warnings,
    }
}

/// Of the texts for each row the strongest that can be read, the weakest row
/// first; the others are noted as `bad`.
fn strongest<'a>(
    given: impl DoubleEndedIterator<Item = &'a Given>,
    settings: &Settings,
    bad: &mut Vec<&'a Given>,
) -> Vec<&'a Given> {
    let mut taken = vec![false; OPTIONS.len()];
    let mut strongest = Vec::new();
    let mut refused = Vec::new();
    for given in given.rev() {
        let taken = taken.get_mut(place_in_table(given.row));
        if given.read(&mut settings.clone()) == Reading::Unreadable {
            refused.push(given);
        } else if let Some(taken) = taken.filter(|taken| !**taken) {
            *taken = true;
            strongest.push(given);
        }
    }
    bad.extend(refused.into_iter().rev());
    strongest.reverse();
    strongest
}

/// Whether `text` can be read as the option `key`.
///
/// # Errors
/// One line that names the key, the text and what is accepted.
pub fn check(key: &str, text: &str) -> Result<(), String> {
    let row = find(key).ok_or_else(|| unknown_option(key, text))?;
    match read(row, &mut Settings::default(), text) {
        Reading::Set | Reading::Kept => Ok(()),
        Reading::Unreadable => Err(format!("{key}: {}", cannot_read(text, row.accepted))),
    }
}

/// The environment variable of an option.
#[must_use]
pub fn variable(row: &OptionRow) -> String {
    format!("{PREFIX}{}", row.key.to_ascii_uppercase())
}

/// Splits the text of `VRAMALLOC_CONF` into its entries: key and value, or
/// the whole entry where it has no colon. A comma between brackets that open
/// a value belongs to the value; where they are not closed, so does the rest.
pub fn conf(text: &str) -> impl Iterator<Item = Result<(&str, &str), &str>> {
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

/// Where the first entry ends.
fn entry_end(text: &str) -> usize {
    let comma = |from: usize| {
        let after = text.get(from..).and_then(|text| text.find(','));
        after.map_or(text.len(), |at| from + at)
    };
    let end = comma(0);
    let value = text.get(..end).and_then(|entry| entry.split_once(':'));
    if value.is_some_and(|(_, value)| value.trim_start().starts_with('[')) {
        return text.find(']').map_or(text.len(), comma);
    }
    end
}

/// Everything that was given and counts in a process like `host`, from the
/// weakest to the strongest.
fn collect(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    host: Host,
    warnings: &mut Vec<String>,
) -> Vec<Given> {
    let mut given = Vec::new();
    let mut torch_confs = vec![None; torch::CONFS.len()];
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
            // The other variables of ours are not options.
            if OTHERS.contains(&name.as_ref()) {
                continue;
            }
            match of_variable(option) {
                Some(row) => push(&mut given, row, &name, &value, Source::Variable),
                None => warnings.push(unknown_variable(&name, option, &value)),
            }
        } else if let Some(at) = torch::CONFS.iter().position(|conf| *conf == name) {
            if let Some(conf) = torch_confs.get_mut(at) {
                *conf = Some(value);
            }
        } else if let Some((row, source)) = of_framework(&name) {
            push(&mut given, row, &name, &value, source);
        }
    }
    // The first that is set counts alone, even if it is empty.
    let torch_conf = torch::CONFS
        .iter()
        .zip(torch_confs)
        .find_map(|(name, value)| Some((*name, value?)));
    if let Some((name, value)) = torch_conf.filter(|_| reads(Source::Torch, &given, host)) {
        let text = torch::condensed(&value.to_string_lossy());
        entries(name, Source::Torch, &text, &mut given, warnings);
    }
    let read = [Source::Paddle, Source::Torch].map(|source| reads(source, &given, host));
    given.retain(|given| match given.source {
        Source::Paddle => read[0],
        Source::Torch => read[1],
        Source::Conf | Source::Variable => true,
    });
    // Later beats earlier: sources by rank; within one source an option's own
    // name after its other names, and these as the table has them. The sort is
    // stable, so of duplicates the last wins.
    given.sort_by_key(|given| {
        let own = matches!(given.row.role, Role::Own(_));
        (given.source, own, place_in_table(given.row))
    });
    given
}

/// The option of a variable of ours, by what follows the prefix.
fn of_variable(option: &str) -> Option<&'static OptionRow> {
    // Only capitals: the names of variables are not folded elsewhere either.
    let capitals = !option.bytes().any(|b| b.is_ascii_lowercase());
    find(&option.to_ascii_lowercase()).filter(|_| capitals)
}

/// The option of a framework's variable that takes one.
fn of_framework(name: &str) -> Option<(&'static OptionRow, Source)> {
    OPTIONS.iter().find_map(|row| {
        if row.paddle == Some(name) {
            Some((row, Source::Paddle))
        } else {
            matches!(row.torch, Torch::Variable(variable) if variable == name)
                .then_some((row, Source::Torch))
        }
    })
}

/// Notes a variable's text; an empty variable counts as not set.
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

/// Notes the entries of a variable that takes several options.
fn entries(
    name: &str,
    source: Source,
    text: &str,
    given: &mut Vec<Given>,
    warnings: &mut Vec<String>,
) {
    let known = |key: &str| {
        find(key).filter(|row| source == Source::Conf || row.torch_keys().contains(&key))
    };
    for entry in conf(text) {
        match entry {
            Ok((key, text)) => match known(key) {
                Some(row) => given.push(Given {
                    row,
                    text: text.to_owned(),
                    source,
                    place: name.to_owned(),
                    one_of_many: true,
                }),
                None => warnings.push(format!("{name}: {}", unknown_option(key, text))),
            },
            Err(entry) => warnings.push(format!(
                "{name}: cannot read {}; accepted: key:value, separated by commas; ignored",
                quoted(entry)
            )),
        }
    }
}

/// Whether a framework's variables are read.
fn reads(source: Source, given: &[Given], host: Host) -> bool {
    let chosen = last(given, "import", |text| named(IMPORTS, text));
    match chosen.unwrap_or_default() {
        Import::Always => true,
        Import::Never => false,
        Import::Auto if source == Source::Paddle => !host.paddle,
        Import::Auto => {
            let uncached = last(given, "no_cuda_memory_caching", |text| match text {
                "1" => Some(true),
                "0" => Some(false),
                _ => None,
            });
            !host.torch || uncached.unwrap_or(false)
        }
    }
}

/// The strongest text for an option that `read` makes something of.
fn last<T>(given: &[Given], key: &str, read: fn(&str) -> Option<T>) -> Option<T> {
    let mut given: Vec<&Given> = given.iter().filter(|given| given.row.key == key).collect();
    given.sort_by_key(|given| given.source);
    given.iter().rev().find_map(|given| read(&given.text))
}

/// Reads a text that may have held what is not UTF-8.
fn read(row: &OptionRow, settings: &mut Settings, text: &str) -> Reading {
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Reading::Unreadable;
    }
    (row.read)(settings, text)
}

/// Where a row stands.
fn place_in_table(row: &OptionRow) -> usize {
    OPTIONS
        .iter()
        .position(|other| other.key == row.key)
        .unwrap_or(OPTIONS.len())
}

/// The warning for a text that could not be read.
fn unreadable(given: &Given, echo: &[Effective]) -> String {
    let target = given.row.target().key;
    let effective = echo.iter().find(|effective| effective.key == target);
    let end = match effective {
        _ if matches!(given.row.role, Role::NoEffect(_)) => "ignored".to_owned(),
        Some(effective) if effective.origin != DEFAULT => format!(
            "using {} from {}",
            printable(&effective.value),
            effective.origin
        ),
        Some(effective) => format!("using the default ({})", effective.value),
        None => "using the default".to_owned(),
    };
    format!(
        "{}: {}; {end}",
        given.told(),
        cannot_read(&given.text, given.accepted())
    )
}

fn cannot_read(text: &str, accepted: &str) -> String {
    format!("cannot read {}; accepted: {accepted}", quoted(text))
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
