//! `vramalloc top`: what the user's running processes have on their devices, drawn
//! anew all the time, and orders to them by keys.
//!
//! One thread looks, draws and decides; others only tell it what was typed, which
//! signal came and what a file says. No wait of it is without an end.

mod app;
mod bar;
mod holders;
mod orders;
mod sort;
mod table;
mod terminal;
mod trend;
mod view;

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use crossterm::event::Event as Typed;
use signal_hook::consts::{SIGCONT, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;
use textwrap::core::display_width;
use vramalloc_core::control::OrderKind;

use super::gloss;
use super::lines::Lines;
use super::look::{Look, WatchedId};
use super::output::{NOT_WRITTEN, USAGE, say, show};
use super::probe::Asker;
use super::{library, pages, units};
use app::{App, Wish};
use bar::Signs;
use holders::Holders;
use orders::Orders;
use table::{Drawing, table};
use terminal::{Happening, Screen};

#[derive(clap::Args)]
#[command(after_help = "\
Keys: the arrows choose a process, Enter shows who holds its memory, t has it give \
idle memory back, d has it write its statistics, s sorts, ? lists all keys, q quits.

A bar is as long as the limit, or as the device where there is none. Who holds \
memory stands in the statistics, so Enter has the process write them: to the file \
that it writes at its end, too. The figures of a process are as old as AGE says.")]
pub(super) struct Arguments {
    /// Only these processes
    pids: Vec<u64>,

    /// Print what is there now, and end
    #[arg(long)]
    once: bool,

    /// As JSON, with bytes and times as numbers
    #[arg(long, requires = "once")]
    json: bool,

    /// How often to look, in seconds
    #[arg(long, short = 'n', value_name = "SECONDS", default_value = "1",
          value_parser = interval)]
    interval: Duration,
}

/// How long `--once` waits for what is in use of devices.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads how often to look.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    match seconds.filter(|seconds| (0.1..=3600.0).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err("a number from 0.1 to 3600".to_owned()),
    }
}

/// Watches the processes. Returns the exit status.
pub(super) fn top(arguments: &Arguments) -> u8 {
    // What cannot be read now would fill a screen with nothing.
    let mut named = arguments.pids.iter().map(|&pid| pages::find(pid));
    let look = match named.try_for_each(|found| found.map(drop)) {
        Ok(()) => Look::now(&arguments.pids),
        Err(error) => Err(error),
    };
    let mut look = match look {
        Ok(look) => look,
        Err(error) => {
            say(error);
            return USAGE;
        }
    };
    let library = library::find(None).ok();
    let asker = Asker::start(library.as_deref());
    if arguments.once
        && let Some(asker) = &asker
        && !look.processes.is_empty()
    {
        look.in_use = asker.first(PATIENCE);
    }
    if arguments.json {
        return show(&format!("{:#}\n", look.json()));
    }
    if arguments.once {
        let mut out = Lines::default();
        frame(&look, &mut out);
        return show(&if is_utf8() {
            out.text
        } else {
            ascii(&out.text)
        });
    }
    let term = std::env::var_os("TERM").unwrap_or_default();
    let is_dumb = term.is_empty() || term == "dumb";
    if is_dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        say("top needs a terminal; vramalloc top --once prints what is there now");
        return USAGE;
    }
    match watch(arguments, look, asker) {
        Ok(None) => 0,
        Ok(Some(signal)) => {
            // As it would have ended without a terminal to give back.
            let _ = emulate_default_handler(signal);
            NOT_WRITTEN
        }
        Err(error) => {
            say(format_args!("the terminal: {error}"));
            NOT_WRITTEN
        }
    }
}

/// What `--once` prints.
fn frame(look: &Look, out: &mut Lines) {
    let signs = Signs::PLAIN;
    out.exact(look.title(out.width));
    if look.processes.is_empty() {
        out.wrapped(view::NOBODY, 0);
    } else {
        let drawing = Drawing {
            width: out.width,
            signs,
            order: app::FIRST_ORDER,
            trends: None,
        };
        let (titles, rows) = table(look, &drawing);
        out.exact(titles.to_string().trim_end());
        for row in rows {
            out.exact(row.line.to_string().trim_end());
        }
        let legend: String = signs.legend().iter().map(|span| &*span.content).collect();
        if look.processes.iter().any(|process| process.id.is_none()) {
            out.exact("* as its container numbers it");
        }
        out.exact("");
        out.wrapped(legend.replace("  ", ", "), 0);
    }
    if look.unread > 0 {
        let pages = units::count(look.unread as u64, "page");
        let text = "cannot be read: of another version of vramalloc, or not as they should be.";
        out.wrapped(format_args!("{pages} {text}"), 0);
    }
    out.wrapped(look.not_seen(), 0);
    gloss::explain(out);
}

/// What the thread that decides is told.
enum Message {
    Terminal(Happening),
    /// Who holds the memory of a process.
    Held(WatchedId, Result<Holders, String>),
}

/// The parts of a running `top`.
struct Watch<'a> {
    arguments: &'a Arguments,
    app: App,
    orders: Orders,
    asker: Option<Asker>,
    to: Sender<Message>,
    from: Receiver<Message>,
}

/// Why the watch ends.
enum End {
    Wanted,
    Signal(i32),
}

