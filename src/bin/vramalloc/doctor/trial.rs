//! A trial run: the program under the library, and which doors it called.
//!
//! Owns a directory, private to the user, for the statistics of the run; it is
//! removed after the trial.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, io};

use serde::Deserialize;
use vramalloc_core::config::{self, Host, NOTES};
use vramalloc_core::stats::NOT_SERVED;

use super::super::notes::{Notes, Said};
use super::super::pauses::Pauses;
use super::super::statistics::{self, Setting};
use super::super::units::count;
use super::super::{child, families, library};
use super::findings::Findings;
use super::scopes::{self, Cuda};
use super::transports::Transports;

/// The prefix of the names of the loader's files.
const SCOPES: &str = "scopes";

/// How many processes are reported one by one.
const TOLD: usize = 16;

/// The allocations of all processes of a trial.
#[derive(Default)]
pub(super) struct Served {
    /// Those that the pool served.
    pub(super) pool: u64,
    /// Those that went past it and were counted.
    pub(super) past: u64,
    /// The programs that made them.
    pub(super) programs: BTreeSet<String>,
    /// Why there may have been more, the end of a sentence; `None` if the
    /// program came to its end and no process of it loaded CUDA.
    pub(super) unproved: Option<String>,
}

/// Runs the program and reports how it went. Returns how many allocations it
/// made; `None` if it could not be run.
pub(super) fn run(
    program: &[std::ffi::OsString],
    library: &Path,
    transports: &mut Transports,
    findings: &mut Findings,
) -> Option<Served> {
    let place = match Place::new() {
        Ok(place) => place,
        Err(error) => {
            findings.problem(
                "trial",
                format_args!("no directory for the trial's statistics: {error}; set TMPDIR"),
            );
            return None;
        }
    };
    let (name, arguments) = program.split_first()?;
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env(
            "LD_PRELOAD",
            library::in_front(library, env::var_os("LD_PRELOAD").as_deref()).value,
        )
        .env("VRAMALLOC_STATS", place.pattern())
        .env(scopes::WHAT.0, scopes::WHAT.1)
        .env(scopes::WHERE, place.0.join(SCOPES))
        // Only the findings are on standard output.
        .stdout(Stdio::from(io::stderr()));
    if config::load(env::vars_os(), Host::default())
        .settings
        .stats_interval
        .is_zero()
    {
        // So that a program that is interrupted here has statistics too.
        command.env("VRAMALLOC_STATS_INTERVAL_S", "1");
    }
    let notes = Notes::new();
    match &notes {
        Some(notes) => command.env(NOTES, notes.place()),
        None => command.env_remove(NOTES),
    };
    let ended = match child::run(&mut command) {
        Ok(ended) => ended,
        Err(error) => {
            findings.problem(
                "trial",
                format_args!("{} cannot be started: {error}", name.to_string_lossy()),
            );
            return None;
        }
    };
    let how = tell_end(ended.status, findings);
    for runtime in place.runtimes_past_us() {
        findings.note(
            "deepbind",
            format_args!(
                "{runtime} came into a process by RTLD_DEEPBIND and looks past preloaded \
                 libraries: its memory is CUDA's own, and it must not free what came by another \
                 runtime"
            ),
        );
    }
    let objects = place.objects();
    transports.examine(objects.iter().map(Path::new), findings);
    let mut served = Served::default();
    let processes = place.processes();
    for process in processes.iter().take(TOLD) {
        tell(process, findings);
    }
    for process in &processes {
        served.pool = served.pool.saturating_add(process.totals.allocations);
        let past = process.families.iter().map(|taken| taken.calls);
        served.past = past.fold(served.past, u64::saturating_add);
        if process.totals.allocations > 0 || !process.families.is_empty() {
            served.programs.insert(process.program.clone());
        }
    }
    if let Some(more) = processes.len().checked_sub(TOLD).filter(|&more| more > 0) {
        findings.note(
            "trial",
            format_args!("and {more} more processes with device memory"),
        );
    }
    let said = notes.map(Notes::said).unwrap_or_default();
    let without = tell_missing(&said, &processes, findings).then(|| WITHOUT.to_owned());
    let unseen = tell_unseen(&place, library, findings);
    served.unproved = without.or(how).or(unseen);
    Some(served)
}

