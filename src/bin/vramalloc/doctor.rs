//! `vramalloc doctor`: which calls of a program would be caught and how, and
//! what prevents it.
//!
//! The checks come first and the trial run last: everything that files and the
//! environment tell is said before the program is started. Each module below
//! checks one thing and adds its findings.

pub(crate) mod cache;
mod driver;
pub(crate) mod findings;
pub(crate) mod image;
pub(crate) mod loader;
mod past;
pub(crate) mod preloads;
pub(crate) mod program;
mod scopes;
mod settings;
mod transports;
mod trial;
mod verdict;

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use self::driver::DRIVER;
use self::findings::Findings;
use self::image::Image;
use self::loader::{Closure, Loaded, Loader};
use self::program::{Program, Ways};
use self::transports::Transports;
use self::verdict::verdict;
use super::library;
use super::output::show;
use super::script;

/// The runtimes that are looked for if no program says which it wants.
const RUNTIMES: [&str; 5] = [
    "libcudart.so.13",
    "libcudart.so.12",
    "libcudart.so.11.0",
    "libcudart.so.10.2",
    "libcudart.so",
];

/// What is done about memory past the pool.
const PAST: &str = "CUDA serves that itself; it is counted and capped, and not pooled";

/// How many names a finding lists.
const LISTED: usize = 3;

#[derive(clap::Args)]
#[command(after_help = "\
A finding is ok, a note, or a problem with what to do about it. What is ok, and \
options that have their default value, are shown with -v. The exit status is 0 \
where nothing stands in the way, 1 where there is a problem.

With a program, that is examined and then run once under the library; its \
standard output goes to standard error.")]
pub(crate) struct Arguments {
    /// Also show what is as it should be
    #[arg(long, short)]
    verbose: bool,

    /// Examine the program, but do not run it
    #[arg(long)]
    no_trial: bool,

    /// The library, where it is not beside this command
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Prints the findings. Returns the exit status.
pub(crate) fn doctor(arguments: &Arguments) -> u8 {
    let mut findings = Findings::new(arguments.verbose);
    let loader = Loader::new(env::var_os("LD_LIBRARY_PATH"));
    if let Some(library) = find_library(arguments, &mut findings) {
        needs(&library, &loader, &mut findings);
        // What is missing is said of the file itself.
        let program = script::interpreted(&arguments.program);
        let program = program.unwrap_or_else(|_| arguments.program.clone());
        match program.first() {
            None => machine(&library, &loader, &mut findings),
            Some(name) => match Program::find(name) {
                Ok(found) => {
                    let trial = (!arguments.no_trial).then_some(&*program);
                    patient(&found, trial, &library, &loader, &mut findings);
                }
                Err(error) => findings.problem("program", error),
            },
        }
    }
    let status = u8::from(findings.problems() > 0);
    match findings.problems() {
        0 => {}
        1 => findings.note("verdict", "one problem stands in the way"),
        n => findings.note("verdict", format_args!("{n} problems stand in the way")),
    }
    match findings.untold() {
        0 => {}
        1 => findings.told("others", "one finding is as it should be (-v shows it)"),
        n => findings.told(
            "others",
            format_args!("{n} findings are as they should be (-v shows them)"),
        ),
    }
    findings.explain();
    show(&findings.take()).max(status)
}

fn find_library(arguments: &Arguments, findings: &mut Findings) -> Option<Loaded> {
    let found = library::find(arguments.library.as_deref()).and_then(|path| {
        let image = Image::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Loaded::new(path, image))
    });
    match found {
        Ok(library) => {
            let path = library.path.display();
            let machine = library.image.machine.name();
            findings.ok("library", format_args!("{path}, for {machine}"));
            Some(library)
        }
        Err(error) => {
            findings.problem("library", error);
            None
        }
    }
}

