//! What Python code takes by a library that only calls for others is the code's.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use vramalloc_tests::pythons::interpreters;
use vramalloc_tests::stage::{self, fresh_folder};

use super::of;

const TAG: &str = "cpython-312-x86_64-linux-gnu.so";

const POOL: &str = "
import ctypes
RUNTIME = ctypes.CDLL('libcudart.so.12')
KEPT = []
def by(call, size):
    block = ctypes.c_void_p()
    assert call(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    KEPT.append(block)
    return block
def take(size):
    return by(RUNTIME.cudaMalloc, size)
def managed(block, size):
    return RUNTIME.cudaMallocManaged(block, size, 1)
";

const WRAPPED: &str = "
import ctypes
def by(call):
    return call()
def take(call, size, kept):
    kept.append(ctypes.c_void_p())
    assert call(ctypes.byref(kept[-1]), ctypes.c_size_t(size)) == 0
";

const THREADS: &str = "
#include <pthread.h>
typedef int (*function)(void *, void *, void *, void *, void *);
static struct { function ask; void *call, *block, *size; int code; } job;
static void *run(void *unused)
{ job.code = job.ask(job.call, job.block, job.size, 0, 0); return unused; }
int in_thread(function ask, void *call, void *block, void *size)
{
    pthread_t thread;
    job.ask = ask, job.call = call, job.block = block, job.size = size;
    return pthread_create(&thread, 0, run, 0) || pthread_join(thread, 0) || job.code;
}";

/// A folder with packages, some of them with a module in machine code.
fn packages() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = fresh_folder();
        let put = |file: &str| {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        for (file, text) in [
            ("site-packages/pool/__init__.py", POOL),
            ("site-packages/alone.py", POOL),
            ("site-packages/cuda/bindings/wrapped.py", WRAPPED),
            ("threads.c", THREADS),
        ] {
            fs::write(put(file), text).unwrap();
        }
        let source = folder.join("threads.c");
        let threads = folder.join("threads.so");
        stage::compile(source.to_str().unwrap(), &threads, &["-shared"]);
        let source = stage::root().join("tests/programs/libraries/asker.c");
        for file in [
            format!("site-packages/cuda/bindings/driver.{TAG}"),
            format!("site-packages/cupy_backends/cuda/api/runtime.{TAG}"),
            "site-packages/cffi.libs/libffi-810e58ae.so.8.1.0".to_owned(),
        ] {
            stage::compile(&source.to_string_lossy(), &put(&file), &["-shared"]);
        }
        folder
    })
}

/// The interpreters whose places are read.
fn readable() -> impl Iterator<Item = PathBuf> {
    let known = interpreters().into_iter().filter(|(minor, _)| *minor >= 10);
    known.map(|(_, interpreter)| interpreter)
}

fn command(interpreter: &Path, conf: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(interpreter);
    command
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LD_PRELOAD", stage::library())
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("VRAMALLOC_CONF", conf)
        .env("VRAMALLOC_STATS", "statistics.json")
        .current_dir(fresh_folder());
    command
}

/// Runs a Python program; its statistics, and what it said.
fn run(interpreter: &Path, conf: &str, arguments: &[&str]) -> (Value, String) {
    let mut command = command(interpreter, conf, arguments);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = output.status;
    assert!(
        status.success(),
        "{interpreter:?} {conf}: {status:?} {said}"
    );
    let folder = command.get_current_dir().unwrap();
    let stats = fs::read_to_string(folder.join("statistics.json")).unwrap();
    (serde_json::from_str(&stats).unwrap(), said)
}

