//! Call stacks of Python programs: each has the places that the interpreter itself
//! would tell, and those of libraries that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vramalloc_tests::pythons::interpreters;
use vramalloc_tests::stage::{self, fresh_folder};

use super::{blocks, place};

/// What a Python program left.
struct Left {
    stats: Value,
    printed: String,
    said: String,
}

/// Runs a Python program in a folder, with the call stack of each request taken.
fn run(interpreter: &Path, folder: &Path, arguments: &[&str]) -> Left {
    let output = Command::new(interpreter)
        .args(arguments)
        .current_dir(folder)
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
    let stats = fs::read_to_string(folder.join("statistics.json")).unwrap();
    Left {
        stats: serde_json::from_str(&stats).unwrap(),
        printed: String::from_utf8_lossy(&output.stdout).into_owned(),
        said,
    }
}

/// The interpreters whose places are read.
fn known() -> impl Iterator<Item = (u32, PathBuf)> {
    interpreters().into_iter().filter(|(minor, _)| *minor >= 10)
}

/// Runs the Python program of the tests in an interpreter, and returns what it said of
/// its blocks, its statistics, and what it printed on standard error.
fn python(interpreter: &Path) -> (Vec<(u64, Value)>, Value, String) {
    let folder = fresh_folder();
    let program = stage::root().join("tests/preload/stacks.py");
    let left = run(interpreter, &folder, &[program.to_str().unwrap(), "record"]);
    let record = fs::read_to_string(folder.join("record")).unwrap();
    // A thread may have been stopped while it wrote the last line.
    let lines = record
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    (lines.collect(), left.stats, left.said)
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

/// Code that was let go gives its memory to the next, which differs in a part of its
/// file's name, of its own or of its table of lines alone.
#[test]
fn code_in_the_place_of_other_code_has_its_own_names_and_lines() {
    const PROGRAM: &str = "
import ctypes
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
def ask():
    assert malloc(ctypes.byref(ctypes.c_void_p()), 4096) == 0
def made(text, file):
    names = {'ask': ask}
    exec(compile(text, file, 'exec'), names)
    names.clear()
for at in range(200):
    made('ask()', f'<made {at:03}>')
    made('ask()', f'<made {at:03} by one and the same>')
    made(f'def made_{at:03}_by_one_and_the_same(): ask()\\nmade_{at:03}_by_one_and_the_same()', '<named>')
calm = 'x = 1\\n' * 12
for at in [*range(20)] * 2:
    lines = '\\n' * at + 'ask()\\n' + '\\n' * (20 - at)
    made(calm + lines + calm, '<lined>')
";
    for (minor, interpreter) in known() {
        let left = run(&interpreter, &fresh_folder(), &["-c", PROGRAM]);
        let frames = left.stats["call_stacks"]["frames"].as_array().unwrap();
        let different = |file: &str, what: &str| {
            let of = |frame: &&Value| {
                frame["file"]
                    .as_str()
                    .is_some_and(|at| at.starts_with(file))
            };
            let texts = frames
                .iter()
                .filter(of)
                .map(|frame| frame[what].to_string());
            texts.collect::<BTreeSet<_>>().len()
        };
        // With that of the module which calls them.
        let found = (
            different("<made ", "file"),
            different("<named>", "function"),
        );
        assert_eq!(found, (400, 201), "3.{minor}");
        assert_eq!(different("<lined>", "line"), 20, "3.{minor}");
    }
}

/// What is on the stack of the first request is not what most programs have there.
#[test]
fn places_of_python_are_read_whatever_the_first_are() {
    const PROGRAM: &str = "
import ast, ctypes, sys, threading
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
def ask():
    assert malloc(ctypes.byref(ctypes.c_void_p()), 4096) == 0
def usual():
    ask()
def deep(levels):
    deep(levels - 1) if levels else ask()
class Text(str):
    pass
what = sys.argv[1]
if what == 'deep':
    sys.setrecursionlimit(100_000)
    threading.stack_size(512 << 20)
    thread = threading.Thread(target=deep, args=(70_000,))
    thread.start()
    thread.join()
elif what == 'no file':
    exec(compile('ask()', '', 'exec'))
elif what == 'far':
    tree = ast.parse('ask()')
    for node in ast.walk(tree):
        if hasattr(node, 'lineno'):
            node.lineno = node.end_lineno = 1 << 24
    exec(compile(tree, 'far.py', 'exec'))
else:
    made = lambda: ask()
    change = {'no name': {'co_name': ''}, 'zero': {'co_filename': 'a\\0b'},
              'derived': {'co_filename': Text('derived.py')}}[what]
    made.__code__ = made.__code__.replace(**change)
    made()
usual()
";
    for (minor, interpreter) in known() {
        for what in ["deep", "no file", "no name", "far", "zero", "derived"] {
            let left = run(&interpreter, &fresh_folder(), &["-c", PROGRAM, what]);
            assert_eq!(left.said, "", "3.{minor}, {what}");
            let told = &left.stats["call_stacks"];
            assert_eq!(told["python"]["read"], true, "3.{minor}, {what}");
            let frames = told["frames"].as_array().unwrap();
            let has = |function: &str| frames.iter().any(|frame| frame["function"] == function);
            assert!(has("usual") && has("ask"), "3.{minor}, {what}");
            let is_derived = |frame: &Value| frame["file"] == "derived.py";
            assert_eq!(
                frames.iter().any(is_derived),
                what == "derived",
                "3.{minor}"
            );
        }
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
    for (minor, interpreter) in known() {
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

/// A library that lies where another did is told from it, be it as large or smaller,
/// and its frames are as its own tables say.
#[test]
fn a_library_in_the_place_of_another_is_not_taken_for_it() {
    const PROGRAM: &str = "
import ctypes, _ctypes, json
malloc = ctypes.CDLL('libcudart.so.12').cudaMalloc
whose = ctypes.CDLL(None).vramalloc_whose
for at in range(12):
    name = 'abcd'[at % 4]
    library = ctypes.CDLL(f'./{name}.so')
    block = ctypes.c_void_p()
    # In between a thread looks by itself what was unloaded.
    for _ in range(70):
        assert library.asks(malloc, ctypes.byref(block)) == 0
    told, calls = (ctypes.c_size_t * 16)(64), (ctypes.c_size_t * 80)()
    assert whose(block, told, calls, ctypes.c_size_t(80), None, ctypes.c_size_t(0)) == 0
    print(json.dumps([block.value, f'{name}.so', 0 in calls[:told[4]]]))
    _ctypes.dlclose(library._handle)
";
    let folder = fresh_folder();
    let asks = |room: u32| {
        format!(
            "int asks(int (*malloc)(void **, unsigned long), void **block)
             {{ volatile char room[{room}]; room[0] = malloc(block, 5000) ? 1 : 0; return room[0]; }}"
        )
    };
    let before = "volatile int sink; void before(void) { sink++; }";
    for (name, text) in [
        ("a", asks(40)),
        ("b", format!("{before}{}", asks(40))),
        ("c", asks(200)),
        ("d", asks(600)),
    ] {
        let source = folder.join(format!("{name}.c"));
        fs::write(&source, text).unwrap();
        let library = folder.join(format!("{name}.so"));
        // So that where the frame is depends on how much room it has.
        let flags = ["-shared", "-O2", "-fomit-frame-pointer"];
        stage::compile(source.to_str().unwrap(), &library, &flags);
    }
    let (_, interpreter) = interpreters().pop().unwrap();
    let Left { stats, printed, .. } = run(&interpreter, &folder, &["-c", PROGRAM]);
    let told = &stats["call_stacks"];
    let blocks = blocks(&stats);
    let mut found = Vec::new();
    let mut outside = BTreeSet::new();
    for line in printed.lines() {
        let (block, library, has_unknown): (u64, String, bool) =
            serde_json::from_str(line).unwrap();
        assert!(!has_unknown, "{line}");
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
        let is_one = |place: &&String| place.as_bytes().get(1..6) == Some(b".so+1");
        let own: Vec<&String> = places.iter().filter(is_one).collect();
        assert!(own.len() == 1 && own[0].starts_with(&library), "{places:?}");
        let at = places.iter().position(|place| place == own[0]).unwrap();
        outside.insert(places[at + 1..].to_vec());
        found.push(stack["stack"].clone());
    }
    // All have the same callers, and the same places the same number each time.
    assert!(
        outside.len() == 1 && outside.first().unwrap().len() > 3,
        "{outside:?}"
    );
    assert!(found[..4] == found[4..8] && found[..4] == found[8..]);
    assert_eq!(
        found[..4]
            .iter()
            .map(Value::to_string)
            .collect::<BTreeSet<_>>()
            .len(),
        4
    );
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
    // So that where the frame is depends on how much room it has.
    let flags = ["-shared", "-O2", "-fomit-frame-pointer"];
    stage::compile(source.to_str().unwrap(), &library, &flags);
    let (_, interpreter) = interpreters().pop().unwrap();
    let Left { stats, .. } = run(&interpreter, &folder, &["-c", PROGRAM]);
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
