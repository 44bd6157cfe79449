//! Call stacks: each is that of the call, or a part of it from the inside, or there
//! is none; and their sums are those of the blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vramalloc_tests::stage::{self, Kind, Outcome, Run, fresh_folder};

/// The most native places that are kept of a stack.
const MOST: usize = 80;

/// A place as the program prints it: its file's name and the offset.
fn place(told: &Value, frame: &Value) -> String {
    let frame = told.pointer(&format!("/frames/{frame}")).unwrap();
    let offset = frame["offset"].as_u64().unwrap();
    let object = &frame["object"];
    let file = match object.as_u64() {
        None => "",
        Some(at) => told["objects"][usize::try_from(at).unwrap()]["file"]
            .as_str()
            .unwrap(),
    };
    format!("{}+{offset:x}", file.rsplit('/').next().unwrap())
}

/// The places of each stack by its number.
fn stacks(told: &Value) -> BTreeMap<u64, Vec<String>> {
    let list = told["stacks"].as_array().unwrap();
    let one = |stack: &Value| {
        let frames = stack["frames"].as_array().unwrap();
        let places = frames.iter().map(|frame| place(told, frame)).collect();
        (stack["stack"].as_u64().unwrap(), places)
    };
    list.iter().map(one).collect()
}

/// The stack of each live block by its address.
fn blocks(stats: &Value) -> BTreeMap<u64, Option<u64>> {
    let arenas = stats["snapshot"]["arenas"].as_array().unwrap().iter();
    let segments = arenas.flat_map(|arena| arena["segments"].as_array().unwrap());
    let blocks = segments.flat_map(|segment| segment["blocks"].as_array().unwrap());
    let live = blocks.filter(|block| block["state"] == "active_allocated");
    live.map(|block| (block["address"].as_u64().unwrap(), block["stack"].as_u64()))
        .collect()
}

/// What the program printed: each block with its places.
fn printed(outcome: &Outcome) -> Vec<(u64, Vec<&str>)> {
    outcome
        .stdout
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let block = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            (block, words.collect())
        })
        .collect()
}

/// The places of a block's stack, from the caller of the function that asked on.
fn from_caller(places: &[String], expected: &[&str], what: &str) -> Vec<String> {
    let begin = places.iter().position(|place| place == expected[0]);
    let begin = begin.unwrap_or_else(|| panic!("{what}: {places:?} is not {expected:?}"));
    assert!(begin <= 4, "{what}: {places:?}");
    places[begin..].to_vec()
}

fn run(what: &str, kind: Kind) -> Outcome {
    let run = Run::preloaded("stacks", kind).conf("stacks:all");
    let outcome = run.arg(what).go();
    outcome.quiet(0).no_violations();
    outcome
}

#[test]
fn each_stack_is_that_which_the_compilers_unwinder_finds() {
    for kind in Kind::ALL {
        let outcome = run("deep", kind);
        let stats = outcome.stats();
        let told = &stats["call_stacks"];
        assert_eq!((&told["cut"], &told["dropped"]), (&0.into(), &0.into()));
        let (stacks, blocks) = (stacks(told), blocks(&stats));
        let printed = printed(&outcome);
        assert_eq!(printed.len(), 225);
        for (block, expected) in printed {
            let places = &stacks[&blocks[&block].unwrap()];
            let found = from_caller(places, &expected, &outcome.what);
            if places.len() == MOST {
                assert_eq!(found, expected[..found.len()], "{}", outcome.what);
            } else {
                assert_eq!(found, expected, "{}", outcome.what);
            }
        }
    }
}

