//! What the command prints, whole, at 60, 80 and 200 columns.
//!
//! The snapshots are in `snapshots/`; where a change of them is meant,
//! `INSTA_UPDATE=always cargo test --test text` writes them anew.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot set its stage has failed"
)]

mod files;
mod samples;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vramalloc_tests::stage;

/// The widths.
const WIDTHS: [usize; 3] = [60, 80, 200];

/// Running text is no wider than this.
const PROSE: usize = 100;

/// A command in a folder of its own.
struct Shown {
    folder: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Shown {
    fn new() -> Shown {
        Shown {
            folder: stage::fresh_folder(),
            environment: Vec::new(),
        }
    }

    fn file(self, name: &str, contents: impl AsRef<[u8]>) -> Shown {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        self
    }

    fn env(mut self, name: &'static str, value: &str) -> Shown {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// What the command prints with these arguments: on standard output, then on
    /// standard error, then its status. The folder is called DIR.
    fn at(&self, width: usize, arguments: &[&str]) -> String {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(stage::command())
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("COLUMNS", width.to_string())
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .output()
            .unwrap();
        let text = String::from_utf8(stdout).unwrap();
        let errors = String::from_utf8(stderr).unwrap();
        // The stand-in for the library is none, which the loader says.
        let errors = errors.lines().filter(|line| !line.contains("ld.so"));
        let errors: String = errors.map(|line| format!("{line}\n")).collect();
        let folder = self.folder.to_str().unwrap();
        let text = format!("{text}{errors}[status {}]\n", status.code().unwrap());
        text.replace(folder, "DIR")
            .replace(stage::command(), "vramalloc")
    }

    /// The same at all widths.
    fn all(&self, arguments: &[&str]) -> String {
        let texts = WIDTHS.map(|width| {
            let text = self.at(width, arguments);
            fits(&text, width);
            format!("{:-<width$}\n{text}", "")
        });
        texts.concat()
    }
}

/// Fails where a line is too wide that could be broken: what is to be copied, and
/// messages, are not.
#[track_caller]
fn fits(text: &str, width: usize) {
    for line in text.lines() {
        let root = stage::root().to_str().unwrap();
        let is_whole = line.contains("DIR")
            || line.contains(root)
            || ["vramalloc: ", "error: "]
                .iter()
                .any(|start| line.starts_with(start));
        let is_word = !line.trim().contains(' ');
        let most = if line.contains("  ") {
            width
        } else {
            width.min(PROSE)
        };
        assert!(
            is_whole || is_word || line.chars().count() <= most,
            "{width}: {line}"
        );
    }
}

#[test]
fn help() {
    let place = Shown::new();
    insta::assert_snapshot!("help", place.all(&["--help"]));
    for command in [
        "run",
        "doctor",
        "options",
        "report",
        "recording",
        "diff",
        "export",
        "status",
        "top",
        "metrics",
        "dump",
        "trim",
        "limit",
        "completions",
    ] {
        insta::assert_snapshot!(
            format!("help_of_{command}"),
            place.all(&[command, "--help"])
        );
    }
}

#[test]
fn a_mistake() {
    let place = Shown::new();
    insta::assert_snapshot!(
        "a_flag_that_is_not_there",
        place.all(&["run", "--limt", "1G", "x"])
    );
    insta::assert_snapshot!(
        "an_option_that_is_not_there",
        place.all(&["options", "limti"])
    );
    insta::assert_snapshot!("a_file_that_is_not_there", place.all(&["report"]));
}

#[test]
fn orders_to_nobody() {
    let place = Shown::new();
    let folder = place.folder.to_str().unwrap().to_owned();
    let place = place.env("VRAMALLOC_IPC_DIR", &folder);
    insta::assert_snapshot!("status_of_none", place.all(&["status"]));
    insta::assert_snapshot!("top_of_none", place.all(&["top", "--once"]));
    insta::assert_snapshot!(
        "top_of_none_as_json",
        place
            .at(80, &["top", "--once", "--json"])
            .replace(|c: char| c.is_ascii_digit(), "N")
    );
    insta::assert_snapshot!("top_without_a_terminal", place.all(&["top"]));
    insta::assert_snapshot!("metrics_of_none", place.at(80, &["metrics"]));
    insta::assert_snapshot!(
        "metrics_where_nothing_can_be_written",
        place.at(80, &["metrics", "-o", "missing/a.prom"])
    );
    // More than any process has.
    for (name, arguments) in [
        ("status_of_nobody", &["status", "99999999"][..]),
        ("dump_of_nobody", &["dump", "99999999"]),
        ("trim_of_nobody", &["trim", "99999999"]),
        ("limit_of_nobody", &["limit", "99999999", "8G"]),
        ("limit_that_is_none", &["limit", "1", "12Q"]),
    ] {
        insta::assert_snapshot!(name, place.all(arguments));
    }
}

#[test]
fn options() {
    let place = Shown::new();
    insta::assert_snapshot!("options", place.all(&["options"]));
    insta::assert_snapshot!("options_in_full", place.all(&["options", "-v"]));
    insta::assert_snapshot!("options_by_name", place.all(&["options", "lim?t"]));
    insta::assert_snapshot!(
        "options_as_json",
        place.at(80, &["options", "dedicated", "--json"])
    );
    insta::assert_snapshot!("no_changed_options", place.all(&["options", "--changed"]));
    let place = place
        .env("VRAMALLOC_CONF", "limit:8G,frobnicate:1")
        .env("FLAGS_fast_eager_deletion_mode", "False");
    insta::assert_snapshot!("changed_options", place.all(&["options", "--changed"]));
}

#[test]
fn reports() {
    let place = Shown::new()
        .file("train.json", samples::training())
        .file("short.json", samples::out_of_memory())
        .file("mixed.json", samples::mixed())
        .file("owners.json", samples::with_owners())
        .file("paused.json", samples::paused())
        .file("stacks.json", samples::with_stacks())
        .file("0.json", samples::rank(0))
        .file("1.json", samples::rank(1));
    insta::assert_snapshot!("report_of_a_training", place.all(&["report", "train.json"]));
    insta::assert_snapshot!("report_of_a_failure", place.all(&["report", "short.json"]));
    insta::assert_snapshot!("report_with_owners", place.all(&["report", "owners.json"]));
    insta::assert_snapshot!("report_while_paused", place.all(&["report", "paused.json"]));
    insta::assert_snapshot!("report_with_stacks", place.all(&["report", "stacks.json"]));
    insta::assert_snapshot!(
        "report_with_all_frames",
        place.all(&["report", "--all-frames", "stacks.json"])
    );
    insta::assert_snapshot!(
        "report_with_everything",
        place.all(&["report", "--table", "mixed.json"])
    );
    insta::assert_snapshot!(
        "report_of_two_ranks",
        place.all(&["report", "--merge", "0.json", "1.json"])
    );
    insta::assert_snapshot!(
        "report_as_json",
        place.at(80, &["report", "--json", "mixed.json"])
    );
    insta::assert_snapshot!(
        "report_of_a_value",
        place.all(&["report", "--value", "/arenas/0/hits", "train.json"])
    );
    insta::assert_snapshot!(
        "report_of_a_wrong_file",
        place.all(&["report", "/dev/null"])
    );
    insta::assert_snapshot!(
        "report_as_a_snapshot",
        place.all(&["report", "--snapshot", "s.pickle", "train.json"])
    );
}

/// The end of a run of which processes wrote these files.
fn run(files: &[&str], arguments: &[&str], end: &str) -> String {
    let mut place = Shown::new();
    let mut script = String::new();
    for (n, file) in files.iter().enumerate() {
        place = place.file(&format!("given.{n}"), file);
        script += &format!("cp given.{n} vramalloc.train.{n}.json; ");
        for note in ["seen", "ended"] {
            script += &format!("echo {n} {note} >>$VRAMALLOC_RUN; ");
        }
    }
    let library = place.folder.join("dummy.so");
    stage::write_dummy(&library);
    let mut all = vec!["run", "--library", library.to_str().unwrap()];
    all.extend(arguments);
    let script = format!("{script} {end}");
    all.extend(["--", "sh", "-c", &script]);
    let mut texts = String::new();
    for width in WIDTHS {
        let text = place.at(width, &all);
        fits(&text, width);
        assert!(
            text.lines().count() <= 11,
            "ten lines and the status: {text}"
        );
        texts += &format!("{:-<width$}\n{text}", "");
        // Those of the next run are others.
        for n in 0..files.len() {
            fs::remove_file(place.folder.join(format!("vramalloc.train.{n}.json"))).unwrap();
        }
    }
    texts
}

#[test]
fn runs() {
    let (training, mixed) = (&*samples::training(), &*samples::mixed());
    insta::assert_snapshot!("run", run(&[training], &[], "exit 3"));
    insta::assert_snapshot!(
        "run_with_a_report",
        run(&[training], &["--report"], "exit 3")
    );
    insta::assert_snapshot!(
        "run_with_a_report_of_everything",
        run(&[mixed], &["--report"], "kill -9 $$")
    );
    let owners = samples::with_owners();
    insta::assert_snapshot!("run_with_owners", run(&[&owners], &["--report"], "true"));
    let ranks: Vec<String> = (0..7).map(samples::rank).collect();
    let ranks: Vec<&str> = ranks.iter().map(|rank| &**rank).collect();
    insta::assert_snapshot!("run_of_ranks", run(&ranks, &["--report"], "true"));
    insta::assert_snapshot!("run_without_statistics", run(&[], &["--report"], "true"));
}

/// The doctor's findings; those that name a file of this machine are left out.
fn findings(arguments: &[&str]) -> String {
    findings_under("auto_growth", arguments)
}

/// The same under this strategy.
fn findings_under(strategy: &str, arguments: &[&str]) -> String {
    let library = stage::library();
    let sim = stage::simulated_cuda();
    let place = Shown::new()
        .env("LD_LIBRARY_PATH", sim.to_str().unwrap())
        .env("VRAMALLOC_LIMIT", "8G");
    let place = match strategy {
        "auto_growth" => place,
        other => place.env("VRAMALLOC_STRATEGY", other),
    };
    let mut all = vec!["doctor", "--library", library.to_str().unwrap()];
    all.extend(arguments);
    let texts = WIDTHS.map(|width| {
        let text = place.at(width, &all);
        fits(&text, width);
        let mut findings: Vec<String> = Vec::new();
        for line in text.lines() {
            match findings.last_mut() {
                Some(last) if line.starts_with("     ") => *last += &format!("\n{line}"),
                _ => findings.push(line.to_owned()),
            }
        }
        let root = stage::root().to_str().unwrap();
        findings.retain(|finding| {
            let is_of_machine = finding.contains(root) || finding.contains("process");
            // A list that grows is shown by another test.
            let is_default = finding.contains("option") && finding.contains("(default)");
            !is_of_machine && !is_default
        });
        let text = findings.join("\n");
        let number = text.split_once(" findings are").map(|(before, _)| before);
        let number = number.and_then(|before| before.split(' ').next_back());
        let text = text.replace(&format!("{} findings", number.unwrap_or("N")), "N findings");
        format!("{:-<width$}\n{text}\n", "")
    });
    texts.concat()
}

#[test]
fn doctor() {
    insta::assert_snapshot!("doctor", findings(&[]));
    insta::assert_snapshot!("doctor_with_everything", findings(&["-v"]));
    let program = stage::built().join("target/programs/steps.static");
    let program = program.to_str().unwrap();
    insta::assert_snapshot!("doctor_of_a_program", findings(&["--", program, "+1M"]));
    insta::assert_snapshot!(
        "doctor_of_a_program_with_everything",
        findings(&["-v", "--", program, "+1M"])
    );
    let program = linked_to_a_transport();
    insta::assert_snapshot!(
        "doctor_of_a_program_with_a_transport",
        findings_under("mapped", &["--no-trial", "--", program.to_str().unwrap()])
    );
}

/// A program that is linked to what passes for UCX.
fn linked_to_a_transport() -> PathBuf {
    let folder = stage::fresh_folder();
    let made = |name: &str, text: &str, flags: &[&str]| {
        let (source, made) = (folder.join(format!("{name}.c")), folder.join(name));
        fs::write(&source, text).unwrap();
        stage::compile(source.to_str().unwrap(), &made, flags);
        made
    };
    let ucx = made(
        "libucp.so.0",
        "int ucp(void) { return 0; }",
        &["-shared", "-Wl,-soname,libucp.so.0"],
    );
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    let how = ["-Wl,--no-as-needed", ucx.to_str().unwrap(), &rpath];
    made(
        "program",
        "int ucp(void);\nint main(void) { return ucp(); }",
        &how,
    )
}

/// A terminal has colours, unless the user wants none; anything else has none,
/// unless the user wants some.
#[test]
fn colours() {
    let coloured = |place: &Shown, arguments: &[&str]| place.at(80, arguments).contains('\u{1b}');
    let place = Shown::new().file("a.json", samples::training());
    assert!(!coloured(&place, &["report", "a.json"]));
    assert!(coloured(&place, &["report", "a.json", "--color", "always"]));
    assert!(coloured(&place, &["--color=always", "report", "a.json"]));
    let terminal = |variables: &str| {
        let library: &Path = stage::command().as_ref();
        let command = format!("{variables} {} report a.json", library.display());
        let output = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .current_dir(&place.folder)
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().contains('\u{1b}')
    };
    assert!(terminal(""));
    assert!(!terminal("NO_COLOR=1"));
}
