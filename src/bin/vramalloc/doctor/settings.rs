//! The options in force, and whether the statistics can be written.

use std::env;
use std::path::Path;

use rustix::fs::{Access, access};
use vramalloc_core::config::{self, Host, StatsTarget};

use super::findings::Findings;

/// Says every option with its origin, what could not be read, and where the
/// statistics are written.
pub(super) fn examine(findings: &mut Findings) {
    let loaded = config::load(env::vars_os(), Host::default());
    for option in &loaded.echo {
        let given = format!("{} = {} ({})", option.key, option.value, option.origin);
        match option.no_effect {
            None if option.origin == "default" => findings.ok("option", given),
            None => findings.told("option", given),
            Some(why) => findings.note("option", format_args!("{given} has no effect: {why}")),
        }
    }
    for warning in &loaded.warnings {
        findings.problem("option", warning);
    }
    statistics(&loaded.settings.stats, findings);
}

fn statistics(target: &StatsTarget, findings: &mut Findings) {
    let pattern = match target {
        StatsTarget::File(pattern) => Path::new(pattern),
        StatsTarget::Stderr => {
            return findings.ok("stats", "statistics go to standard error at the end");
        }
        StatsTarget::Off => {
            return findings.note("stats", "statistics are switched off (stats = off)");
        }
    };
    let directory = match pattern.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    let shown = match directory == Path::new(".") {
        true => "the working directory".to_owned(),
        false => directory.display().to_string(),
    };
    // A part of the name that each process fills in itself cannot be checked
    // here.
    if shown.contains('%') {
        return findings.note(
            "stats",
            format_args!(
                "statistics go to {}; its directory must exist",
                pattern.display()
            ),
        );
    }
    let advice = "set VRAMALLOC_STATS to a file in another directory, or to off";
    if !directory.is_dir() {
        findings.problem(
            "stats",
            format_args!("{shown} is not a directory; {advice}"),
        );
    } else if let Err(error) = access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        findings.problem(
            "stats",
            format_args!("no file can be made in {shown} ({error}); {advice}"),
        );
    } else {
        findings.ok(
            "stats",
            format_args!("statistics go to {} in {shown}", name(pattern)),
        );
    }
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
