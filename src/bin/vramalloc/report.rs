//! `vramalloc report`: a summary of what a program wrote.
//!
//! A file may come from anywhere: whatever it holds, the answer is a summary
//! or one line that says what is wrong with it.

use std::fmt::{Display, Write};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use vramalloc::stats::SCHEMA;

use super::units::{bytes, duration, percent, share};
use super::{USAGE, plain, say, show};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Files that programs wrote (VRAMALLOC_STATS)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Write what FILE says of each block, and its events, as a snapshot that
    /// PyTorch's memory_viz opens, and as JSON beside it
    #[arg(long, value_name = "PICKLE")]
    snapshot: Option<PathBuf>,
}

/// Prints a summary of each file and answers with the exit status.
pub(super) fn report(arguments: &Arguments) -> u8 {
    if let Some(target) = &arguments.snapshot {
        return super::snapshot::report(target, &arguments.files);
    }
    let mut status = 0;
    let mut text = String::new();
    for file in &arguments.files {
        let read = fs::read(file).map_err(|error| error.to_string());
        match read.and_then(|bytes| summarise(&bytes)) {
            Ok(summary) => {
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&summary);
            }
            Err(error) => {
                say(format_args!("{}: {error}", file.display()));
                status = USAGE;
            }
        }
    }
    show(&text).max(status)
}

/// The summary of a file.
///
/// # Errors
/// One line that says what is wrong with it.
pub(super) fn summarise(bytes: &[u8]) -> Result<String, String> {
    summary(&parsed(bytes)?)
}

/// The JSON of a file, if it is of a schema that this command knows.
fn parsed(bytes: &[u8]) -> Result<Value, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("not statistics of vramalloc: {error}"))?;
    match value.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => Ok(value),
        Some(schema) => Err(format!(
            "schema {schema}, but this command reads schema {SCHEMA}"
        )),
        None => Err("not statistics of vramalloc: no schema".to_owned()),
    }
}

/// Everything about one process.
fn summary(value: &Value) -> Result<String, String> {
    let mut out = Lines::default();
    let ran = number(value, "ended_unix_ms")?.saturating_sub(number(value, "started_unix_ms")?);
    out.line(format_args!(
        "{} (process {} on {}): {} under vramalloc {}",
        text(value, "program")?,
        number(value, "pid")?,
        text(value, "host")?,
        duration(ran.saturating_mul(1_000_000)),
        text(value, "library_version")?,
    ));
    if value.get("final") == Some(&Value::Bool(false)) {
        out.line(format_args!("  taken while it ran, not at its end"));
    }
    let options = value.get("options").and_then(Value::as_object);
    for (key, option) in options.ok_or("options is missing or not an object")? {
        let origin = text(option, "origin")?;
        if key == "strategy" || origin != "default" {
            let value = text(option, "value")?;
            out.line(format_args!("  {} = {value} ({origin})", plain(key)));
        }
    }
    for warning in list(value, "warnings")? {
        let warning = warning.as_str().ok_or("a warning is not a text")?;
        out.line(format_args!("  warning: {}", plain(warning)));
    }
    let arenas = list(value, "arenas")?;
    if arenas.is_empty() {
        out.line("  no device memory was allocated");
    }
    for (i, value) in arenas.iter().enumerate() {
        arena(value, &mut out).map_err(|error| format!("arenas[{i}].{error}"))?;
    }
    Ok(out.text)
}

/// Everything about one arena.
fn arena(value: &Value, out: &mut Lines) -> Result<(), String> {
    let name = value.get("device_name").and_then(Value::as_str);
    let total = value.get("device_total_bytes").and_then(Value::as_u64);
    out.line("");
    out.line(format_args!(
        "device {}{}{}",
        number(value, "device")?,
        name.map_or_else(String::new, |name| format!(": {}", plain(name))),
        total.map_or_else(String::new, |total| format!(", {}", bytes(total))),
    ));
    out.line(format_args!(
        "  {:<14}{:>12}{:>12}",
        "", "at the end", "peak"
    ));
    for gauge in ["live", "cached", "limbo", "reserved"] {
        out.line(format_args!(
            "  {gauge:<14}{:>12}{:>12}",
            bytes(number(value, &format!("{gauge}_bytes.current"))?),
            bytes(number(value, &format!("{gauge}_bytes.peak"))?),
        ));
    }
    let (hits, misses, direct) = (
        number(value, "hits")?,
        number(value, "misses")?,
        number(value, "direct")?,
    );
    let requests = number(value, "allocations")?;
    out.fact(
        "requests",
        format_args!(
            "{requests}: {} hits, {} misses, {} direct",
            share(hits, requests),
            share(misses, requests),
            share(direct, requests),
        ),
    );
    out.fact("frees", number(value, "frees")?);
    driver_calls(value, out)?;
    out.fact(
        "waits",
        format_args!(
            "{} in {}",
            number(value, "waits")?,
            duration(number(value, "wait_ns")?)
        ),
    );
    out.fact("epochs", number(value, "epochs")?);
    out.fact(
        "out of memory",
        format_args!(
            "{} ({} at the limit)",
            number(value, "ooms")?,
            number(value, "limit_ooms")?
        ),
    );
    out.fact("bad frees", number(value, "bad_frees")?);
    let fragmentation = value.get("fragmentation").and_then(Value::as_f64);
    let fragmentation = fragmentation.ok_or("fragmentation is missing or not a number")?;
    out.fact(
        "fragmentation",
        format_args!(
            "{}, largest cached block {}",
            percent(fragmentation),
            bytes(number(value, "largest_cached_bytes")?)
        ),
    );
    Ok(())
}

/// Calls to the driver, all together and by kind.
fn driver_calls(value: &Value, out: &mut Lines) -> Result<(), String> {
    let calls = value.get("driver_calls").and_then(Value::as_object);
    let (mut count, mut failures, mut ns) = (0u64, 0u64, 0u64);
    let mut kinds = Vec::new();
    for (kind, value) in calls.ok_or("driver_calls is missing or not an object")? {
        let calls = number(value, "calls")?;
        count = count.saturating_add(calls);
        failures = failures.saturating_add(number(value, "failures")?);
        ns = ns.saturating_add(number(value, "total_ns")?);
        if calls > 0 {
            kinds.push(format!("{calls} {}", plain(kind)));
        }
    }
    let kinds = match kinds.len() {
        0 => String::new(),
        _ => format!(": {}", kinds.join(", ")),
    };
    out.fact(
        "driver calls",
        format_args!("{count} in {}, {failures} failed{kinds}", duration(ns)),
    );
    Ok(())
}

/// Text that grows by lines.
#[derive(Default)]
struct Lines {
    text: String,
}

impl Lines {
    fn line(&mut self, line: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn fact(&mut self, name: &str, fact: impl Display) {
        self.line(format_args!("  {name:<16}{fact}"));
    }
}

/// What lies at a path of keys with points between.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

fn number(value: &Value, path: &str) -> Result<u64, String> {
    at(value, path)
        .and_then(Value::as_u64)
        .ok_or_else(|| format!("{path} is missing or not a number"))
}

fn text(value: &Value, path: &str) -> Result<String, String> {
    at(value, path)
        .and_then(Value::as_str)
        .map(plain)
        .ok_or_else(|| format!("{path} is missing or not a text"))
}

fn list<'a>(value: &'a Value, path: &str) -> Result<&'a Vec<Value>, String> {
    at(value, path)
        .and_then(Value::as_array)
        .ok_or_else(|| format!("{path} is missing or not a list"))
}
