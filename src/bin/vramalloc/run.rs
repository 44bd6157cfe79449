//! `vramalloc run`: runs a program under the library, and says where its
//! statistics are, or what they say.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, io};

use clap::ValueHint;
use clap::builder::PossibleValuesParser;
use serde::Deserialize;
use vramalloc_core::config::{self, Host, NOTES, STATS_BY_RUN, StatsTarget};
use vramalloc_core::stats::Process;

use super::child::{self, Ended};
use super::given::{self, Environment};
use super::library;
use super::lines::Lines;
use super::notes::{Notes, Said};
use super::output::{USAGE, complain, say};
use super::report;
use super::screen;
use super::script;
use super::statistics;
use super::target;
use super::written::Files;

/// The exit statuses if the program cannot be started, as of a shell.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// How many files the last line names.
const NAMED: usize = 3;

/// How often statistics are written while the program runs, unless the user says
/// otherwise. A write takes about a millisecond of a thread of its own, and 34 ms
/// where the program has 130 000 blocks.
const INTERVAL_S: &str = "10";

#[derive(clap::Args)]
#[command(after_help = "\
The exit status is the program's own, or 128 and the signal's number; 127 or \
126 where it cannot be started, 2 where an option cannot be read.

Statistics are also written while the program runs, the first after a second and \
then every ten seconds, so that they are there after a kill; --option \
stats_interval_s=0 leaves that out.

The same without this command:
  VRAMALLOC_LIMIT=16G LD_PRELOAD=/path/to/libvramalloc.so program")]
pub(super) struct Arguments {
    /// Say at the end, in ten lines, what was used, what failed and who held
    /// most
    #[arg(long)]
    report: bool,

    /// When memory is taken from the driver, and how much
    #[arg(long, value_parser = PossibleValuesParser::new(config::strategies()))]
    strategy: Option<String>,

    /// The most that each process may have of a device: 16G, 512MiB, or a share
    /// (0.5, 50%)
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    limit: Option<String>,

    /// Where the statistics go: a file (%e program, %p process id), stderr or
    /// off
    #[arg(long, value_name = "FILE")]
    stats: Option<String>,

    /// When freed memory may be used again
    #[arg(long, value_name = "WHEN", value_parser = PossibleValuesParser::new(config::free_syncs()))]
    free_sync: Option<String>,

    /// Any other option; `vramalloc options` lists them
    #[arg(long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,

    /// The library, where it is not beside this command
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    library: Option<PathBuf>,

