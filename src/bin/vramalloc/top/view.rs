//! How `vramalloc top` looks, on screens of every size.
//!
//! From above: a title, the titles of the columns, the rows, perhaps a pane, and
//! three lines: what the signs mean, the last message, and the keys. Where there is
//! little room, the rows come first.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};

use super::super::gloss;
use super::super::lines::Lines;
use super::super::look::Watched;
use super::super::output::plain;
use super::super::units;
use super::app::{App, Asked, Pane};
use super::table::{BOLD, Drawn, RowId, cut, table};

/// From this height on, everything has its line.
const TALL: u16 = 12;

/// From this height on, there are a title and a line at the foot.
const LOW: u16 = 5;

const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

const KEYS: &str = "? help  q quit  Enter owners  t trim  d dump  s sort";

/// Where there is nothing to show.
pub(super) const NOBODY: &str = "No process of yours uses CUDA memory under vramalloc.";

const HELP: &str = "\
Up, Down, k, j      choose a process (PgUp, PgDn, Home, End, g, G too)
Enter               who holds its memory: it writes its statistics
t                   have it give idle memory back (vramalloc trim)
d                   have it write its statistics (vramalloc dump)
s                   sort by the next of those below
M L N P T           sort by memory, live, process id, program, start
I, r                the other way round
Esc                 close this, or the owners
Ctrl-L              draw everything anew
Ctrl-Z              stop; fg goes on
q, F10, Ctrl-C      quit";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let all = frame.area();
    let is_tall = all.height >= TALL;
    let (above, below) = match all.height {
        TALL.. => (1, 3),
        LOW.. => (1, 1),
        _ => (0, 0),
    };
    let width = usize::from(all.width);
    let at = |y: u16, height: u16| Rect::new(all.x, all.y + y, all.width, height);
    if above > 0 {
        frame.render_widget(title(app, width), at(0, 1));
    }
    let body = at(above, all.height - above - below);
    if app.pane == Some(Pane::Help) {
        help(frame, app, body);
    } else {
        rows_and_pane(frame, app, body);
    }
    let foot = all.height - below;
    let message = app.message().map(str::to_owned);
    if is_tall {
        frame.render_widget(Line::from(app.signs.legend()), at(foot, 1));
        let said = message.map_or_else(|| Line::raw(not_seen(app)), |text| noted(app, &text));
        frame.render_widget(said, at(foot + 1, 1));
        frame.render_widget(Line::raw(KEYS), at(foot + 2, 1));
    } else if below > 0 {
        let said = message.map_or_else(|| Line::raw(KEYS), |text| noted(app, &text));
        frame.render_widget(said, at(foot, 1));
    }
}

/// What is not seen, in one line.
fn not_seen(app: &App) -> String {
    let unread = match app.look.unread {
        0 => String::new(),
        n => format!("{} not read, ", units::count(n as u64, "page")),
    };
    match app.look.in_use.is_empty() {
        true => format!("Not seen: {unread}other programs and users, CUDA's own"),
        false if unread.is_empty() => "others: other programs and users, CUDA's own".to_owned(),
        false => format!("Not seen: {}", unread.trim_end_matches(", ")),
    }
}

/// Worth knowing.
fn noted(app: &App, text: &str) -> Line<'static> {
    let style = app.signs.coloured(Style::new().fg(Color::Yellow));
    Line::styled(plain(text), style)
}

fn title(app: &App, width: usize) -> Line<'static> {
    let (left, right) = (app.look.title(width), app.manner());
    let room = width.saturating_sub(left.len());
    let text = match room.checked_sub(right.len()) {
        Some(room) if room > 1 => format!("{left}{}{right}", " ".repeat(room)),
        _ => left,
    };
    Line::styled(cut(&text, width, app.signs.cut), BOLD)
}

/// The table, and below it who holds memory.
fn rows_and_pane(frame: &mut Frame<'_>, app: &mut App, body: Rect) {
    /// The least lines of a pane beside rows.
    const PANE: u16 = 8;
    let pane = match app.pane {
        Some(Pane::Holders) if body.height >= 2 * PANE => body.height / 2,
        Some(Pane::Holders) => body.height,
        _ => 0,
    };
    let [of_rows, of_pane] = split(body, body.height - pane);
    if of_rows.height > 0 {
        rows(frame, app, of_rows);
    }
    if of_pane.height > 0 {
        let text = holders(app, usize::from(of_pane.width), of_pane.height.into());
        frame.render_widget(text, of_pane);
    }
}

/// The lines above and those from a height on.
fn split(area: Rect, height: u16) -> [Rect; 2] {
    let height = height.min(area.height);
    let above = Rect { height, ..area };
    let below = Rect {
        y: area.y + height,
        height: area.height - height,
        ..area
    };
    [above, below]
}

