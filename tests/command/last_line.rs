//! What `vramalloc run` says at the end: where the statistics are, or why there
//! are none.

use std::fs;
use std::process::Command;

use vramalloc_tests::stage::{command, write_dummy};

use crate::{Place, output};

/// A shell function that writes a file as the library would, for program `$1`
/// and process `$2`, and says so.
const WRITE: &str = r#"write() { f=$(echo "$VRAMALLOC_STATS" | sed "s/%e/$1/;s/%p/$2/;s/%%/%/"); echo {} > "$f"; for n in seen "wrote $f" ended; do echo "$2 $n" >>$VRAMALLOC_RUN; done; };"#;

/// A shell function that says something of its process, as the library would.
const NOTE: &str = "note() { echo $$ $* >>$VRAMALLOC_RUN; };";

#[test]
fn the_last_line_says_where_the_statistics_are() {
    let place = Place::new("last_line");
    let (_, _, errors) = output(place.run(&[], "true"));
    assert_eq!(
        errors,
        "vramalloc: no CUDA memory was seen in sh, so there are no statistics"
    );

    // A file from before is not this run's.
    fs::write(place.path("vramalloc.old.1.json"), "{}").unwrap();
    let script = format!("{WRITE} cd /; write sh $$; echo $$");
    let (_, out, errors) = output(place.run(&[], &script));
    let file = place.path(&format!("vramalloc.sh.{}.json", out.trim()));
    assert_eq!(
        errors,
        format!(
            "vramalloc: statistics written; read them with: {} report {}",
            command(),
            file.display()
        )
    );

    let script = format!("{WRITE} for i in 4 3 2 1; do write a $i; done; write sh $$; echo $$");
    let (_, out, errors) = output(place.run(&["--stats", "many 100%%.%e.%p"], &script));
    let line = errors.replace(place.directory.to_str().unwrap(), "DIR");
    assert_eq!(
        line,
        format!(
            "vramalloc: 5 processes wrote statistics; read them with: {} report \
             'DIR/many 100%.sh.{}' 'DIR/many 100%.a.1' 'DIR/many 100%.a.2' (and 2 more beside)",
            command(),
            out.trim()
        )
    );

    for (options, script, line) in [
        (
            ["--stats", "off"],
            "true",
            "no statistics were kept: they are switched off",
        ),
        (
            ["--stats", "stderr"],
            "true",
            "statistics stand above, if CUDA memory was seen in sh",
        ),
        (
            ["--limit", "1G"],
            "kill -9 $$",
            "sh was ended by signal 9 and wrote no statistics",
        ),
    ] {
        let (_, _, errors) = output(place.run(&options, script));
        assert_eq!(errors, format!("vramalloc: {line}"));
    }
}

#[test]
fn where_no_file_was_written_it_is_said_why() {
    let place = Place::new("without_files");
    for (script, line) in [
        (
            "note seen; note failed /f/a.json: No space left on device",
            "the statistics of sh could not be written: /f/a.json: No space left on device",
        ),
        // Nothing was allocated that statistics could tell of.
        (
            "note seen; note ended",
            "no CUDA memory was seen in sh, so there are no statistics",
        ),
        (
            "note seen",
            "sh used CUDA and wrote no statistics (it ended without exit handlers, as by \
             _exit or exec, before any were written meanwhile)",
        ),
    ] {
        let (_, _, errors) = output(place.run(&[], &format!("{NOTE} {script}")));
        assert_eq!(errors, format!("vramalloc: {line}"), "{script}");
    }
    // Where they did not go to a file that stays.
    let script = format!("{NOTE} note seen; note wrote /dev/null; note ended");
    let (_, _, errors) = output(place.run(&[], &script));
    assert_eq!(errors, "vramalloc: the statistics of sh went to /dev/null");
    let script = format!("{NOTE} note seen; note ended");
    let (_, _, errors) = output(place.run(&["--stats", "/dev/null"], &script));
    let line = "vramalloc: the statistics of sh went to /dev/null, if CUDA memory was seen";
    assert_eq!(errors, line);
    // Where the program itself has chosen the place.
    let script = format!("{NOTE} echo >else; note seen; note wrote $PWD/else; note ended");
    let (_, _, errors) = output(place.run(&[], &script));
    assert!(errors.ends_with("/without_files/else"), "{errors}");
    // One of several processes.
    let script = format!("{NOTE} {WRITE} echo 1 seen >>$VRAMALLOC_RUN; note seen; write sh $$");
    let (_, _, errors) = output(place.run(&[], &script));
    let more = errors.split_once("; 1 more used CUDA and wrote none (");
    assert!(more.is_some(), "{errors}");
    // A file beside that of another process of the same name is found.
    let script = "f=$(echo $VRAMALLOC_STATS | sed s/%e/sh/\\;s/%p/7.1/); echo {} >$f; \
                  echo 7 seen >>$VRAMALLOC_RUN";
    let (_, _, errors) = output(place.run(&["--stats", "%p.json"], script));
    assert!(errors.ends_with("/7.1.json"), "{errors}");
}

