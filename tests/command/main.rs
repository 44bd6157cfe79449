//! The command `vramalloc`, with shells in the place of CUDA programs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod browser;
mod compared;
mod exported;
mod fixture;
mod kept;
mod last_line;
mod library;
mod openmetrics;
mod options;
mod page;
mod page_used;
mod recorded;
mod script;
mod shells;
mod stacks;
mod tmux;
mod watched;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use vramalloc_tests::stage::{command, folder, write_dummy};

/// A directory of the test's own, with a file that stands for the library.
struct Place {
    directory: PathBuf,
}

impl Place {
    fn new(test: &str) -> Place {
        let directory = folder(&format!("command/{test}"));
        write_dummy(&directory.join("dummy.so"));
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn library(&self) -> String {
        self.path("dummy.so").to_str().unwrap().to_owned()
    }

    /// The command in this directory, with nothing of the environment.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(command());
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir(&self.directory);
        command
    }

    /// `vramalloc run` with options, over a shell that runs `script`.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let library = self.library();
        let mut arguments = vec!["run", "--library", &library];
        arguments.extend_from_slice(options);
        arguments.extend_from_slice(&["--", "sh", "-c", script]);
        self.command(&arguments)
    }
}

fn output(mut command: Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    // The dummy is no library, which the loader says of every program.
    let errors = String::from_utf8(stderr).unwrap();
    let errors = errors
        .lines()
        .filter(|line| !line.contains("ld.so"))
        .collect::<Vec<_>>()
        .join("\n");
    (status.code(), String::from_utf8(stdout).unwrap(), errors)
}

#[test]
fn the_program_sees_the_options_and_the_library_in_front() {
    let place = Place::new("environment");
    let mut command = place.run(
        &[
            "--strategy",
            "naive_best_fit",
            "--limit",
            "16G",
            "--free-sync",
            "strict",
            "--option",
            "eager_delete_tensor_gb=0.5",
            "--stats",
            "off",
        ],
        "echo $LD_PRELOAD; env | grep ^VRAMALLOC_ | sort",
    );
    command.env("LD_PRELOAD", "/other/first.so:/other/second.so");
    let (code, out, errors) = output(command);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(
        out.lines().collect::<Vec<_>>(),
        [
            &format!("{}:/other/first.so:/other/second.so", place.library()),
            "VRAMALLOC_EAGER_DELETE_TENSOR_GB=0.5",
            "VRAMALLOC_FREE_SYNC=strict",
            "VRAMALLOC_LIMIT=16G",
            "VRAMALLOC_STATS=off",
            "VRAMALLOC_STRATEGY=naive_best_fit",
        ]
    );
}

#[test]
fn what_is_chosen_here_beats_the_environment_under_any_name() {
    let place = Place::new("rivals");
    let mut command = place.run(
        &["--option", "gpu_memory_limit_mb=100", "--stats", "off"],
        "env | grep -i limit",
    );
    command.env("VRAMALLOC_LIMIT", "16G");
    assert_eq!(output(command).1, "VRAMALLOC_GPU_MEMORY_LIMIT_MB=100\n");
}

#[test]
fn the_status_is_the_programs_own() {
    let place = Place::new("status");
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        assert_eq!(output(place.run(&[], script)).0, Some(status), "{script}");
    }
    let library = place.library();
    let start =
        |program: &str| output(place.command(&["run", "--library", &library, "--", program]));
    let (code, _, errors) = start("no-such-program");
    assert_eq!(code, Some(127));
    assert!(
        errors.starts_with("vramalloc: cannot start no-such-program: "),
        "{errors}"
    );
    let file = place.path("not-executable");
    fs::write(&file, "text").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(start(file.to_str().unwrap()).0, Some(126));
}