/// What the verdict says of a process without statistics.
const WITHOUT: &str = ", but a process that used CUDA left no statistics";

/// Says how the program ended. Returns the end of a sentence, if it did not
/// come to a good end.
fn tell_end(status: ExitStatus, findings: &mut Findings) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => {
            findings.ok("trial", "the program ended with status 0");
            None
        }
        (Some(status), _) => {
            findings.note(
                "trial",
                format_args!(
                    "the program ended with status {status}; see whether it does so without the \
                     library"
                ),
            );
            Some(format!(" before it ended with status {status}"))
        }
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            findings.note(
                "trial",
                format_args!(
                    "the program was ended by signal {signal}; what it did in its last second is \
                     not told"
                ),
            );
            Some(format!(" before it was ended by signal {signal}"))
        }
    }
}

/// Says which processes used CUDA and left no statistics. Returns whether any did.
fn tell_missing(said: &Said, processes: &[Process], findings: &mut Findings) -> bool {
    let has_told = |pid: u32| {
        let mut told = processes.iter();
        told.any(|process| process.pid == u64::from(pid))
    };
    let lost = said.lost.iter().filter(|&&pid| !has_told(pid));
    let lost: Vec<String> = lost.take(TOLD).map(u32::to_string).collect();
    if !lost.is_empty() {
        findings.note(
            "trial",
            format_args!(
                "process {} used CUDA and ended without exit handlers, as by _exit or a signal, \
                 before statistics were written; the first are written after a second, so a \
                 longer run tells more",
                lost.join(", ")
            ),
        );
    }
    let failed = said.failures.last();
    if let Some(why) = failed {
        findings.note(
            "trial",
            format_args!("statistics could not be written: {why}"),
        );
    }
    !lost.is_empty() || failed.is_some()
}

/// Says where programs came without the library. Returns the end of a sentence
/// about CUDA that was there and may have been used.
fn tell_unseen(place: &Place, library: &Path, findings: &mut Findings) -> Option<String> {
    let told: Vec<String> = place.scopes().collect();
    let ours = library.file_name().unwrap_or_default().to_string_lossy();
    let cuda = told.iter().flat_map(|told| scopes::cuda(told, &ours));
    let all: BTreeSet<Cuda<'_>> = cuda.collect();
    for Cuda { program, file, .. } in all.iter().filter(|cuda| !cuda.is_ours_there) {
        findings.problem(
            "preload",
            format_args!(
                "{program} loaded {file} without the library: LD_PRELOAD did not reach it; \
                 what starts it must pass that on"
            ),
        );
    }
    let became: BTreeSet<&str> = told
        .iter()
        .filter_map(|told| scopes::became(told))
        .collect();
    for launcher in &became {
        findings.note(
            "preload",
            format_args!(
                "what {launcher} started was not seen: LD_PRELOAD did not reach it, or it has no \
                 loader (all of it was linked statically); start it without {launcher}, or have \
                 LD_PRELOAD passed on"
            ),
        );
    }
    match (became.first(), all.first()) {
        (Some(launcher), _) => Some(format!(", but what {launcher} started was not seen")),
        (None, Some(cuda)) => Some(format!(", although {} was loaded", cuda.file)),
        (None, None) => None,
    }
}

/// What is reported of one process.
#[derive(Deserialize)]
struct Process {
    program: String,
    pid: u64,
    options: Options,
    warnings: Vec<String>,
    doors: Vec<String>,
    totals: Totals,
    /// What went past the pool.
    #[serde(default)]
    families: Vec<Taken>,
    arenas: Vec<Arena>,
}

/// What is reported of the memory of a context, or of a region in it.
#[derive(Deserialize)]
struct Arena {
    region: Option<String>,
    #[serde(default)]
    pause: Pauses,
}

/// What went past the pool by one family of functions, on one device.
#[derive(Deserialize)]
struct Taken {
    family: String,
    calls: u64,
    refused: u64,
}

#[derive(Deserialize)]
struct Options {
    strategy: Setting,
}

#[derive(Deserialize)]
struct Totals {
    allocations: u64,
    hits: u64,
    ooms: u64,
    bad_frees: u64,
}

