//! Builds what the tests need, once, and runs programs on it.
//!
//! Every run has a fresh working directory and a clean environment, so that
//! tests can run side by side.

mod outcome;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use outcome::Outcome;

/// How a program speaks to CUDA.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Linked to `libcudart.so`.
    Dynamic,
    /// With the runtime linked in, none of its symbols visible.
    Static,
    /// The driver API alone, by `dlopen` and `dlsym`.
    Driver,
    /// The driver API alone, by `cuGetProcAddress`.
    Resolver,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Dynamic, Kind::Static, Kind::Driver, Kind::Resolver];

    /// All with `KINDS=all`, otherwise two that follow from the name of the test, so
    /// that all tests together have as much of each.
    pub fn each() -> impl Iterator<Item = Kind> {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let first = name.bytes().map(usize::from).sum::<usize>();
        let count = if is_whole() { Kind::ALL.len() } else { 2 };
        (Kind::ALL.into_iter().cycle().skip(first % 4)).take(count)
    }

    pub fn suffix(self) -> &'static str {
        match self {
            Kind::Dynamic => "dynamic",
            Kind::Static => "static",
            Kind::Driver | Kind::Resolver => "driver",
        }
    }
}

/// Whether the tests are to be run in their whole length.
pub fn is_whole() -> bool {
    std::env::var_os("KINDS").is_some_and(|kinds| kinds == "all")
}

pub const STRATEGIES: [&str; 4] = ["naive_best_fit", "auto_growth", "passthrough", "mapped"];

/// Those whose memory other processes can open.
pub const SHARED: [&str; 3] = ["naive_best_fit", "auto_growth", "passthrough"];

/// A program that runs longer than this is killed, and its test fails, unless
/// the test says another time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The root of the repository, once the library, the simulated CUDA and the
/// programs are built.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        build(cargo().args(["--release", "--package", "vramalloc-cabi"]));
        build(&mut Command::new("scripts/build-sim"));
        build(&mut Command::new("scripts/build-programs"));
    });
    root()
}

/// `cargo build`.
fn cargo() -> Command {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.arg("build");
    command
}

/// Cargo's target folder; a test lies in `debug/deps` there.
fn target() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).unwrap().to_owned()
}

/// The path of the command `vramalloc`.
pub fn command() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        build(cargo().args(["--package", "vramalloc"]));
        target()
            .join("debug/vramalloc")
            .to_str()
            .unwrap()
            .to_owned()
    })
}

/// A folder with this name below the tests' folder, with its contents.
pub fn shared(name: &str) -> PathBuf {
    let folder = target().join("tmp").join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A folder with this name below the tests' folder, empty.
pub fn folder(name: &str) -> PathBuf {
    // It is left from an earlier run.
    let _ = fs::remove_dir_all(shared(name));
    shared(name)
}

/// Runs a build command at the repository's root.
pub fn build(command: &mut Command) {
    let output = command.current_dir(root()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The folder with the simulated CUDA.
pub fn simulated_cuda() -> PathBuf {
    built().join("target/sim")
}

/// The path of the library that is preloaded.
pub fn library() -> PathBuf {
    built();
    let library = target().join("release/libvramalloc.so");
    assert!(library.exists(), "{library:?} was not built");
    library
}

/// Writes a file that the command takes for a library: the loader says that it is
/// none, and goes on without it.
pub fn write_dummy(file: &Path) {
    let mut start = [0; 64];
    let own = std::env::current_exe().and_then(fs::File::open);
    own.unwrap().read_exact(&mut start).unwrap();
    fs::write(file, start).unwrap();
}

/// The library's debug build, which checks its books after every step.
pub fn debug_library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // With the command, whose features of their dependencies the tests are
        // built with too.
        build(cargo().args(["--package", "vramalloc-cabi", "--package", "vramalloc"]));
        target().join("debug/libvramalloc.so")
    })
}

/// Compiles a source of the repository.
pub fn compile(source: &str, output: &Path, flags: &[&str]) {
    build(
        Command::new("gcc")
            .args(["-std=gnu11", "-O1", "-fPIC", "-pthread"])
            .args(["-Wall", "-Wextra", "-Werror"])
            .args(flags)
            .arg("-o")
            .args([output, Path::new(source)])
            .arg("-ldl"),
    );
}

/// A trace of `tests/traces`, unpacked.
pub fn trace(name: &str) -> PathBuf {
    let packed = root().join(format!("tests/traces/{name}.1.csv.gz"));
    let folder = fresh_folder();
    let plain = folder.join(format!("{name}.csv"));
    let output = Command::new("gzip")
        .arg("-dc")
        .arg(packed)
        .output()
        .unwrap();
    assert!(output.status.success(), "gzip cannot unpack {name}");
    fs::write(&plain, output.stdout).unwrap();
    plain
}

