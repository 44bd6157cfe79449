//! Numbers in the form that people read.

/// A number of bytes with one digit after the point: `1.5 GiB`.
pub(super) fn bytes(n: u64) -> String {
    scaled(n, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// A duration in milliseconds or, from a second on, in seconds: `1.5 ms`.
#[allow(clippy::cast_precision_loss, reason = "shown with one digit")]
pub(super) fn duration(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    match ns {
        0 => "0 ms".to_owned(),
        // It would be shown as zero.
        1..50_000 => "<0.1 ms".to_owned(),
        // It would be shown as a whole second.
        _ if ms < 999.95 => format!("{ms:.1} ms"),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

/// A time in its largest unit: `12 s`, `3 h`.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("0.{} s", ms / 100),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A number of things with a regular plural: `1 block`, `2 blocks`.
pub(super) fn count(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    }
}

/// A share of 1 as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// `part` of `whole` as a percentage, `-` if `whole` is zero.
#[allow(clippy::cast_precision_loss, reason = "a ratio with one digit")]
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    percent(part as f64 / whole as f64)
}

#[allow(clippy::cast_precision_loss, reason = "shown with one digit")]
fn scaled(n: u64, step: u64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut value = n as f64;
    // A value that would be shown as a whole step belongs to the next unit.
    while value >= step as f64 - 0.05 && unit + 1 < units.len() {
        value /= step as f64;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or_default();
    if unit == 0 {
        return format!("{n} {name}");
    }
    format!("{value:.1} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_they_should() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(count(1, "block"), "1 block");
        assert_eq!(count(0, "block"), "0 blocks");
        assert_eq!(duration(0), "0 ms");
        assert_eq!(duration(999), "<0.1 ms");
        assert_eq!(duration(50_000), "0.1 ms");
        assert_eq!(duration(999_949_999), "999.9 ms");
        assert_eq!(duration(999_950_000), "1.0 s");
        assert_eq!(duration(1_500_000), "1.5 ms");
        assert_eq!(duration(90_000_000_000), "90.0 s");
        assert_eq!(share(1, 0), "-");
        assert_eq!(share(1, 8), "12.5 %");
        for (ms, text) in [
            (0, "0.0 s"),
            (999, "0.9 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(span(ms), text);
        }
    }
}
