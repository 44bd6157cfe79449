//! Risk: a recording is not what happened, or it harms the program that is recorded.

mod bounded;

use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vramalloc_core::recording::{Found, Mark, RecordReader, Standing};
use vramalloc_core::stats::Action;
use vramalloc_tests::stage::{self, Kind, Outcome, Run, STRATEGIES, fresh_folder};

/// Where recordings and the programs' own notes go.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        Place(fresh_folder())
    }

    fn file(&self) -> PathBuf {
        self.0.join("run.rec")
    }

    fn conf(&self, more: &str) -> String {
        format!("record:{},{more}", self.file().display())
    }

    /// The program that notes what it does, killed after so long.
    fn run(&self, kind: Kind, more: &str, threads: u32, steps: u32, kill_us: u32) -> Outcome {
        let log = self.0.join("log");
        let run = Run::preloaded("recorded", kind).args([
            &*log.to_string_lossy(),
            &threads.to_string(),
            &steps.to_string(),
            &kill_us.to_string(),
        ]);
        run.conf(&self.conf(more)).go()
    }

    /// What the threads had noted: what they held for certain, and what one call of
    /// each may have changed.
    fn noted(&self, threads: u32) -> Noted {
        let mut noted = Noted::default();
        for thread in 0..threads {
            noted.read(&fs::read(self.0.join(format!("log.{thread}"))).unwrap());
        }
        noted
    }

    fn books(&self) -> Books {
        books(&self.file())
    }
}

#[derive(Default, Debug)]
struct Noted {
    live: BTreeMap<u64, u64>,
    /// Sizes that were being allocated.
    coming: Vec<u64>,
    /// Blocks that were being freed.
    going: BTreeMap<u64, u64>,
    allocations: u64,
    frees: u64,
}

impl Noted {
    fn read(&mut self, log: &[u8]) {
        // Addresses go from thread to thread; at the end each has one owner.
        let mut live = BTreeMap::new();
        let numbers: Vec<u64> = log
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        for step in numbers.chunks_exact(3) {
            let [what, size, address] = *step else {
                unreachable!()
            };
            match what {
                0 => break,
                1 => self.coming.push(size),
                2 => {
                    self.going.insert(address, size);
                    live.remove(&address);
                }
                4 => {
                    self.allocations += 1;
                    live.insert(address, size);
                }
                5 => {
                    self.frees += 1;
                    live.remove(&address);
                }
                what => panic!("{what} in the log"),
            }
        }
        self.live.append(&mut live);
    }

    /// Whether what a recording says of the program is what the program says.
    #[track_caller]
    fn check(&self, books: &Books, what: &str) {
        let mut held = books.live.clone();
        let mut missing = Vec::new();
        for (address, size) in &self.live {
            if held.remove(address) != Some(*size) {
                missing.push((address, size));
            }
        }
        assert!(missing.is_empty(), "{what}: {missing:x?} is missing");
        held.retain(|address, size| self.going.get(address) != Some(size));
        let mut coming = self.coming.clone();
        held.retain(|_, size| match coming.iter().position(|one| one == size) {
            Some(at) => {
                coming.swap_remove(at);
                false
            }
            None => true,
        });
        assert!(held.is_empty(), "{what}: {held:x?} was held by nobody");
    }
}

/// What a recording says.
#[derive(Default, Debug)]
struct Books {
    live: BTreeMap<u64, u64>,
    allocations: u64,
    frees: u64,
    events: u64,
    threads: u32,
    standing: Option<Standing>,
    lost: u64,
    late: bool,
    damaged: u64,
    unknown: u64,
}

fn books(file: &Path) -> Books {
    let file = BufReader::new(fs::File::open(file).unwrap());
    let mut reader = RecordReader::open(file).unwrap();
    let mut books = Books::default();
    while let Some(entry) = reader.next_entry().unwrap() {
        books.threads = books.threads.max(entry.thread);
        let Found::Event { event, told } = entry.found else {
            continue;
        };
        match event.action {
            Action::Alloc(address) if told != Some(true) => {
                books.allocations += u64::from(told.is_none());
                books.live.insert(address.get(), event.size.get());
            }
            Action::FreeRequested(address) => {
                books.frees += 1;
                books.live.remove(&address.get());
            }
            _ => {}
        }
    }
    books.standing = Some(reader.standing());
    (books.lost, books.late) = (reader.lost(), reader.begins_late());
    let totals = reader.totals();
    assert!(!totals.is_cut && totals.missing == 0);
    books.events = totals.events;
    (books.damaged, books.unknown) = (totals.damaged, totals.unknown);
    books
}

