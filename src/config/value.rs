//! Option texts to values and back.
//!
//! Invariant: no text makes these functions panic, and the text that a `show_`
//! function writes is read back as the same value.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Bytes;

use super::{Decay, DeviceShare, GarbageThreshold, StatsTarget, ThreadCacheSize};

/// Seconds.
const DAY: u64 = 86_400;

/// The text for an absent value.
pub(super) const NONE: &str = "none";
const AUTO: &str = "auto";

/// Unit suffixes and their powers of two; `KB` is 1024 bytes as in both
/// frameworks.
const UNITS: &[(&str, u32)] = &[
    ("b", 0),
    ("k", 10),
    ("kb", 10),
    ("kib", 10),
    ("m", 20),
    ("mb", 20),
    ("mib", 20),
    ("g", 30),
    ("gb", 30),
    ("gib", 30),
    ("t", 40),
    ("tb", 40),
    ("tib", 40),
];

/// An absolute path of a folder.
pub(super) fn folder(text: &str) -> Option<PathBuf> {
    (text.starts_with('/') && !text.contains('\0')).then(|| PathBuf::from(text))
}

/// A finite number in plain or scientific notation.
pub(super) fn number(text: &str) -> Option<f64> {
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E'));
    if !plain {
        return None;
    }
    text.parse::<f64>().ok().filter(|n| n.is_finite())
}

/// A number from 0 to 1.
pub(super) fn fraction(text: &str) -> Option<f64> {
    // Adding zero turns -0 into 0.
    number(text)
        .filter(|n| (0.0..=1.0).contains(n))
        .map(|n| n + 0.0)
}

/// A size above 0: `1073741824`, `512MiB`, `1.5 G`.
pub(super) fn size(text: &str) -> Option<Bytes> {
    size_or_zero(text).filter(|size| !size.is_zero())
}

/// A size above 0, or 0.
fn size_or_zero(text: &str) -> Option<Bytes> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (amount, unit) = text.split_at(digits);
    let unit = unit.trim_start().to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" => 0,
        unit => UNITS.iter().find(|(name, _)| *name == unit)?.1,
    };
    if amount.contains('.') {
        // There is no part of a byte: it was meant as a share, or with a unit.
        return scaled(number(amount).filter(|_| shift > 0)?, shift);
    }
    let amount = amount.parse::<u64>().ok()?;
    Some(Bytes::new(amount.checked_mul(1 << shift)?))
}

/// `amount * 2^shift` rounded down; `None` if that is not a possible size.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked before the cast"
)]
fn scaled(amount: f64, shift: u32) -> Option<Bytes> {
    /// The first number above all sizes, exactly representable.
    const END: f64 = 18_446_744_073_709_551_616.0;
    let bytes = amount * 2f64.powi(i32::try_from(shift).ok()?);
    (0.0..END)
        .contains(&bytes)
        .then(|| Bytes::new(bytes as u64))
}

/// A size above 0, or `none`.
pub(super) fn optional_size(text: &str) -> Option<Option<Bytes>> {
    if text == NONE {
        return Some(None);
    }
    size(text).map(Some)
}

/// `record_size`.
pub(super) fn record_size(text: &str) -> Option<Bytes> {
    let sizes = Bytes::mib(1)..=Bytes::gib(1 << 10);
    size(text).filter(|size| sizes.contains(size))
}

/// The pattern of a file; `off`: there is none.
pub(super) fn pattern(text: &str) -> Option<Option<String>> {
    match StatsTarget::read(text)? {
        StatsTarget::Off => Some(None),
        // That is nothing to be appended to.
        StatsTarget::Stderr => None,
        StatsTarget::File(pattern) => Some(Some(pattern)),
    }
}

/// A size above 0, a share above 0 and up to 1 (or 100 %), or `none`. A bare
/// number with a point is a share, and so is 1.
pub(super) fn optional_share(text: &str) -> Option<Option<DeviceShare>> {
    if text == NONE {
        return Some(None);
    }
    let share = if let Some(percent) = text.strip_suffix('%') {
        Some(number(percent.trim_end())? / 100.0)
    } else if is_bare(text) && (text == "1" || text.contains('.')) {
        Some(number(text)?)
    } else {
        None
    };
    Some(Some(match share {
        Some(share) => {
            DeviceShare::Fraction(Some(share).filter(|&share| share > 0.0 && share <= 1.0)?)
        }
        None => DeviceShare::Bytes(size(text)?),
    }))
}

/// As `optional_share`, but a bare number below 1 MiB is refused: a user who
/// writes 16 does not mean bytes.
pub(super) fn limit(text: &str) -> Option<Option<DeviceShare>> {
    /// Bytes.
    const LEAST: u64 = 1 << 20;
    optional_share(text).filter(|share| match share {
        Some(DeviceShare::Bytes(bytes)) => !is_bare(text) || bytes.get() >= LEAST,
        _ => true,
    })
}