    /// The program and its arguments; a file that ends in .py is run by Python
    #[arg(trailing_var_arg = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Runs the program. Returns its exit status.
pub(super) fn run(arguments: &Arguments) -> u8 {
    let program = match script::interpreted(&arguments.program) {
        Ok(program) => program,
        Err(error) => {
            say(error);
            return NOT_FOUND;
        }
    };
    match prepare(arguments, &program) {
        Ok((command, stats)) => execute(command, &stats, arguments.report),
        Err(error) => {
            say(error);
            USAGE
        }
    }
}

/// The command with its environment, and where the statistics will be written.
fn prepare(arguments: &Arguments, program: &[OsString]) -> Result<(Command, StatsTarget), String> {
    let chosen = chosen(arguments)?;
    let library = library::find(arguments.library.as_deref())?;
    let Some((program, rest)) = program.split_first() else {
        return Err("no program was named".to_owned());
    };
    let mut command = Command::new(program);
    // It was meant for this command.
    command.args(rest).env_remove(script::VARIABLE);

    let mut environment: Environment = env::vars_os().collect();
    for (key, value) in chosen {
        for name in given::variables(key) {
            command.env_remove(name);
        }
        command.env(given::variable(key), &value);
        given::set(&mut environment, key, &value);
    }
    let preload = library::in_front(
        &library,
        environment
            .get(OsStr::new("LD_PRELOAD"))
            .map(|value| &**value),
    );
    for other in &preload.left_out {
        say(format_args!(
            "LD_PRELOAD also named {}, another copy of the library, which is left out: one \
             process can have only one",
            other.display()
        ));
    }
    command.env("LD_PRELOAD", preload.value);

    let stated = environment.get(OsStr::new("VRAMALLOC_STATS")).cloned();
    let loaded = config::load(environment, Host::default());
    let mut stats = loaded.settings.stats;
    let is_open = |key: &str| {
        let mut echo = loaded.echo.iter();
        echo.any(|option| option.key == key && option.origin == "default")
    };
    match is_open("stats") {
        true => command.env(STATS_BY_RUN, "1"),
        false => command.env_remove(STATS_BY_RUN),
    };
    let recorded = loaded.settings.record.file.as_deref().map(Path::new);
    if let Some(why) = recorded.and_then(target::refused) {
        return Err(format!("record: {why}"));
    }
    // The program may change its directory; the file must be found.
    stats = stats.within(&env::current_dir().unwrap_or_default());
    if let StatsTarget::File(pattern) = &stats
        && pattern.starts_with('/')
    {
        if arguments.stats.is_some() {
            in_directory(pattern)?;
        } else if let Some(why) = target::refused(Path::new(pattern)) {
            say(format_args!(
                "{why}, so there will be no statistics; --stats names another place"
            ));
        }
        if is_open("stats_interval_s") && is_replaced(pattern) {
            command.env("VRAMALLOC_STATS_INTERVAL_S", INTERVAL_S);
        }
        // A value that cannot be read is left for the library to warn about.
        if stated.is_none_or(|text| readable(&text)) {
            command.env("VRAMALLOC_STATS", pattern);
        }
    }
    Ok((command, stats))
}

/// The options of the command line, from the weakest to the strongest.
fn chosen(arguments: &Arguments) -> Result<Vec<(&str, String)>, String> {
    let mut chosen = given::pairs(&arguments.options)?;
    let named = [
        ("strategy", arguments.strategy.clone()),
        ("limit", arguments.limit.clone()),
        ("stats", arguments.stats.clone()),
        ("free_sync", arguments.free_sync.clone()),
    ];
    for (key, value) in named {
        if let Some(value) = value {
            chosen.push((key, value.trim().to_owned()));
        }
    }
    given::check(&chosen)?;
    Ok(chosen)
}

/// Whether each version of the statistics replaces the one before: a pipe, a
/// device or what a link leads to would get one after the other.
fn is_replaced(pattern: &str) -> bool {
    let there = Path::new(pattern).symlink_metadata();
    pattern.contains('%') || there.map_or_else(|_| true, |there| there.is_file())
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
    if pattern.ends_with('/') || known(file) && file.is_dir() {
        return Err(format!(
            "--stats: {pattern} is a directory; name a file in it"
        ));
    }
    match target::refused(file) {
        Some(why) => Err(format!("--stats: {why}")),
        None => Ok(()),
    }
}

/// Runs the program and says where its statistics are, or what they say. Returns
/// its exit status.
fn execute(mut command: Command, stats: &StatsTarget, reports: bool) -> u8 {
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
    let ended = child::run(&mut command).or_else(|error| {
        let mut by_shell = script::by_shell(&command, &error).ok_or(error)?;
        child::run(&mut by_shell)
    });
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            let (status, why) = match error.kind() {
                io::ErrorKind::NotFound => (NOT_FOUND, script::not_found(&program)),
                _ => (NOT_STARTED, script::not_started(&program, &error)),
            };
            say(format_args!("cannot start {program}: {why}"));
            return status;
        }
    };
    let said = notes.map(Notes::said);
    let written = written(&ended, files.as_ref(), said.as_ref());
    match reports.then(|| in_short(&ended, &written)).flatten() {
        Some(text) => complain(&text),
        None if written.is_empty() => say(without_files(&program, &ended, stats, said)),
        None => say(last_line(&program, &ended, &written, files.as_ref(), said)),
    }
    ended.code()
}