/// Other runs may write into the same folder meanwhile.
#[test]
fn files_of_other_runs_are_left_alone() {
    let place = Place::new("others");
    // By the names of processes, and by what each process said.
    for (pattern, other) in [("%e.%p.json", "x.7.json"), ("%r.json", "3.json")] {
        let script = format!("{NOTE} {WRITE} echo {{}} > {other}; write sh $$");
        let (_, _, errors) = output(place.run(&["--stats", pattern], &script));
        assert!(
            errors.starts_with("vramalloc: statistics written;"),
            "{errors}"
        );
        assert!(!errors.contains(other), "{errors}");
        let script = format!("echo {{}} {{}} > {other}");
        let (_, _, errors) = output(place.run(&["--stats", pattern], &script));
        assert!(
            errors.starts_with("vramalloc: no CUDA memory was seen"),
            "{errors}"
        );
    }
}

/// Processes on other machines, as of `srun`, say nothing on this one.
#[test]
fn files_from_other_machines_are_of_the_run() {
    let place = Place::new("far");
    let script = r#"echo '{"schema": 1, "host": "far away"}' > vramalloc.x.7.json"#;
    let (_, _, errors) = output(place.run(&[], script));
    assert!(errors.ends_with("/vramalloc.x.7.json"), "{errors}");
}

/// A shell that starts `vramalloc run` sees no signal, only a status.
#[test]
fn a_signal_is_named_where_statistics_were_written() {
    let place = Place::new("signal");
    let (code, _, errors) = output(place.run(&[], &format!("{WRITE} write sh $$; kill -11 $$")));
    assert_eq!(code, Some(139));
    let line = "vramalloc: sh was ended by signal 11; statistics written; read them with:";
    assert!(errors.starts_with(line), "{errors}");
}

/// A working directory that is gone, or has a name that no pattern can hold.
#[test]
fn a_directory_without_a_name_keeps_no_program_from_starting() {
    let place = Place::new("no_directory");
    let run = |before: &str, script: &str| {
        let script = format!(
            "{before} && exec {} run --library {} -- sh -c '{script}'",
            command(),
            place.library()
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(&place.directory);
        output(shell)
    };
    let (code, out, errors) = run("mkdir gone; cd gone; rmdir ../gone", "echo started; exit 3");
    assert_eq!((code, &*out), (Some(3), "started\n"), "{errors}");
    let latin = r"d=$(printf \\351); mkdir -p $d; cd $d";
    let script = "echo {} > vramalloc.sh.1.json; echo 1 seen >>$VRAMALLOC_RUN";
    let (code, _, errors) = run(latin, script);
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.ends_with(" report vramalloc.sh.1.json"), "{errors}");
}

#[test]
fn a_percent_sign_in_the_directorys_name_is_kept() {
    let mut place = Place::new("percent");
    place.directory = place.path("100%p");
    fs::create_dir(&place.directory).unwrap();
    write_dummy(&place.path("dummy.so"));
    let (_, out, _) = output(place.run(&["--stats", "s.json"], "echo $VRAMALLOC_STATS"));
    assert!(out.ends_with("/100%%p/s.json\n"), "{out}");
    let script = "echo > s.json; echo $$ seen >>$VRAMALLOC_RUN";
    let (_, _, errors) = output(place.run(&["--stats", "s.json"], script));
    assert!(errors.ends_with("/100%p/s.json'"), "{errors}");
}