/// The checks without a program: what any program would find here.
fn machine(library: &Loaded, loader: &Loader, findings: &mut Findings) {
    driver::examine(library, true, &library.path, loader, findings);
    let mut seen = BTreeSet::new();
    let runtimes: Vec<String> = RUNTIMES
        .iter()
        .filter_map(|name| loader.find(OsStr::new(name), library))
        // One file may have two of the names.
        .filter(|runtime| seen.insert(runtime.path.canonicalize().ok()))
        .map(|runtime| runtime.path.display().to_string())
        .collect();
    match runtimes.is_empty() {
        true => findings.note(
            "runtime",
            "no shared CUDA runtime where the loader looks; programs that bring their own are \
             not concerned",
        ),
        false => findings.ok("runtime", runtimes.join(", ")),
    }
    surroundings(library, library, loader, findings);
    if findings.problems() == 0 {
        findings.told(
            "verdict",
            "nothing stands in the way; vramalloc doctor -- program says more",
        );
    }
}

/// The checks that do not depend on how a program calls CUDA.
fn surroundings(library: &Loaded, program: &Loaded, loader: &Loader, findings: &mut Findings) {
    preloads::examine(
        env::var_os("LD_PRELOAD"),
        library,
        program,
        loader,
        findings,
    );
    settings::examine(findings);
}

/// The checks of a program; `trial` is what is run for that, if anything is.
fn patient(
    program: &Program,
    trial: Option<&[OsString]>,
    library: &Loaded,
    loader: &Loader,
    findings: &mut Findings,
) {
    name_program(program, findings);
    let closure = loader.closure(program.file.clone());
    let ways = Ways::of(&closure);
    let told = program.is_told();
    if !ways.any() && !told {
        findings.ok(
            "cuda",
            format_args!(
                "{} and what it is linked to use no CUDA",
                program.file.name()
            ),
        );
    }
    if told {
        findings.note(
            "cuda",
            format_args!(
                "{} loads or starts while it runs what it is told to; the file does not say \
                 whether that uses CUDA, a trial run does",
                program.file.name()
            ),
        );
    }
    kinds(&ways, findings);
    let enters = enters(program, ways.any(), library, findings);
    if enters {
        missing(&closure, findings);
    }
    if ways.any() || told {
        runtimes(&closure, findings);
        let from = asker(&closure, &program.file);
        driver::examine(from, ways.any(), &library.path, loader, findings);
    }
    surroundings(library, &program.file, loader, findings);
    let mut transports = Transports::of_environment();
    transports.examine(closure.files.iter().map(|file| &*file.path), findings);

    let starts = enters && closure.missing.is_empty();
    let served = trial.filter(|_| starts).and_then(|words| {
        show(&findings.take());
        trial::run(words, &library.path, &mut transports, findings)
    });
    verdict(program, &ways, served.as_ref(), findings);
}

/// Says which file runs.
fn name_program(program: &Program, findings: &mut Findings) {
    let path = program.path.display();
    let machine = program.file.image.machine.name();
    if program.interpreters.is_empty() {
        return findings.ok("program", format_args!("{path}, for {machine}"));
    }
    let chain: Vec<String> = program
        .interpreters
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    findings.note(
        "program",
        format_args!(
            "{path} is a script; its interpreter {}, for {machine}, is examined in its place",
            chain.join(", which is a script for ")
        ),
    );
}

/// Whether the loader finds the libraries that our library needs: if not, no
/// program starts.
fn needs(library: &Loaded, loader: &Loader, findings: &mut Findings) {
    for name in &library.image.needed {
        if loader.find(OsStr::new(name), library).is_none() {
            findings.problem(
                "library",
                format_args!(
                    "{name}, which the library needs, is nowhere where the loader looks, so no \
                     program starts under it; install it (libgcc_s.so.1 is GCC's, Debian's \
                     package libgcc-s1)"
                ),
            );
        }
    }
}

