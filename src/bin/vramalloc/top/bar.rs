//! A bar that shows what a process has of a device: from the left what is live,
//! cached, in limbo and past the pool; the whole is the limit, or else the device.

use ratatui::style::{Color, Style};
use ratatui::text::Span;
use vramalloc_core::Bytes;
use vramalloc_core::control::DeviceFigures;

use super::super::look::{cached, idle};

/// The signs that a screen is drawn with.
#[derive(Copy, Clone)]
pub(super) struct Signs {
    /// The sign of each part of a bar: live, cached, limbo, past the pool, and free.
    pub(super) bar: [char; 5],
    /// The signs of a sparkline, the lowest first.
    pub(super) steps: &'static [char],
    /// Where a text is cut.
    pub(super) cut: char,
    /// Whether there are colours.
    pub(super) is_coloured: bool,
}

impl Signs {
    /// Signs that every terminal and file has.
    pub(super) const PLAIN: Signs = Signs {
        bar: ['#', '=', '~', '+', '.'],
        steps: &['_', '.', ':', '-', '=', '+', '*', '#'],
        cut: '~',
        is_coloured: false,
    };
    /// Signs of Unicode. They differ without colours too.
    pub(super) const FINE: Signs = Signs {
        bar: ['█', '▒', '░', '▚', '·'],
        steps: &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
        cut: '…',
        is_coloured: false,
    };

    /// A style, where there are colours.
    pub(super) fn coloured(&self, style: Style) -> Style {
        if self.is_coloured {
            style
        } else {
            Style::new()
        }
    }

    /// What the signs of a bar mean.
    pub(super) fn legend(&self) -> Vec<Span<'static>> {
        let mut spans = Vec::new();
        for ((sign, style), what) in self.bar.into_iter().zip(STYLES).zip(PARTS) {
            let gap = if spans.is_empty() { "" } else { "  " };
            spans.push(Span::raw(gap));
            spans.push(Span::styled(sign.to_string(), self.coloured(style)));
            spans.push(Span::raw(format!(" {what}")));
        }
        spans
    }
}

const PARTS: [&str; 5] = ["live", "cached", "limbo", "past the pool", "free"];

const STYLES: [Style; 5] = [
    Style::new().fg(Color::Green),
    Style::new().fg(Color::Blue),
    Style::new().fg(Color::Yellow),
    Style::new().fg(Color::Magenta),
    Style::new().fg(Color::DarkGray),
];

/// The bar of a device, so many columns wide.
pub(super) fn bar(device: &DeviceFigures, width: usize, signs: &Signs) -> Vec<Span<'static>> {
    let room = width.saturating_sub(2);
    let limbo = device.limbo.unwrap_or_default();
    let free = cached(device).unwrap_or_else(|| idle(device));
    let parts = [device.live, free, limbo, device.past].map(Bytes::get);
    let whole = device.limit.or(device.total).unwrap_or_default();
    let columns = columns(parts, whole.get(), room);
    let mut spans = vec![Span::raw("[")];
    let kinds = signs.bar.into_iter().zip(STYLES);
    spans.extend(
        kinds
            .zip(columns)
            .filter(|&(_, n)| n > 0)
            .map(|((sign, style), columns)| {
                let text: String = std::iter::repeat_n(sign, columns).collect();
                Span::styled(text, signs.coloured(style))
            }),
    );
    spans.push(Span::raw("]"));
    spans
}

/// The columns of each part, and what is left. Nothing that is there is without a
/// column as long as there are columns.
fn columns(parts: [u64; 4], whole: u64, room: usize) -> [usize; 5] {
    let sum: u128 = parts.into_iter().map(u128::from).sum();
    let whole = sum.max(u128::from(whole)).max(1);
    let (mut out, mut used, mut before) = ([0; 5], 0, 0_u128);
    for (columns, part) in out.iter_mut().zip(parts) {
        before += u128::from(part);
        let end = (before * room as u128 + whole / 2) / whole;
        let end = usize::try_from(end).unwrap_or(room);
        let least = usize::from(part > 0);
        *columns = end.saturating_sub(used).max(least).min(room - used);
        used += *columns;
    }
    out[4] = room - used;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_as_it_should_be() {
        assert_eq!(columns([50, 25, 0, 0], 100, 20), [10, 5, 0, 0, 5]);
        assert_eq!(columns([1, 0, 1, 0], 1_000_000, 10), [1, 0, 1, 0, 8]);
        assert_eq!(columns([900, 200, 0, 100], 1_000, 12), [9, 2, 0, 1, 0]);
        assert_eq!(columns([0; 4], 0, 4), [0, 0, 0, 0, 4]);
        assert_eq!(columns([1; 4], 4, 0), [0; 5]);
        assert_eq!(columns([u64::MAX; 4], u64::MAX, 8), [2, 2, 2, 2, 0]);
        for room in 0..40 {
            let sum: usize = columns([7, 1, 90, 3], 500, room).iter().sum();
            assert_eq!(sum, room);
        }
    }
}
