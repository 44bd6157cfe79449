//! The corpus of `fuzz/`, and mutations of it without any guidance.
//!
//! libFuzzer, which steers by coverage, is run by `scripts/fuzz`; this costs no
//! build of its own and is part of every run of the tests.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};

/// A change of one input.
#[derive(Clone, Debug)]
enum Change {
    /// One byte is another.
    Byte(Index, u8),
    /// At most so many bytes are gone.
    Gone(Index, usize),
    /// Something stands between two bytes.
    Put(Index, Vec<u8>),
    /// The end is gone.
    Cut(Index),
    /// Another input of the corpus follows.
    Joined(Vec<u8>),
}

impl Change {
    fn apply(self, input: &mut Vec<u8>) {
        let at = |index: Index, input: &[u8]| index.index(input.len() + 1);
        match self {
            Change::Byte(index, byte) => {
                let at = index.index(input.len().max(1));
                if let Some(there) = input.get_mut(at) {
                    *there = byte;
                }
            }
            Change::Gone(index, count) => {
                let start = at(index, input);
                let end = input.len().min(start + count);
                input.drain(start..end);
            }
            Change::Put(index, bytes) => {
                let start = at(index, input);
                input.splice(start..start, bytes);
            }
            Change::Cut(index) => input.truncate(at(index, input)),
            Change::Joined(other) => input.extend(other),
        }
    }
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let files = fs::read_dir(fuzz().join("corpus").join(target)).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// The words of a dictionary of libFuzzer: a quoted string in each line.
fn dictionary(target: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(fuzz().join("dictionaries").join(target)).unwrap();
    let quoted = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once('"')?;
        rest.strip_suffix('"')
    });
    let words: Vec<_> = quoted.map(unescaped).collect();
    assert!(!words.is_empty());
    words
}

/// A string of a dictionary, in which `\xAB` is a byte, and `\` quotes.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().unwrap() {
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                quoted => quoted,
            },
            byte => byte,
        });
    }
    bytes
}

/// Gives a target its corpus, and so many mutations of it.
fn gives(target: &str, runs: u32, take: fn(&[u8])) {
    let corpus = corpus(target);
    corpus.iter().for_each(|input| take(input));
    let change = prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        2 => (any::<Index>(), 1usize..64).prop_map(|(at, count)| Change::Gone(at, count)),
        4 => (any::<Index>(), select(dictionary(target)))
            .prop_map(|(at, word)| Change::Put(at, word)),
        1 => (any::<Index>(), vec(any::<u8>(), 1..16)).prop_map(|(at, some)| Change::Put(at, some)),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => select(corpus.clone()).prop_map(Change::Joined),
    ];
    let changes = vec(change, 1..8);
    let mutated = (select(corpus), changes).prop_map(|(mut input, changes)| {
        for change in changes {
            change.apply(&mut input);
        }
        input
    });
    let mut runner = TestRunner::new(Config {
        cases: runs,
        // A failing input goes to the corpus by hand.
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&mutated, |input| {
        take(&input);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{target}: {failure}");
    }
}

#[test]
fn elf_files() {
    gives("elf", 2000, vramalloc_parsers::elf);
}

#[test]
fn files_of_the_loader() {
    gives("loader", 2000, vramalloc_parsers::loader);
}

#[test]
fn patterns_of_names() {
    gives("names", 2000, vramalloc_parsers::names);
}

#[test]
fn environments() {
    gives("options", 100, vramalloc_parsers::options);
}

#[test]
fn names_of_functions() {
    gives("symbols", 2000, vramalloc_parsers::symbols);
}

#[test]
fn statistics() {
    gives("report", 1000, vramalloc_parsers::report);
}

#[test]
fn snapshots() {
    gives("snapshot", 1000, vramalloc_parsers::snapshot);
}

#[test]
fn recordings() {
    gives("recording", 500, vramalloc_parsers::recording);
}
