//! What holds of the library's file and of the documentation, without a
//! program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cases;
use crate::run::caught;
use vramalloc_tests::stage;

/// A check by its name.
type Check = (&'static str, fn());

const CHECKS: &[Check] = &[
    ("names_that_are_left_alone", names_that_are_left_alone),
    ("no_library_of_cuda_is_needed", no_library_of_cuda_is_needed),
    ("no_file_is_named_like_cuda", no_file_is_named_like_cuda),
    (
        "what_is_a_test_is_told_from_what_helps_one",
        what_is_a_test_is_told_from_what_helps_one,
    ),
    ("every_hazard_has_its_tests", every_hazard_has_its_tests),
];

/// Each check, and why it failed if it did.
pub(crate) fn all() -> Vec<(&'static str, Option<String>)> {
    CHECKS
        .iter()
        .map(|&(name, check)| (name, caught(check)))
        .collect()
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(stage::library())
        .output()
        .unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Launches and the driver's own tables are none of our business, nor are the
/// addresses that the program reserves.
fn names_that_are_left_alone() {
    let exported = output_of("nm", &["-D", "--defined-only"]);
    for part in ["cudaPointer", "ExportTable", "cuMemAddress", "LaunchKernel"] {
        assert!(!exported.contains(part), "{part} is exported");
    }
}

fn no_library_of_cuda_is_needed() {
    let dynamic = output_of("readelf", &["-d"]);
    let mut needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    assert!(needed.all(|line| !line.contains("cuda") && !line.contains("nvidia")));
}

/// Programs search their maps for such names.
fn no_file_is_named_like_cuda() {
    let library = stage::library();
    let name = library.file_name().unwrap().to_string_lossy();
    assert!(!name.contains("libcuda") && !name.contains("libcudart"));
}

/// The page has a row for each hazard that a case stands for, each row names
/// tests, each of them is there, and each case is named in the rows of its
/// hazards.
fn every_hazard_has_its_tests() {
    let root = stage::root();
    let page = fs::read_to_string(root.join("docs/compatibility.md")).unwrap();
    let known = test_names(root);
    let cases = cases::all();
    let mut seen = BTreeSet::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let Ok(number) = cells[0].trim().parse::<u8>() else {
            continue;
        };
        assert!(seen.insert(number), "hazard {number} has two rows");
        assert_eq!(cells.len(), 5, "hazard {number}: {cells:?}");
        let tests: Vec<&str> = cells[3].split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "hazard {number} has no test");
        for test in &tests {
            assert!(known.contains(*test), "hazard {number}: there is no {test}");
        }
        for case in cases.iter().filter(|case| case.hazards.contains(&number)) {
            assert!(tests.contains(&case.name), "hazard {number}: {}", case.name);
        }
    }
    let rows = u8::try_from(seen.len()).unwrap();
    assert!(
        seen.iter().copied().eq(1..=rows),
        "the rows count from 1: {seen:?}"
    );
    for case in &cases {
        let rowless = case.hazards.iter().find(|number| !seen.contains(number));
        assert_eq!(rowless, None, "a hazard of {} has no row", case.name);
    }
}

/// Names of cases, checks, test functions and scripts.
fn test_names(root: &Path) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = cases::all().iter().map(|c| c.name.to_owned()).collect();
    names.extend(CHECKS.iter().map(|&(name, _)| name.to_owned()));
    for folder in ["tests", "cabi", "src"] {
        functions(&root.join(folder), &mut names);
    }
    for entry in fs::read_dir(root.join("ci")).unwrap() {
        let name = entry.unwrap().file_name();
        names.insert(format!("ci/{}", name.to_string_lossy()));
    }
    names
}

/// Names of the test functions in the files of a folder.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|e| e == "rs") {
            names.extend(tests_in(&fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Functions after a `#[test]`, and the names in the list of a macro that makes
/// tests of them. A function that only helps a test is none.
fn tests_in(text: &str) -> Vec<String> {
    let is_name = |word: &str| {
        let mut letters = word.chars();
        letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let made_by_macro = text.contains("fn $test(");
    let mut names = Vec::new();
    let mut after_test = false;
    for line in text.lines().map(str::trim) {
        let listed = line.strip_suffix(',').filter(|word| is_name(word));
        if let Some(rest) = line.strip_prefix("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if after_test && is_name(name) {
                names.push(name.to_owned());
            }
            after_test = false;
        } else if line.starts_with("#[test]") {
            after_test = true;
        } else if let (true, Some(name)) = (made_by_macro, listed) {
            names.push(name.to_owned());
        }
    }
    names
}

fn what_is_a_test_is_told_from_what_helps_one() {
    let text = "fn helps() {}\n#[test]\n#[ignore = \"slow\"]\nfn a_test() {\n    listed,\n}\n\
        fn helps_too<T>() {}";
    assert_eq!(tests_in(text), ["a_test"]);
    let text = "tests! {\n    one,\n    two,\n}\n#[test]\nfn $test() {}";
    assert_eq!(tests_in(text), ["one", "two"]);
}
