//! Risk: an order is done after its sender gave it up, reaches the wrong
//! process, or the command says what is not so.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use vramalloc_core::control::cells::Cells;
use vramalloc_core::control::{ControlPage, Desk, LENGTH, Outcome, PageOwner, file_name};
use vramalloc_tests::outside::{Place, Said, Talk, has_ended, said, until};
use vramalloc_tests::stage::{Run, compile, fresh_folder, library};

/// Leaves an order that the program does not serve yet.
fn leave(place: &Place, program: &Talk, wait: &str) -> Child {
    const SIZE: &str = "123456K";
    let pid = program.pid().to_string();
    let arguments = ["limit", &pid, SIZE, "--wait", wait];
    let command = place.command(&arguments);
    let given = command
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    // What a shell runs in the background ignores some signals, and so would the
    // command.
    let child = Command::new("/usr/bin/env")
        .arg("--default-signal")
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(given)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let page = place.private().join(&place.left()[0]);
    let is_left = || {
        let bytes = fs::read(&page).unwrap();
        bytes
            .windows(SIZE.len())
            .any(|part| part == SIZE.as_bytes())
    };
    until(is_left);
    child
}

fn limit(place: &Place, program: &Talk) -> Value {
    place.status(program.pid()).unwrap()["devices"][0]["limit_bytes"].clone()
}

#[test]
fn an_order_ends_with_its_sender() {
    for signal in ["INT", "TERM", "HUP", "KILL"] {
        let place = Place::new();
        let mut program = place.talk("stats:off");
        program.tell("+3M").unwrap();
        let mut sender = leave(&place, &program, "600");
        let kill = ["-s", signal, &sender.id().to_string()];
        assert!(Command::new("kill").args(kill).status().unwrap().success());
        sender.wait().unwrap();
        program.tell("i").unwrap();
        program.tell("i").unwrap();
        assert_eq!(limit(&place, &program), Value::Null, "{signal}");
        let said = place.order(&mut program, &["limit", "1G"]);
        assert_eq!(said.out, "the limit is 1GiB per device\n", "{said:?}");
        assert!(program.end().success());
        assert_eq!(place.left(), [""; 0]);
    }
}

/// Its page lies elsewhere for it than for the sender.
#[test]
fn a_process_that_cannot_open_its_page_goes_by_the_time() {
    let place = Place::new();
    let mut program = place.talk("stats:off");
    program.tell("+3M").unwrap();
    let moved = Place(fresh_folder().join("moved"));
    fs::rename(&place.0, &moved.0).unwrap();
    let said = moved.order(&mut program, &["limit", "1G"]);
    assert_eq!(said.out, "the limit is 1GiB per device\n", "{said:?}");
    let mut sender = leave(&moved, &program, "1");
    sender.kill().unwrap();
    sender.wait().unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    program.tell("i").unwrap();
    assert_eq!(limit(&moved, &program), 1 << 30);
    fs::rename(&moved.0, &place.0).unwrap();
}

/// A program at this place whose clock is changed by a line of C, as libfaketime
/// does it: `to` is what the system says.
fn with_clock(place: &Place, change: &str) -> Talk {
    let source = format!(
        r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <time.h>
        int clock_gettime(clockid_t clock, struct timespec *to) {{
            static int (*real)(clockid_t, struct timespec *);
            if (!real)
                real = dlsym(RTLD_NEXT, "clock_gettime");
            int code = real(clock, to);
            {change};
            return code;
        }}
    "#
    );
    let folder = fresh_folder();
    let (file, built) = (folder.join("clock.c"), folder.join("libclock.so"));
    fs::write(&file, source).unwrap();
    let flags = ["-shared", "-fPIC", "-ldl"];
    compile(&file.to_string_lossy(), &built, &flags);
    let preloads = format!("{}:{}", built.display(), library().display());
    let run = place.run("stats:off").env("LD_PRELOAD", &preloads);
    Talk::to(run)
}