#[test]
fn a_bad_option_stops_before_anything_starts() {
    let place = Place::new("bad_options");
    for (options, named) in [
        (["--limit", "12Q"], ["limit", "12Q", "a size such as"]),
        (
            ["--option", "strategy=best"],
            ["strategy", "best", "auto_growth"],
        ),
        (
            ["--option", "free_sync="],
            ["free_sync", "\"\"", "deferred"],
        ),
        (["--stats", "a%x"], ["stats", "a%x", "%e"]),
        (
            ["--option", "record=/no/such/dir/f.rec"],
            ["record", "/no/such/dir", "not a directory"],
        ),
        (
            ["--stats", "/no/such/dir/f.json"],
            ["--stats", "/no/such/dir", "not a directory"],
        ),
        (["--stats", "/tmp"], ["--stats", "/tmp", "name a file"]),
        (["--stats", "%e/"], ["--stats", "%e/", "name a file"]),
        (
            ["--option", "limt=1G"],
            ["limt", "1G", "did you mean limit?"],
        ),
        (["--option", "limit"], ["--option", "limit", "KEY=VALUE"]),
        (["--limit", "-1"], ["limit", "\"-1\"", "accepted"]),
        (["--limit", "16"], ["limit", "\"16\"", "did you mean 16G?"]),
        (["--option", "limit:16"], ["limit", "16", "16G?"]),
        (["--option", "trace:x"], ["trace", "\"x\"", "accepted"]),
    ] {
        let (code, _, errors) = output(place.run(&options, "touch started"));
        assert_eq!(code, Some(2), "{options:?}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        for part in named {
            assert!(errors.contains(part), "{errors}: {part}");
        }
        // Nothing ran that could have ignored it.
        assert!(!errors.contains("ignored"), "{errors}");
        assert!(!place.path("started").exists(), "{options:?}");
    }
}

#[test]
fn an_unknown_option_of_run_is_named_with_the_nearest() {
    let place = Place::new("unknown_option");
    for (options, named) in [
        (["--strategy", "auto_grow"], ["'auto_grow'", "auto_growth"]),
        (["--strategy", "mappd"], ["'mappd'", "'mapped'"]),
        (["--free-sync", "stricter"], ["'stricter'", "immediate"]),
        (["--limt", "16G"], ["--limt", "--limit"]),
        (
            ["--strategie=auto_growth", "-q"],
            ["--strategie", "--strategy"],
        ),
    ] {
        let (code, _, errors) = output(place.run(&options, "touch started"));
        assert_eq!(code, Some(2), "{errors}");
        for part in named {
            assert!(errors.contains(part), "{errors}: {part}");
        }
        assert!(!place.path("started").exists(), "{options:?}");
    }
    // What follows the program is the program's, with or without the dashes.
    let library = place.library();
    let arguments = [
        "run",
        "--library",
        &library,
        "--stats",
        "off",
        "echo",
        "--limt",
        "-x",
    ];
    assert_eq!(output(place.command(&arguments)).1, "--limt -x\n");
}

#[test]
fn an_option_may_be_written_as_in_the_variable() {
    let place = Place::new("colon");
    let options = [
        "--option",
        "trace:5",
        "--option",
        "ipc_dir=/a:b",
        "--stats",
        "off",
    ];
    let (_, out, errors) = output(place.run(&options, "env | grep ^VRAMALLOC_ | sort"));
    let expected = "VRAMALLOC_IPC_DIR=/a:b\nVRAMALLOC_STATS=off\nVRAMALLOC_TRACE=5\n";
    assert_eq!(out, expected, "{errors}");
}

#[test]
fn a_target_that_cannot_be_read_is_left_for_the_library_to_warn_of() {
    let place = Place::new("unreadable_target");
    let mut command = place.run(&[], "echo $VRAMALLOC_STATS");
    command.env("VRAMALLOC_STATS", "a%x");
    assert_eq!(output(command).1, "a%x\n");
}

