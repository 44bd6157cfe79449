//! `vramalloc run`: runs a program under the library, and says where its
//! statistics are.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

use vramalloc_core::config::{self, Host, NOTES, StatsTarget};

use super::child::{self, Ended};
use super::library;
use super::notes::{Notes, Said};
use super::output::{USAGE, say};
use super::written::Files;

/// The exit statuses if the program cannot be started, as of a shell.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// How many files the last line names.
const NAMED: usize = 3;

#[derive(clap::Args)]
#[command(after_help = "\
The exit status is the program's own, or 128 and the signal's number; 127 or \
126 where it cannot be started, 2 where an option cannot be read.

The same without this command:
  VRAMALLOC_LIMIT=16G LD_PRELOAD=/path/to/libvramalloc.so program")]
pub(super) struct Arguments {
    /// When memory is taken: naive_best_fit, auto_growth or passthrough
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,

    /// The most that each process may have of a device: 16G, 512MiB, or a share
    /// (0.5, 50%)
    #[arg(long, value_name = "SIZE")]
    limit: Option<String>,

    /// Where the statistics go: a file (%e program, %p process id), stderr or
    /// off
    #[arg(long, value_name = "FILE")]
    stats: Option<String>,

    /// When freed memory may be used again: deferred, strict or immediate
    #[arg(long, value_name = "WHEN")]
    free_sync: Option<String>,

    /// Any other option; `vramalloc options` lists them
    #[arg(long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,

    /// The library, where it is not beside this command
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    program: Vec<OsString>,
}

/// Runs the program. Returns its exit status.
pub(super) fn run(arguments: &Arguments) -> u8 {
    match prepare(arguments) {
        Ok((command, stats)) => execute(command, &stats),
        Err(error) => {
            say(error);
            USAGE
        }
    }
}

/// The command with its environment, and where the statistics will be written.
fn prepare(arguments: &Arguments) -> Result<(Command, StatsTarget), String> {
    let chosen = chosen(arguments)?;
    let library = library::find(arguments.library.as_deref())?;
    let Some((program, rest)) = arguments.program.split_first() else {
        return Err("no program was named".to_owned());
    };
    let mut command = Command::new(program);
    command.args(rest);

    let mut environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
    for (key, value) in chosen {
        for name in other_names(key) {
            environment.remove(OsStr::new(&name));
            command.env_remove(name);
        }
        let name = format!("VRAMALLOC_{}", key.to_ascii_uppercase());
        environment.insert(name.clone().into(), value.into());
        command.env(name, value);
    }
    let preload = library::in_front(
        &library,
        environment
            .get(OsStr::new("LD_PRELOAD"))
            .map(|value| &**value),
    );
    command.env("LD_PRELOAD", preload);

    let stated = environment.get(OsStr::new("VRAMALLOC_STATS")).cloned();
    let mut stats = config::load(environment, Host::default()).settings.stats;
    // The program may change its directory; the file must be found.
    stats = stats.within(&env::current_dir().unwrap_or_default());
    if let StatsTarget::File(pattern) = &stats
        && pattern.starts_with('/')
    {
        if arguments.stats.is_some() {
            in_directory(pattern)?;
        }
        // A value that cannot be read is left for the library to warn about.
        if stated.is_none_or(|text| readable(&text)) {
            command.env("VRAMALLOC_STATS", pattern);
        }
    }
    Ok((command, stats))
}

/// The options of the command line, from the weakest to the strongest.
fn chosen(arguments: &Arguments) -> Result<Vec<(&str, &str)>, String> {
    let mut chosen = Vec::new();
    for option in &arguments.options {
        // The colon is that of VRAMALLOC_CONF.
        let pair = option
            .split_once(['=', ':'])
            .ok_or_else(|| format!("--option {option}: accepted: KEY=VALUE"))?;
        chosen.push((pair.0.trim(), pair.1.trim()));
    }
    let named = [
        ("strategy", &arguments.strategy),
        ("limit", &arguments.limit),
        ("stats", &arguments.stats),
        ("free_sync", &arguments.free_sync),
    ];
    for (key, value) in named {
        if let Some(value) = value {
            chosen.push((key, value.trim()));
        }
    }
    // What some options accept depends on others, which the environment may
    // set.
    let settings = config::load(env::vars_os(), Host::default()).settings;
    config::check_all(settings, &chosen)?;
    Ok(chosen)
}

/// The other variables that set the option `key` and could beat it.
fn other_names(key: &str) -> impl Iterator<Item = String> {
    let target = config::find(key).map(|row| row.target().key);
    config::OPTIONS
        .iter()
        .filter(move |row| Some(row.target().key) == target)
        .map(config::variable)
}

