//! What a run left, and what must hold of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use serde_json::Value;

/// The result of a run.
pub struct Outcome {
    /// The run, for messages.
    pub what: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub(super) report: Option<String>,
    /// Regular files in the working directory, with their contents.
    pub written: BTreeMap<String, String>,
}

impl Outcome {
    /// The exit code, or minus the signal.
    pub fn code(&self) -> i32 {
        (self.status.code()).unwrap_or_else(|| -self.status.signal().unwrap())
    }

    /// Standard error without the notes of the simulated driver (the report has
    /// them too) and without the one line that the library may print about
    /// running out of memory.
    ///
    /// A process that ends during a write leaves what fits into the file's
    /// page: a last line without an end may be the beginning of such a note.
    #[track_caller]
    pub fn said(&self) -> Vec<&str> {
        let noted = "simulated CUDA: violation: ";
        let cut = !self.stderr.ends_with('\n');
        let mut lines: Vec<_> = self.stderr.lines().collect();
        if cut && lines.last().is_some_and(|line| noted.starts_with(line)) {
            lines.pop();
        }
        let (ours, rest): (Vec<_>, Vec<_>) = (lines.into_iter())
            .filter(|line| !line.starts_with(noted))
            .partition(|line| line.starts_with("vramalloc: out of memory: "));
        assert!(ours.len() <= 1, "{}: {ours:#?}", self.what);
        rest
    }

    /// Fails unless the program ended with `code` and printed nothing on
    /// standard error.
    #[track_caller]
    pub fn quiet(&self, code: i32) -> &Outcome {
        let said = self.said().join("\n");
        assert_eq!((self.code(), said.as_str()), (code, ""), "{}", self.what);
        self
    }

    /// The report of the simulated driver.
    #[track_caller]
    pub fn report(&self) -> Value {
        let text = (self.report.as_deref())
            .unwrap_or_else(|| panic!("{}: the driver wrote no report", self.what));
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{}: {e} in {text}", self.what))
    }

    pub fn has_report(&self) -> bool {
        self.report.is_some()
    }

    /// The violations that the simulated device found, each once.
    #[track_caller]
    pub fn violations(&self) -> BTreeSet<String> {
        let found = self.report()["violations"].as_array().unwrap().clone();
        found.iter().map(Value::to_string).collect()
    }

    /// Fails if the simulated device found a violation.
    #[track_caller]
    pub fn no_violations(&self) -> &Outcome {
        let found = self.violations();
        assert!(found.is_empty(), "{}: {found:?}", self.what);
        self
    }

    /// Fails if the simulated device found more violations than in the other
    /// run.
    #[track_caller]
    pub fn no_more_violations(&self, than: &Outcome) -> &Outcome {
        // Places of memory differ from run to run.
        let place = |word: &&str| word.trim_start_matches('"').starts_with("0x");
        let kind = |text: &String| text.split(' ').filter(|w| !place(w)).collect::<String>();
        let kinds = |of: &Outcome| of.violations().iter().map(kind).collect::<BTreeSet<_>>();
        let (found, own) = (kinds(self), kinds(than));
        assert!(found.len() <= own.len(), "{}: {found:?}", self.what);
        self
    }

    /// How often a driver function was called.
    #[track_caller]
    pub fn driver_calls(&self, function: &str) -> u64 {
        self.report()["calls"][function].as_u64().unwrap_or(0)
    }

    /// The text of the statistics, which must be one file.
    #[track_caller]
    pub fn statistics(&self) -> &str {
        assert_eq!(
            self.written.len(),
            1,
            "{}: {:?}\n{}",
            self.what,
            self.written.keys(),
            self.stderr
        );
        let (name, text) = self.written.first_key_value().unwrap();
        assert!(
            name.starts_with("vramalloc.") && name.ends_with(".json"),
            "{}: {name}",
            self.what
        );
        text
    }

    /// The statistics, which must be one file with consistent numbers.
    #[track_caller]
    pub fn stats(&self) -> Value {
        let stats = serde_json::from_str(self.statistics()).unwrap();
        adds_up(&stats, &self.what);
        stats
    }
}

fn number(value: &Value, what: &str) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{what}: {value} is no count"))
}

/// Checks the relations that hold between the numbers of any statistics.
#[track_caller]
fn adds_up(stats: &Value, what: &str) {
    assert_eq!(stats["schema"], 1, "{what}");
    assert!(stats["options"]["strategy"]["value"].is_string(), "{what}");
    let mut totals = [0; 5];
    let keys = ["allocations", "frees", "hits", "misses", "direct"];
    let hosts = stats["host_arenas"].as_array().unwrap();
    let devices = stats["arenas"].as_array().unwrap();
    let of_device = devices.iter().map(|arena| (arena, true));
    for (arena, of_device) in of_device.chain(hosts.iter().map(|arena| (arena, false))) {
        let n = |key: &str| number(&arena[key], what);
        let bytes = |key: &str| {
            let (current, peak) = (&arena[key]["current"], &arena[key]["peak"]);
            // Of contexts that are gone the peaks are not added up.
            let is_one = arena["sum_of"].as_u64().unwrap_or(1) == 1;
            let is_within = number(current, what) <= number(peak, what);
            assert!(is_within || !is_one, "{what}: {key}");
            number(current, what)
        };
        let parts = bytes("live_bytes") + bytes("limbo_bytes") + bytes("cached_bytes");
        let paused = arena["pause"]["paused_bytes"].as_u64().unwrap_or(0);
        let all = bytes("reserved_bytes") + paused;
        assert_eq!(all, parts, "{what}: {arena:#}");
        let ways = n("hits") + n("misses") + n("direct");
        assert_eq!(n("allocations"), ways, "{what}: {arena:#}");
        assert!(n("frees") <= n("allocations"), "{what}: {arena:#}");
        for (total, key) in totals.iter_mut().zip(keys).filter(|_| of_device) {
            *total += n(key);
        }
    }
    for (total, key) in totals.into_iter().zip(keys) {
        assert_eq!(number(&stats["totals"][key], what), total, "{what}: {key}");
    }
}