/// Reports what one process did.
fn tell(process: &Process, findings: &mut Findings) {
    let Process { program, pid, .. } = process;
    let totals = &process.totals;
    let past = &process.families;
    if totals.allocations > 0 || past.is_empty() {
        findings.ok(
            "trial",
            format_args!(
                "{program} (process {pid}): {} served by {}, {} of them without the driver",
                count(totals.allocations, "allocation"),
                process.options.strategy.value,
                totals.hits,
            ),
        );
    }
    if !past.is_empty() {
        let calls = by_family(past, |taken| taken.calls);
        findings.ok(
            "trial",
            format_args!("{program} (process {pid}) took memory past the pool: {calls}"),
        );
    }
    let refused = by_family(past, |taken| taken.refused);
    if !refused.is_empty() {
        findings.note(
            "trial",
            format_args!("{program} (process {pid}): refused because of the limit: {refused}"),
        );
    }
    findings.ok(
        "doors",
        format_args!(
            "{program} (process {pid}) came by {}",
            process.doors.join(", ")
        ),
    );
    if process.warnings.iter().any(|warning| warning == NOT_SERVED) {
        findings.problem(
            "doors",
            format_args!("{program} (process {pid}): {NOT_SERVED}"),
        );
    }
    let ooms = totals.ooms;
    if ooms > 0 {
        findings.note(
            "trial",
            format_args!("{program} (process {pid}): {ooms} requests failed for want of memory"),
        );
    }
    for arena in &process.arenas {
        paused(process, arena, findings);
    }
    let bad = totals.bad_frees;
    if bad > 0 {
        findings.note(
            "trial",
            format_args!(
                "{program} (process {pid}): {bad} frees of addresses at which no block starts; \
                 the program has a fault, also without the library"
            ),
        );
    }
}

/// Says what was paused, and what of that did not go as it may have been meant to.
fn paused(Process { program, pid, .. }: &Process, arena: &Arena, findings: &mut Findings) {
    let Arena { region, pause } = arena;
    let region = region.as_ref();
    let region = region.map_or_else(String::new, |tag| format!(", region {tag}"));
    let whose = format!("{program} (process {pid}{region})");
    if let Some(cycles) = pause.cycles() {
        findings.ok("pauses", format_args!("{whose}: {cycles}"));
    }
    let more = [pause.stayed(), pause.paused_now(), pause.failed()];
    for sentence in more.into_iter().flatten() {
        findings.note("pauses", format_args!("{whose}: {sentence}"));
    }
}

/// These numbers by family, in words.
fn by_family(taken: &[Taken], of: fn(&Taken) -> u64) -> String {
    let numbers = taken.iter().map(|taken| (&*taken.family, of(taken)));
    families::in_words(numbers, |number| number.to_string())
}

/// A directory of this trial.
struct Place(PathBuf);

impl Place {
    fn new() -> io::Result<Place> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_nanos());
        let name = format!("vramalloc-doctor.{}.{now}", std::process::id());
        let path = env::temp_dir().join(name);
        // Fails if anything is in its place already.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Place(path))
    }

    /// The pattern of the files of statistics.
    fn pattern(&self) -> String {
        let directory = self.0.to_string_lossy().replace('%', "%%");
        format!("{directory}/%p.%e.json")
    }

    /// What the loader said, of each process.
    fn scopes(&self) -> impl Iterator<Item = String> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let scopes = files.filter(|file| file.file_name().to_string_lossy().starts_with(SCOPES));
        let told = scopes.filter_map(|file| fs::read(file.path()).ok());
        told.map(|told| String::from_utf8_lossy(&told).into_owned())
    }

    /// The runtimes that looked past preloads, in any process.
    fn runtimes_past_us(&self) -> BTreeSet<String> {
        let told = self.scopes();
        told.flat_map(|told| scopes::runtimes_past_us(&told))
            .collect()
    }

    /// What was loaded into any process.
    fn objects(&self) -> BTreeSet<String> {
        self.scopes()
            .flat_map(|told| scopes::objects(&told))
            .collect()
    }

    /// The statistics of every process, in a fixed order.
    fn processes(&self) -> Vec<Process> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.sort();
        files
            .iter()
            .filter_map(|file| statistics::read(&fs::read(file).ok()?).ok())
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed stays in the temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
