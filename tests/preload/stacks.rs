//! Call stacks: each is that of the call, or a part of it from the inside, or there
//! is none; and their sums are those of the blocks.

mod python;

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use vramalloc_tests::stage::{self, Kind, Outcome, Run};

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
    for kind in Kind::each() {
        let outcome = run("deep", kind);
        let stats = outcome.stats();
        let told = &stats["call_stacks"];
        for none in ["cut", "untaken", "dropped"] {
            assert_eq!(told[none], 0, "{none}");
        }
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

/// Nothing but the room of their frames tells these libraries apart, and each is loaded
/// where the one before was.
#[test]
fn a_library_is_forgotten_when_it_is_closed() {
    let folder = stage::fresh_folder();
    let libraries = [200, 600].map(|room| {
        let source = folder.join(format!("room{room}.c"));
        let text = format!(
            "void through(void (*call)(void))
             {{ volatile char room[{room}]; room[0] = 1; call(); room[1] = room[0]; }}"
        );
        fs::write(&source, text).unwrap();
        let library = source.with_extension("so");
        let flags = ["-shared", "-fomit-frame-pointer"];
        stage::compile(source.to_str().unwrap(), &library, &flags);
        library
    });
    for kind in Kind::each() {
        let run = Run::preloaded("stacks", kind).conf("stacks:all");
        let [first, second] = libraries.each_ref().map(|path| path.to_str().unwrap());
        let outcome = run.arg("reloads").arg(first).arg(second).go();
        outcome.quiet(0).no_violations();
        let stats = outcome.stats();
        let (stacks, blocks) = (stacks(&stats["call_stacks"]), blocks(&stats));
        let printed = printed(&outcome);
        assert_eq!(printed.len(), 60);
        for (block, expected) in printed {
            let places = &stacks[&blocks[&block].unwrap()];
            let found = from_caller(places, &expected, &outcome.what);
            assert_eq!(found, expected, "{}", outcome.what);
        }
    }
}

#[test]
fn a_stack_that_cannot_be_followed_is_cut_or_there_is_none() {
    for kind in Kind::each() {
        let outcome = run("odd", kind);
        let stats = outcome.stats();
        let told = &stats["call_stacks"];
        // Code without tables, a signal, code that the program made; and one of
        // the usual kind. A signal's own stack and twice a coroutine's.
        assert_eq!(
            ["taken", "cut", "untaken", "dropped"].map(|key| &told[key]),
            [4, 3, 3, 0],
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
    assert!(told["taken"].as_u64().is_some_and(|taken| taken < 225));
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