/// Watches until the user or a signal ends it; returns the signal.
fn watch(arguments: &Arguments, look: Look, asker: Option<Asker>) -> io::Result<Option<i32>> {
    let (to, from) = channel();
    let mut signs = if is_utf8() { Signs::FINE } else { Signs::PLAIN };
    signs.is_coloured = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    let mut watch = Watch {
        arguments,
        app: App::new(look, signs, arguments.interval),
        orders: Orders::default(),
        asker,
        to,
        from,
    };
    // Before the screen: a signal from now on gives the terminal back.
    terminal::listen(&watch.to, Message::Terminal)?;
    let mut screen = Screen::open()?;
    match watch.go(&mut screen)? {
        End::Wanted => Ok(None),
        End::Signal(signal) => Ok(Some(signal)),
    }
}

/// Whether the user's terminal shows Unicode, by the names of the locale.
fn is_utf8() -> bool {
    let names = ["LC_ALL", "LC_CTYPE", "LANG"];
    let values = names.iter().filter_map(|name| std::env::var(name).ok());
    let value = values.into_iter().find(|value| !value.is_empty());
    value.is_some_and(|value| {
        let value = value.to_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

/// A text in the signs that every terminal has, as wide as before.
fn ascii(text: &str) -> String {
    let sign = |c: char| match c {
        '\0'..='\x7f' => c.to_string(),
        c => "?".repeat(display_width(&c.to_string())),
    };
    text.chars().map(sign).collect()
}

impl Watch<'_> {
    fn go(&mut self, screen: &mut Screen) -> io::Result<End> {
        /// How often to see whether an order was served.
        const SOON: Duration = Duration::from_millis(50);
        let mut next = Instant::now() + self.arguments.interval;
        loop {
            screen.draw(|frame| view::draw(frame, &mut self.app))?;
            let mut wait = next.saturating_duration_since(Instant::now());
            if !self.orders.is_empty() {
                wait = wait.min(SOON);
            }
            let mut message = match self.from.recv_timeout(wait) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(End::Wanted),
            };
            // All that came meanwhile is worth one picture.
            while let Some(told) = message {
                if let Some(end) = self.told(told, screen)? {
                    return Ok(end);
                }
                message = self.from.try_recv().ok();
            }
            let has_answers = self.answers();
            if has_answers || Instant::now() >= next {
                let in_use = self.asker.as_mut().map(Asker::newest).unwrap_or_default();
                let look = Look::now(&self.arguments.pids);
                self.app.seen(look.map(|look| Look { in_use, ..look }));
                next = Instant::now() + self.arguments.interval;
            }
        }
    }

    /// Does what follows from a message.
    fn told(&mut self, message: Message, screen: &mut Screen) -> io::Result<Option<End>> {
        let happening = match message {
            Message::Held(process, holders) => {
                self.app.held(process, holders);
                return Ok(None);
            }
            Message::Terminal(happening) => happening,
        };
        match happening {
            Happening::Closed(error) => return Err(error),
            Happening::Signal(SIGTSTP) => screen.stop()?,
            Happening::Signal(SIGCONT) => screen.again()?,
            Happening::Signal(signal) if terminal::ends(signal) => {
                return Ok(Some(End::Signal(signal)));
            }
            Happening::Signal(_) => {}
            Happening::Input(Typed::Key(key)) => match self.app.key(key) {
                Wish::Quit => return Ok(Some(End::Wanted)),
                Wish::Stop => screen.stop()?,
                Wish::Anew => screen.again()?,
                Wish::Send(kind, process) => self.send(kind, process),
                Wish::Nothing => {}
            },
            Happening::Input(_) => {}
        }
        Ok(None)
    }

    fn send(&mut self, kind: OrderKind, to: WatchedId) {
        let Some(process) = self.app.process(to) else {
            return;
        };
        let sent = self.orders.send(kind, process);
        self.app.sent(kind, to, sent);
    }

    /// Tells of the orders that came to their end; false if none did.
    fn answers(&mut self) -> bool {
        let answers = self.orders.answers();
        let is_any = !answers.is_empty();
        for answer in answers {
            if let (OrderKind::Dump, Ok(file)) = (answer.kind, &answer.said) {
                self.read(answer.from, file.clone());
            }
            self.app.answered(answer);
        }
        is_any
    }

    /// Reads a file of statistics aside: it may be large.
    fn read(&self, from: WatchedId, file: String) {
        let Some(process) = self.app.process(from) else {
            return;
        };
        let (id, pid) = (process.id, process.owner.pid);
        let (to, at) = (self.to.clone(), self.app.now());
        let reading = move || {
            let holders = holders::read(&file, id, pid, at);
            // Nobody listens at the end.
            let _ = to.send(Message::Held(from, holders));
        };
        // Without a thread the file is not read, and its name stands there.
        let _ = thread::Builder::new().name("reader".into()).spawn(reading);
    }
}

#[cfg(test)]
mod tests {
    use super::super::look::tests::example;
    use super::*;

    #[test]
    fn a_frame_fits_where_it_is_shown() {
        let mut all = String::new();
        for width in [60, 80, 200] {
            let mut out = Lines::wide(width);
            frame(&example(7_300_000), &mut out);
            let widest = out.text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width), "{}", out.text);
            all += &format!("{:-<width$}\n{}", "", out.text);
        }
        insta::assert_snapshot!("frame", all);
    }

    #[test]
    fn plain_signs_are_as_wide_as_others() {
        assert_eq!(ascii("é 模x\n"), "? ??x\n");
    }

    #[test]
    fn an_interval_is_neither_nothing_nor_for_ever() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "", "1s"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