#[test]
fn a_stack_that_cannot_be_followed_is_cut_or_there_is_none() {
    for kind in Kind::ALL {
        let outcome = run("odd", kind);
        let stats = outcome.stats();
        let told = &stats["call_stacks"];
        // Code without tables, a signal, code that the program made; and one of
        // the usual kind. A signal's own stack and twice a coroutine's.
        assert_eq!(
            (&told["taken"], &told["cut"], &told["dropped"]),
            (&4.into(), &3.into(), &3.into()),
            "{}",
            outcome.what
        );
        let (stacks, blocks) = (stacks(told), blocks(&stats));
        let printed = printed(&outcome);
        assert_eq!(printed.len(), 7);
        for (block, expected) in printed {
            if let Some(stack) = blocks[&block] {
                let found = from_caller(&stacks[&stack], &expected, &outcome.what);
                assert_eq!(found, expected[..found.len()], "{}", outcome.what);
            }
        }
        let none = told["live"]
            .as_array()
            .unwrap()
            .iter()
            .find(|sum| sum["stack"].is_null());
        assert_eq!(none.unwrap()["count"], 3);
    }
}

/// With tables that lie, frame pointers that point anywhere, and threads at the same
/// time, nothing is read that is not there.
#[test]
fn wrong_tables_do_no_harm() {
    let outcome = run("liars", Kind::Driver);
    let told = &outcome.stats()["call_stacks"];
    assert_eq!(
        (&told["taken"], &told["dropped"]),
        (&120_000.into(), &0.into())
    );
    assert!(told["cut"].as_u64() > Some(90_000), "{}", told["cut"]);
}

#[test]
fn sums_are_those_of_the_blocks_and_of_a_sample_about_so() {
    let of = |conf: &str| {
        let outcome = Run::preloaded("stacks", Kind::Dynamic)
            .conf(conf)
            .arg("deep")
            .go();
        outcome.quiet(0);
        let stats = outcome.stats();
        let told = stats["call_stacks"].clone();
        let sum = |list: &str| -> u64 {
            told[list]
                .as_array()
                .unwrap()
                .iter()
                .map(|sum| sum["bytes"].as_u64().unwrap())
                .sum()
        };
        let arena = &stats["arenas"][0];
        let live = arena["live_bytes"].clone();
        (
            sum("live"),
            sum("peak"),
            live,
            arena["thread_cache"].clone(),
            told,
        )
    };
    let (sum, peak, live, caches, told) = of("stacks:all");
    assert_eq!(
        (&Value::from(sum), &Value::from(peak)),
        (&live["current"], &live["peak"])
    );
    assert_eq!(
        (&told["mode"], &told["sample_bytes"]),
        (&"all".into(), &0.into())
    );
    assert_eq!(caches, "off: stacks:all");
    // All of the requests are above 600 bytes, and 225 of them 11 MiB.
    let (sum, _, live, _, told) = of("stacks:sampled,stack_distance:16K");
    assert_eq!(
        (&told["mode"], &told["sample_bytes"]),
        (&"sampled".into(), &16384.into())
    );
    assert!(told["taken"].as_u64() < Some(225));
    let live = live["current"].as_u64().unwrap();
    assert!(sum.abs_diff(live) < live / 5, "{sum} of {live}");
    // What is not sampled is in nobody's sum.
    assert!(
        told["live"]
            .as_array()
            .unwrap()
            .iter()
            .all(|sum| !sum["stack"].is_null())
    );
    assert!(
        !Run::preloaded("stacks", Kind::Dynamic)
            .arg("deep")
            .go()
            .statistics()
            .contains("call_stacks")
    );
}