/// Whether a value of `VRAMALLOC_STATS` can be read.
fn readable(text: &OsStr) -> bool {
    text.is_empty()
        || text
            .to_str()
            .is_some_and(|text| StatsTarget::read(text).is_some())
}

/// Checks that the file can be created, as far as its name is known.
fn in_directory(pattern: &str) -> Result<(), String> {
    let known = |path: &Path| !path.to_string_lossy().contains('%');
    let file = Path::new(pattern);
    let directory = file.parent().unwrap_or(Path::new("/"));
    if pattern.ends_with('/') || known(file) && file.is_dir() {
        return Err(format!(
            "--stats: {pattern} is a directory; name a file in it"
        ));
    }
    if known(directory) && !directory.is_dir() {
        return Err(format!(
            "--stats: {} is not a directory",
            directory.display()
        ));
    }
    Ok(())
}

/// Runs the program and says where its statistics are. Returns its exit status.
fn execute(mut command: Command, stats: &StatsTarget) -> u8 {
    let files = match stats {
        StatsTarget::File(pattern) => Some(Files::now(pattern)),
        StatsTarget::Stderr | StatsTarget::Off => None,
    };
    let program = command.get_program().to_string_lossy().into_owned();
    let notes = files.as_ref().and_then(|_| Notes::new());
    match &notes {
        Some(notes) => command.env(NOTES, notes.place()),
        None => command.env_remove(NOTES),
    };
    let ended = match child::run(&mut command) {
        Ok(ended) => ended,
        Err(error) => {
            say(format_args!("cannot start {program}: {error}"));
            return match error.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_STARTED,
            };
        }
    };
    let said = notes.map(Notes::said);
    say(last_line(&program, &ended, stats, files.as_ref(), said));
    ended.code()
}

/// Says where the statistics are and how to read them.
fn last_line(
    program: &str,
    ended: &Ended,
    stats: &StatsTarget,
    files: Option<&Files>,
    said: Option<Said>,
) -> String {
    let mut written = files.map_or_else(Vec::new, |files| files.written_since(ended.pid));
    // The program may have chosen another file.
    for path in said.iter().flat_map(|said| &said.wrote) {
        if !written.contains(path) && path.is_file() {
            written.push(path.clone());
        }
    }
    let how = match written.len() {
        0 => return without_files(program, ended, stats, said),
        1 => "statistics written; read them with:".to_owned(),
        n => format!("{n} processes wrote statistics; read them with:"),
    };
    let command = env::args_os().next().unwrap_or_else(|| "vramalloc".into());
    let mut line = format!("{how} {} report", quoted(Path::new(&command)));
    for path in written.iter().take(NAMED) {
        line.push(' ');
        line.push_str(&quoted(path));
    }
    if written.len() > NAMED {
        line.push_str(&format!(" (and {} more beside)", written.len() - NAMED));
    }
    let is_lost = |&&pid: &&u32| {
        let mut written = written.iter();
        !written.any(|path| files.is_some_and(|files| files.is_of(path, pid)))
    };
    let lost = said.map_or(0, |said| said.lost.iter().filter(is_lost).count());
    if lost > 0 {
        line.push_str(&format!(
            "; {lost} more used CUDA and wrote none (they {NO_END})"
        ));
    }
    line
}

/// Why a process leaves no statistics.
const NO_END: &str = "ended without exit handlers, as by _exit; \
     --option stats_interval_s=60 writes them meanwhile";

/// What to say if no file was found.
fn without_files(program: &str, ended: &Ended, stats: &StatsTarget, said: Option<Said>) -> String {
    if *stats == StatsTarget::Off {
        return "no statistics were kept: they are switched off".to_owned();
    }
    let failure = said.as_ref().and_then(|said| said.failures.last());
    if let Some(why) = failure {
        return format!("the statistics of {program} could not be written: {why}");
    }
    if let Some(signal) = ended.status.signal() {
        return format!("{program} was ended by signal {signal} and wrote no statistics");
    }
    if *stats == StatsTarget::Stderr {
        return format!("statistics stand above, if CUDA memory was seen in {program}");
    }
    match said {
        None => format!("{program} wrote no statistics"),
        Some(said) if said.lost.is_empty() => {
            format!("no CUDA memory was seen in {program}, so there are no statistics")
        }
        Some(_) => format!("{program} used CUDA and wrote no statistics (it {NO_END})"),
    }
}

/// A path in a form that a shell reads back.
fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+@%:,=".contains(c);
    if path.chars().all(plain) {
        return path.into_owned();
    }
    format!("'{}'", path.replace('\'', r"'\''"))
}