/// An hour later.
#[test]
fn a_program_whose_clock_is_ahead_serves_orders() {
    let place = Place::new();
    let mut program = with_clock(&place, "to->tv_sec += 3600");
    program.tell("+3M").unwrap();
    // Also where the clock is what decides.
    let moved = Place(fresh_folder().join("moved"));
    for here in [&place, &moved] {
        fs::rename(&place.0, &here.0).unwrap();
        let pid = program.pid().to_string();
        let mut child = here
            .command(&["trim", &pid, "--wait", "3"])
            .spawn()
            .unwrap();
        until(|| program.tell("i").is_none() || has_ended(&mut child));
        let said = said(child.wait_with_output().unwrap());
        assert_eq!(said.code, 0, "{said:?}");
    }
    fs::rename(&moved.0, &place.0).unwrap();
}

#[test]
fn a_program_whose_clock_stands_still_serves_orders() {
    let place = Place::new();
    let mut program = with_clock(&place, "to->tv_sec = 1700000000, to->tv_nsec = 0");
    program.tell("+3M").unwrap();
    for _ in 0..2 {
        let said = place.order(&mut program, &["limit", "1G"]);
        assert_eq!(said.out, "the limit is 1GiB per device\n", "{said:?}");
    }
}

/// Nothing of its memory is taken from or given back to the system any more.
#[test]
fn a_program_whose_pool_of_cuda_s_is_warm_serves_orders() {
    let place = Place::new();
    let mut program = place.talk("stats:off");
    for _ in 0..3 {
        program.tell("o3M").unwrap();
    }
    let said = place.order_during("o3M", &mut program, &["limit", "1G"]);
    assert_eq!(said.out, "the limit is 1GiB per device\n", "{said:?}");
}

#[test]
fn nothing_is_free_below_a_limit_that_is_lower_than_what_is_held() {
    let place = Place::new();
    let mut program = place.talk("stats:off");
    program.tell("+60M").unwrap();
    program.tell("+60M").unwrap();
    place.order(&mut program, &["limit", "50M"]);
    // What is cached is no more than what is beyond the limit.
    program.tell("-0").unwrap();
    assert_eq!(program.tell("I").unwrap(), "free: 0 MiB of 50\n");
    program.tell("-1").unwrap();
    assert_eq!(program.tell("I").unwrap(), "free: 48 MiB of 50\n");
}

/// All waits of a command are one, and it says whom it waits for.
#[test]
fn a_command_waits_as_long_as_it_was_told() {
    let place = Place::new();
    let mut program = place.talk("stats:off");
    program.tell("+3M").unwrap();
    let pid = program.pid().to_string();
    let mut first = leave(&place, &program, "2");
    let who = format!("(process {})", first.id());
    let said = place.go(&["trim", &pid, "--wait", "1"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.errors.contains(&who), "{said:?}");
    first.wait().unwrap();
    let mut first = leave(&place, &program, "3");
    let began = Instant::now();
    let said = place.go(&["trim", &pid, "--wait", "4"]);
    let took = began.elapsed();
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.errors.contains("stats_interval_s"), "{said:?}");
    assert!(took < Duration::from_millis(5500), "{took:?}");
    first.wait().unwrap();
}

/// Whether the namespaces of this test can be made.
fn can_unshare() -> bool {
    let unshare = Command::new("unshare")
        .args(["-p", "-m", "-f", "true"])
        .status();
    unshare.is_ok_and(|status| status.success())
}

/// Without `/proc` nobody knows whether a process id is of his namespace.
#[test]
fn a_reader_that_does_not_know_its_namespace_removes_no_page() {
    if !can_unshare() {
        return;
    }
    let place = Place::new();
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let mut status = Command::new("unshare");
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let command = place.command(&["status"]);
    status
        .args(["-p", "-m", "-f", "sh", "-c", script, "sh"])
        .arg(command.get_program())
        .arg("status")
        .env("VRAMALLOC_IPC_DIR", &place.0);
    let said = said(status.output().unwrap());
    let id = format!("{}*", program.pid());
    assert!(said.out.contains(&id), "{said:?}");
    assert_eq!(place.left().len(), 1);
    assert!(place.status(program.pid()).is_some());
}

