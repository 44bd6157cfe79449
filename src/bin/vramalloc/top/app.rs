//! What `vramalloc top` shows and what keys do: a state without a terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use vramalloc_core::control::OrderKind;

use super::super::look::{Look, Watched, WatchedId};
use super::bar::Signs;
use super::holders::Holders;
use super::orders::Answer;
use super::sort::{Order, SortBy};
use super::table::{Drawing, RowId, table};
use super::trend::Trends;

pub(super) const FIRST_ORDER: Order = Order {
    by: SortBy::Memory,
    is_reversed: false,
};

/// How long a message stands.
const MESSAGE_MS: u64 = 10_000;

/// What a key asks of others than the state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
    /// To be stopped, as by Ctrl-Z.
    Stop,
    /// To be drawn anew.
    Anew,
    Send(OrderKind, WatchedId),
}

/// What stands beside the table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Pane {
    Help,
    Holders,
}

/// What is known of who holds a process's memory.
pub(super) enum Asked {
    /// It was asked and has not answered.
    Waiting,
    /// It has written this file, which is being read.
    Written(String),
    Known(Holders),
    Failed(String),
}

/// See the module.
pub(super) struct App {
    pub(super) look: Look,
    pub(super) trends: Trends,
    pub(super) order: Order,
    pub(super) signs: Signs,
    pub(super) interval: Duration,
    pub(super) pane: Option<Pane>,
    /// The lines of the help, or of the rows, that are above the screen.
    pub(super) above: usize,
    asked: BTreeMap<WatchedId, Asked>,
    chosen: Option<RowId>,
    /// Where the chosen row was.
    place: usize,
    /// The last word, and when it was said.
    message: Option<(String, u64)>,
    /// Why the pages cannot be read.
    failure: Option<String>,
}

impl App {
    pub(super) fn new(look: Look, signs: Signs, interval: Duration) -> App {
        let mut app = App {
            look: Look::default(),
            trends: Trends::default(),
            order: FIRST_ORDER,
            signs,
            interval,
            pane: None,
            above: 0,
            asked: BTreeMap::new(),
            chosen: None,
            place: 0,
            message: None,
            failure: None,
        };
        app.seen(Ok(look));
        app
    }

    /// The time of the last look.
    pub(super) fn now(&self) -> u64 {
        self.look.at_ms
    }

    /// Takes what a look has found. What is there stays if it found nothing.
    pub(super) fn seen(&mut self, look: Result<Look, String>) {
        match look {
            Ok(look) => {
                self.failure = None;
                self.trends.add(&look);
                self.look = look;
            }
            Err(error) => self.failure = Some(error),
        }
        let look = &self.look;
        let is_there = |id: WatchedId| look.processes.iter().any(|one| one.identity() == id);
        self.asked.retain(|&id, _| is_there(id));
        self.choose_again();
    }

    pub(super) fn process(&self, id: WatchedId) -> Option<&Watched> {
        let mut processes = self.look.processes.iter();
        processes.find(|process| process.identity() == id)
    }

    /// The row that keys are about, and its process.
    pub(super) fn chosen(&self) -> Option<(RowId, &Watched)> {
        let row = self.chosen?;
        Some((row, self.process(row.0)?))
    }

    pub(super) fn asked(&self, id: WatchedId) -> Option<&Asked> {
        self.asked.get(&id)
    }

    /// What is to be said now, the worst first.
    pub(super) fn message(&self) -> Option<&str> {
        let message = self.message.as_ref();
        let message = message.filter(|(_, at)| self.now().saturating_sub(*at) < MESSAGE_MS);
        let failure = self.failure.as_deref();
        failure.or(message.map(|(text, _)| text.as_str()))
    }

    fn say(&mut self, text: String) {
        self.message = Some((text, self.now()));
    }

