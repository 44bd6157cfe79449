//! `vramalloc top` and `vramalloc metrics` over programs that run.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use vramalloc_tests::outside::{Place, Talk, until};
use vramalloc_tests::stage::fresh_folder;

use crate::openmetrics;
use crate::tmux::Tmux;

/// What `top --once --json` says.
fn look(place: &Place) -> Value {
    let said = place.go(&["top", "--once", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    serde_json::from_str(&said.out).unwrap()
}

fn mib(value: &Value) -> Option<u64> {
    value.as_u64().map(|bytes| bytes >> 20)
}

#[test]
fn one_frame_tells_of_every_process_by_device() {
    let place = Place::new();
    let mut programs = [place.talk("limit:1G"), place.talk("")];
    for program in &mut programs {
        for step in ["+100M", "+20M", "-1", "v8M"] {
            program.tell(step).unwrap();
        }
        // Work that is not done yet keeps what is freed in limbo.
        for step in ["w3600000000000", "+40M", "-3", "i"] {
            program.tell(step).unwrap();
        }
    }
    let all = look(&place);
    assert_eq!(all["processes"].as_array().unwrap().len(), 2);
    let device = &all["devices"][0];
    assert_eq!(device["processes"], 2);
    assert_eq!(mib(&device["live_bytes"]), Some(200));
    assert_eq!(mib(&device["past_pool_bytes"]), Some(16));
    let parts = ["live_bytes", "cached_bytes", "limbo_bytes"].map(|key| mib(&device[key]).unwrap());
    assert_eq!(
        parts.iter().sum::<u64>(),
        mib(&device["reserved_bytes"]).unwrap()
    );
    assert!(parts[2] >= 80, "{parts:?}");

    let frame = place.go(&["top", "--once"]);
    assert_eq!((frame.code, &*frame.errors), (0, ""));
    for program in &programs {
        let pid = program.pid().to_string();
        let row = frame
            .out
            .lines()
            .find(|line| line.trim_start().starts_with(&pid));
        assert!(row.unwrap().contains("100.0 MiB"), "{}", frame.out);
    }
    let only = place
        .go(&["top", "--once", &programs[0].pid().to_string()])
        .out;
    assert!(
        only.starts_with("vramalloc top: 1 process on 1 device\n"),
        "{only}"
    );
}

/// NVML says what is in use of a device by whomever.
#[test]
fn what_others_have_is_shown_in_sum() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+100M").unwrap();
    let others = |used: Option<&str>| {
        let mut asked = place.command(&["top", "--once", "--json"]);
        if let Some(used) = used {
            let libraries = vramalloc_tests::stage::simulated_cuda();
            asked.env("LD_LIBRARY_PATH", libraries);
            asked.env("SIM_CUDA_NVML_USED", used);
        }
        let output = asked.output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let device = told["devices"][0].clone();
        (mib(&device["others_bytes"]), mib(&device["reserved_bytes"]))
    };
    let (known, reserved) = others(Some("3G"));
    assert_eq!(known, reserved.map(|own| 3072 - own));
    assert!(reserved >= Some(100), "{reserved:?}");
    // What is gone since is not less than nothing; and where nobody says so, it is unknown.
    assert_eq!(others(Some("1M")).0, Some(0));
    assert_eq!(others(None).0, None);
}

/// The lines of a metric, without the process that it is of.
fn lines(text: &str, name: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter(|line| line.starts_with(&format!("vramalloc_{name}{{")));
    let of = |line: &str| line.split_once(' ').map(|(_, number)| number.to_owned());
    lines
        .filter_map(|line| of(&line.replace("\" ", "\"~")))
        .collect()
}

/// Whether Prometheus's own tool takes a text; nothing where it is not there.
fn promtool(text: &str) -> Option<()> {
    let tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut tool) = tool else {
        println!("skipped: promtool is not here (Debian: the package prometheus)");
        return None;
    };
    tool.stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = tool.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}\n{text}");
    Some(())
}

#[test]
fn metrics_are_as_their_readers_want_them() {
    let place = Place::new();
    let none = place.go(&["metrics"]);
    assert_eq!((none.code, &*none.errors), (0, ""));
    openmetrics::check(&none.out);
    let mut programs = [place.talk("limit:1G"), place.talk("")];
    for program in &mut programs {
        for step in ["+100M", "v8M"] {
            program.tell(step).unwrap();
        }
    }
    let said = place.go(&["metrics"]);
    assert_eq!((said.code, &*said.errors), (0, ""));
    openmetrics::check(&said.out);
    promtool(&said.out);
    assert_eq!(lines(&said.out, "live_bytes"), ["104857600", "104857600"]);
    assert_eq!(lines(&said.out, "past_pool_bytes"), ["8388608", "8388608"]);
    assert_eq!(lines(&said.out, "limit_bytes"), ["1073741824"]);
    for program in &programs {
        let labels = format!(
            "{{pid=\"{}\",program=\"steps.dynamic\",device=\"0\"}}",
            program.pid()
        );
        assert!(said.out.contains(&labels), "{}", said.out);
    }
}