fn is_bare(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// The size that a bare number may mean.
pub(super) fn size_meant(text: &str) -> Option<String> {
    let amount = number(text).filter(|&amount| is_bare(text) && amount > 1.0)?;
    let unit = if amount < 1024.0 { "G" } else { "M" };
    let meant = format!("{text}{unit}");
    size(&meant).is_some().then_some(meant)
}

/// A whole number, without a sign, up to `most`.
pub(super) fn up_to(most: u64, text: &str) -> Option<u64> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let amount = text.parse::<u64>().ok().filter(|_| digits)?;
    (amount <= most).then_some(amount)
}

/// A whole number that may be negative.
pub(super) fn whole(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    text.parse::<i64>()
        .ok()
        .filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))
}

/// A power of two that 32 bits hold.
pub(super) fn power_of_two(text: &str) -> Option<u32> {
    let number = up_to(u32::MAX.into(), text)?;
    u32::try_from(number).ok().filter(|n| n.is_power_of_two())
}

/// A whole number of MiB; 0 is `Bytes::ZERO`.
pub(super) fn mebibytes(text: &str) -> Option<Bytes> {
    let amount = up_to(u64::MAX, text)?;
    amount.checked_mul(1 << 20).map(Bytes::new)
}

/// A whole number of MiB; 0 is none.
pub(super) fn optional_mebibytes(text: &str) -> Option<Option<Bytes>> {
    mebibytes(text).map(|bytes| Some(bytes).filter(|bytes| !bytes.is_zero()))
}

/// A whole number of MiB, 0 included, or `none`.
pub(super) fn mebibytes_or_none(text: &str) -> Option<Option<Bytes>> {
    if text == NONE {
        return Some(None);
    }
    mebibytes(text).map(Some)
}

/// A whole number of seconds, up to a day.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    up_to(DAY, text).map(Duration::from_secs)
}

/// A whole number of milliseconds, up to a day.
pub(super) fn millis(text: &str) -> Option<Duration> {
    up_to(DAY * 1000, text).map(Duration::from_millis)
}

/// Milliseconds for which idle memory is kept; -1: for good.
pub(super) fn decay(text: &str) -> Option<Decay> {
    match text {
        "-1" => Some(Decay::Never),
        text => millis(text).map(Decay::After),
    }
}

/// MiB of a group of buffers; every negative number is read as -1.
pub(super) fn group_mib(text: &str) -> Option<f64> {
    /// MiB in the whole address space.
    const MOST: f64 = 17_592_186_044_415.0;
    let amount = number(text).filter(|&amount| amount <= MOST)?;
    // Adding zero turns -0 into 0.
    Some(if amount < 0.0 { -1.0 } else { amount + 0.0 })
}

/// GiB of freed memory before an epoch is closed; negative means only under
/// pressure.
pub(super) fn garbage(text: &str) -> Option<GarbageThreshold> {
    let amount = number(text)?;
    if amount < 0.0 {
        return Some(GarbageThreshold::Pressure);
    }
    let bytes = scaled(amount, 30)?;
    Some(if bytes.is_zero() {
        GarbageThreshold::NextOpportunity
    } else {
        GarbageThreshold::Bytes(bytes)
    })
}

/// `auto`, a size, or 0.
pub(super) fn thread_cache(text: &str) -> Option<ThreadCacheSize> {
    if text == AUTO {
        return Some(ThreadCacheSize::Auto);
    }
    size_or_zero(text).map(ThreadCacheSize::Most)
}

/// What `thread_cache` reads.
pub(super) fn show_thread_cache(size: ThreadCacheSize) -> String {
    match size {
        ThreadCacheSize::Auto => AUTO.to_owned(),
        ThreadCacheSize::Most(most) if most.is_zero() => "0".to_owned(),
        ThreadCacheSize::Most(most) => show_size(most),
    }
}

/// A size, as `size_or_zero` reads it.
fn show_size(bytes: Bytes) -> String {
    bytes.to_string().replace(' ', "")
}

pub(super) fn show_pattern(pattern: Option<&str>) -> String {
    pattern.unwrap_or("off").to_owned()
}

pub(super) fn show_optional_size(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| NONE.to_owned(), show_size)
}

/// A size, a share or `none`. A share is written with a point, or as 1.
pub(super) fn show_optional_share(share: Option<DeviceShare>) -> String {
    match share {
        None => NONE.to_owned(),
        Some(DeviceShare::Bytes(bytes)) => show_size(bytes),
        Some(DeviceShare::Fraction(fraction)) => fraction.to_string(),
    }
}

pub(super) fn show_mebibytes(bytes: Bytes) -> String {
    (bytes.get() >> 20).to_string()
}

pub(super) fn show_mebibytes_or_none(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| NONE.to_owned(), show_mebibytes)
}

