//! The rows of `vramalloc top` as lines, for the screen and for `--once`.
//!
//! Invariant: no line is wider than asked, and no column stands half: what does not
//! fit is left out, the least needed first. Texts that are too long are cut.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use textwrap::core::display_width;
use vramalloc_core::Bytes;
use vramalloc_core::control::DeviceFigures;

use super::super::look::{Look, Shared, Watched, WatchedId, cached};
use super::super::output::plain;
use super::super::{status, units};
use super::bar::{Signs, bar};
use super::sort::Order;
use super::trend::Trends;

/// The blanks between two columns.
const GAP: usize = 2;

/// A column: its title, what it holds, and when it is left out: those with the
/// highest number first, 0 never.
struct Spec {
    head: &'static str,
    holds: Filled,
    spare: u8,
}

/// What stands in a column, and the least and the most columns that it takes.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Filled {
    Number,
    Text(usize, usize),
    Bar(usize, usize),
    Trend(usize, usize),
}

const fn spec(head: &'static str, holds: Filled, spare: u8) -> Spec {
    Spec { head, holds, spare }
}

const COLUMNS: [Spec; 12] = [
    spec("PID", Filled::Number, 0),
    spec("PROGRAM", Filled::Text(10, 20), 0),
    spec("DEV", Filled::Number, 5),
    spec("MEMORY", Filled::Bar(16, 60), 1),
    spec("LIVE", Filled::Number, 0),
    spec("CACHED", Filled::Number, 4),
    spec("LIMBO", Filled::Number, 7),
    spec("PAST POOL", Filled::Number, 6),
    spec("LIMIT", Filled::Number, 2),
    spec("TREND", Filled::Trend(8, 30), 3),
    spec("UP", Filled::Number, 8),
    spec("AGE", Filled::Number, 9),
];

/// A process on a device; without one where it tells of none.
struct Entry<'a> {
    process: &'a Watched,
    device: Option<&'a DeviceFigures>,
    cells: [String; COLUMNS.len()],
}

/// What a line stands for.
pub(super) struct Drawn {
    pub(super) line: Line<'static>,
    /// The process and the number of the device, of a row.
    pub(super) row: Option<RowId>,
}

/// Tells a row from all others.
pub(super) type RowId = (WatchedId, u64);

/// How the rows are to be drawn.
pub(super) struct Drawing<'a> {
    pub(super) width: usize,
    pub(super) signs: Signs,
    pub(super) order: Order,
    /// Nothing where there is no past to show.
    pub(super) trends: Option<&'a Trends>,
}

/// The title of the columns, and for each device a line about it and its rows.
pub(super) fn table(look: &Look, drawing: &Drawing<'_>) -> (Line<'static>, Vec<Drawn>) {
    let devices = look.by_device();
    let silent: Vec<&Watched> = look.silent().collect();
    let mut groups: Vec<(Option<Line<'static>>, Vec<Entry<'_>>)> = Vec::new();
    for device in &devices {
        let mut parts = device.parts.clone();
        drawing.order.sort(&mut parts);
        let entries = parts.into_iter().map(|(process, part)| Entry {
            process,
            device: Some(part),
            cells: cells(process, Some(part), look.at_ms),
        });
        groups.push((Some(heading(device, drawing)), entries.collect()));
    }
    if !silent.is_empty() {
        let entries = silent.into_iter().map(|process| Entry {
            process,
            device: None,
            cells: cells(process, None, look.at_ms),
        });
        let text = "No figures so far, or none that can be read";
        let title = Line::styled(cut(text, drawing.width, drawing.signs.cut), BOLD);
        groups.push((Some(title), entries.collect()));
    }
    let entries: Vec<&Entry<'_>> = groups.iter().flat_map(|(_, entries)| entries).collect();
    let widths = widths(&entries, drawing);
    let mut drawn = Vec::new();
    for (title, entries) in &groups {
        drawn.extend(title.clone().map(|line| Drawn { line, row: None }));
        drawn.extend(entries.iter().map(|entry| row(entry, &widths, drawing)));
    }
    (titles(&widths, drawing), drawn)
}

pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

fn bytes(bytes: Bytes) -> String {
    units::bytes(bytes.get())
}

/// What is had of a device: as much of it as fits.
fn heading(device: &Shared<'_>, drawing: &Drawing<'_>) -> Line<'static> {
    let used = device.sum(|part| part.reserved.saturating_add(part.past));
    let name = match device.name {
        "" => "a device",
        name => name,
    };
    let of = device
        .total
        .map_or_else(String::new, |total| format!(" of {}", bytes(total)));
    let count = match device.parts.len() {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    };
    let mut text = plain(name);
    if device.uuid != 0 {
        let uuid = status::uuid(device.uuid);
        let short = uuid.get(..8).unwrap_or_default();
        text += &format!(" ({short})");
    }
    for part in [
        format!(": {}{of}", bytes(used)),
        (device.others).map_or_else(String::new, |others| format!(", others {}", bytes(others))),
        format!(", {count}"),
        format!(", live {}", bytes(device.sum(|part| part.live))),
    ] {
        if display_width(&text) + part.len() <= drawing.width {
            text += &part;
        }
    }
    Line::styled(cut(&text, drawing.width, drawing.signs.cut), BOLD)
}