#[track_caller]
fn said_of_recording(outcome: &Outcome) -> Vec<&str> {
    let said = outcome.said();
    said.into_iter()
        .filter_map(|line| line.strip_prefix("vramalloc: record: "))
        .collect()
}

#[test]
fn what_is_recorded_is_what_the_program_did() {
    for (strategy, kind) in STRATEGIES.into_iter().zip(Kind::ALL) {
        let place = Place::new();
        // For the thread that writes them, the last statistics are written before the
        // recording ends.
        let conf = format!("strategy:{strategy},stats_interval_s:60");
        let outcome = place.run(kind, &conf, 3, 4000, 0);
        outcome.quiet(0).no_violations();
        let (noted, books) = (place.noted(3), place.books());
        noted.check(&books, &outcome.what);
        assert_eq!(books.live, noted.live);
        assert_eq!(
            (books.allocations, books.frees),
            (noted.allocations, noted.frees)
        );
        assert_eq!(books.standing, Some(Standing::Ended));
        assert_eq!((books.damaged, books.unknown, books.lost), (0, 0, 0));
        assert_eq!(books.threads, 3, "{}", outcome.what);
        let stats = outcome.stats();
        let told = &stats["recording"];
        assert_eq!(told["file"], *place.file().to_string_lossy());
        assert_eq!(told["state"], "ended");
        assert_eq!(told["events"], books.events);
        assert_eq!(told["lost_events"], 0);
        assert_eq!(told["reason"], Value::Null);
        let arena = &stats["arenas"][0];
        assert_eq!(arena["allocations"], noted.allocations);
        if strategy == "auto_growth" {
            assert_eq!(arena["thread_cache"], "off: record");
            let bytes = told["bytes"].as_u64().unwrap();
            assert!(bytes <= 6 * books.events, "{told}");
        }
    }
}

/// Both come from the same events, so they tell the same; of failed requests a
/// recording tells by marks.
#[test]
fn what_trace_keeps_is_what_is_recorded() {
    let trace = stage::trace("gpt_train");
    for (strategy, kind) in STRATEGIES.into_iter().zip(Kind::ALL) {
        let place = Place::new();
        let run = Run::preloaded("replay", kind).args([&trace.to_string_lossy(), "2", "keep"]);
        let conf = place.conf(&format!("strategy:{strategy},trace:100000"));
        let outcome = run.conf(&conf).go();
        outcome.quiet(0);
        let kept = outcome.stats()["snapshot"]["arenas"][0]["events"].clone();
        let mut kept = kept.as_array().unwrap().iter();
        let file = BufReader::new(fs::File::open(place.file()).unwrap());
        let mut reader = RecordReader::open(file).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            let Found::Event { event, .. } = entry.found else {
                continue;
            };
            let address = event.action.address().expect("a shortage is a mark").get();
            let kept = kept.next().unwrap();
            assert_eq!(kept["action"], event.action.word(), "{}", outcome.what);
            assert_eq!(kept["address"], address, "{}", outcome.what);
            assert_eq!(kept["size"], event.size.get());
            assert_eq!(kept["time_us"], event.time_us);
        }
        assert!(kept.next().is_none(), "{}", outcome.what);
    }
}

/// Wherever the process is killed: what the file holds is what the program held.
#[test]
fn a_process_that_is_killed_leaves_a_whole_recording() {
    let mut most = 0;
    for round in 0..12 {
        let place = Place::new();
        let kill_us = 1 + round * 7919;
        let kind = Kind::ALL[round as usize % 4];
        let outcome = place.run(kind, "", 4, 1 << 17, kill_us);
        assert_eq!(outcome.code(), -9, "{}", outcome.what);
        let noted = place.noted(4);
        let books = place.books();
        noted.check(&books, &outcome.what);
        assert_eq!(books.standing, Some(Standing::Running));
        assert_eq!((books.damaged, books.unknown), (0, 0));
        most = most.max(books.events);
    }
    assert!(most > 1000, "none was killed at work");
}

#[test]
fn a_file_that_cannot_be_made_is_said_and_nothing_else_changes() {
    let place = Place::new();
    fs::write(place.0.join("plain"), "").unwrap();
    std::os::unix::fs::symlink("/dev/null", place.0.join("null")).unwrap();
    for (file, why) in [
        ("null", "it is there already, and no regular file"),
        ("nowhere/run.rec", "No such file or directory"),
        ("plain/run.rec", "Not a directory"),
    ] {
        let file = place.0.join(file);
        let run = Run::preloaded("basics", Kind::Static);
        let outcome = run.conf(&format!("record:{}", file.display())).go();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        let said = said_of_recording(&outcome);
        let start = format!("{}: {why}", file.display());
        assert!(said.len() == 1 && said[0].starts_with(&start), "{said:?}");
        let stats = outcome.stats();
        assert_eq!(stats["recording"]["state"], "failed");
        assert!(
            stats["recording"]["reason"]
                .as_str()
                .unwrap()
                .starts_with(why)
        );
        assert_eq!(stats["arenas"][0]["thread_cache"], "on");
    }
}