#[test]
fn metrics_replace_a_file_as_a_whole() {
    let place = Place::new();
    let folder = fresh_folder();
    let file = folder.join("vramalloc.prom");
    let to = |path: &Path| place.go(&["metrics", "--output", path.to_str().unwrap()]);
    let names = || {
        let entries = fs::read_dir(&folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    assert_eq!(to(&file).code, 0);
    assert_eq!(names(), ["vramalloc.prom"]);
    openmetrics::check(&fs::read_to_string(&file).unwrap());
    // The collector is another user.
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o444,
        0o444
    );
    // Who has it open reads the old one to its end.
    let old = fs::File::open(&file).unwrap();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    assert_eq!(to(&file).code, 0);
    let texts = [
        std::io::read_to_string(old).unwrap(),
        fs::read_to_string(&file).unwrap(),
    ];
    assert!(texts.iter().all(|text| text.ends_with("# EOF\n")));
    assert_ne!(texts[0], texts[1]);

    // A link stays a link, and a device a device.
    let link = folder.join("link.prom");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    fs::write(&file, "").unwrap();
    assert_eq!(to(&link).code, 0);
    assert!(link.is_symlink());
    openmetrics::check(&fs::read_to_string(&file).unwrap());
    assert_eq!(to(Path::new("/dev/null")).code, 0);
    assert!(
        fs::metadata("/dev/null")
            .unwrap()
            .file_type()
            .is_char_device()
    );
    let said = to(&folder.join("missing/vramalloc.prom"));
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.errors.contains("No such file"), "{said:?}");
    assert_eq!(to(&folder).code, 1);
    assert_eq!(names().len(), 2);
}

#[test]
fn top_without_a_terminal_says_what_serves_there() {
    let place = Place::new();
    let said = place.go(&["top"]);
    assert_eq!((said.code, &*said.out), (2, ""));
    assert!(said.errors.contains("vramalloc top --once"), "{said:?}");
    let said = place.go(&["top", "--once", "99999999"]);
    assert_eq!((said.code, &*said.out), (2, ""));
    assert!(said.errors.contains("there is no process"), "{said:?}");
    for wrong in [
        &["top", "--json"][..],
        &["top", "--interval", "0"],
        &["top", "-n", "x"],
    ] {
        assert_eq!(place.go(wrong).code, 2, "{wrong:?}");
    }
}

/// A terminal of which nothing is known is left as it is.
#[test]
fn top_wants_to_know_the_terminal() {
    let place = Place::new();
    for set in ["-u TERM", "TERM=", "TERM=dumb"] {
        let tmux = Tmux::with(&place, 80, 20, set, "");
        let screen = tmux.shows("isig");
        assert!(screen.contains("vramalloc top --once"), "{screen}");
        assert!(screen.contains("ENDED 2"), "{screen}");
    }
}

/// Whatever word of its page a process was about to write when it was killed.
#[test]
fn a_process_that_is_killed_in_a_write_harms_no_reader() {
    let mut torn = 0;
    for n in (3..100).step_by(6) {
        let place = Place::new();
        let run = place.run("").preload_debug();
        let mut program = Talk::to(run.env("CONTROL_STOPPED_AT", &n.to_string()));
        let pid = program.pid();
        for step in ["+100M", "+50M"] {
            program.begin(step);
        }
        program.close();
        let stat = format!("/proc/{pid}/stat");
        let is_stopped = || fs::read_to_string(&stat).unwrap().contains(") T ");
        until(|| program.has_ended() || is_stopped());
        if program.has_ended() {
            break;
        }
        let began = Instant::now();
        let all = look(&place);
        let found = all["processes"].as_array().unwrap();
        if let Some(process) = found.first() {
            assert_eq!(process["pid"], pid);
            torn += u32::from(process["devices"].as_array().unwrap().is_empty());
        }
        let frame = place.go(&["top", "--once"]);
        assert_eq!((frame.code, &*frame.errors), (0, ""));
        assert_eq!(frame.out.contains(&pid.to_string()), !found.is_empty());
        let metrics = place.go(&["metrics"]);
        assert_eq!((metrics.code, &*metrics.errors), (0, ""));
        openmetrics::check(&metrics.out);
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "it takes too long"
        );
        program.kill();
        assert_eq!(look(&place)["processes"].as_array().unwrap().len(), 0);
        let gone = place.go(&["metrics"]).out;
        assert!(!gone.contains(&format!("\"{pid}\"")), "{gone}");
    }
    assert!(torn > 0, "no write was interrupted");
}

