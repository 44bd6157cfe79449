//! The options in force, and whether the statistics can be written.

use std::env;
use std::path::Path;

use vramalloc_core::config::{self, Host, StatsTarget};

use super::super::target;
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
    recording(loaded.settings.record.file.as_deref(), findings);
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
    let shown = target::folder(pattern);
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
    match target::refused(pattern) {
        Some(why) => findings.problem("stats", format_args!("{why}; {advice}")),
        None => findings.ok(
            "stats",
            format_args!("statistics go to {} in {shown}", name(pattern)),
        ),
    }
}

fn recording(pattern: Option<&str>, findings: &mut Findings) {
    if let Some(why) = pattern.and_then(|pattern| target::refused(Path::new(pattern))) {
        findings.problem(
            "option",
            format_args!("{why}; set VRAMALLOC_RECORD to a file in another directory, or to off"),
        );
    }
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
