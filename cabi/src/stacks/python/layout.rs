//! Where CPython has what, by version.
//!
//! From 3.13 on an interpreter says it itself (`_Py_DebugOffsets`), in an order that
//! is its version's. A version that is not here is not read.

use std::fmt;

use super::memory::{Checked, Memory as _};

/// Of CPython, the first two numbers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl Version {
    /// From a text that begins with it, such as `3.12.1 (main, …`.
    pub(super) fn read(text: &[u8]) -> Option<Version> {
        let text = str::from_utf8(text).ok()?;
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        Some(Version {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// How a frame says where it is in its code.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// By the number of the instruction; and the line, while a debugger follows.
    Number {
        /// Where that line is.
        line: usize,
    },
    /// By the address of the instruction.
    Address,
}

/// Offsets, in bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// Where a thread state has its frame, or the structure that has it.
    pub(super) frame: usize,
    /// Where that structure has the frame.
    pub(super) through: Option<usize>,
    pub(super) thread: usize,
    pub(super) interpreter: usize,
    /// Where a frame has the frame that called it, its code, and the place in that.
    pub(super) previous: usize,
    pub(super) code: usize,
    pub(super) at: usize,
    pub(super) at_is: At,
    /// What a frame belongs to, where frames may be unfinished.
    pub(super) owner: Option<usize>,
    /// Where a code object has the name of its file and its own, its first line and the
    /// table of its lines.
    pub(super) file: usize,
    pub(super) name: usize,
    pub(super) first_line: usize,
    pub(super) lines: usize,
    /// Where its instructions begin, and how many precede the function's own, where
    /// frames say where they are by an address.
    pub(super) instructions: usize,
    pub(super) preceding: usize,
    /// Where a text has its characters, if it is ASCII and if it is not.
    pub(super) ascii: usize,
    pub(super) wide: usize,
}

/// The same in all versions: where an object has its type, a type its flags, a list of
/// bytes its length and itself, and a text its length, its hash and its kind.
pub(super) const TYPE: usize = 8;
pub(super) const FLAGS: usize = 168;
pub(super) const LENGTH: usize = 16;
pub(super) const HASH: usize = 24;
pub(super) const BYTES: usize = 32;
pub(super) const KIND: usize = 32;

/// That of a text which nobody has asked for it.
pub(super) const NO_HASH: usize = usize::MAX;

/// Among the flags of a type: it is that of texts, or derived from it.
pub(super) const OF_TEXT: usize = 1 << 28;

const PY_3_10: Layout = Layout {
    frame: 24,
    through: None,
    thread: 176,
    interpreter: 16,
    previous: 24,
    code: 32,
    at: 96,
    at_is: At::Number { line: 100 },
    owner: None,
    file: 104,
    name: 112,
    first_line: 40,
    lines: 120,
    instructions: 0,
    preceding: 0,
    ascii: 48,
    wide: 72,
};

const PY_3_11: Layout = Layout {
    frame: 56,
    through: Some(8),
    thread: 152,
    interpreter: 16,
    previous: 48,
    code: 32,
    at: 56,
    at_is: At::Address,
    owner: Some(69),
    file: 112,
    name: 120,
    first_line: 72,
    lines: 136,
    instructions: 184,
    preceding: 168,
    ascii: 48,
    wide: 72,
};

const PY_3_12: Layout = Layout {
    frame: 56,
    through: Some(0),
    thread: 136,
    previous: 8,
    code: 0,
    owner: Some(70),
    first_line: 68,
    instructions: 192,
    preceding: 176,
    ascii: 40,
    wide: 56,
    ..PY_3_11
};

impl Layout {
    /// That of a version whose runtime lies here.
    pub(super) fn of(version: Version, runtime: Option<usize>) -> Result<Layout, String> {
        match (version.major, version.minor) {
            (3, 10) => Ok(PY_3_10),
            (3, 11) => Ok(PY_3_11),
            (3, 12) => Ok(PY_3_12),
            (3, 13) => {
                let offsets = runtime.and_then(offsets);
                offsets.ok_or_else(|| "it does not say where it has what".to_owned())?
            }
            _ => Err("of CPython, 3.10 to 3.13 are known".to_owned()),
        }
    }
}

/// What a 3.13 says of itself at the beginning of its runtime.
fn offsets(runtime: usize) -> Option<Result<Layout, String>> {
    const WORDS: usize = 73;
    let mut cookie = [0; 8];
    if !Checked.bytes(runtime, &mut cookie) || &cookie != b"xdebugpy" {
        return None;
    }
    let words = (0..WORDS).map(|at| Checked.word(runtime, 8 * at));
    let words: Vec<usize> = words.collect::<Option<_>>()?;
    let word = |at: usize| words.get(at).copied().filter(|&offset| offset < 1 << 16);
    if words.get(1)? >> 16 != 0x030d {
        return None;
    }
    if word(2)? != 0 {
        return Some(Err("it is built without its lock".to_owned()));
    }
    let is_usual = (word(45)?, word(65)?, word(66)?, word(68)?, word(69)?)
        == (TYPE, LENGTH, BYTES, KIND, LENGTH);
    let ascii = word(70)?;
    let instructions = word(43)?;
    is_usual.then_some(Ok(Layout {
        frame: word(23)?,
        through: None,
        thread: word(24)?,
        interpreter: word(22)?,
        previous: word(29)?,
        code: word(30)?,
        at: word(31)?,
        at_is: At::Address,
        owner: Some(word(33)?),
        file: word(35)?,
        name: word(36)?,
        first_line: word(39)?,
        lines: word(38)?,
        instructions,
        // The one that it does not say, from the end of what comes before.
        preceding: instructions.checked_sub(16)?,
        ascii,
        wide: ascii + 16,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read() {
        let version = Version::read(b"3.12.1 (main, Jan  1 2024)").unwrap();
        assert_eq!((version.to_string().as_str(), version.minor), ("3.12", 12));
        assert_eq!(Version::read(b"Python"), None);
    }

    #[test]
    fn other_versions_are_refused_and_what_is_no_runtime_too() {
        let version = |minor| Version { major: 3, minor };
        for minor in [9, 14] {
            assert!(
                Layout::of(version(minor), None)
                    .unwrap_err()
                    .contains("3.10 to 3.13")
            );
        }
        assert!(Layout::of(version(11), None).is_ok());
        let nothing = [0_u64; 80];
        for runtime in [None, Some((&raw const nothing).addr()), Some(8)] {
            assert!(Layout::of(version(13), runtime).is_err());
        }
    }
}