#[test]
fn a_file_that_is_there_stays() {
    let place = Place::new();
    fs::write(place.file(), "precious").unwrap();
    let run = Run::preloaded("basics", Kind::Dynamic).conf(&place.conf(""));
    let outcome = run.go();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert_eq!(fs::read(place.file()).unwrap(), b"precious");
    let beside = place.0.join("run.1.rec");
    assert!(books(&beside).events > 0);
    let said = said_of_recording(&outcome);
    assert!(
        said[0].ends_with(&format!("recorded to {}", beside.display())),
        "{said:?}"
    );
    assert_eq!(
        outcome.stats()["recording"]["file"],
        *beside.to_string_lossy()
    );
}

#[test]
fn a_forked_child_records_nothing_of_its_parents() {
    for kind in Kind::each() {
        let place = Place::new();
        let run = Run::preloaded("recorded", kind).arg("fork");
        let outcome = run.conf(&place.conf("")).go();
        outcome.quiet(0);
        let books = place.books();
        assert_eq!((books.allocations, books.frees), (2, 0), "{}", outcome.what);
        assert_eq!(books.standing, Some(Standing::Ended));
        assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1, "one file alone");
    }
}

/// Also of what was there before the first arena.
#[test]
fn a_recording_says_which_families_took_memory_past_the_pool() {
    for (steps, expected) in [
        ("pool:8M all plain:4M", &["async_pools"][..]),
        ("plain:4M virtual:4M all virtual:4M", &["virtual"]),
        (
            "plain:4M managed:4M array:4M graph:4M",
            &["managed", "arrays", "graphs"],
        ),
        ("plain:4M", &[]),
    ] {
        let place = Place::new();
        let run = Run::preloaded("families", Kind::Dynamic).conf(&place.conf(""));
        steps.split(' ').fold(run, Run::arg).go().quiet(0);
        let mut reader = RecordReader::open(fs::File::open(place.file()).unwrap()).unwrap();
        let mut told = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            if let Found::Mark(Mark::Past { device: 0, family }) = entry.found {
                told.push(family.key());
            }
        }
        assert_eq!(told, expected, "{steps}");
    }
}

/// The command on a recording of a trace: its summary, its lines, and a snapshot that
/// PyTorch's tools read.
#[test]
fn the_command_tells_of_a_recording() {
    let place = Place::new();
    let trace = stage::trace("gpt_train");
    let run = Run::preloaded("replay", Kind::Driver);
    let run = run.args([&*trace.to_string_lossy(), "1", "keep"]);
    let outcome = run.conf(&place.conf("oom_report:full")).go();
    outcome.quiet(0);
    let command = |arguments: &[&str]| {
        let output = Command::new(stage::command())
            .arg("recording")
            .arg("run.rec")
            .args(arguments)
            .current_dir(&place.0)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let books = place.books();
    let summary = command(&[]);
    assert!(summary.contains("replay.driver"), "{summary}");
    assert!(
        summary.contains(&format!("{} allocations", books.allocations)),
        "{summary}"
    );
    assert!(
        summary.lines().all(|line| line.chars().count() <= 80),
        "{summary}"
    );
    let lines = command(&["--json-lines"]);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let count = |word: &str| lines.iter().filter(|line| line["event"] == word).count() as u64;
    assert_eq!(count("alloc"), books.allocations);
    assert_eq!(count("free_requested"), books.frees);
    // The device is done at once, so that no fence is kept.
    assert!(count("reached") > 0);
    assert_eq!(count("arena"), 1);
    assert!(count("stack") > 0 && count("object") > 0);
    let csv = command(&["--csv"]);
    assert_eq!(csv.lines().count(), lines.len() + 1);
    let said = command(&[
        "--snapshot=out.pickle",
        "--snapshot-json=out.json",
        "--events=5000",
    ]);
    assert!(
        said.contains("5000 events") && !said.contains("left out"),
        "{said}"
    );
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/preload/snapshot.py");
    let checked = Command::new("python3")
        .arg(script)
        .arg(place.0.join("out.pickle"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let peak = outcome.stats()["arenas"][0]["memory_stats"]["requested_bytes.all.peak"].clone();
    assert!(found["live_requested"].as_u64() <= peak.as_u64(), "{found}");
}