/// Each is process 1 of its container.
#[test]
fn processes_of_containers_are_told_apart_by_their_ids_here() {
    if !can_unshare() {
        return;
    }
    let place = Place::new();
    let contained = || {
        let run = place.run("stats:off");
        let mut program = Talk::to(run.before("exec unshare --pid --fork --kill-child \"$@\""));
        program.tell("+3M").unwrap();
        program
    };
    let mut programs = [contained(), contained()];
    for program in &mut programs {
        let children = format!("/proc/{0}/task/{0}/children", program.pid());
        let pid = fs::read_to_string(children).unwrap().trim().to_owned();
        let seen = place.status(pid.parse().unwrap()).unwrap();
        assert_eq!(seen["pid_is_of_container"], false);
        assert_eq!(seen["pid_in_container"], 1);
        let table = place.go(&["status"]).out;
        let is_row = |line: &str| line.trim_start().starts_with(&format!("{pid} "));
        assert!(table.lines().any(is_row), "{table}");
        let mut child = place.command(&["limit", &pid, "1G"]).spawn().unwrap();
        until(|| program.tell("i").is_none() || has_ended(&mut child));
        let said = said(child.wait_with_output().unwrap());
        assert_eq!(said.out, "the limit is 1GiB per device\n", "{said:?}");
    }
    for program in &mut programs {
        program.kill();
    }
}

#[test]
fn why_a_process_has_no_page_here_is_not_guessed() {
    let place = Place::new();
    // As a later version of the library would make it.
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let page = place.private().join(&place.left()[0]);
    fs::rename(&page, place.private().join("page.2.key")).unwrap();
    let trim = |pid: u32| place.go(&["trim", &pid.to_string()]).errors;
    let errors = trim(program.pid());
    assert!(errors.contains("another version of vramalloc"), "{errors}");
    fs::remove_file(place.private().join("page.2.key")).unwrap();
    let errors = trim(program.pid());
    assert!(errors.contains("was removed by somebody"), "{errors}");
    // The folder may be named by another way.
    let mut program = place.talk("");
    program.tell("+3M").unwrap();
    let alias = Place(fresh_folder().join("alias"));
    symlink(&place.0, &alias.0).unwrap();
    assert!(alias.status(program.pid()).is_some());
    let page = place.private().join(&place.left()[0]);
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644)).unwrap();
    let said = alias.go(&["trim", &program.pid().to_string()]);
    assert!(
        said.errors.contains("it is not as it should be"),
        "{said:?}"
    );
}

/// The system lets nobody look into a program that its user may not read.
#[test]
fn a_process_that_cannot_be_looked_into_is_not_guessed_at() {
    const USER: u32 = 12_345;
    let place = Place(std::env::temp_dir().join(format!("orders.{}", std::process::id())));
    fs::create_dir_all(&place.0).unwrap();
    let sealed = place.0.join("sealed");
    fs::copy("/bin/sleep", &sealed).unwrap();
    fs::set_permissions(&sealed, fs::Permissions::from_mode(0o711)).unwrap();
    let command = place.0.join("vramalloc");
    fs::copy(place.command(&[]).get_program(), &command).unwrap();
    // Only root can become somebody else.
    if let Ok(mut sleep) = Command::new(&sealed).arg("1000").uid(USER).spawn() {
        let mut trim = Command::new(&command);
        let pid = sleep.id().to_string();
        trim.args(["trim", &pid]).uid(USER);
        let said = said(trim.env("VRAMALLOC_IPC_DIR", &place.0).output().unwrap());
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        assert!(
            said.errors.contains("does not let others look into it"),
            "{said:?}"
        );
        assert_eq!(said.code, 2, "{said:?}");
    }
    fs::remove_dir_all(&place.0).unwrap();
}

/// The page of this test, in a file.
struct Planted(File);

impl Cells for Planted {
    fn load(&self, place: usize, to: &mut [u64]) -> io::Result<()> {
        for (at, word) in to.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            self.0.read_exact_at(&mut bytes, 8 * (place + at) as u64)?;
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(())
    }

    fn store(&self, place: usize, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.0.write_all_at(&bytes, 8 * place as u64)
    }
}