pub(super) fn show_number_or_none(number: Option<f64>) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.to_string())
}

/// Milliseconds for which idle memory is kept.
pub(super) fn show_decay(decay: Decay) -> String {
    match decay {
        Decay::Never => "-1".to_owned(),
        Decay::After(time) => time.as_millis().to_string(),
    }
}

/// GiB of freed memory.
#[allow(
    clippy::cast_precision_loss,
    reason = "a threshold of more than 8 PiB is never met"
)]
pub(super) fn show_garbage(threshold: GarbageThreshold) -> String {
    match threshold {
        GarbageThreshold::NextOpportunity => "0".to_owned(),
        GarbageThreshold::Pressure => "-1".to_owned(),
        GarbageThreshold::Bytes(bytes) => {
            (bytes.get() as f64 / Bytes::gib(1).get() as f64).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("16G", Some(Bytes::gib(16))),
            ("512MiB", Some(Bytes::mib(512))),
            ("512 mb", Some(Bytes::mib(512))),
            ("1073741824", Some(Bytes::gib(1))),
            ("1.5g", Some(Bytes::mib(1536))),
            ("1T", Some(Bytes::gib(1024))),
            ("7B", Some(Bytes::new(7))),
            ("18446744073709551615", Some(Bytes::MAX)),
            ("18446744073709551616", None),
            ("99999999999G", None),
            ("0", None),
            ("0.0001K", None),
            ("1.5", None),
            ("1.5B", None),
            ("12Q", None),
            ("-1G", None),
            ("+1G", None),
            ("1e3", None),
            ("1.2.3G", None),
            (".", None),
            ("G", None),
            ("", None),
            ("١G", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }

    #[test]
    fn what_threads_keep_is_no_share() {
        let most = |size| Some(ThreadCacheSize::Most(size));
        assert_eq!(thread_cache("auto"), Some(ThreadCacheSize::Auto));
        assert_eq!(thread_cache("0"), most(Bytes::ZERO));
        assert_eq!(thread_cache("0.5M"), most(Bytes::kib(512)));
        assert_eq!(thread_cache("0.5"), None);
    }

    #[test]
    fn a_bare_number_with_a_point_is_a_share() {
        let share = |f| Some(Some(DeviceShare::Fraction(f)));
        assert_eq!(optional_share("0.5"), share(0.5));
        assert_eq!(optional_share("1"), share(1.0));
        assert_eq!(optional_share("1.0"), share(1.0));
        assert_eq!(
            optional_share("2"),
            Some(Some(DeviceShare::Bytes(Bytes::new(2))))
        );
        assert_eq!(optional_share("none"), Some(None));
        assert_eq!(optional_share("50%"), share(0.5));
        assert_eq!(optional_share("12.5 %"), share(0.125));
        assert_eq!(optional_share("100%"), share(1.0));
        for bad in [
            "0", "0.0", "1.5", "-0.5", "nan", "inf", "", "0%", "101%", "-5%", "%", "G%",
        ] {
            assert_eq!(optional_share(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_limit_is_no_bare_handful_of_bytes() {
        let bytes = |n| Some(Some(DeviceShare::Bytes(Bytes::new(n))));
        assert_eq!(limit("1048576"), bytes(1 << 20));
        assert_eq!(limit("16B"), bytes(16));
        assert_eq!(limit("1"), optional_share("1"));
        assert_eq!(limit("none"), Some(None));
        for (bad, meant) in [
            ("16", Some("16G")),
            ("1.5", Some("1.5G")),
            ("8192", Some("8192M")),
            ("0", None),
            ("16Q", None),
        ] {
            assert_eq!(limit(bad), None, "{bad}");
            assert_eq!(size_meant(bad).as_deref(), meant, "{bad}");
        }
    }

    #[test]
    fn garbage_in_gibibytes() {
        use GarbageThreshold::{Bytes as B, NextOpportunity, Pressure};
        for (text, threshold) in [
            ("0", Some(NextOpportunity)),
            ("0.0", Some(NextOpportunity)),
            ("-1", Some(Pressure)),
            ("-0.5", Some(Pressure)),
            ("0.25", Some(B(Bytes::mib(256)))),
            ("1e3", Some(B(Bytes::gib(1000)))),
            ("1e300", None),
            ("nan", None),
            ("inf", None),
            ("1GB", None),
        ] {
            assert_eq!(garbage(text), threshold, "{text}");
        }
    }

    #[test]
    fn whole_mebibytes() {
        assert_eq!(mebibytes("500"), Some(Bytes::mib(500)));
        assert_eq!(
            mebibytes("17592186044415"),
            Some(Bytes::mib(17592186044415))
        );
        for bad in ["17592186044416", "-1", "+1", "1.5", "12abc", ""] {
            assert_eq!(mebibytes(bad), None, "{bad}");
        }
        assert_eq!(optional_mebibytes("0"), Some(None));
    }
}
