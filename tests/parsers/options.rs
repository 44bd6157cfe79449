//! The environment: options and their warnings.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use vramalloc_core::Bytes;
use vramalloc_core::config::{
    DeviceShare, GarbageThreshold, Host, Loaded, OPTIONS, OptionRow, Role, Settings, StatsTarget,
    check, find, load, variable,
};
use vramalloc_core::stats::{Process, Report, file_of};

/// The longest that one warning may be, in characters.
const LONGEST: usize = 4096;

/// An environment, one variable per line.
pub fn options(data: &[u8]) {
    let environment: Vec<(OsString, OsString)> = data
        .split(|&byte| byte == b'\n')
        .filter_map(|line| {
            let at = line.iter().position(|&byte| byte == b'=')?;
            let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
            Some((text(&line[..at]), text(&line[at + 1..])))
        })
        .collect();
    for (paddle, torch) in [(false, false), (true, false), (true, true)] {
        let host = Host { paddle, torch };
        let loaded = load(environment.iter().cloned(), host);
        valid(&loaded.settings);
        told(&loaded);
        read_back(&loaded);
        files(&loaded);
    }
    for (name, value) in &environment {
        checked(&name.to_string_lossy(), &value.to_string_lossy());
    }
}

/// Checks that every value lies in its range, as those who read it take for
/// granted.
pub fn valid(settings: &Settings) {
    let config = &settings.config;
    for fraction in [
        config.chunk_fraction,
        config.garbage_fraction,
        settings.pinned.fraction,
        settings.pageable.fraction,
    ] {
        assert!((0.0..=1.0).contains(&fraction), "{settings:?}");
    }
    for share in [config.limit, config.limbo_budget] {
        match share {
            Some(DeviceShare::Fraction(share)) => assert!(share > 0.0 && share <= 1.0),
            Some(DeviceShare::Bytes(bytes)) => assert!(!bytes.is_zero()),
            None => {}
        }
    }
    for size in [
        config.dedicated_min,
        config.initial_chunk,
        config.reallocate_chunk,
        settings.pinned.reserve_segment,
    ] {
        assert!(size.is_none_or(|size| !size.is_zero()));
    }
    if let GarbageThreshold::Bytes(bytes) = config.garbage_threshold {
        assert!(!bytes.is_zero());
    }
    let threshold = config.garbage_collection_threshold;
    assert!(threshold.is_none_or(|threshold| threshold > 0.0 && threshold < 1.0));
    let splitting = config.splitting;
    let segment = splitting.large_segment.unwrap_or(Bytes::mib(20));
    assert!(segment > Bytes::mib(10));
    for size in [splitting.max_split, splitting.max_non_split_rounding] {
        assert!(size.is_none_or(|size| size >= segment));
    }
    let divisions = config.rounding.divisions;
    assert!(divisions.iter().all(|&n| n == 0 || n.is_power_of_two()));
    let threads = settings.pinned.register_threads;
    assert!(threads.is_power_of_two() && threads <= 128);
    assert!(settings.groups.least_mib >= -1.0 && settings.trace_events <= 1 << 24);
}

/// Checks that the echo has every option once, and that a warning is one line.
fn told(loaded: &Loaded) {
    let is_own = |row: &&OptionRow| matches!(row.role, Role::Own(_));
    let rows = || loaded.echo.iter().filter_map(|option| find(option.key));
    let keys: BTreeSet<&str> = rows().filter(is_own).map(|row| row.key).collect();
    let own = OPTIONS.iter().filter(is_own).count();
    assert_eq!((keys.len(), rows().filter(is_own).count()), (own, own));
    for warning in &loaded.warnings {
        super::is_plain(warning);
        assert!(warning.chars().count() <= LONGEST, "{warning}");
    }
}

/// Checks that the echo is read back as the same settings.
fn read_back(loaded: &Loaded) {
    let echo = loaded.echo.iter().map(|option| {
        let row = find(option.key).unwrap();
        (variable(row).into(), option.value.clone().into())
    });
    let again = load(echo, Host::default());
    assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    assert_eq!(again.settings, loaded.settings);
    for (again, loaded) in again.echo.iter().zip(&loaded.echo) {
        assert_eq!((again.key, &again.value), (loaded.key, &loaded.value));
    }
}

/// Checks that the file of the statistics lies in a directory that the user
/// named, and that the command reads a report with these settings.
fn files(loaded: &Loaded) {
    let process = Process {
        program: "a/../b\n".to_owned(),
        host: "/c".to_owned(),
        rank: "..".to_owned(),
        ..Process::default()
    };
    if let StatsTarget::File(pattern) = &loaded.settings.stats {
        let path = file_of(pattern, &process);
        let slashes = |text: &str| text.bytes().filter(|&byte| byte == b'/').count();
        assert_eq!(slashes(pattern), slashes(&path.to_string_lossy()));
        assert!(!path.as_os_str().as_bytes().contains(&0));
    }
    let report = Report {
        process: &process,
        loaded,
        last: true,
        doors: &[],
        lanes: "unused",
        control: "unused",
        recording: None,
        arenas: &[],
        families: &[],
        libraries: &[],
        elsewhere: &[],
        imports: &[],
        snapshots: None,
        stacks: None,
    };
    super::command::reads(report.to_text().as_bytes());
}

/// Checks that `check` accepts a text exactly when loading accepts it.
fn checked(key: &str, text: &str) {
    let result = check(key, text);
    if let Err(error) = &result {
        super::is_plain(error);
        assert!(error.chars().count() <= LONGEST, "{error}");
    }
    let Some(row) = find(key) else {
        return assert!(result.is_err());
    };
    // A variable is trimmed, and an empty one counts as not set.
    if text.trim() == text && !text.is_empty() {
        let loaded = load([(variable(row).into(), text.into())], Host::default());
        assert_eq!(result.is_ok(), loaded.warnings.is_empty(), "{key}={text:?}");
    }
}
