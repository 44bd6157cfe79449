//! Risk: the page of `vramalloc report --html` shows other figures than there were, or
//! lets a name in a file become a part of itself.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use vramalloc_tests::recorded::{RecordedFile, Step};

use crate::browser::Browser;
use crate::fixture::{Fixture, statistics};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 1 << 40;
const DEVICE: &str = r#"{"place":"device","device":0,"device_name":"GPU","device_total_bytes":1073741824,"limit_bytes":536870912}"#;
pub(crate) const HEAD: &str = r#"{"program":"train","pid":42,"host":"node7","rank":"0"}"#;
const TRAIN: &[(&str, u64, &str)] = &[("/u/train.py", 41, "forward"), ("/u/train.py", 80, "main")];
const LOAD: &[(&str, u64, &str)] = &[("/u/data.py", 7, "load"), ("/u/train.py", 80, "main")];

/// Names that are markup, and script, where they are not taken as text.
const HOSTILE: &str =
    "</script><script>window.bad=1</script><img src=x onerror=window.bad=1>&lt;'\"`${1}";

/// A recording with a head and these steps, 1 ms apart.
pub(crate) fn recorded(head: &str, steps: &[Step<'_>]) -> Vec<u8> {
    let begun = RecordedFile::new(head);
    let file = steps
        .iter()
        .fold(begun, |file, step| file.after(1000, *step));
    file.bytes()
}

fn begins<'a>() -> Vec<Step<'a>> {
    vec![
        Step::Thread(1),
        Step::Arena(0),
        Step::IsArena(0, DEVICE),
        Step::IsStack(0, TRAIN),
        Step::IsStack(1, LOAD),
        Step::Segment(CHUNK, 64 * MIB),
    ]
}

/// A peak of 48 MiB in the beginning, and one of 24 MiB later, which another call stack
/// made.
pub(crate) fn two_peaks<'a>() -> Vec<Step<'a>> {
    let mut steps = begins();
    for n in 0..6 {
        steps.push(Step::Alloc(CHUNK + 8 * n * MIB, 8 * MIB, Some(0)));
    }
    for n in 0..6 {
        steps.push(Step::Free(CHUNK + 8 * n * MIB, 8 * MIB));
        steps.push(Step::Completed(CHUNK + 8 * n * MIB, 8 * MIB));
    }
    for n in 0..3 {
        steps.push(Step::Alloc(CHUNK + 8 * n * MIB, 8 * MIB, Some(1)));
    }
    steps.push(Step::Oom(90 * MIB, Some(1)));
    steps
}

/// A page of these files, and what it shows.
pub(crate) fn page(test: &str, files: &[(&str, &[u8])]) -> (PathBuf, String, Value) {
    let fixture = Fixture::new(test);
    let mut arguments = vec!["report", "--html", "page.html"];
    for (name, bytes) in files {
        fs::write(fixture.folder.join(name), bytes).unwrap();
        arguments.push(name);
    }
    let answer = fixture.ask(&arguments);
    assert_eq!(
        (answer.code, &*answer.errors),
        (Some(0), ""),
        "{}",
        answer.out
    );
    let path = fixture.folder.join("page.html");
    let text = fs::read_to_string(&path).unwrap();
    let shown = shown(&text);
    (path, text, shown)
}

/// What a page shows.
fn shown(text: &str) -> Value {
    let (_, data) = text
        .split_once("<script id=\"data\" type=\"application/json\">")
        .unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

fn numbers(list: &Value) -> Vec<u64> {
    let list = list.as_array().unwrap();
    list.iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn a_recording_is_shown_as_it_was() {
    let (_, text, shown) = page("page_recorded", &[("r.rec", &recorded(HEAD, &two_peaks()))]);
    assert_eq!(text.matches("<script").count(), 2);
    let process = &shown["processes"][0];
    assert_eq!(process["title"], "train (process 42 on node7)");
    let place = &process["places"][0];
    assert_eq!(place["name"], "device 0: GPU");
    assert_eq!(place["limits"], json!([[0, 512 * MIB]]));
    let line = &place["timeline"];
    assert_eq!(line["per_step"], 1);
    let (live, limbo) = (numbers(&line["live"]), numbers(&line["limbo"]));
    assert_eq!(live.iter().max(), Some(&(48 * MIB)));
    assert_eq!(live.last(), Some(&(24 * MIB)));
    assert_eq!(limbo.iter().max(), Some(&(8 * MIB)));
    assert!(numbers(&line["reserved"]).contains(&(64 * MIB)));
    assert!(numbers(&line["time"]).is_sorted());
    assert_eq!(place["failures"].as_array().unwrap().len(), 1);
    assert_eq!(place["failures"][0]["size"], 90 * MIB);
    // At the peak six blocks filled most of the chunk.
    let chunk = &place["map"]["chunks"][0];
    assert_eq!(
        (&chunk["size"], &chunk["blocks"]),
        (&json!(64 * MIB), &json!(6))
    );
    assert_eq!(chunk["address"], format!("{CHUNK:#x}"));
    assert_eq!(chunk["pieces"][6], json!([16 * MIB, 0, 0, 0]));
    assert_eq!(place["largest"].as_array().unwrap().len(), 6);
    let names = &process["holders"]["names"];
    for name in ["train.py:41 forward", "train.py:80 main", "data.py:7 load"] {
        assert!(names.as_array().unwrap().contains(&json!(name)), "{names}");
    }
}

/// A device may have a limit of its own, and lose it again.
#[test]
fn the_limit_is_the_one_in_force() {
    let head = r#"{"program":"train","pid":42,"host":"node7","rank":"0","options":{
        "limit":{"value":"256MiB","origin":"VRAMALLOC_LIMIT"},
        "device_limits":{"value":"[0:512MiB]","origin":"VRAMALLOC_DEVICE_LIMITS"}}}"#;
    let mut steps = two_peaks();
    steps.push(Step::Option("device_limits", "[0:640MiB,1:64MiB]"));
    steps.push(Step::Option("device_limits", "[1:64MiB]"));
    steps.push(Step::Option("limit", "none"));
    let (_, _, shown) = page("page_limits", &[("r.rec", &recorded(head, &steps))]);
    let limits = shown["processes"][0]["places"][0]["limits"].as_array();
    let limits: Vec<&Value> = limits.unwrap().iter().map(|change| &change[1]).collect();
    let expected = [
        json!(512 * MIB),
        json!(640 * MIB),
        json!(256 * MIB),
        json!(null),
    ];
    assert_eq!(limits, expected.iter().collect::<Vec<_>>());
}

/// Of each moment that is kept, what holders hold together is what was live.
#[test]
fn what_holders_hold_is_what_is_live() {
    let (_, _, shown) = page("page_holders", &[("r.rec", &recorded(HEAD, &two_peaks()))]);
    let line = &shown["processes"][0]["places"][0]["timeline"];
    let live = numbers(&line["live"]);
    let mut held = std::collections::BTreeMap::new();
    let mut checked = 0;
    for (at, changes) in numbers(&line["at"])
        .iter()
        .zip(line["held"].as_array().unwrap())
    {
        for pair in changes.as_array().unwrap().chunks(2) {
            *held.entry(pair[0].as_u64()).or_insert(0) += pair[1].as_i64().unwrap();
        }
        let sum: i64 = held.values().sum();
        assert!(held.values().all(|bytes| *bytes >= 0));
        assert_eq!(sum.cast_unsigned(), live[usize::try_from(*at).unwrap()]);
        checked += 1;
    }
    assert!(checked > 10);
}

#[test]
fn statistics_and_a_recording_of_a_process_are_one() {
    let statistics = statistics();
    let (program, pid, host) = (
        &statistics["program"],
        &statistics["pid"],
        &statistics["host"],
    );
    let head = json!({ "program": program, "pid": pid, "host": host, "rank": "0" }).to_string();
    let (recording, statistics) = (recorded(&head, &two_peaks()), statistics.to_string());
    let other = recorded(HEAD, &two_peaks());
    let files: [(&str, &[u8]); 3] = [
        ("s.json", statistics.as_bytes()),
        ("r.rec", &recording),
        ("o.rec", &other),
    ];
    let (_, _, shown) = page("page_joined", &files);
    let processes = shown["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2);
    assert_eq!(processes[0]["files"], json!(["r.rec", "s.json"]));
    let said = processes[0]["said"].to_string();
    assert!(
        said.contains("used at most") && said.contains("most live"),
        "{said}"
    );
    assert!(processes[0]["places"][0]["timeline"].is_object());
}

#[test]
fn statistics_alone_say_that_a_recording_shows_more() {
    let (_, _, shown) = page(
        "page_statistics",
        &[("s.json", statistics().to_string().as_bytes())],
    );
    let process = &shown["processes"][0];
    assert!(process["places"][0]["timeline"].is_null());
    assert!(
        process["notes"]
            .to_string()
            .contains("A recording also shows"),
        "{process}"
    );
}

#[test]
fn names_of_files_are_text() {
    let frames: &[(&str, u64, &str)] = &[(HOSTILE, 1, HOSTILE)];
    let arena = json!({ "place": "device", "device": 0, "device_name": HOSTILE }).to_string();
    let head =
        json!({ "program": HOSTILE, "pid": 1, "host": HOSTILE, "rank": HOSTILE }).to_string();
    let steps = [
        Step::Thread(1),
        Step::Arena(0),
        Step::IsArena(0, &arena),
        Step::IsStack(0, frames),
        Step::Segment(CHUNK, 64 * MIB),
        Step::Alloc(CHUNK, MIB, Some(0)),
        Step::Oom(MIB, Some(0)),
    ];
    let name = "<b onclick=alert()>.rec";
    let (path, text, _) = page("page_hostile", &[(name, &recorded(&head, &steps))]);
    assert_eq!(text.matches("<script").count(), 2);
    assert!(!text.contains("<img") && !text.contains("onclick=alert()>"));
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.open(&path, [1000, 800], false);
    assert!(
        browser
            .text("flame-total")
            .contains("1.0 MiB of 1 call stack")
    );
    browser.until("[...document.querySelectorAll('#flame .d3-flame-graph-label')].some(l => l.textContent.includes('<img'))");
    assert_eq!(browser.value("window.bad === undefined"), json!(true));
    let several = browser.value("vr.count(2, 'size class')");
    assert_eq!(several, json!("2 size classes"));
    assert_eq!(
        browser.value("document.querySelectorAll('img, b[onclick]').length"),
        json!(0)
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

/// What grew is told of the end, also where a step had more shortly before, and where
/// several things happen at one time.
#[test]
fn a_range_ends_as_it_ended() {
    let mut file = begins()
        .into_iter()
        .fold(RecordedFile::new(HEAD), |file, step| file.after(1000, step));
    for _ in 0..1500 {
        file = file.after(10, Step::Alloc(CHUNK, 4 * MIB, Some(0)));
        file = file.after(10, Step::Free(CHUNK, 4 * MIB));
        file = file.after(10, Step::Completed(CHUNK, 4 * MIB));
    }
    for step in [
        Step::Alloc(CHUNK + 56 * MIB, MIB, Some(1)),
        Step::Alloc(CHUNK, 48 * MIB, Some(0)),
        Step::Alloc(CHUNK + 48 * MIB, 7 * MIB, Some(1)),
        Step::Free(CHUNK, 48 * MIB),
    ] {
        file = file.after(0, step);
    }
    let (path, _, shown) = page("page_end", &[("r.rec", &file.bytes())]);
    let line = &shown["processes"][0]["places"][0]["timeline"];
    assert!(line["per_step"].as_u64() > Some(1), "{}", line["per_step"]);
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.open(&path, [1000, 800], false);
    let selected = browser.text("selected");
    assert!(
        selected.contains("most live 56.0 MiB") && selected.contains("grew by 8.0 MiB to 8.0 MiB"),
        "{selected}"
    );
    browser.value(
        "(() => { const m = document.getElementById('flame-mode'); \
         m.value = 'grown'; m.dispatchEvent(new Event('change')); })()",
    );
    let grown = browser.text("flame-total");
    assert!(grown.starts_with("8.0 MiB of 1 call stack"), "{grown}");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Where the page goes to standard output, nothing else does.
#[test]
fn a_page_goes_to_standard_output_for_a_dash() {
    let (path, text, _) = page("page_output", &[("r.rec", &recorded(HEAD, &two_peaks()))]);
    let fixture = Fixture::new("page_output");
    fs::write(fixture.folder.join("r.rec"), recorded(HEAD, &two_peaks())).unwrap();
    let answer = fixture.ask(&["report", "--html", "-", "r.rec"]);
    assert_eq!((answer.code, &*answer.errors), (Some(0), ""));
    assert!(answer.out == text, "{}", answer.out.len());
    assert!(!path.with_file_name("-").exists());
}

/// Contexts that nothing would have helped say so once.
#[test]
fn what_is_said_of_several_contexts_stands_once() {
    let mut statistics = statistics();
    statistics["arenas"][0]["memory_stats"] = json!({});
    let context = statistics["arenas"][0].clone();
    statistics["arenas"].as_array_mut().unwrap().push(context);
    let text = statistics.to_string();
    let (path, _, _) = page("page_contexts", &[("s.json", text.as_bytes())]);
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.open(&path, [800, 600], false);
    let boxes = "document.querySelectorAll('#summary .advice').length";
    assert_eq!(browser.value(boxes), json!(1));
}

#[test]
fn what_cannot_be_shown_is_said() {
    let fixture = Fixture::new("page_wrong");
    let recording = recorded(HEAD, &two_peaks());
    for (name, bytes) in [
        ("r.rec", &recording[..]),
        ("cut.rec", &recording[..100]),
        ("x.json", b"{}"),
    ] {
        fs::write(fixture.folder.join(name), bytes).unwrap();
    }
    let ask = |files: &[&str]| fixture.ask(&[&["report", "--html"][..], files].concat());
    let same = ask(&["r.rec", "r.rec"]);
    assert_eq!(same.code, Some(2));
    assert!(
        same.errors.contains("would be overwritten"),
        "{}",
        same.errors
    );
    // The shell has put another recording where the page's name is missing.
    fs::copy(fixture.folder.join("r.rec"), fixture.folder.join("o.rec")).unwrap();
    let other = ask(&["o.rec", "r.rec"]);
    assert_eq!(other.code, Some(2));
    let said = "o.rec: is a recording; give the page another name";
    assert!(other.errors.contains(said), "{}", other.errors);
    for name in ["r.rec", "o.rec"] {
        assert_eq!(fs::read(fixture.folder.join(name)).unwrap(), recording);
    }
    let none = ask(&["p.html", "cut.rec", "x.json", "none.rec"]);
    assert_eq!(
        (none.code, none.errors.lines().count()),
        (Some(2), 3),
        "{}",
        none.errors
    );
    assert!(!fixture.folder.join("p.html").exists());
    let some = ask(&["p.html", "x.json", "r.rec"]);
    assert_eq!(
        (some.code, some.errors.lines().count()),
        (Some(2), 1),
        "{}",
        some.errors
    );
    assert!(fixture.folder.join("p.html").exists());
    let nowhere = ask(&["no/such/p.html", "r.rec"]);
    assert_eq!(nowhere.code, Some(1), "{}", nowhere.errors);
    let both = fixture.ask(&["report", "--html", "p.html", "--merge", "r.rec"]);
    assert_eq!(both.code, Some(2));
}

/// Files that end before anything happened, or of which the beginning is gone.
#[test]
fn little_is_shown_as_well() {
    let steps = [
        Step::Thread(1),
        Step::Arena(7),
        Step::Gap(3),
        Step::Telling(true),
        Step::IsAlloc(CHUNK, MIB),
        Step::Telling(false),
    ];
    let empty = recorded(HEAD, &[]);
    let unknown = recorded("{}", &steps);
    let mut cut = recorded(HEAD, &two_peaks());
    cut.truncate((64 << 10) + 200);
    let files: [(&str, &[u8]); 3] = [("e.rec", &empty), ("u.rec", &unknown), ("c.rec", &cut)];
    let (path, _, shown) = page("page_little", &files);
    let notes = |n: usize| shown["processes"][n]["notes"].to_string();
    assert!(notes(0).contains("nothing happened"), "{}", notes(0));
    assert!(notes(2).contains("cut off"), "{}", notes(2));
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.open(&path, [800, 600], true);
    for view in 0..3 {
        browser.value(&format!("vr.choose({view})"));
    }
    assert_eq!(browser.complaints(), [""; 0]);
}