/// The same command, also where whoever runs the tests ignores signals
/// (`nohup`): what is ignored stays so in the program.
fn with_default_signals(command: &Command) -> Command {
    let mut wrapped = Command::new("env");
    wrapped
        .arg("--default-signal")
        .arg(command.get_program())
        .args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        wrapped.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

#[test]
fn signals_reach_the_program() {
    let place = Place::new("signals");
    for signal in ["TERM", "HUP", "INT", "USR1"] {
        let script = format!(
            "trap 'echo got; exit 9' {signal}; echo ready; for i in $(seq 200); do sleep 0.05; done"
        );
        // In a group of its own: not the foreground group of a terminal.
        let mut command = with_default_signals(&place.run(&["--stats", "off"], &script));
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let kill = Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        assert_eq!(lines.next().unwrap().unwrap(), "got", "{signal}");
        assert_eq!(child.wait().unwrap().code(), Some(9), "{signal}");
    }
}

/// What a process sends to the command alone is not what somebody typed, who sends it to
/// the program too.
#[test]
fn an_interrupt_that_is_not_typed_reaches_the_program() {
    let place = Place::new("not_typed");
    let script = place.path("not_typed.sh");
    let text = format!(
        "env --default-signal=INT {} run --library {} --stats off -- sh -c \
         'trap \"echo got; exit 9\" INT; >ready; for i in $(seq 200); do sleep 0.05; done' &\n\
         until [ -e ready ]; do sleep 0.05; done\n\
         kill -s INT $!; wait $!; echo status $?\n",
        command(),
        place.library()
    );
    fs::write(&script, text).unwrap();
    // In the foreground group of a terminal of its own.
    let mut terminal = Command::new("script");
    terminal
        .args(["-qec", &format!("bash {}", script.display()), "/dev/null"])
        .current_dir(&place.directory);
    let (_, out, _) = output(terminal);
    assert!(out.contains("got") && out.contains("status 9"), "{out}");
}

#[test]
fn an_ignored_signal_stays_ignored_in_the_program() {
    let place = Place::new("nohup");
    let script = format!(
        "trap '' HUP; exec {} run --library {} --stats off -- grep SigIgn /proc/self/status",
        command(),
        place.library()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let (_, out, _) = output(shell);
    let mask = u64::from_str_radix(out.split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(mask & 1, 1, "{out}");
}

#[test]
fn the_status_is_kept_where_ended_children_are_ignored() {
    let place = Place::new("no_children");
    let script = format!(
        "trap '' CHLD; exec {} run --library {} --stats off -- sh -c 'exit 7'",
        command(),
        place.library()
    );
    // Not every shell can ignore this one.
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]);
    assert_eq!(output(shell).0, Some(7));
}

#[test]
fn the_library_is_found_near_the_command() {
    let place = Place::new("library");
    for directory in ["bin", "lib", "elsewhere"] {
        fs::create_dir(place.path(directory)).unwrap();
    }
    let installed = place.path("bin/vramalloc");
    fs::hard_link(command(), &installed).unwrap();
    let run = |variable: Option<&Path>| {
        let mut run = Command::new(&installed);
        run.args(["run", "--stats", "off", "sh", "-c", "echo $LD_PRELOAD"]);
        run.env_remove("LD_PRELOAD").env_remove("VRAMALLOC_LIBRARY");
        if let Some(path) = variable {
            run.env("VRAMALLOC_LIBRARY", path);
        }
        output(run)
    };
    let (code, _, errors) = run(None);
    assert_eq!(code, Some(2));
    assert!(
        errors.contains("--library or VRAMALLOC_LIBRARY"),
        "{errors}"
    );

    // From the place that is looked at last to the first.
    let of_machine = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    fs::create_dir(place.path(&of_machine)).unwrap();
    for (name, file) in [
        (&*of_machine, "libvramalloc.so.0"),
        ("lib", "libvramalloc.so.0"),
        ("lib", "libvramalloc.so"),
        ("bin", "libvramalloc.so"),
        ("elsewhere", "libvramalloc.so"),
    ] {
        let library = place.path(name).join(file);
        write_dummy(&library);
        let variable = (name == "elsewhere").then_some(&*library);
        let (code, out, errors) = run(variable);
        assert_eq!(code, Some(0), "{errors}");
        assert_eq!(out.trim(), library.to_str().unwrap());
    }

    // A link keeps its name: what it leads to is replaced by an upgrade.
    let link = place.path("elsewhere/link.so");
    symlink("libvramalloc.so", &link).unwrap();
    assert_eq!(run(Some(&link)).1.trim(), link.to_str().unwrap());
    fs::remove_file(place.path("elsewhere/libvramalloc.so")).unwrap();
    assert_eq!(run(Some(&link)).0, Some(2));

    let (code, _, errors) = run(Some(Path::new("/no/such/library.so")));
    assert_eq!(code, Some(2));
    assert!(
        errors.contains("VRAMALLOC_LIBRARY=/no/such/library.so"),
        "{errors}"
    );
    // One that LD_PRELOAD cannot hold has a link, in a folder that nobody else can enter.
    let spaced = place.path("a library.so");
    write_dummy(&spaced);
    let (code, out, errors) = run(Some(&spaced));
    assert_eq!(code, Some(0), "{errors}");
    let link = Path::new(out.trim());
    assert!(!out.trim().contains([' ', ':']), "{out}");
    assert_eq!(link.canonicalize().unwrap(), spaced.canonicalize().unwrap());
    let folder = link.parent().unwrap().symlink_metadata().unwrap();
    assert!(folder.is_dir() && folder.mode() & 0o777 == 0o700, "{out}");
    fs::remove_file(link).unwrap();
}