/// Every CPython of these versions that is here: on the path, and of pyenv.
fn interpreters() -> Vec<(u32, PathBuf)> {
    let said = |command: &mut Command| {
        let output = command
            .output()
            .ok()
            .filter(|output| output.status.success());
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let mut found = BTreeSet::new();
    for minor in 9..=13 {
        let mut places = vec![PathBuf::from(format!("python3.{minor}"))];
        let root = said(Command::new("pyenv").arg("root")).unwrap_or_default();
        let versions = fs::read_dir(Path::new(&root).join("versions"));
        places.extend(versions.into_iter().flatten().filter_map(|version| {
            let name = version.as_ref().ok()?.file_name().into_string().ok()?;
            let is_it = name.starts_with(&format!("3.{minor}."));
            is_it.then(|| version.unwrap().path().join("bin/python3"))
        }));
        let own = "import os, sys; print(os.path.realpath(sys.executable))";
        let real = places
            .iter()
            .filter_map(|place| said(Command::new(place).args(["-c", own])));
        found.extend(real.map(|path| (minor, PathBuf::from(path))));
    }
    found.into_iter().collect()
}

/// Runs a Python program of the tests in an interpreter, and returns what it said of
/// its blocks, its statistics, and what it printed on standard error.
fn python(interpreter: &Path) -> (Vec<(u64, Value)>, Value, String) {
    let folder = fresh_folder();
    let output = Command::new(interpreter)
        .arg(stage::root().join("tests/preload/stacks.py"))
        .arg("record")
        .current_dir(&folder)
        .env("LD_PRELOAD", stage::library())
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("VRAMALLOC_CONF", "stacks:all")
        .env("VRAMALLOC_STATS", "statistics.json")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{interpreter:?}: {:?} {said}",
        output.status
    );
    let record = fs::read_to_string(folder.join("record")).unwrap();
    // A thread may have been stopped while it wrote the last line.
    let lines = record
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let statistics = fs::read_to_string(folder.join("statistics.json")).unwrap();
    (
        lines.collect(),
        serde_json::from_str(&statistics).unwrap(),
        said,
    )
}

#[test]
fn places_of_python_are_those_that_the_interpreter_tells() {
    /// The most that are kept of a stack.
    const MOST_PYTHON: usize = 48;
    let interpreters = interpreters();
    assert!(!interpreters.is_empty(), "there is no CPython here");
    for (minor, interpreter) in interpreters {
        let (said, stats, printed) = python(&interpreter);
        let what = interpreter.display();
        let told = &stats["call_stacks"];
        assert_eq!(told["python"]["version"], format!("3.{minor}"), "{what}");
        let frame = |at: &Value| told.pointer(&format!("/frames/{at}")).unwrap();
        let stacks: BTreeMap<u64, Vec<Value>> = (told["stacks"].as_array().unwrap().iter())
            .map(|stack| {
                let frames = stack["frames"].as_array().unwrap().iter().map(frame);
                let python = frames.filter(|frame| frame["function"].is_string());
                let places = python.map(|frame| {
                    serde_json::json!([frame["file"], frame["line"], frame["function"]])
                });
                (stack["stack"].as_u64().unwrap(), places.collect())
            })
            .collect();
        let blocks = blocks(&stats);
        assert!(said.len() > 1000, "{what}: {}", said.len());
        if minor < 10 {
            assert_eq!(told["python"]["read"], false, "{what}");
            assert_eq!(printed.lines().count(), 1, "{what}: {printed}");
            assert!(printed.contains("3.10 to 3.13"), "{what}: {printed}");
            assert!(stacks.values().all(Vec::is_empty), "{what}");
            continue;
        }
        assert_eq!(
            (&told["python"]["read"], printed.as_str()),
            (&true.into(), ""),
            "{what}"
        );
        let mut without = 0;
        for (block, expected) in &said {
            let found = &stacks[&blocks[block].unwrap()];
            let expected = expected.as_array().unwrap();
            // While the interpreter ends, there are none.
            if found.is_empty() {
                without += 1;
            } else {
                assert_eq!(
                    found[..],
                    expected[..expected.len().min(MOST_PYTHON)],
                    "{what}"
                );
            }
        }
        assert!(without < 10, "{what}: {without} of {}", said.len());
    }
}