/// What stands in the columns, but for bars and pictures.
fn cells(process: &Watched, device: Option<&DeviceFigures>, now: u64) -> [String; COLUMNS.len()] {
    let since = |then| units::span(now.saturating_sub(then));
    let of = |of: &dyn Fn(&DeviceFigures) -> Option<Bytes>| {
        device.map_or_else(
            || "-".to_owned(),
            |device| of(device).map_or("-".to_owned(), bytes),
        )
    };
    let figures = process.figures.as_ref();
    [
        process.id_text(),
        plain(&process.owner.program),
        device.map_or("-".to_owned(), |device| device.ordinal.to_string()),
        String::new(),
        of(&|device| Some(device.live)),
        of(&cached),
        of(&|device| device.limbo),
        of(&|device| Some(device.past)),
        match device {
            Some(device) => device.limit.map_or("none".to_owned(), bytes),
            None => "-".to_owned(),
        },
        String::new(),
        since(process.owner.started_ms),
        figures.map_or("-".to_owned(), |figures| since(figures.at_ms)),
    ]
}

/// The columns that are shown, and how wide they are.
fn widths(entries: &[&Entry<'_>], drawing: &Drawing<'_>) -> Vec<(usize, usize)> {
    let need = |at: usize| {
        let cells = entries.iter().filter_map(|entry| entry.cells.get(at));
        let head = COLUMNS.get(at).map_or("", |spec| spec.head);
        let widths = cells.map(|cell| display_width(cell));
        widths.max().unwrap_or(0).max(head.len())
    };
    let mut shown: Vec<(usize, usize)> = Vec::new();
    for (at, spec) in COLUMNS.iter().enumerate() {
        let width = match spec.holds {
            Filled::Number => need(at),
            Filled::Text(least, _) => need(at).min(least),
            Filled::Trend(..) if drawing.trends.is_none() => continue,
            Filled::Bar(least, _) | Filled::Trend(least, _) => least,
        };
        shown.push((at, width));
    }
    let sum = |shown: &[(usize, usize)]| {
        shown
            .iter()
            .map(|(_, width)| width + GAP)
            .sum::<usize>()
            .saturating_sub(GAP)
    };
    let spare = |at: usize| COLUMNS.get(at).map_or(0, |spec| spec.spare);
    while sum(&shown) > drawing.width {
        let last = shown
            .iter()
            .max_by_key(|&&(at, _)| spare(at))
            .map(|&(at, _)| at);
        match last {
            Some(last) if spare(last) > 0 => shown.retain(|&(at, _)| at != last),
            _ => break,
        }
    }
    // Texts grow first, then bars, then pictures.
    let mut room = drawing.width.saturating_sub(sum(&shown));
    for turn in 0..3 {
        for (at, width) in &mut shown {
            let most = match (turn, COLUMNS.get(*at).map(|spec| spec.holds)) {
                (0, Some(Filled::Text(_, most))) => need(*at).min(most),
                (1, Some(Filled::Bar(_, most))) | (2, Some(Filled::Trend(_, most))) => most,
                _ => continue,
            };
            let more = most.saturating_sub(*width).min(room);
            *width += more;
            room -= more;
        }
    }
    shown
}

fn titles(widths: &[(usize, usize)], drawing: &Drawing<'_>) -> Line<'static> {
    let texts = widths.iter().filter_map(|&(at, width)| {
        let spec = COLUMNS.get(at)?;
        let is_number = spec.holds == Filled::Number;
        Some(fitted(spec.head, width, is_number, drawing.signs.cut))
    });
    let text = texts.collect::<Vec<_>>().join(&" ".repeat(GAP));
    Line::raw(cut(text.trim_end(), drawing.width, drawing.signs.cut))
}

fn row(entry: &Entry<'_>, widths: &[(usize, usize)], drawing: &Drawing<'_>) -> Drawn {
    let signs = &drawing.signs;
    let mut spans: Vec<Span<'static>> = Vec::new();
    let mut left = drawing.width;
    let identity = entry.process.identity();
    let ordinal = entry.device.map_or(u64::MAX, |device| device.ordinal);
    for (place, &(at, width)) in widths.iter().enumerate() {
        let gap = if place > 0 { GAP } else { 0 };
        let Some(width) = left.checked_sub(gap).map(|left| width.min(left)) else {
            break;
        };
        left -= gap + width;
        spans.push(Span::raw(" ".repeat(gap)));
        let cell = entry.cells.get(at).map_or("", |cell| cell);
        match (COLUMNS.get(at).map(|spec| spec.holds), entry.device) {
            (Some(Filled::Bar(..)), Some(device)) => spans.extend(bar(device, width, signs)),
            (Some(Filled::Trend(..)), Some(_)) => {
                let picture = drawing
                    .trends
                    .map(|trends| trends.picture(identity, ordinal, width, signs.steps));
                spans.push(Span::raw(picture.unwrap_or_default()));
            }
            (holds, _) => {
                let is_number = holds == Some(Filled::Number);
                spans.push(Span::raw(fitted(cell, width, is_number, signs.cut)));
            }
        }
    }
    Drawn {
        line: Line::from(spans),
        row: Some((identity, ordinal)),
    }
}

/// A text that is just so wide.
fn fitted(text: &str, width: usize, is_right: bool, sign: char) -> String {
    let text = cut(text, width, sign);
    let blanks = " ".repeat(width.saturating_sub(display_width(&text)));
    if is_right {
        blanks + &text
    } else {
        text + &blanks
    }
}

/// A text that is no wider.
pub(super) fn cut(text: &str, width: usize, sign: char) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 1);
    for c in text.chars() {
        used += display_width(c.encode_utf8(&mut [0; 4]));
        if used > width {
            break;
        }
        out.push(c);
    }
    if width > 0 {
        out.push(sign);
    }
    out
}
