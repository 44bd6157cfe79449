//! A program that is a file of Python, or of the shell.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{Place, output};

/// Makes a file that may be executed.
fn executable(place: &Place, name: &str, text: &str) {
    fs::write(place.path(name), text).unwrap();
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.path(name), all).unwrap();
}

/// Whoever types a file of Python means the interpreter; a file that says itself what
/// runs it is asked, where it is named as a program.
#[test]
fn a_file_of_python_is_run_by_the_interpreter() {
    let place = Place::new("python-file");
    let folder = place.path("bin");
    fs::create_dir(&folder).unwrap();
    let executable = |name: &str, text: &str| executable(&place, name, text);
    // An interpreter that says what it was given.
    executable("bin/python3", "#!/bin/sh\necho python3 $*\n");
    executable("bin/other", "#!/bin/sh\necho other $*\n");
    executable("bin/there.py", "#!/bin/sh\necho there $*\n");
    executable("itself.py", "#!/bin/sh\necho itself $*\n");
    executable("bare.py", "print(1)\n");
    fs::write(place.path("train.py"), "print(1)\n").unwrap();
    let path = format!("{}:/bin:/usr/bin", folder.display());
    let run = |program: &str, python: Option<&str>| {
        let library = place.library();
        let words = [
            "run",
            "--library",
            &library,
            "--stats",
            "off",
            program,
            "-x",
        ];
        let mut run = place.command(&words);
        run.env("PATH", &path).env_remove("VRAMALLOC_PYTHON");
        if let Some(python) = python {
            run.env("VRAMALLOC_PYTHON", folder.join(python));
        }
        let (code, out, errors) = output(run);
        (code.unwrap(), out.trim().to_owned(), errors)
    };
    let ran = |program, python| run(program, python).1;
    assert_eq!(ran("train.py", None), "python3 train.py -x");
    assert_eq!(ran("./train.py", None), "python3 ./train.py -x");
    assert_eq!(ran("train.py", Some("other")), "other train.py -x");
    assert_eq!(ran("itself.py", None), "python3 itself.py -x");
    assert_eq!(ran("./itself.py", None), "itself -x");
    assert_eq!(ran("./bare.py", None), "python3 ./bare.py -x");
    assert_eq!(ran("there.py", None), "there -x");
    fs::write(place.path("app.pyz"), "PK").unwrap();
    assert_eq!(ran("app.pyz", None), "python3 app.pyz -x");

    let (code, _, errors) = run("none.py", None);
    assert_eq!(code, 127);
    let why = "cannot start none.py: there is no such file here, nor such a program in PATH";
    assert!(errors.contains(why), "{errors}");
    fs::remove_file(folder.join("python3")).unwrap();
    let mut bare = place.command(&["run", "train.py"]);
    bare.env("PATH", &folder).env_remove("VRAMALLOC_PYTHON");
    let (code, _, errors) = output(bare);
    assert_eq!(code, Some(127), "{errors}");
    assert!(
        errors.contains("neither python3 nor python is in PATH"),
        "{errors}"
    );
}

/// What is not found, and who forgets `run`, is told what to type.
#[test]
fn what_is_meant_is_said() {
    let place = Place::new("meant");
    let write = |name: &str, text: &str| executable(&place, name, text);
    write("train", "#!/bin/sh\n");
    write("train.py", "");
    write("lost", "#!/no/such/interpreter\n");
    let library = place.library();
    for (program, why) in [
        (
            "train",
            "there is no such program in PATH; for the file here say ./train",
        ),
        ("nowhere", "there is no such program in PATH\n"),
        ("./nowhere", "there is no such file\n"),
        ("./lost", "it is there, and what runs it is not"),
    ] {
        let (code, _, errors) = output(place.command(&["run", "--library", &library, program]));
        assert_eq!(code, Some(127), "{errors}");
        let errors = errors + "\n";
        assert!(
            errors.contains(&format!("cannot start {program}: {why}")),
            "{errors}"
        );
    }
    fs::write(place.path("data"), "").unwrap();
    fs::create_dir(place.path("folder")).unwrap();
    for (program, why) in [
        ("./data", "it may not be executed; name what runs it"),
        (
            "./folder",
            "it is a folder; for an application of Python say vramalloc run python3",
        ),
        (".", "it is a folder"),
    ] {
        let (code, _, errors) = output(place.command(&["run", "--library", &library, program]));
        assert_eq!(code, Some(126), "{errors}");
        assert!(
            errors.contains(&format!("cannot start {program}: {why}")),
            "{errors}"
        );
    }
    for (words, tip) in [
        (["train.py", "-x"], Some("vramalloc run train.py")),
        (["./train", "-x"], Some("vramalloc run ./train")),
        (["sh", "-c"], Some("vramalloc run sh")),
        (["statsu", "-x"], None),
    ] {
        let (code, _, errors) = output(place.command(&words));
        assert_eq!(code, Some(2), "{errors}");
        let told = errors
            .lines()
            .find_map(|line| line.trim().strip_prefix("tip: to run it"));
        assert_eq!(told.is_some(), tip.is_some(), "{errors}");
        assert!(
            tip.is_none_or(|tip| told.unwrap_or_default().ends_with(tip)),
            "{errors}"
        );
        assert_eq!(
            errors.contains("a similar subcommand"),
            tip.is_none(),
            "{errors}"
        );
    }
}

/// A text that names no interpreter is the shell's, as everywhere; what is no text is not.
#[test]
fn a_text_is_run_by_the_shell() {
    let place = Place::new("shell-file");
    let executable = |name: &str, text: &str| executable(&place, name, text);
    executable("text", "echo $0 $* $VRAMALLOC_STRATEGY; exit 3\n");
    executable("data", "\x01\0\x02");
    let run = |program: &str| {
        let library = place.library();
        let options = ["--stats", "off", "--strategy", "passthrough", program, "-x"];
        let words = [&["run", "--library", &library][..], &options].concat();
        let mut run = place.command(&words);
        run.env("PATH", format!("{}:/bin", place.path("").display()));
        let (code, out, errors) = output(run);
        (code.unwrap(), out.trim().to_owned(), errors)
    };
    assert_eq!(run("./text").1, "./text -x passthrough");
    let (code, out, _) = run("text");
    let whole = format!("{} -x passthrough", place.path("text").display());
    assert_eq!((code, out), (3, whole));
    let (code, _, errors) = run("./data");
    assert!(
        code == 126 && errors.contains("Exec format error"),
        "{errors}"
    );
}
