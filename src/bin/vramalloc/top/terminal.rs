//! The terminal: taken over for the time of `vramalloc top`, and given back
//! however that ends.
//!
//! Invariant: whoever has a [`Screen`] has the terminal; it is as before when that
//! is dropped, when a thread panics, and while the process is stopped by a key.
//! Only a kill that no program can see leaves it as it is.

use std::io::{self, Stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use crossterm::cursor::{Hide, Show};
use crossterm::event;
use crossterm::execute;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::prelude::CrosstermBackend;
use ratatui::{Frame, Terminal};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// What happens to the terminal or the process.
pub(super) enum Happening {
    Input(event::Event),
    /// Nothing more will be typed, and why.
    Closed(io::Error),
    Signal(i32),
}

/// The terminal, taken over.
pub(super) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// Those of the system; the terminal is as before then.
    pub(super) fn open() -> io::Result<Screen> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // Its message is to be read.
            leave();
            before(info);
        }));
        enter()?;
        match Terminal::new(CrosstermBackend::new(io::stdout())) {
            Ok(terminal) => Ok(Screen(terminal)),
            Err(error) => {
                leave();
                Err(error)
            }
        }
    }

    #[cfg_attr(
        debug_assertions,
        allow(clippy::panic, reason = "a test asks for it, of the debug build")
    )]
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw)?;
        // A test sees that the terminal is given back.
        #[cfg(debug_assertions)]
        if std::env::var_os("TOP_PANICS").is_some() {
            panic::panic_any("TOP_PANICS is set");
        }
        Ok(())
    }

    /// Gives the terminal back and stops the process, as the key for it does with
    /// others. Returns when it goes on.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        leave();
        emulate_default_handler(SIGTSTP)?;
        self.again()
    }

    /// Takes the terminal over anew: somebody else may have had it.
    pub(super) fn again(&mut self) -> io::Result<()> {
        leave();
        enter()?;
        // One that knows nothing of what was drawn. To clear the old one would ask
        // the terminal for the cursor's place, and the answer is read by another.
        self.0 = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    TAKEN.store(true, Ordering::Relaxed);
    let entered = enable_raw_mode().and_then(|()| {
        execute!(
            io::stdout(),
            EnterAlternateScreen,
            Clear(ClearType::All),
            Hide
        )
    });
    if entered.is_err() {
        leave();
    }
    entered
}

/// Whether the terminal is taken over.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back, if it is taken: once more would put the cursor back to
/// where it was, onto what was printed since. What fails leaves the rest to be tried.
fn leave() {
    if !TAKEN.swap(false, Ordering::Relaxed) {
        return;
    }
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Has what happens told, from two threads that last as long as the process.
///
/// # Errors
/// Those of the system.
pub(super) fn listen<T: Send + 'static>(
    to: &Sender<T>,
    telling: fn(Happening) -> T,
) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT])?;
    let of_signals = to.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                // Whoever listened has ended.
                let _ = of_signals.send(telling(Happening::Signal(signal)));
                if ends(signal) {
                    patience(signal);
                }
            }
        })?;
    let of_input = to.clone();
    thread::Builder::new().name("input".into()).spawn(move || {
        loop {
            let (happening, is_over) = match event::read() {
                Ok(event) => (Happening::Input(event), false),
                Err(error) => (Happening::Closed(error), true),
            };
            if of_input.send(telling(happening)).is_err() || is_over {
                return;
            }
        }
    })?;
    Ok(())
}

/// Whether a signal ends the command.
pub(super) fn ends(signal: i32) -> bool {
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT].contains(&signal)
}

/// A terminal that takes no more text, as after Ctrl-S, would keep the process
/// from its end.
fn patience(signal: i32) {
    thread::sleep(Duration::from_secs(2));
    let _ = disable_raw_mode();
    let _ = emulate_default_handler(signal);
}