/// What is told of the first owner whose name begins so, maybe behind `lib`: bytes now, at the peak, and
/// past the pool.
fn of_like(stats: &Value, start: &str) -> (u64, u64, u64) {
    let owners = stats["owners"].as_array().unwrap();
    let mut names = owners.iter().filter_map(|owner| owner["owner"].as_str());
    let name = names.find(|name| name.trim_start_matches("lib").starts_with(start));
    name.map_or((0, 0, 0), |name| of(stats, name))
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[test]
fn what_python_takes_by_a_binding_is_that_of_its_code() {
    let program = stage::root().join("tests/preload/owners.py");
    let arguments = [program.to_str().unwrap(), packages().to_str().unwrap()];
    for (minor, interpreter) in interpreters() {
        for conf in ["", "thread_cache:0", "stacks:all", "oom_report:off"] {
            let (stats, said) = run(&interpreter, conf, &arguments);
            let what = format!("3.{minor} {conf}: {}", stats["owners"]);
            let is = |name: &str, bytes: u64, past: u64| {
                assert_eq!(
                    of_like(&stats, name),
                    (bytes, bytes, past),
                    "{name}, {what}"
                );
            };
            is("cupy_backends", MIB, 0);
            is("ffi-", MIB, 0);
            if minor < 10 {
                // These versions of Python are not known: memory counts under the
                // library that asked for it.
                is("ffi.so", 120 * KIB + 2 * MIB, 4 * MIB);
                is("driver.cpython", 4 * MIB, 0);
                is("python3", MIB, 0);
                let lines = said.lines().count();
                assert_eq!(lines, usize::from(conf == "stacks:all"), "{said}");
                continue;
            }
            assert_eq!(said, "", "{what}");
            is("owners.py", 40 * KIB + 4 * MIB, 0);
            is("pool", 80 * KIB + MIB, 4 * MIB);
            is("alone.py", MIB, 0);
            is("ffi.so", MIB, 0);
            let owners = stats["owners"].as_array().unwrap();
            assert_eq!(owners.len(), 6, "{what}");
            let file = owners
                .iter()
                .find(|owner| owner["owner"] == "pool")
                .unwrap();
            let folder = packages().join("site-packages/pool");
            assert_eq!(file["file"], folder.to_str().unwrap());
        }
    }
}

/// Code that was typed has no file.
#[test]
fn what_is_typed_has_one_name() {
    const PROGRAM: &str = "
import ctypes
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
ask = 'assert malloc(ctypes.byref(ctypes.c_void_p()), 4096) == 0'
exec(ask)
for at in range(40):
    exec(compile(ask, f'<input {at}>', 'exec'))
    exec(compile(ask, f'/tmp/ipykernel_7/{at}.py', 'exec'))
";
    for interpreter in readable() {
        let (stats, said) = run(&interpreter, "", &["-c", PROGRAM]);
        assert_eq!(said, "", "{interpreter:?}");
        let expected = (81 * 4 * KIB, 81 * 4 * KIB, 0);
        assert_eq!(of(&stats, "__main__"), expected, "{}", stats["owners"]);
    }
}

/// To read what is new of Python's memory takes calls of the system's, by which a program
/// ends that has forbidden them.
#[test]
fn a_program_that_sandboxes_itself_is_let_be() {
    const SIGSYS: i32 = 31;
    // The call is process_vm_readv.
    const PROGRAM: &str = "
import ctypes, struct, sys
libc = ctypes.CDLL(None)
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
ask = 'assert malloc(ctypes.byref(ctypes.c_void_p()), 4096) == 0'
first, second = [compile(ask, f'{name}.py', 'exec') for name in ('first', 'second')]
CALL = 310
def sandbox():
    code = struct.pack('HBBIHBBIHBBIHBBI',
        0x20, 0, 0, 0, 0x15, 0, 1, CALL, 6, 0, 0, 0x80000000, 6, 0, 0, 0x7fff0000)
    text = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 4, ctypes.addressof(text)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
when = sys.argv[1]
if when != 'after':
    sandbox()
if when == 'forbidden':
    libc.syscall(CALL, 0, 0, 0, 0, 0, 0)
exec(first)
if when == 'after':
    sandbox()
exec(first)
exec(second)
";
    let block = 4 * KIB;
    for interpreter in readable() {
        for (when, first, binding) in [("before", 0, 3 * block), ("after", 2 * block, block)] {
            let (stats, _) = run(&interpreter, "", &["-c", PROGRAM, when]);
            let found = (of(&stats, "first.py").0, of_like(&stats, "ffi.so").0);
            let owners = &stats["owners"];
            assert_eq!(found, (first, binding), "{interpreter:?} {when}: {owners}");
        }
        // So it matters.
        let output = command(&interpreter, "", &["-c", PROGRAM, "forbidden"]).output();
        assert_eq!(output.unwrap().status.signal(), Some(SIGSYS));
    }
}