/// Code that was let go gives its memory to the next, which differs in its file's name
/// alone.
#[test]
fn code_in_the_place_of_other_code_has_its_own_file() {
    const PROGRAM: &str = "
import ctypes
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
def ask():
    assert malloc(ctypes.byref(ctypes.c_void_p()), 4096) == 0
for at in range(200):
    exec(compile('ask()', f'<made {at:03}>', 'exec'), {'ask': ask})
";
    for (minor, interpreter) in interpreters().into_iter().filter(|(minor, _)| *minor >= 10) {
        let folder = fresh_folder();
        let output = Command::new(&interpreter)
            .args(["-c", PROGRAM])
            .current_dir(&folder)
            .env("LD_PRELOAD", stage::library())
            .env("LD_LIBRARY_PATH", stage::simulated_cuda())
            .env("VRAMALLOC_CONF", "stacks:all")
            .env("VRAMALLOC_STATS", "statistics.json")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let stats = fs::read_to_string(folder.join("statistics.json")).unwrap();
        let stats: Value = serde_json::from_str(&stats).unwrap();
        let frames = stats["call_stacks"]["frames"].as_array().unwrap();
        let files = frames.iter().filter_map(|frame| frame["file"].as_str());
        let made: BTreeSet<&str> = files.filter(|file| file.starts_with("<made ")).collect();
        assert_eq!(made.len(), 200, "3.{minor}");
    }
}

/// A request fails, and the one line says which line of Python holds most.
#[test]
fn the_one_line_names_the_line_of_python_that_holds_most() {
    const PROGRAM: &str = "
import ctypes
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
def ask(mib):
    return malloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(mib << 20))
def small():
    return ask(100)
def large():
    return [ask(200), ask(200)]
class Held:
    exec('def weights():\\n  p = ctypes.c_void_p()\\n  return malloc(ctypes.byref(p), ctypes.c_size_t(300 << 20))')
small(), large(), Held.weights(), Held.weights()
assert ask(2000) == 2
";
    for (minor, interpreter) in interpreters().into_iter().filter(|(minor, _)| *minor >= 10) {
        let output = Command::new(&interpreter)
            .args(["-c", PROGRAM])
            .current_dir(fresh_folder())
            .env("LD_PRELOAD", stage::library())
            .env("LD_LIBRARY_PATH", stage::simulated_cuda())
            .env("SIM_CUDA_MEMORY", "2G")
            .env("VRAMALLOC_CONF", "stacks:all")
            .env("VRAMALLOC_STATS", "off")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        // All of it is asked for in one line, but for what the class does.
        let holds = "; <string>:3 weights holds most, 600 MiB; said once";
        assert!(said.contains(holds), "3.{minor}: {said}");
    }
}

