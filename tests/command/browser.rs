//! A browser without a window, in which the page of `vramalloc report --html` is opened.
//!
//! It is told what to do by its DevTools protocol, over two pipes: messages in JSON, each
//! with a zero behind it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramalloc_tests::stage::fresh_folder;

/// Under these names the browser is installed.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync \
    --disable-dev-shm-usage --remote-debugging-pipe";

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    last: u64,
    session: String,
    /// What it told of its own accord.
    events: VecDeque<Value>,
}

impl Browser {
    /// Nothing where there is none, which is said.
    pub(crate) fn start() -> Option<Browser> {
        let is_there = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
        let Some(name) = NAMES.iter().find(is_there) else {
            println!("skipped: there is no browser (Debian: the package chromium)");
            return None;
        };
        let folder = fresh_folder();
        // It reads orders from descriptor 3 and answers to 4.
        let script = format!(
            "exec {name} {FLAGS} --user-data-dir={} about:blank 3<&0 4>&1 </dev/null >/dev/null",
            folder.display()
        );
        let mut process = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut browser = Browser {
            process,
            orders,
            answers,
            last: 0,
            session: String::new(),
            events: VecDeque::new(),
        };
        let made = browser.tell("Target.createTarget", json!({ "url": "about:blank" }));
        let asked = json!({ "targetId": made["targetId"], "flatten": true });
        let attached = browser.tell("Target.attachToTarget", asked);
        attached["sessionId"]
            .as_str()
            .unwrap()
            .clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.tell(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.answers.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// What it answers to an order.
    #[track_caller]
    pub(crate) fn tell(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let number = self.last;
        let mut order = json!({ "id": number, "method": method, "params": parameters });
        if !self.session.is_empty() {
            order["sessionId"] = json!(self.session);
        }
        write!(self.orders, "{order}\0").unwrap();
        self.orders.flush().unwrap();
        loop {
            let mut message = self.message();
            if message["id"] == number {
                assert!(message.get("error").is_none(), "{order}: {message}");
                return message["result"].take();
            }
            self.events.push_back(message);
        }
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.tell("Runtime.evaluate", asked);
        let thrown = answer.get("exceptionDetails");
        assert!(thrown.is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// The text of an element.
    #[track_caller]
    pub(crate) fn text(&mut self, id: &str) -> String {
        let text = self.value(&format!("document.getElementById('{id}').textContent"));
        text.as_str().unwrap().to_owned()
    }

    /// Opens a page in a window of this size, whose system is dark or light; how long it
    /// took until the page was ready.
    #[track_caller]
    pub(crate) fn open(&mut self, page: &Path, [width, height]: [u32; 2], dark: bool) -> Duration {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.tell("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tell("Emulation.setEmulatedMedia", media);
        let began = Instant::now();
        let url = format!("file://{}", page.display());
        self.tell("Page.navigate", json!({ "url": url }));
        self.until("document.documentElement?.dataset.ready === 'yes'");
        began.elapsed()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.value(expression) != json!(true) {
            let waits = began.elapsed() < Duration::from_secs(30);
            assert!(waits, "never: {expression}; {:#?}", self.complaints());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses the mouse at a place of the window, moves it and lets it go.
    #[track_caller]
    pub(crate) fn drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        let mut event = |kind: &str, [x, y]: [f64; 2], is_down: bool| {
            let button = if kind == "mouseMoved" && !is_down {
                "none"
            } else {
                "left"
            };
            let event = json!({
                "type": kind, "x": x, "y": y, "button": button,
                "buttons": u32::from(is_down), "clickCount": 1,
            });
            self.tell("Input.dispatchMouseEvent", event);
        };
        event("mouseMoved", from, false);
        event("mousePressed", from, true);
        for step in 1..=8 {
            let part = f64::from(step) / 8.0;
            let at = [0, 1].map(|axis| from[axis] + (to[axis] - from[axis]) * part);
            event("mouseMoved", at, true);
        }
        event("mouseReleased", to, false);
    }

    /// Presses a key so many times, with Shift or without.
    #[track_caller]
    pub(crate) fn key(&mut self, key: &str, shift: bool, times: usize) {
        for _ in 0..times {
            for kind in ["keyDown", "keyUp"] {
                let mut event =
                    json!({ "type": kind, "key": key, "modifiers": u32::from(shift) * 8 });
                if kind == "keyDown" && key.len() == 1 {
                    event["text"] = json!(key);
                }
                self.tell("Input.dispatchKeyEvent", event);
            }
        }
    }

    /// What went wrong so far, and what was asked of the network or of other files.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        let mut pages = 0;
        for event in &self.events {
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded" => {
                    found.push(event["params"].to_string());
                }
                "Network.requestWillBeSent" => {
                    let url = event["params"]["request"]["url"]
                        .as_str()
                        .unwrap_or_default();
                    // The page itself, and the picture that is in it.
                    if url.starts_with("file:") && url.ends_with(".html") {
                        pages += 1;
                    } else if !url.starts_with("data:") {
                        found.push(format!("asked for {url}"));
                    }
                }
                _ => {}
            }
        }
        assert!(pages > 0, "nothing was opened: {:?}", self.events);
        found
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