/// An empty folder of its own, kept after the test for whoever looks into a
/// failure.
pub fn fresh_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let test = std::env::current_exe().unwrap();
    let tests = test.file_stem().unwrap().to_string_lossy().into_owned();
    folder(&format!("{tests}/{n}"))
}

/// A program to be run.
#[derive(Clone)]
pub struct Run {
    program: &'static str,
    kind: Kind,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    /// A shell script that runs in the working directory before the program
    /// starts.
    before: Option<String>,
    patience: Duration,
}

impl Run {
    /// `tests/programs/<program>.c`, without vramalloc.
    pub fn bare(program: &'static str, kind: Kind) -> Run {
        let run = Run {
            program,
            kind,
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            before: None,
            patience: PATIENCE,
        };
        let libraries = simulated_cuda();
        match kind {
            Kind::Resolver => run.env("GPU_RESOLVE", "procaddress"),
            _ => run,
        }
        // The library does during a capture as if drivers forbade what an H200 allows.
        .env("SIM_CUDA_STRICT_MAPPING", "1")
        .env("SIM_CUDA_NO_UNMAP_IN_CAPTURE", "1")
        .env("LD_LIBRARY_PATH", &libraries.to_string_lossy())
    }

    /// `tests/programs/<program>.c` under `libvramalloc.so`.
    pub fn preloaded(program: &'static str, kind: Kind) -> Run {
        Run::bare(program, kind).preload()
    }

    pub fn preload(self) -> Run {
        self.env("LD_PRELOAD", &library().to_string_lossy())
    }

    /// Runs under the debug build of the library.
    pub fn preload_debug(self) -> Run {
        self.env("LD_PRELOAD", &debug_library().to_string_lossy())
    }

    pub fn arg(mut self, argument: &str) -> Run {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn args<const N: usize>(self, arguments: [&str; N]) -> Run {
        arguments.into_iter().fold(self, Run::arg)
    }

    pub fn env(mut self, name: &str, value: &str) -> Run {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets all options at once, in the form of `VRAMALLOC_CONF`.
    pub fn conf(self, options: &str) -> Run {
        self.env("VRAMALLOC_CONF", options)
    }

    /// Kills the program, and fails, after this long.
    pub fn patience(self, patience: Duration) -> Run {
        Run { patience, ..self }
    }

    /// Limits the program's data to this many bytes.
    pub fn data(self, bytes: u64) -> Run {
        self.before(&format!("ulimit -d {}", bytes >> 10))
    }

    /// Runs a shell script in the working directory first; the shell then
    /// becomes the program.
    pub fn before(mut self, script: &str) -> Run {
        self.before = Some(script.to_owned());
        self
    }

    /// The program, or the shell that becomes it.
    fn command(&self) -> Command {
        let program = format!("target/programs/{}.{}", self.program, self.kind.suffix());
        let program = built().join(program);
        let Some(before) = &self.before else {
            return Command::new(program);
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{before}; exec \"$@\""), "sh"])
            .arg(program);
        command
    }

    /// The program, to run in a folder; its working directory, and one for what
    /// it prints.
    pub(crate) fn prepared(&self, folder: &Path) -> (Command, PathBuf, PathBuf) {
        let (cwd, side) = (folder.join("cwd"), folder.join("side"));
        fs::create_dir_all(&cwd).unwrap();
        fs::create_dir_all(&side).unwrap();
        let mut command = self.command();
        command
            .args(&self.arguments)
            .current_dir(&cwd)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SIM_CUDA_REPORT", side.join("report.json"))
            .envs(&self.environment);
        (command, cwd, side)
    }

    /// Runs it to its end.
    pub fn go(&self) -> Outcome {
        let folder = fresh_folder();
        let (mut command, cwd, side) = self.prepared(&folder);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(fs::File::create(side.join("stdout")).unwrap())
            .stderr(fs::File::create(side.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + self.patience;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{self} hangs; see {folder:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Outcome {
            what: format!("{self} in {}", folder.display()),
            status,
            stdout: fs::read_to_string(side.join("stdout")).unwrap(),
            stderr: fs::read_to_string(side.join("stderr")).unwrap(),
            report: fs::read_to_string(side.join("report.json")).ok(),
            written: written(&cwd),
        }
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        write!(f, "{} {:?}", self.program, self.kind)?;
        self.arguments.iter().try_for_each(|a| write!(f, " {a}"))
    }
}

fn written(folder: &Path) -> BTreeMap<String, String> {
    fs::read_dir(folder)
        .unwrap()
        .map(Result::unwrap)
        // Not pipes: no process may be writing to one.
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let contents = fs::read(entry.path()).unwrap();
            (name, String::from_utf8_lossy(&contents).into_owned())
        })
        .collect()
}
