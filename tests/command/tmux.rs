//! A terminal of tmux, in which `vramalloc top` runs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use vramalloc_tests::outside::{Place, until};
use vramalloc_tests::stage::{command, fresh_folder};

/// A terminal in which `top` runs over these programs.
pub(crate) struct Tmux {
    folder: PathBuf,
}

impl Tmux {
    pub(crate) fn new(place: &Place, width: u16, height: u16, arguments: &str) -> Tmux {
        Tmux::with(place, width, height, "", arguments)
    }

    /// With more variables.
    pub(crate) fn with(place: &Place, width: u16, height: u16, set: &str, arguments: &str) -> Tmux {
        let tmux = Tmux {
            folder: fresh_folder(),
        };
        let (width, height) = (width.to_string(), height.to_string());
        let script = format!(
            "echo BEFORE; env {set} {} top {arguments}; echo \"ENDED $?\"; stty -a | tr ' ' '\\n' | \
             grep -E '^-?(icanon|echo|isig);?$' | tr '\\n' ' '; cat",
            command()
        );
        let start = [
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
        ];
        let place = format!("VRAMALLOC_IPC_DIR={}", place.0.display());
        let child = ["env", "LC_ALL=C.UTF-8", &place, "sh", "-c", &script];
        let output = tmux.command(&start).args(child).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        tmux
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(self.folder.join("socket"))
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMUX");
        command
    }

    pub(crate) fn screen(&self) -> String {
        let output = self.command(&["capture-pane", "-p"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        let mut all = vec!["send-keys"];
        all.extend(keys);
        assert!(self.command(&all).status().unwrap().success());
    }

    /// What tmux knows of the terminal.
    pub(crate) fn state(&self, format: &str) -> String {
        let output = self
            .command(&["display-message", "-p", format])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Waits for a text on the screen.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        self.shows_while(text, || ())
    }

    #[track_caller]
    pub(crate) fn shows_while(&self, text: &str, mut meanwhile: impl FnMut()) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if screen.contains(text) {
                return screen;
            }
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "no {text:?}:\n{screen}"
            );
            meanwhile();
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits for the end of `top`: the terminal is as before.
    #[track_caller]
    pub(crate) fn is_restored(&self, status: i32) {
        let screen = self.shows("isig");
        assert!(screen.contains("BEFORE"), "{screen}");
        assert!(screen.contains(&format!("ENDED {status}\n")), "{screen}");
        assert!(
            !screen.contains("-icanon") && !screen.contains("-echo"),
            "{screen}"
        );
        assert!(!screen.contains("-isig"), "{screen}");
        assert_eq!(self.state("#{alternate_on} #{cursor_flag}"), "0 1");
    }

    /// The process id of `top`.
    pub(crate) fn pid(&self) -> String {
        let shell = self.state("#{pane_pid}");
        let mut found = String::new();
        until(|| {
            let children = format!("/proc/{shell}/task/{shell}/children");
            found = fs::read_to_string(children).unwrap().trim().to_owned();
            !found.is_empty()
        });
        found
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).status();
    }
}