    /// How the rows are drawn at a width.
    pub(super) fn drawing(&self, width: usize) -> Drawing<'_> {
        Drawing {
            width,
            signs: self.signs,
            order: self.order,
            trends: Some(&self.trends),
        }
    }

    /// The rows from above to below.
    fn rows(&self) -> Vec<RowId> {
        let (_, drawn) = table(&self.look, &self.drawing(0));
        drawn.into_iter().filter_map(|drawn| drawn.row).collect()
    }

    /// Keeps to the chosen row; if that is gone, takes the one in its place.
    fn choose_again(&mut self) {
        let rows = self.rows();
        let at = rows.iter().position(|row| Some(*row) == self.chosen);
        self.place = at.unwrap_or(self.place).min(rows.len().saturating_sub(1));
        self.chosen = rows.get(self.place).copied();
    }

    fn choose(&mut self, place: usize) {
        self.place = place;
        self.chosen = None;
        self.choose_again();
    }

    /// Does what a key says.
    pub(super) fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Quit,
                KeyCode::Char('z') => Wish::Stop,
                KeyCode::Char('l') => Wish::Anew,
                _ => Wish::Nothing,
            };
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Wish::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
                self.above = 0;
                self.pane = (self.pane != Some(Pane::Help)).then_some(Pane::Help);
            }
            KeyCode::Esc => self.pane = None,
            code => return self.key_of_rows(code),
        }
        Wish::Nothing
    }

    fn key_of_rows(&mut self, code: KeyCode) -> Wish {
        const PAGE: usize = 10;
        let is_help = self.pane == Some(Pane::Help);
        let mut step = |by: isize| {
            if is_help {
                self.above = self.above.saturating_add_signed(by);
            } else {
                self.choose(self.place.saturating_add_signed(by));
            }
        };
        match code {
            KeyCode::Up | KeyCode::Char('k') => step(-1),
            KeyCode::Down | KeyCode::Char('j') => step(1),
            KeyCode::PageUp => step(-PAGE.cast_signed()),
            KeyCode::PageDown => step(PAGE.cast_signed()),
            KeyCode::Home | KeyCode::Char('g') => step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => step(isize::MAX),
            KeyCode::Enter => return self.enter(),
            KeyCode::Char('t') => return self.order(OrderKind::Trim),
            KeyCode::Char('d') => return self.order(OrderKind::Dump),
            KeyCode::Char('s') => self.sort(self.order.by.next()),
            KeyCode::Char('M') => self.sort(SortBy::Memory),
            KeyCode::Char('L') => self.sort(SortBy::Live),
            KeyCode::Char('N') => self.sort(SortBy::Pid),
            KeyCode::Char('P') => self.sort(SortBy::Program),
            KeyCode::Char('T') => self.sort(SortBy::Start),
            KeyCode::Char('I' | 'r') => {
                self.order.is_reversed = !self.order.is_reversed;
                self.choose_again();
            }
            _ => {}
        }
        Wish::Nothing
    }

    fn sort(&mut self, by: SortBy) {
        self.order.by = by;
        self.choose_again();
    }

    /// Shows who holds memory, and asks where that is not known; or hides it.
    fn enter(&mut self) -> Wish {
        let Some(row) = self.chosen else {
            return Wish::Nothing;
        };
        let is_unknown = matches!(self.asked(row.0), None | Some(Asked::Failed(_)));
        if self.pane == Some(Pane::Holders) && !is_unknown {
            self.pane = None;
            return Wish::Nothing;
        }
        self.pane = Some(Pane::Holders);
        if is_unknown {
            return Wish::Send(OrderKind::Dump, row.0);
        }
        Wish::Nothing
    }

    fn order(&mut self, kind: OrderKind) -> Wish {
        match self.chosen {
            Some(row) => Wish::Send(kind, row.0),
            None => Wish::Nothing,
        }
    }

    /// An order was sent, or could not be.
    pub(super) fn sent(&mut self, kind: OrderKind, to: WatchedId, sent: Result<(), String>) {
        let Some(pid) = self.process(to).map(Watched::id_text) else {
            return;
        };
        if let Err(error) = sent {
            if kind == OrderKind::Dump && self.asked(to).is_none() {
                self.asked.insert(to, Asked::Failed(error.clone()));
            }
            return self.say(error);
        }
        if kind == OrderKind::Dump && !matches!(self.asked(to), Some(Asked::Known(_))) {
            self.asked.insert(to, Asked::Waiting);
        }
        let what = match kind {
            OrderKind::Trim => "to give idle memory back",
            OrderKind::Dump | OrderKind::Limit => "to write its statistics",
        };
        self.say(format!("process {pid} is asked {what}"));
    }

    /// A process has answered, or it is known that it will not.
    pub(super) fn answered(&mut self, answer: Answer) {
        let Answer { from, kind, said } = answer;
        let pid = self.process(from).map(Watched::id_text).unwrap_or_default();
        match said {
            Ok(said) if kind == OrderKind::Dump => {
                if !matches!(self.asked(from), Some(Asked::Known(_))) {
                    self.asked.insert(from, Asked::Written(said.clone()));
                }
                self.say(format!("process {pid} has written {said}"));
            }
            Ok(said) => self.say(format!("process {pid}: {said}")),
            Err(why) => {
                if kind == OrderKind::Dump {
                    self.asked.insert(from, Asked::Failed(why.clone()));
                }
                self.say(why);
            }
        }
    }

    /// A file of statistics was read, or could not be.
    pub(super) fn held(&mut self, of: WatchedId, holders: Result<Holders, String>) {
        self.asked.insert(
            of,
            match holders {
                Ok(holders) => Asked::Known(holders),
                Err(error) => Asked::Failed(error),
            },
        );
    }

    /// What stands beside the title: the order, and how often it is looked.
    pub(super) fn manner(&self) -> String {
        let reversed = if self.order.is_reversed {
            ", reversed"
        } else {
            ""
        };
        let every = self.interval.as_secs_f64();
        format!("by {}{reversed}; every {every} s", self.order.by.name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::look::tests::watched;
    use super::*;

    fn app(pids: &[u64]) -> App {
        App::new(look(pids), Signs::PLAIN, Duration::from_secs(1))
    }

    /// The first has most.
    fn look(pids: &[u64]) -> Look {
        let processes = pids.iter().zip((1..100).rev());
        let processes =
            processes.map(|(&pid, mib)| watched(pid, &format!("p{pid}"), &[(0, [mib, 0, 0, 0])]));
        Look {
            at_ms: 8_000_000,
            processes: processes.collect(),
            ..Look::default()
        }
    }

    fn press(app: &mut App, code: KeyCode) -> Wish {
        app.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn chosen(app: &App) -> Option<u64> {
        app.chosen().map(|(_, process)| process.shown_id())
    }

    #[test]
    fn the_choice_stays_with_its_process() {
        let mut app = app(&[3, 1, 2]);
        assert_eq!(chosen(&app), Some(3));
        press(&mut app, KeyCode::Down);
        assert_eq!(chosen(&app), Some(1));
        press(&mut app, KeyCode::Char('N'));
        assert_eq!(chosen(&app), Some(1));
        assert_eq!(app.rows()[0].0.1, 1);
        press(&mut app, KeyCode::Char('I'));
        assert_eq!(app.rows()[2].0.1, 1);
        app.seen(Ok(look(&[1])));
        assert_eq!(chosen(&app), Some(1));
        app.seen(Ok(look(&[5])));
        assert_eq!(chosen(&app), Some(5));
        for code in [
            KeyCode::End,
            KeyCode::Down,
            KeyCode::PageDown,
            KeyCode::Home,
        ] {
            press(&mut app, code);
            assert_eq!(chosen(&app), Some(5));
        }
        app.seen(Ok(look(&[])));
        assert_eq!(chosen(&app), None);
        for code in [KeyCode::Enter, KeyCode::Char('t'), KeyCode::Up] {
            assert_eq!(press(&mut app, code), Wish::Nothing);
        }
    }

    #[test]
    fn keys_ask_for_what_they_say() {
        let mut app = app(&[1]);
        let id = look(&[1]).processes[0].identity();
        let dump = || Wish::Send(OrderKind::Dump, id);
        assert_eq!(
            press(&mut app, KeyCode::Char('t')),
            Wish::Send(OrderKind::Trim, id)
        );
        assert_eq!(press(&mut app, KeyCode::Enter), dump());
        app.sent(OrderKind::Dump, id, Ok(()));
        assert_eq!(app.pane, Some(Pane::Holders));
        // Once is enough.
        assert_eq!(press(&mut app, KeyCode::Enter), Wish::Nothing);
        assert_eq!(app.pane, None);
        let said = Err("it has no time".to_owned());
        let kind = OrderKind::Dump;
        app.answered(Answer {
            from: id,
            kind,
            said,
        });
        assert_eq!(app.message(), Some("it has no time"));
        assert_eq!(press(&mut app, KeyCode::Enter), dump());
        assert_eq!(press(&mut app, KeyCode::Char('?')), Wish::Nothing);
        assert_eq!(app.pane, Some(Pane::Help));
        assert_eq!(press(&mut app, KeyCode::Esc), Wish::Nothing);
        assert_eq!(app.pane, None);
        assert_eq!(press(&mut app, KeyCode::Char('q')), Wish::Quit);
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!(app.key(control('c')), Wish::Quit);
        assert_eq!(app.key(control('z')), Wish::Stop);
        assert_eq!(app.key(control('t')), Wish::Nothing);
    }

    #[test]
    fn what_could_not_be_read_leaves_what_was_there() {
        let mut app = app(&[1]);
        app.seen(Err("no folder".to_owned()));
        assert_eq!((chosen(&app), app.message()), (Some(1), Some("no folder")));
        app.seen(Ok(look(&[1])));
        assert_eq!(app.message(), None);
    }
}
