//! Who holds a process's memory, by the statistics that it wrote when asked.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use rustix::fs::OFlags;
use serde::Deserialize;

use super::super::lines::Lines;
use super::super::output::of_file;
use super::super::owners::Owned;
use super::super::statistics::{self, Setting};
use super::super::units;

/// What the pane of owners needs of a statistics file.
#[derive(Deserialize)]
struct HolderFile {
    pid: u64,
    #[serde(default)]
    owners: Vec<Owned>,
    #[serde(default)]
    elsewhere: Vec<Beside>,
    #[serde(default)]
    options: IndexMap<String, Setting>,
}

/// What of a device is in use and not this process's.
#[derive(Deserialize)]
struct Beside {
    device: u64,
    bytes: u64,
}

/// Who holds what.
pub(super) struct Holders {
    file: PathBuf,
    owners: Vec<Holder>,
    elsewhere: Vec<Beside>,
    /// Whether it was switched off that owners are known.
    is_off: bool,
    /// When it was read, in milliseconds since 1970.
    pub(super) at_ms: u64,
}

struct Holder {
    device: u64,
    name: String,
    bytes: u64,
    peak: u64,
    past: u64,
}

/// Reads the file that a process says it has written. In a container its name is
/// another here.
///
/// # Errors
/// One line that says why it cannot be read.
pub(super) fn read(
    said: &str,
    id: Option<u64>,
    own_pid: u64,
    at_ms: u64,
) -> Result<Holders, String> {
    let path = path(said);
    let inside = id.map(|id| {
        let below = path.strip_prefix("/").unwrap_or(&path);
        Path::new("/proc")
            .join(id.to_string())
            .join("root")
            .join(below)
    });
    let places = std::iter::once(path.clone()).chain(inside);
    let mut wrong = None;
    for place in places {
        match file_at(&place) {
            Ok(file) if file.pid == own_pid => return Ok(holders(file, place, at_ms)),
            Ok(_) => _ = wrong.get_or_insert("it is of another process".to_owned()),
            Err(error) => _ = wrong.get_or_insert(error),
        }
    }
    Err(of_file(&path, wrong.unwrap_or_default()))
}

fn file_at(path: &Path) -> Result<HolderFile, String> {
    let words = |error: io::Error| error.to_string();
    let mut options = OpenOptions::new();
    // Nothing that could keep the reader waiting.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = options
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(words)?;
    if !file.metadata().map_err(words)?.is_file() {
        return Err("no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(words)?;
    statistics::read(&bytes)
}

fn holders(file: HolderFile, path: PathBuf, at_ms: u64) -> Holders {
    let mut owners: Vec<Holder> = Vec::new();
    for owned in &file.owners {
        let (device, name) = (owned.device, owned.called());
        let known = owners
            .iter_mut()
            .find(|one| one.device == device && one.name == name);
        match known {
            Some(one) => {
                one.bytes = one.bytes.saturating_add(owned.bytes);
                one.peak = one.peak.saturating_add(owned.peak_bytes);
                one.past = one.past.saturating_add(owned.past_pool_bytes);
            }
            None => owners.push(Holder {
                device,
                name: name.to_owned(),
                bytes: owned.bytes,
                peak: owned.peak_bytes,
                past: owned.past_pool_bytes,
            }),
        }
    }
    let most = |one: &Holder| one.bytes.saturating_add(one.past);
    owners.sort_by_key(|one| (one.device, std::cmp::Reverse(most(one))));
    let setting = file.options.get("owners");
    Holders {
        file: fs::canonicalize(&path).unwrap_or(path),
        owners,
        elsewhere: file.elsewhere,
        is_off: setting.is_some_and(|setting| setting.value == "off"),
        at_ms,
    }
}

impl Holders {
    /// Who holds what of a device, in at most so many columns.
    pub(super) fn lines(&self, device: u64, out: &mut Lines) {
        let here: Vec<&Holder> = self
            .owners
            .iter()
            .filter(|one| one.device == device)
            .collect();
        if self.is_off {
            out.wrapped(
                "The option owners is off there. Start the program with VRAMALLOC_OWNERS=on to see \
                 which library holds what.",
                0,
            );
        } else if here.is_empty() {
            out.wrapped("Nobody holds memory of this device.", 0);
        }
        for one in here {
            let past = match one.past {
                0 => String::new(),
                past => format!(", {} past the pool", units::bytes(past)),
            };
            let (now, peak) = (units::bytes(one.bytes), units::bytes(one.peak));
            let text = format!("{now}, at the peak {peak}{past}");
            out.fact(&one.name, text);
        }
        if let Some(beside) = self.elsewhere.iter().find(|one| one.device == device) {
            let bytes = units::bytes(beside.bytes);
            out.fact(
                "all others",
                format_args!("{bytes}: other processes, and CUDA itself"),
            );
        }
        out.wrapped(of_file(Path::new("statistics"), self.file.display()), 2);
    }
}

/// The name of a file as a process tells it: as it is, or in quotes and with
/// escapes if it is no plain text.
fn path(said: &str) -> PathBuf {
    let quoted = said
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let Some(quoted) = quoted else {
        return PathBuf::from(said);
    };
    let mut bytes = Vec::new();
    let mut rest = quoted;
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        let escape = rest.chars().next().filter(|_| c == '\\');
        let Some(escape) = escape else {
            bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
            continue;
        };
        rest = rest.get(escape.len_utf8()..).unwrap_or_default();
        match escape {
            'n' => bytes.push(b'\n'),
            't' => bytes.push(b'\t'),
            'r' => bytes.push(b'\r'),
            '0' => bytes.push(0),
            'x' => {
                let digits = rest.get(..2).unwrap_or_default();
                bytes.extend(u8::from_str_radix(digits, 16).ok());
                rest = rest.get(2..).unwrap_or_default();
            }
            'u' => {
                let (digits, after) = rest.split_once('}').unwrap_or((rest, ""));
                let number = u32::from_str_radix(digits.trim_start_matches('{'), 16).ok();
                let found = number.and_then(char::from_u32);
                bytes.extend(found.map(String::from).unwrap_or_default().bytes());
                rest = after;
            }
            other => bytes.extend(other.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_told() {
        assert_eq!(path("/a b/c.json"), Path::new("/a b/c.json"));
        for name in [&b"/tmp/\xff\n\x01\"\\x.json"[..], b"/\xc3\xbc\t\r\x00\xfe9"] {
            let name = std::ffi::OsStr::from_bytes(name);
            assert_eq!(path(&format!("{name:?}")), Path::new(name), "{name:?}");
        }
    }
}
