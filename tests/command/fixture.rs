//! A library with functions of every kind, and statistics of a program that ran
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use vramalloc_tests::stage::{command, folder};

/// In C, with the names that C++ would give, so that no C++ compiler is needed.
const SOURCE: &str = "\
#define NAME(name) __asm__(name) __attribute__((noinline, visibility(\"default\")))
volatile int sink;
void empty(void) NAME(\"_ZN2at6native10empty_cudaEN3c108ArrayRefIlEE\");
void grows(void) NAME(\"_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator6mallocEam\");
void wide(void) NAME(\"_ZN2at3anyISt6vectorIiSaIiEEEEvT_\");
void empty(void) { sink = 1; }
static __attribute__((noinline)) void hidden(void) { sink = 3; }
static inline __attribute__((always_inline)) void inner(void) { sink = 4; }
void grows(void) { sink = 2; }
void wide(void) { hidden(); }
void outer(void) {
    inner();
}
";

/// The library and its functions, and files of statistics beside it.
pub(crate) struct Fixture {
    pub(crate) folder: PathBuf,
    /// Where each function begins.
    addresses: BTreeMap<String, u64>,
}

/// How the command ended, and what it printed.
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) errors: String,
}

fn tool(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .args(&words[1..])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

impl Fixture {
    pub(crate) fn new(test: &str) -> Fixture {
        let folder = folder(&format!("command/{test}"));
        fs::write(folder.join("x.c"), SOURCE).unwrap();
        tool(
            &folder,
            &[
                "gcc",
                "-g",
                "-O1",
                "-fno-toplevel-reorder",
                "-shared",
                "-fPIC",
                "-Wl,--build-id",
                "x.c",
                "-o",
                "libx.so",
            ],
        );
        let symbols = tool(&folder, &["nm", "libx.so"]);
        let address = |line: &str| {
            let (address, rest) = line.split_once(' ')?;
            let name = rest.split_once(' ')?.1.to_owned();
            Some((name, u64::from_str_radix(address, 16).ok()?))
        };
        Fixture {
            addresses: symbols.lines().filter_map(address).collect(),
            folder,
        }
    }

    /// Runs a tool on the library.
    pub(crate) fn tool(&self, words: &[&str]) -> String {
        tool(&self.folder, words)
    }

    /// In hexadecimal digits.
    pub(crate) fn build_id(&self) -> String {
        let notes = self.tool(&["readelf", "-n", "libx.so"]);
        let (_, id) = notes.split_once("Build ID: ").unwrap();
        id.split_whitespace().next().unwrap().to_owned()
    }

    /// A place shortly after the start of a function.
    fn place(&self, function: &str) -> Value {
        let start = self
            .addresses
            .iter()
            .find(|(name, _)| name.contains(function));
        json!({ "object": 0, "offset": start.unwrap().1 + 1 })
    }

    /// Call stacks of these functions, and of these lines of Python behind them;
    /// each holds so many MiB at the peak, and half in the end.
    pub(crate) fn call_stacks(&self, stacks: &[(&[&str], u64)]) -> Value {
        let mut frames = Vec::new();
        let mut listed = Vec::new();
        let mut peak = Vec::new();
        for (number, (functions, mib)) in stacks.iter().enumerate() {
            let places: Vec<usize> = functions
                .iter()
                .map(|function| {
                    frames.push(match function.split_once(".py:") {
                        Some((file, rest)) => {
                            let (line, name) = rest.split_once(' ').unwrap();
                            let line: u32 = line.parse().unwrap();
                            json!({"file": format!("/home/u/{file}.py"), "line": line, "function": name})
                        }
                        None => self.place(function),
                    });
                    frames.len() - 1
                })
                .collect();
            listed.push(json!({"stack": number, "frames": places}));
            peak.push(json!({"stack": number, "count": 2, "bytes": mib << 20}));
        }
        let mut live = peak.clone();
        for one in &mut live {
            one["bytes"] = (one["bytes"].as_u64().unwrap() / 2).into();
        }
        json!({
            "mode": "all", "sample_bytes": 0, "taken": 10, "cut": 0, "dropped": 0,
            "python": {"version": "3.12", "read": true, "reason": null},
            "objects": [{"file": self.folder.join("libx.so"), "build_id": self.build_id()}],
            "frames": frames, "stacks": listed, "live": live, "peak": peak, "failed": [],
        })
    }

    /// Writes statistics with these call stacks.
    pub(crate) fn write(&self, name: &str, stacks: Value) {
        let mut statistics = statistics();
        statistics["call_stacks"] = stacks;
        self.write_whole(name, &statistics);
    }

    pub(crate) fn write_whole(&self, name: &str, statistics: &Value) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, statistics.to_string()).unwrap();
    }

    /// The command in the folder, with a cache of its own there.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Answer {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(command())
            .args(arguments)
            .env_clear()
            .env("XDG_CACHE_HOME", self.folder.join("cache"))
            .current_dir(&self.folder)
            .output()
            .unwrap();
        Answer {
            code: status.code(),
            out: String::from_utf8(stdout).unwrap(),
            errors: String::from_utf8(stderr).unwrap(),
        }
    }

    /// What the report says of call stacks.
    #[track_caller]
    pub(crate) fn report(&self, arguments: &[&str]) -> String {
        let answer = self.ask(&[&["report"], arguments].concat());
        assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
        let (_, section) = answer
            .out
            .split_once("who held memory, by call stack\n")
            .unwrap();
        // What our words mean follows below all.
        let (section, _) = section.split_once("\nwords\n").unwrap();
        section.to_owned()
    }
}

/// A process that held 100 MiB.
pub(crate) fn statistics() -> Value {
    json!({
        "schema": 1, "program": "train", "pid": 42, "host": "node", "rank": "0",
        "library_version": "0.2.0", "started_unix_ms": 1_000_000, "ended_unix_ms": 1_010_000,
        "options": {}, "warnings": [],
        "arenas": [{
            "device": 0,
            "live_bytes": {"current": 50 << 20, "peak": 100 << 20},
            "cached_bytes": {"current": 0, "peak": 0},
            "limbo_bytes": {"current": 0, "peak": 0},
            "reserved_bytes": {"current": 128 << 20, "peak": 128 << 20},
            "largest_cached_bytes": 0, "fragmentation": 0.0,
            "allocations": 4, "frees": 0, "hits": 0, "misses": 4, "direct": 0,
            "size_classes": [
                {"up_to_bytes": 1 << 20, "peak_blocks": 4, "peak_bytes": 4 << 20},
                {"up_to_bytes": null, "peak_blocks": 1, "peak_bytes": 96 << 20},
            ],
            "epochs": 0, "waits": 0, "wait_ns": 0, "ooms": 0, "limit_ooms": 0, "bad_frees": 0,
            "driver_calls": {},
        }],
    })
}