/// Says how the program calls CUDA, and how that is caught.
fn kinds(ways: &Ways, findings: &mut Findings) {
    let mut kind = |names: &[String], what: &str, how: &str| {
        if names.is_empty() {
            return;
        }
        let more = match names.len().saturating_sub(LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = names.get(..LISTED).unwrap_or(names).join(", ");
        findings.ok("cuda", format_args!("{what}: {names}{more}; caught {how}"));
    };
    kind(
        &ways.shared,
        "dynamic (linked to the shared CUDA runtime)",
        "by name, at cudaMalloc and its like",
    );
    kind(
        &ways.inside,
        "static (a CUDA runtime inside)",
        "where that runtime asks for the driver's functions",
    );
    kind(
        &ways.by_name,
        "a shared CUDA runtime, looked for while running",
        "where that runtime asks for the driver's functions",
    );
    kind(
        &ways.driver,
        "driver API (no runtime)",
        "where it asks for the driver's functions",
    );
    past_the_pool(ways, findings);
}

/// Says by which functions the program can take memory past the pool.
fn past_the_pool(ways: &Ways, findings: &mut Findings) {
    if ways.past.is_empty() {
        return;
    }
    let functions: Vec<&str> = ways.past.iter().copied().collect();
    findings.note(
        "cuda",
        format_args!(
            "it can take memory past the pool, by {}: {PAST}",
            functions.join(", ")
        ),
    );
    if functions.iter().any(|function| past::is_managed(function)) {
        findings.note(
            "cuda",
            "managed memory counts in whole on the device that is current when it is asked for; \
             managed:uncounted leaves it out of the limit",
        );
    }
}

/// Whether the library can be loaded into the program.
fn enters(program: &Program, uses_cuda: bool, library: &Loaded, findings: &mut Findings) -> bool {
    let image = &program.file.image;
    let name = program.file.name();
    if image.interpreter.is_none() && !image.needed.is_empty() {
        findings.note(
            "program",
            format_args!("{name} is a library; a trial run needs a program that loads it"),
        );
        return false;
    }
    let hindrance = if image.machine != library.image.machine {
        Some(format!(
            "{name} is for {}, the library for {}; take a library for that machine",
            image.machine.name(),
            library.image.machine.name()
        ))
    } else if let Some(why) = program.privileged() {
        Some(format!(
            "{name} is {why}: there the loader ignores LD_PRELOAD; start it as that user, or a \
             copy without these rights"
        ))
    } else {
        match image.interpreter.as_deref() {
            None => Some(format!(
                "{name} has no loader (all of it was linked statically), so nothing can be \
                 preloaded; link it to the shared C library"
            )),
            Some(interpreter) if interpreter.contains("ld-musl") => Some(format!(
                "{name} uses the C library musl, but the library needs glibc; build the program \
                 for glibc"
            )),
            Some(_) => None,
        }
    };
    if let Some(text) = &hindrance {
        findings.hindrance(uses_cuda, "program", text);
    }
    hindrance.is_none()
}

/// Lists the shared runtimes.
fn runtimes(closure: &Closure, findings: &mut Findings) {
    for file in &closure.files {
        if file.image.is_runtime() {
            findings.ok("runtime", file.path.display());
        }
    }
}

/// Lists the libraries that the program needs and the loader would not find.
fn missing(closure: &Closure, findings: &mut Findings) {
    for (name, by) in &closure.missing {
        // The driver has a finding of its own.
        if name != DRIVER {
            findings.problem(
                "program",
                format_args!(
                    "{name}, which {by} needs, is nowhere where the loader looks, so the program \
                     does not start; install it, or name its directory in LD_LIBRARY_PATH"
                ),
            );
        }
    }
}

/// The file that loads the driver: a runtime, or the first that names it.
fn asker<'a>(closure: &'a Closure, program: &'a Loaded) -> &'a Loaded {
    let files = &closure.files;
    let first = |asks: fn(&Image) -> bool| files.iter().find(|file| asks(&file.image));
    first(Image::is_runtime)
        .or_else(|| first(|image| image.mentions_driver))
        .unwrap_or(program)
}