/// The files of statistics that the run wrote, the program's own first.
fn written(ended: &Ended, files: Option<&Files>, said: Option<&Said>) -> Vec<PathBuf> {
    let mut written = files.map_or_else(Vec::new, |files| {
        let mut written = files.written_since(ended.pid);
        if let Some(said) = said {
            written.retain(|path| is_own(path, files, said));
        }
        written
    });
    // The program may have chosen another file.
    for path in said.iter().flat_map(|said| &said.wrote) {
        if !written.contains(path) && path.is_file() {
            written.push(path.clone());
        }
    }
    written
}

/// Whether a file is of a process of this run: others may be writing into the same
/// folder. Where the names do not tell, one is the run's if a process named it, or was
/// killed before it could. Processes on other machines say nothing here.
fn is_own(path: &Path, files: &Files, said: &Said) -> bool {
    let processes = if files.tell_process() {
        &said.seen
    } else {
        &said.lost
    };
    let mut processes = processes.iter();
    said.wrote.iter().any(|wrote| wrote == path)
        || processes.any(|&process| files.is_of(path, process))
        || is_of_another_host(path)
}

/// Whether statistics come from another machine, or from a container with a name.
fn is_of_another_host(path: &Path) -> bool {
    #[derive(Deserialize)]
    struct From {
        host: String,
    }
    let bytes = fs::read(path).ok();
    let from = bytes.and_then(|bytes| statistics::read::<From>(&bytes).ok());
    let here = Process::current(SystemTime::now(), String::new()).host;
    from.is_some_and(|from| from.host != here)
}

/// What the files say, in few lines; `None` if nothing can be told of any.
fn in_short(ended: &Ended, written: &[PathBuf]) -> Option<String> {
    let how = match (ended.status.code(), ended.status.signal()) {
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (code, None) => format!("status {}", code.unwrap_or_default()),
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let out = Lines::wide(screen::error_width());
    report::in_short(
        written,
        (&how, now),
        &|path| reading([path].into_iter()),
        out,
    )
}

/// The command that reads these files, in a form that a shell reads back.
fn reading<'a>(files: impl Iterator<Item = &'a Path>) -> String {
    let command = env::args_os().next().unwrap_or_else(|| "vramalloc".into());
    let mut line = format!("{} report", quoted(Path::new(&command)));
    for path in files {
        line.push(' ');
        line.push_str(&quoted(path));
    }
    line
}

/// Says where the statistics are and how to read them, and by which signal the program
/// ended: a shell that starts this command does not see that.
fn last_line(
    program: &str,
    ended: &Ended,
    written: &[PathBuf],
    files: Option<&Files>,
    said: Option<Said>,
) -> String {
    let signal = ended.status.signal();
    let signal = signal.map_or_else(String::new, |signal| {
        format!("{program} was ended by signal {signal}; ")
    });
    let how = match written.len() {
        1 => format!("{signal}statistics written; read them with:"),
        n => format!("{signal}{n} processes wrote statistics; read them with:"),
    };
    let named = written.iter().take(NAMED).map(|path| &**path);
    let mut line = format!("{how} {}", reading(named));
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
const NO_END: &str =
    "ended without exit handlers, as by _exit or exec, before any were written meanwhile";

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
    // Nobody says afterwards what went to a device or a pipe.
    if let StatsTarget::File(name) = stats
        && fs::metadata(name).is_ok_and(|there| !there.is_file() && !there.is_dir())
        && (said.as_ref()).is_some_and(|said| said.wrote.is_empty() && said.lost.is_empty())
    {
        return format!("the statistics of {program} went to {name}, if CUDA memory was seen");
    }
    match said {
        None => format!("{program} wrote no statistics"),
        Some(Said { wrote, .. }) if !wrote.is_empty() => {
            let wrote = wrote.iter().map(|path| path.to_string_lossy());
            let places = wrote
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>();
            format!("the statistics of {program} went to {}", places.join(", "))
        }
        Some(said) if said.lost.is_empty() => {
            format!("no CUDA memory was seen in {program}, so there are no statistics")
        }
        Some(_) => format!("{program} used CUDA and wrote no statistics (it {NO_END})"),
    }
}

/// A path in a form that a shell reads back.
fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    // A path with a NUL in it does not exist.
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), String::from)
}
