//! What a trial did not see is said, and not taken for nothing.

use std::fs;
use std::process::Command;

use vramalloc_tests::stage::{build, built};

use crate::place::{Place, program};

/// `LD_PRELOAD` is lost on the way to the program.
#[test]
fn a_program_without_the_library_is_named() {
    let place = Place::new("lost");
    let basics = program("basics.dynamic");
    let report = place.doctor(&["--", "sh", "-c", &format!("unset LD_PRELOAD; {basics}")]);
    let named = "basics.dynamic loaded libcudart.so.13 without the library";
    report.finds("problem", "preload", named);
    report.finds("note", "verdict", "one problem");

    // Nothing at all is told of it.
    let path = format!("LD_LIBRARY_PATH={}/target/sim", built().display());
    let report = place.doctor(&["--", "env", "-i", &path, &basics]);
    report.no_problem();
    report.finds("note", "preload", "what env started was not seen");
    report.finds(
        "note",
        "verdict",
        "no allocation of env was seen in this run, but",
    );

    let report = place.doctor(&["--", "env"]);
    report.finds(
        "ok",
        "verdict",
        "nothing to do: no CUDA was seen in this run of env",
    );
}

#[test]
fn a_program_that_ends_before_its_statistics_is_told_of() {
    let place = Place::new("early");
    let (source, early) = (place.path("early.c"), place.path("early"));
    let text = "int cudaMalloc(void **, unsigned long);\nvoid _exit(int);\n\
        int main(void) { void *p; _exit(cudaMalloc(&p, 4096)); }";
    fs::write(&source, text).unwrap();
    let runtime = built().join("target/sim/libcudart.so.13");
    build(Command::new("gcc").args(["-o", &early, &source, runtime.to_str().unwrap()]));
    for words in [&["--", &*early][..], &["--", "sh", "-c", &early]] {
        let report = place.doctor(words);
        report.no_problem();
        report.finds("note", "trial", "used CUDA and ended without exit handlers");
        let verdict = "seen in this run, but a process that used CUDA left no statistics";
        report.finds("note", "verdict", verdict);
    }
}

#[test]
fn an_end_before_any_call_proves_nothing() {
    let place = Place::new("ended");
    for (script, how) in [
        ("kill -15 $$", " before it was ended by signal 15"),
        ("exit 127", " before it ended with status 127"),
        (&program("nothing.dynamic"), ", although libcuda"),
    ] {
        let report = place.doctor(&["--", "sh", "-c", script]);
        report.no_problem();
        let verdict = format!("no allocation of sh was seen in this run{how}");
        report.finds("note", "verdict", &verdict);
    }
}
