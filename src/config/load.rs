//! From an environment to settings, with an echo and warnings.
//!
//! Decides which of several texts for an option counts. Invariant: nothing in
//! an environment makes this panic; a text that cannot be read changes nothing
//! and is named in exactly one warning. Cost: a few microseconds.

use std::ffi::OsString;

use super::Settings;
use super::sources::{Given, collect, read};
use super::table::{OPTIONS, OptionRow, Reading, Role, find};
use super::words::{cannot_read, printable, unknown_option};

/// The origin of an option that was not given.
pub(super) const DEFAULT: &str = "default";

/// The properties of the process that options depend on.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Paddle is loaded and reads its `FLAGS_*` itself.
    pub paddle: bool,
    /// PyTorch is loaded and reads its allocator's variables itself, unless the
    /// environment disables its cache.
    pub torch: bool,
}

/// The effective value of one option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effective {
    /// The option.
    pub key: &'static str,
    /// Its value, in a form that the option accepts.
    pub value: String,
    /// Where the value came from: `default`, or the variable (with the key that
    /// was used there, if that is a different one).
    pub origin: String,
    /// Why the option has no effect, if it has none.
    pub no_effect: Option<&'static str>,
}

/// What was read from an environment.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// The values in force.
    pub settings: Settings,
    /// The options that have an effect, and the given options without an
    /// effect, in the order of the table.
    pub echo: Vec<Effective>,
    /// One line for each thing that could not be read, without the program's
    /// name in front and without a line end.
    pub warnings: Vec<String>,
}

/// The settings that `environment` gives to a process like `host`.
#[must_use]
pub fn load(environment: impl IntoIterator<Item = (OsString, OsString)>, host: Host) -> Loaded {
    let mut warnings = Vec::new();
    let given = collect(environment, host, &mut warnings);
    let mut settings = Settings::default();
    let mut counting: Vec<Option<&Given>> = vec![None; OPTIONS.len()];
    let mut bad = Vec::new();
    for late in [false, true] {
        let given = given.iter().filter(|given| given.row.late == late);
        for given in strongest(given, &settings, &mut bad) {
            let reading = given.read(&mut settings);
            let shown = reading == Reading::Set || matches!(given.row.role, Role::NoEffect(_));
            let place = counting.get_mut(given.row.target().place());
            if let Some(place) = place.filter(|_| shown) {
                *place = Some(given);
            }
        }
    }
    let echo: Vec<Effective> = OPTIONS
        .iter()
        .zip(counting)
        .filter_map(|(row, given)| effective(row, given, &settings))
        .collect();
    warnings.extend(bad.into_iter().map(|given| unreadable(given, &echo)));
    Loaded {
        settings,
        echo,
        warnings,
    }
}

/// For each row the strongest text that can be read, the weakest row first.
/// Texts that cannot be read are added to `bad`.
fn strongest<'a>(
    given: impl DoubleEndedIterator<Item = &'a Given>,
    settings: &Settings,
    bad: &mut Vec<&'a Given>,
) -> Vec<&'a Given> {
    let mut taken = vec![false; OPTIONS.len()];
    let mut strongest = Vec::new();
    let mut refused = Vec::new();
    for given in given.rev() {
        let taken = taken.get_mut(given.row.place());
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

/// The echo of an option that was `given` so; `None` if it has none.
fn effective(row: &OptionRow, given: Option<&Given>, settings: &Settings) -> Option<Effective> {
    let origin = given.map(Given::origin);
    match row.role {
        Role::Own(show) => Some(Effective {
            key: row.key,
            value: show(settings),
            no_effect: given.and_then(|_| (row.idle)(settings)),
            origin: origin.unwrap_or_else(|| DEFAULT.to_owned()),
        }),
        Role::NoEffect(why) => Some(Effective {
            key: row.key,
            value: given?.text.clone(),
            origin: origin?,
            no_effect: Some(why),
        }),
        Role::Sets(_) => None,
    }
}

/// The warning for a text that could not be read.
fn unreadable(given: &Given, echo: &[Effective]) -> String {
    let target = given.row.target();
    let end = match echo.iter().find(|effective| effective.key == target.key) {
        Some(effective) if effective.origin == DEFAULT && !target.by_default.is_empty() => {
            target.by_default.to_owned()
        }
        Some(effective) if effective.origin == DEFAULT => {
            format!("using the default ({})", effective.value)
        }
        Some(effective) if matches!(target.role, Role::Own(_)) => format!(
            "using {} from {}",
            printable(&effective.value),
            effective.origin
        ),
        _ => "ignored".to_owned(),
    };
    format!(
        "{}: {}; {end}",
        given.told(),
        cannot_read(given.row, &given.text, given.accepted())
    )
}

/// Checks that `text` can be read as the option `key`, given alone.
///
/// # Errors
/// One line that names the key, the text and what is accepted.
pub fn check(key: &str, text: &str) -> Result<(), String> {
    check_all(Settings::default(), &[(key, text)])
}

/// Checks that these texts can be read as the options with these keys, given
/// together on top of `settings`.
///
/// # Errors
/// One line about the first text that cannot: its key, the text and what is
/// accepted.
pub fn check_all(mut settings: Settings, options: &[(&str, &str)]) -> Result<(), String> {
    for late in [false, true] {
        for (key, text) in options {
            let row = find(key).ok_or_else(|| unknown_option(key, text, "", |_| true))?;
            if row.late == late && read(row, &mut settings, text) == Reading::Unreadable {
                return Err(format!("{key}: {}", cannot_read(row, text, row.accepted)));
            }
        }
    }
    Ok(())
}
