//! The variables by which schedulers and container runtimes tell a program how
//! much of a device it may have.
//!
//! `NVIDIA_GPU_MEMORY_LIMIT` is that of NVIDIA's container toolkit,
//! `CUDA_DEVICE_MEMORY_LIMIT` that of HAMi-core, which also has one for each
//! device, and `GPU_MEMORY_LIMIT` that of the KAI scheduler. A unit is a power
//! of 1024, with or without an `i`, in small letters or capitals; a bare number
//! is bytes. They count where the option `limit` is not given.

use super::table::{Reading, set};
use super::value::{NONE, limit, show_optional_share, up_to};
use super::{DeviceShare, Settings};

/// What stands before a device's number.
const BY_DEVICE: &str = "CUDA_DEVICE_MEMORY_LIMIT_";

/// The variables for all devices, the strongest first.
pub(super) const LIMITS: &[&str] = &[
    "NVIDIA_GPU_MEMORY_LIMIT",
    "CUDA_DEVICE_MEMORY_LIMIT",
    "GPU_MEMORY_LIMIT",
];

/// The variables for single devices, as documentation names them.
pub(super) const DEVICE_LIMITS: &[&str] = &["CUDA_DEVICE_MEMORY_LIMIT_<n>"];

/// What these variables accept.
pub(super) const ACCEPTED: &str =
    "a size such as 1024m, 4g or 4Gi, a whole number of bytes from 1 MiB, or 0 (no limit)";

/// The most devices that a list may name.
const MOST_DEVICES: u64 = 1024;

/// The device that a variable of this name is for. Each has one name only, as
/// for other programs that read it.
pub(super) fn device_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix(BY_DEVICE)?;
    device(number).filter(|device| device.to_string() == number)
}

fn device(text: &str) -> Option<u32> {
    u32::try_from(up_to(MOST_DEVICES, text)?).ok()
}

/// Reads what such a variable says.
fn size(text: &str) -> Option<Option<DeviceShare>> {
    if text == "0" {
        return Some(None);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    if digits.is_empty() || !is_number {
        return None;
    }
    limit(text.strip_suffix('i').unwrap_or(text))
        .filter(|limit| matches!(limit, Some(DeviceShare::Bytes(_))))
}

/// Reads such a variable into the option that it sets, `limit`.
pub(super) fn read(settings: &mut Settings, text: &str) -> Reading {
    set(&mut settings.config.limit, size(text))
}

/// An entry of the option `device_limits`, for a device's variable; empty where
/// it says that there is no limit.
pub(super) fn entry(device: u32, text: &str) -> Option<String> {
    let limit = size(text)?;
    Some(limit.map_or_else(String::new, |limit| {
        format!("{device}:{}", show_optional_share(Some(limit)))
    }))
}

/// The option `device_limits`: a list of devices and their limits.
pub(super) fn device_limits(text: &str) -> Option<Vec<(u32, DeviceShare)>> {
    if text == NONE {
        return Some(Vec::new());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let mut limits: Vec<(u32, DeviceShare)> = Vec::new();
    for entry in inner.split(',') {
        let (number, share) = entry.split_once(':')?;
        let number = device(number.trim())?;
        let share = limit(share.trim())??;
        if limits.iter().any(|(known, _)| *known == number) {
            return None;
        }
        limits.push((number, share));
    }
    Some(limits)
}

/// The same as text.
pub(super) fn show_device_limits(limits: &[(u32, DeviceShare)]) -> String {
    if limits.is_empty() {
        return NONE.to_owned();
    }
    let entries: Vec<String> = (limits.iter())
        .map(|(device, share)| format!("{device}:{}", show_optional_share(Some(*share))))
        .collect();
    format!("[{}]", entries.join(","))
}

/// Where a text for all devices stands among those of other schedulers: the
/// strongest last.
pub(super) fn rank(name: &str) -> usize {
    let place = LIMITS.iter().position(|known| *known == name);
    place.map_or(0, |place| LIMITS.len() - place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Bytes;

    #[test]
    fn a_device_has_one_variable() {
        assert_eq!(device_of("CUDA_DEVICE_MEMORY_LIMIT_0"), Some(0));
        assert_eq!(device_of("CUDA_DEVICE_MEMORY_LIMIT_12"), Some(12));
        for other in ["", "00", "+1", "1k", " 1"] {
            let name = format!("CUDA_DEVICE_MEMORY_LIMIT_{other}");
            assert_eq!(device_of(&name), None, "{name}");
        }
    }

    #[test]
    fn sizes_as_schedulers_write_them() {
        let bytes = |text: &str| match size(text) {
            Some(Some(DeviceShare::Bytes(bytes))) => Some(bytes),
            _ => None,
        };
        for (text, mib) in [
            ("1024m", 1024),
            ("4g", 4096),
            ("4G", 4096),
            ("2048Mi", 2048),
            ("4Gi", 4096),
            ("8388608k", 8192),
            ("1073741824", 1024),
        ] {
            assert_eq!(bytes(text), Some(Bytes::mib(mib)), "{text}");
        }
        assert_eq!(size("0"), Some(None));
        for bad in [
            "4096", "0.5", "50%", "none", "-1", "g", "4x", "", "1", "4 g", "4gii",
        ] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn lists_are_written_as_they_are_read() {
        for text in ["none", "[0:4GiB]", "[1:50%,0:512MiB]"] {
            let limits = device_limits(text);
            let shown = limits.map(|limits| show_device_limits(&limits));
            let again = shown.as_deref().and_then(device_limits);
            assert_eq!(again, device_limits(text), "{text}");
            assert!(again.is_some(), "{text}");
        }
        for bad in [
            "",
            "4G",
            "[]",
            "[4G]",
            "[0:4G,0:5G]",
            "[x:4G]",
            "[0:16]",
            "[0:none]",
        ] {
            assert_eq!(device_limits(bad), None, "{bad}");
        }
        assert_eq!(device_of("CUDA_DEVICE_MEMORY_LIMIT_3"), Some(3));
        assert_eq!(device_of("CUDA_DEVICE_MEMORY_LIMIT_"), None);
    }
}
