//! Options from an environment, and the page that documents them.
//!
//! What an option does to the device is shown elsewhere; `effects` says where.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod any;
mod effects;
mod import;
mod paddle;
mod page;
mod pytorch;
mod schedulers;
mod sources;
mod warnings;

use std::ffi::OsString;

use vramalloc_core::config::{Effective, Host, Loaded, load};

/// What an environment amounts to in a process like `host`.
fn under(host: Host, environment: &[(&str, &str)]) -> Loaded {
    load(
        environment
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value))),
        host,
    )
}

/// The same in a process that is no framework's.
fn plain(environment: &[(&str, &str)]) -> Loaded {
    under(Host::default(), environment)
}

/// The same, where nothing is wrong.
#[track_caller]
fn good(environment: &[(&str, &str)]) -> Loaded {
    let loaded = plain(environment);
    assert_eq!(loaded.warnings, Vec::<String>::new());
    loaded
}

fn effective<'a>(loaded: &'a Loaded, key: &str) -> &'a Effective {
    loaded.echo.iter().find(|e| e.key == key).unwrap()
}

fn origin<'a>(loaded: &'a Loaded, key: &str) -> &'a str {
    &effective(loaded, key).origin
}

fn value<'a>(loaded: &'a Loaded, key: &str) -> &'a str {
    &effective(loaded, key).value
}
