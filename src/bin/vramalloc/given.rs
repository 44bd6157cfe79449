//! Options that are given to the command, over those of the environment.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};

use vramalloc_core::config::{self, Host};

/// The variables of a process.
pub(super) type Environment = BTreeMap<OsString, OsString>;

/// The options of texts such as `limit=16G`.
pub(super) fn pairs(options: &[String]) -> Result<Vec<(&str, String)>, String> {
    let pair = |option| {
        // The colon is that of VRAMALLOC_CONF.
        let pair = str::split_once(option, ['=', ':']);
        let (key, value) = pair.ok_or_else(|| format!("--option {option}: accepted: KEY=VALUE"))?;
        Ok((key.trim(), value.trim().to_owned()))
    };
    options.iter().map(|option| pair(option)).collect()
}

/// Checks that options can be read.
pub(super) fn check(given: &[(&str, String)]) -> Result<(), String> {
    // What some options accept depends on others, which the environment may set.
    let settings = config::load(env::vars_os(), Host::default()).settings;
    let texts: Vec<(&str, &str)> = given.iter().map(|(key, value)| (*key, &**value)).collect();
    config::check_all(settings, &texts)
}

/// The variable of an option.
pub(super) fn variable(key: &str) -> String {
    format!("VRAMALLOC_{}", key.to_ascii_uppercase())
}

/// All variables that set an option, and could beat that one.
pub(super) fn variables(key: &str) -> impl Iterator<Item = String> {
    let target = config::find(key).map(|row| row.target().key);
    config::OPTIONS
        .iter()
        .filter(move |row| Some(row.target().key) == target)
        .map(config::variable)
}

/// Sets an option in an environment.
pub(super) fn set(environment: &mut Environment, key: &str, value: &str) {
    for name in variables(key) {
        environment.remove(OsStr::new(&name));
    }
    environment.insert(variable(key).into(), value.into());
}