fn rows(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let (head, body) = if area.height > 2 {
        (1, area.height - 1)
    } else {
        (0, area.height)
    };
    let [of_titles, of_rows] = split(area, head);
    let width = usize::from(area.width);
    let chosen = app.chosen().map(|(row, _)| row);
    let (titles, drawn) = table(&app.look, &app.drawing(width));
    if drawn.is_empty() {
        let mut out = Lines::wide(width);
        out.wrapped(NOBODY, 0);
        frame.render_widget(Text::raw(out.text), area);
        return;
    }
    let at = drawn
        .iter()
        .position(|drawn| drawn.row.is_some() && drawn.row == chosen);
    app.above = above(&drawn, at, app.above, usize::from(body));
    let lines = drawn.into_iter().skip(app.above).take(usize::from(body));
    let lines = lines.map(|drawn| marked(drawn, chosen));
    frame.render_widget(titles.style(BOLD), of_titles);
    frame.render_widget(Text::from_iter(lines), of_rows);
}

fn marked(drawn: Drawn, chosen: Option<RowId>) -> Line<'static> {
    match drawn.row {
        Some(row) if Some(row) == chosen => drawn.line.style(REVERSED),
        _ => drawn.line,
    }
}

/// How many lines are above the screen, so that the chosen one is on it: with the
/// line about its device if that is the one above, and no more moved than needed.
fn above(drawn: &[Drawn], chosen: Option<usize>, before: usize, height: usize) -> usize {
    let most = drawn.len().saturating_sub(height);
    let Some(at) = chosen else {
        return before.min(most);
    };
    let has_title = height > 1 && at > 0;
    let has_title = has_title && drawn.get(at - 1).is_some_and(|drawn| drawn.row.is_none());
    let first = if has_title { at - 1 } else { at };
    let least = (at + 1).saturating_sub(height);
    before.min(most).clamp(least, first.max(least))
}

/// Who holds the memory of the chosen process.
fn holders(app: &App, width: usize, height: usize) -> Text<'static> {
    let mut out = Lines::wide(width);
    let title = match app.chosen() {
        None => "No process is chosen".to_owned(),
        Some(((_, device), process)) => {
            told(app, process, device, &mut out);
            let (program, pid) = (&process.owner.program, process.id_text());
            let on = match device {
                u64::MAX => String::new(),
                device => format!(" on device {device}"),
            };
            format!("Who holds memory of {} ({pid}){on}", plain(program))
        }
    };
    let mut lines = vec![Line::styled(
        cut(&title, width, app.signs.cut),
        BOLD.patch(REVERSED),
    )];
    let room = height.saturating_sub(1);
    let all: Vec<&str> = out.text.lines().collect();
    let shown = if all.len() > room {
        room.saturating_sub(1)
    } else {
        room
    };
    lines.extend(
        all.iter()
            .take(shown)
            .map(|line| Line::raw((*line).to_owned())),
    );
    if all.len() > room {
        let more = format!(
            "and {}",
            units::count((all.len() - shown) as u64, "more line")
        );
        lines.push(Line::raw(more));
    }
    Text::from(lines)
}

fn told(app: &App, process: &Watched, device: u64, out: &mut Lines) {
    match app.asked(process.identity()) {
        None => out.wrapped(
            "Enter has the process write its statistics, which say it.",
            0,
        ),
        Some(Asked::Waiting) => out.wrapped(
            "The process is asked for its statistics. It writes them in its next call for memory.",
            0,
        ),
        Some(Asked::Written(file)) => out.wrapped(format_args!("{} is read.", plain(file)), 0),
        Some(Asked::Failed(why)) => {
            out.wrapped(plain(why), 0);
            out.wrapped(
                "Who holds memory stands in the statistics: the process must not have stats:off, \
                 and must make a call for memory, or have stats_interval_s (as under vramalloc \
                 run). Enter asks once more.",
                0,
            );
        }
        Some(Asked::Known(holders)) => {
            let age = units::span(app.now().saturating_sub(holders.at_ms));
            out.wrapped(format_args!("As of {age} ago; d asks anew."), 0);
            holders.lines(device, out);
        }
    }
}

/// The keys and the words, from the line on that is to stand above.
fn help(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let mut out = Lines::wide(usize::from(area.width));
    for line in HELP.lines() {
        let (keys, what) = line.split_at_checked(20).unwrap_or((line, ""));
        out.fact(keys.trim_end(), what);
    }
    out.exact("");
    out.wrapped(
        "A bar is as long as the limit, or as the device where there is none. TREND is what was \
         live or past the pool in the last five minutes, as high as the most of it. UP is since \
         the process began, AGE since it wrote its figures. A * marks ids that are known in a \
         container only.",
        0,
    );
    out.wrapped(app.look.not_seen(), 0);
    let words = "live cached limbo past the pool";
    let mut explained = Lines::wide(out.width);
    gloss::explain_words_of(words, &mut explained);
    let text = format!(
        "{}{}",
        out.text,
        anstream::adapter::strip_str(&explained.text)
    );
    let lines: Vec<&str> = text.lines().collect();
    app.above = app
        .above
        .min(lines.len().saturating_sub(usize::from(area.height)));
    let lines = lines
        .into_iter()
        .skip(app.above)
        .map(|line| Line::raw(line.to_owned()));
    frame.render_widget(Text::from_iter(lines), area);
}

#[cfg(test)]
mod tests;
