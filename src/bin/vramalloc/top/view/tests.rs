use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::super::look::Look;
use super::super::super::look::tests::{example, watched};
use super::super::bar::Signs;
use super::*;

fn app(signs: Signs) -> App {
    let mut app = App::new(example(7_060_000), signs, Duration::from_secs(1));
    for at in 1..60 {
        app.seen(Ok(example(7_060_000 + 1_000 * at)));
    }
    app
}

fn screen(app: &mut App, width: u16, height: u16) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    terminal.backend().clone()
}

fn press(app: &mut App, code: KeyCode) {
    app.key(KeyEvent::new(code, KeyModifiers::NONE));
}

#[test]
fn the_screen_at_every_width() {
    let mut app = app(Signs::FINE);
    let mut all = String::new();
    for width in [60, 80, 200] {
        all += &format!("{}\n", screen(&mut app, width, 14));
    }
    all += &format!("{}\n", screen(&mut app, 20, 5));
    press(&mut app, KeyCode::Enter);
    all += &format!("{}\n", screen(&mut app, 80, 24));
    press(&mut app, KeyCode::Char('?'));
    all += &format!("{}\n", screen(&mut app, 80, 34));
    insta::assert_snapshot!("screens", all);
}

#[test]
fn no_size_and_no_name_is_too_much() {
    let mut app = app(Signs::PLAIN);
    let names = [
        "",
        "\u{1b}[31m\n\t",
        "火火火火火火火火火火火火",
        &"e\u{301}x".repeat(300),
    ];
    let mut look = example(7_200_000);
    for (pid, name) in (1..).zip(names) {
        look.processes.push(watched(
            pid,
            name,
            &[(0, [u64::MAX >> 21, 1, 1, u64::MAX >> 21])],
        ));
    }
    app.seen(Ok(look));
    for code in [
        KeyCode::Null,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Char('?'),
    ] {
        press(&mut app, code);
        for width in (0..40).chain([80, 400]) {
            for height in 0..26 {
                let drawn = screen(&mut app, width, height);
                let mut cells = drawn.buffer().content().iter();
                assert!(!cells.any(|cell| cell.symbol().contains(char::is_control)));
            }
        }
    }
}

#[test]
fn the_chosen_row_is_on_the_screen() {
    let processes = (1..=40).map(|pid| watched(pid, "many", &[(0, [100 - pid, 0, 0, 0])]));
    let look = Look {
        at_ms: 7_100_000,
        processes: processes.collect(),
        ..Look::default()
    };
    let mut app = App::new(look, Signs::PLAIN, Duration::from_secs(1));
    for (code, pid) in [
        (KeyCode::Null, 1),
        (KeyCode::End, 40),
        (KeyCode::PageUp, 30),
        (KeyCode::PageUp, 20),
        (KeyCode::Home, 1),
    ] {
        press(&mut app, code);
        for height in [2, 5, 8, 20] {
            let drawn = screen(&mut app, 60, height);
            let rows: Vec<String> = drawn.to_string().lines().map(str::to_owned).collect();
            let id = format!("\" {pid:>2}  many");
            let id = if pid < 10 {
                format!("\"  {pid}  many")
            } else {
                id
            };
            assert!(
                rows.iter().any(|row| row.starts_with(&id)),
                "{id} {rows:#?}"
            );
        }
    }
}

#[test]
fn there_are_colours_only_where_they_are_wanted() {
    let is_coloured = |is_coloured| {
        let mut app = app(Signs {
            is_coloured,
            ..Signs::FINE
        });
        let drawn = screen(&mut app, 80, 24);
        let mut cells = drawn.buffer().content().iter();
        cells.any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(is_coloured(true));
    assert!(!is_coloured(false));
}