#[test]
fn top_is_driven_by_keys() {
    for width in [60, 80, 200] {
        let place = Place::new();
        let mut program = place.talk("limit:1G");
        for step in ["+100M", "+30M", "-1", "i"] {
            program.tell(step).unwrap();
        }
        let pid = program.pid().to_string();
        let tmux = Tmux::new(&place, width, 30, "--interval 0.2");
        // It is drawn from above to below.
        let screen = tmux.shows("q quit");
        for part in [&*pid, "steps.d", "100.0 MiB", "1.0 GiB", "? help"] {
            assert!(screen.contains(part), "{width}: {screen}");
        }
        assert_eq!(tmux.state("#{alternate_on}"), "1");
        tmux.keys(&["Enter"]);
        let screen = tmux.shows_while("at the peak", || _ = program.tell("i"));
        assert!(
            screen.contains("Who holds memory of steps.dynamic"),
            "{screen}"
        );
        tmux.keys(&["Escape"]);
        until(|| !tmux.screen().contains("at the peak"));
        tmux.keys(&["t"]);
        let said = format!("process {pid}: 30.0 MiB went back");
        tmux.shows_while(&said, || _ = program.tell("i"));
        assert_eq!(
            mib(&look(&place)["devices"][0]["reserved_bytes"]),
            Some(100)
        );
        tmux.keys(&["?"]);
        tmux.shows("Ctrl-Z");
        tmux.keys(&["?", "d"]);
        tmux.shows_while("has written /", || _ = program.tell("i"));
        // A process that ends leaves no row.
        assert!(program.end().success());
        tmux.shows("No process of yours");
        tmux.keys(&["q"]);
        tmux.is_restored(0);
    }
}

#[test]
fn the_terminal_is_given_back_whatever_ends_top() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let pid = program.pid().to_string();
    for signal in ["TERM", "INT", "HUP", "QUIT"] {
        let tmux = Tmux::new(&place, 80, 24, "");
        tmux.shows(&pid);
        let number = match signal {
            "TERM" => 15,
            "INT" => 2,
            "HUP" => 1,
            _ => 3,
        };
        let kill = ["-s", signal, &tmux.pid()];
        assert!(Command::new("kill").args(kill).status().unwrap().success());
        tmux.is_restored(128 + number);
    }
    let tmux = Tmux::with(&place, 80, 24, "RUST_BACKTRACE=0 TOP_PANICS=1", "");
    let screen = tmux.shows("TOP_PANICS is set");
    assert!(screen.contains("panicked at"), "{screen}");
    tmux.is_restored(101);
    // What is printed at the end stands below.
    assert!(tmux.screen().contains("TOP_PANICS is set"), "{screen}");
    let tmux = Tmux::new(&place, 80, 24, "");
    tmux.shows(&pid);
    tmux.keys(&["C-c"]);
    tmux.is_restored(0);
}

/// An order that was not served when `top` ends is not served later.
#[test]
fn an_order_ends_with_top() {
    let place = Place::new();
    let mut program = place.talk("");
    for step in ["+100M", "-0", "i"] {
        program.tell(step).unwrap();
    }
    for key in ["q", "kill"] {
        let tmux = Tmux::new(&place, 80, 24, "");
        tmux.shows("q quit");
        tmux.keys(&["t"]);
        tmux.shows("is asked to give idle memory back");
        let status = if key == "q" {
            tmux.keys(&["q"]);
            0
        } else {
            let kill = ["-s", "TERM", &tmux.pid()];
            assert!(Command::new("kill").args(kill).status().unwrap().success());
            143
        };
        tmux.is_restored(status);
        program.tell("i").unwrap();
        let all = look(&place);
        assert_eq!(mib(&all["devices"][0]["reserved_bytes"]), Some(100));
    }
}

/// Stopped by a key, and going on; on screens of other sizes.
#[test]
fn top_stops_goes_on_and_takes_any_size() {
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let pid = program.pid().to_string();
    let tmux = Tmux::new(&place, 80, 24, "-n 0.2");
    tmux.shows(&pid);
    let top = tmux.pid();
    // A set of epoll's tells of what came once, and a key that comes with another size
    // would wait there for the next one.
    let is_set = |to: PathBuf| to.ends_with("anon_inode:[eventpoll]");
    let mut files = fs::read_dir(format!("/proc/{top}/fd")).unwrap();
    assert!(!files.any(|file| fs::read_link(file.unwrap().path()).is_ok_and(is_set)));
    for stop in [&["key"][..], &["kill", "-s", "TSTP", &top]] {
        match stop {
            ["key"] => tmux.keys(&["C-z"]),
            _ => assert!(
                Command::new("kill")
                    .args(&stop[1..])
                    .status()
                    .unwrap()
                    .success()
            ),
        }
        let stat = format!("/proc/{top}/stat");
        until(|| fs::read_to_string(&stat).unwrap().contains(") T "));
        assert!(tmux.screen().contains("BEFORE"));
        assert_eq!(tmux.state("#{alternate_on} #{cursor_flag}"), "0 1");
        assert!(
            Command::new("kill")
                .args(["-s", "CONT", &top])
                .status()
                .unwrap()
                .success()
        );
        tmux.shows(&pid);
    }
    for (width, height, text) in [
        ("20", "5", "steps"),
        ("200", "40", "AGE"),
        ("60", "10", "MEMORY"),
    ] {
        let resize = ["resize-window", "-x", width, "-y", height];
        assert!(tmux.command(&resize).status().unwrap().success());
        let screen = tmux.shows(text);
        assert!(
            screen.lines().count() <= height.parse().unwrap(),
            "{screen}"
        );
    }
    tmux.keys(&["q"]);
    until(|| tmux.state("#{alternate_on}") == "0");
}