/// A library that lies where another did, and is of the same size, is told from it.
#[test]
fn a_library_in_the_place_of_another_is_not_taken_for_it() {
    const PROGRAM: &str = "
import ctypes, _ctypes, json
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
for at in range(6):
    library = ctypes.CDLL('./' + 'ab'[at % 2] + '.so')
    block = ctypes.c_void_p()
    assert library.asks(malloc, ctypes.byref(block)) == 0
    print(json.dumps([block.value, 'ab'[at % 2] + '.so']))
    _ctypes.dlclose(library._handle)
";
    let folder = fresh_folder();
    let asks = "int asks(int (*malloc)(void **, unsigned long), void **block)
                { return malloc(block, 5000) ? 1 : 0; }";
    let before = "volatile int sink; void before(void) { sink++; }";
    for (name, text) in [("a", asks.to_owned()), ("b", format!("{before}{asks}"))] {
        let source = folder.join(format!("{name}.c"));
        fs::write(&source, text).unwrap();
        let library = folder.join(format!("{name}.so"));
        stage::compile(source.to_str().unwrap(), &library, &["-shared"]);
    }
    let (_, interpreter) = interpreters().pop().unwrap();
    let output = Command::new(interpreter)
        .args(["-c", PROGRAM])
        .current_dir(&folder)
        .env("LD_PRELOAD", stage::library())
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("VRAMALLOC_CONF", "stacks:all")
        .env("VRAMALLOC_STATS", "statistics.json")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let stats = fs::read_to_string(folder.join("statistics.json")).unwrap();
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let told = &stats["call_stacks"];
    let blocks = blocks(&stats);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found = Vec::new();
    for line in printed.lines() {
        let (block, library): (u64, String) = serde_json::from_str(line).unwrap();
        let stack = blocks[&block].unwrap();
        let is_it = |one: &&Value| one["stack"] == stack;
        let stack = told["stacks"]
            .as_array()
            .unwrap()
            .iter()
            .find(is_it)
            .unwrap();
        let frames = stack["frames"].as_array().unwrap().iter();
        let native = frames.filter(|frame| {
            let frame = told.pointer(&format!("/frames/{frame}")).unwrap();
            frame["object"].is_number()
        });
        let places: Vec<String> = native.map(|frame| place(told, frame)).collect();
        let of = |name: &str| {
            places
                .iter()
                .filter(|place| place.starts_with(name))
                .count()
        };
        let other = if library == "a.so" { "b.so+" } else { "a.so+" };
        let wanted = format!("{library}+");
        assert_eq!((of(&wanted), of(other)), (1, 0), "{places:?}");
        found.push(stack["stack"].clone());
    }
    // The same places have the same number each time.
    assert!(found[0] == found[2] && found[1] == found[5] && found[0] != found[1]);
}

/// A program that embeds Python may unload it: nothing of it is called any more.
#[test]
fn an_interpreter_that_was_unloaded_is_not_asked() {
    const PROGRAM: &str = "
import ctypes, _ctypes
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
block = ctypes.c_void_p()
library = ctypes.CDLL('./embedded.so')
assert library.asks(malloc, ctypes.byref(block)) == 0
_ctypes.dlclose(library._handle)
assert malloc(ctypes.byref(block), 5000) == 0
";
    // As much of an interpreter as is asked whether a thread runs Python.
    const EMBEDDED: &str = "
long PyCode_Type, PyUnicode_Type, PyBytes_Type;
const char *Py_GetVersion(void) { return \"3.12.0\"; }
void *_PyThreadState_UncheckedGet(void) { return 0; }
void *PyGILState_GetThisThreadState(void) { return 0; }
int Py_IsFinalizing(void) { return 0; }
void *PyInterpreterState_Head(void) { return 0; }
void *PyInterpreterState_Main(void) { return 0; }
int asks(int (*malloc)(void **, unsigned long), void **block)
{ return malloc(block, 5000) ? 1 : 0; }";
    let folder = fresh_folder();
    let source = folder.join("embedded.c");
    fs::write(&source, EMBEDDED).unwrap();
    let library = folder.join("embedded.so");
    stage::compile(source.to_str().unwrap(), &library, &["-shared"]);
    let (_, interpreter) = interpreters().pop().unwrap();
    let output = Command::new(interpreter)
        .args(["-c", PROGRAM])
        .current_dir(&folder)
        .env("LD_PRELOAD", stage::library())
        .env("LD_LIBRARY_PATH", stage::simulated_cuda())
        .env("VRAMALLOC_CONF", "stacks:all")
        .env("VRAMALLOC_STATS", "statistics.json")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let stats = fs::read_to_string(folder.join("statistics.json")).unwrap();
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let told = &stats["call_stacks"];
    assert_eq!(told["taken"], 2);
    let python = serde_json::json!(
        { "version": "3.12", "read": false, "reason": "it was unloaded" });
    assert_eq!(told["python"], python);
    // It was opened by a relative name.
    let objects = told["objects"].as_array().unwrap();
    let is_it = |object: &Value| Path::new(object["file"].as_str().unwrap()) == library;
    assert!(objects.iter().any(is_it), "{objects:?}");
}