/// A process that has the lock of a file until it is killed.
pub(crate) fn hold(path: &Path) -> Child {
    let mut flock = Command::new("flock");
    flock.args(["--no-fork", "-x"]).arg(path);
    flock.args(["sh", "-c", "echo; exec sleep 1000"]);
    let mut holder = flock.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0];
    let out = holder.stdout.as_mut().unwrap();
    out.read_exact(&mut said).unwrap();
    holder
}

/// What the command says of this answer, by a process that is this test.
fn answered(order: &[&str], outcome: Outcome, text: &str) -> Said {
    let place = Place::new();
    let private = place.private();
    fs::DirBuilder::new().mode(0o700).create(&private).unwrap();
    let mut options = fs::OpenOptions::new();
    let path = private.join(file_name("key"));
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(&path).unwrap();
    file.set_len(LENGTH).unwrap();
    let mut holder = hold(&path);
    let page = ControlPage::new(Planted(file));
    let link = fs::read_link("/proc/self/ns/pid").unwrap();
    let digits = |c: char| !c.is_ascii_digit();
    let owner = PageOwner {
        pid: std::process::id().into(),
        namespace: link.to_str().unwrap().trim_matches(digits).parse().unwrap(),
        ..PageOwner::default()
    };
    page.sign(&owner).unwrap();
    let pid = owner.pid.to_string();
    let mut arguments = vec![order[0], &pid];
    arguments.extend(&order[1..]);
    let mut child = place.command(&arguments).spawn().unwrap();
    let desk = Desk::default();
    until(|| {
        if let Some(order) = page.take(&desk, |_| true).unwrap() {
            page.reply(&order, outcome, text).unwrap();
        }
        has_ended(&mut child)
    });
    holder.kill().unwrap();
    holder.wait().unwrap();
    said(child.wait_with_output().unwrap())
}

/// What a process answers does nothing to a terminal.
#[test]
fn an_answer_is_shown_as_plain_text() {
    let red = "/a/\u{1b}[31mfile";
    for order in [&["dump"][..], &["limit", "8G"]] {
        let done = answered(order, Outcome::Done, red);
        assert!(done.out.contains("[31mfile"), "{done:?}");
        assert!(!done.out.contains('\u{1b}'), "{done:?}");
    }
    let refused = answered(&["dump"], Outcome::Refused, red);
    assert!(!refused.errors.contains('\u{1b}'), "{refused:?}");
}

#[test]
fn an_order_that_was_replaced_is_told_of() {
    let said = answered(&["trim"], Outcome::Withdrawn, "");
    assert_eq!(said.code, 1, "{said:?}");
    let why = ": the order was replaced before it was begun\n";
    assert!(said.errors.ends_with(why), "{said:?}");
}

#[test]
fn a_share_is_told_in_bytes_too() {
    let place = Place::new();
    let mut program = place.talk("stats:off");
    program.tell("+3M").unwrap();
    let said = place.order(&mut program, &["limit", "0.5"]);
    let told = said.out.strip_prefix("the limit is 0.5 per device: ");
    let told = told.unwrap_or_else(|| panic!("{said:?}"));
    assert!(told.ends_with("iB on device 0\n"), "{said:?}");
}

#[test]
fn a_limit_that_has_no_room_is_refused() {
    let place = Place::new();
    let mut program = place.talk("stats:off");
    program.tell("+3M").unwrap();
    let long = format!("{}16G", "0".repeat(62));
    let said = place.go(&["limit", &program.pid().to_string(), &long]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.errors.contains("write it shorter"), "{said:?}");
}

#[test]
fn a_file_s_name_that_is_no_plain_text_is_quoted() {
    let place = Place::new();
    let folder = "d=$(printf 'a\\nb\\377'); mkdir -p \"$d\"; cd \"$d\"";
    let run: Run = place.run("").before(folder);
    let mut program = Talk::to(run);
    program.tell("+3M").unwrap();
    let said = place.order(&mut program, &["dump"]);
    assert!(said.out.starts_with('"'), "{said:?}");
    assert!(said.out.contains(r"/a\nb\xFF/"), "{said:?}");
    assert_eq!(said.out.lines().count(), 1, "{said:?}");
}
