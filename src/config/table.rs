//! The one table of options.
//!
//! Owns the names, ranges and help texts of all options. The parser, the
//! warnings, the documentation, `vramalloc options` and the echo in the
//! statistics are made from these rows, so one more option is one more row.
//! There are four modules of rows: our own options, those with the names of
//! Paddle's flags, those of PyTorch's keys, and those of both frameworks that
//! have no effect here.

mod no_effect;
mod own;
mod paddle;
mod pytorch;

use super::{Settings, StrategyKind};

/// The role of a row.
#[derive(Copy, Clone, Debug)]
pub enum Role {
    /// An option of its own. The function returns its value as a text that the
    /// option accepts.
    Own(fn(&Settings) -> String),
    /// Another way to set the option with this key. If both are given in one
    /// source, that option wins.
    Sets(&'static str),
    /// An option that cannot have an effect here, such as one of a framework
    /// above us, with the reason. It is read and checked, so that it is not
    /// mistaken for a misspelling, and changes nothing.
    NoEffect(&'static str),
}

/// The name of an option in PyTorch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Torch {
    /// PyTorch has no such option.
    No,
    /// These keys in its allocator's variable, the usual one first.
    Keys(&'static [&'static str]),
    /// A variable of its own.
    Variable(&'static str),
}

/// The result of reading a text for an option.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// The option has this value now.
    Set,
    /// The text can be read, and leaves the settings as they are.
    Kept,
    /// The text cannot be read; the settings are unchanged.
    Unreadable,
}

/// One option.
#[derive(Copy, Clone, Debug)]
pub struct OptionRow {
    /// Its name in `VRAMALLOC_CONF`. Its environment variable is `VRAMALLOC_`
    /// and this name in capitals.
    pub key: &'static str,
    /// Paddle's variable for it.
    pub paddle: Option<&'static str>,
    /// PyTorch's name for it.
    pub torch: Torch,
    /// The variables of schedulers and container runtimes for it.
    pub schedulers: &'static [&'static str],
    /// Its role.
    pub role: Role,
    /// Kind of value, in a word or two.
    pub kind: &'static str,
    /// The accepted texts, as a phrase that completes "accepted: ".
    pub accepted: &'static str,
    /// What it does.
    pub help: &'static str,
    /// A text that may have been meant by one that cannot be read.
    pub(super) meant: fn(&str) -> Option<String>,
    /// What holds if the option is not given, in words, for options whose
    /// default value alone would not say it.
    pub(super) by_default: &'static str,
    /// Whether the row is read after the others, because what it accepts or
    /// does depends on what they set.
    pub(super) late: bool,
    /// Why it has no effect beside these settings; none where it has one.
    pub(super) idle: fn(&Settings) -> Option<&'static str>,
    /// Reads a text into the settings.
    pub(super) read: fn(&mut Settings, &str) -> Reading,
}

impl OptionRow {
    /// The option whose value this row sets: the row itself, or the one named
    /// by [`Role::Sets`].
    #[must_use]
    pub fn target(&'static self) -> &'static OptionRow {
        match self.role {
            Role::Own(_) | Role::NoEffect(_) => self,
            // A test of the table proves that the name exists.
            Role::Sets(key) => find(key).unwrap_or(self),
        }
    }

    /// The value in `settings`, as text; empty if the option has no effect.
    #[must_use]
    pub fn show(&'static self, settings: &Settings) -> String {
        match self.target().role {
            Role::Own(show) => show(settings),
            Role::Sets(_) | Role::NoEffect(_) => String::new(),
        }
    }

    /// The default value, as text.
    #[must_use]
    pub fn default_value(&'static self) -> String {
        self.show(&Settings::default())
    }

    /// Its keys in PyTorch's allocator variable, the usual one first.
    #[must_use]
    pub fn torch_keys(&self) -> &'static [&'static str] {
        match self.torch {
            Torch::Keys(keys) => keys,
            Torch::No | Torch::Variable(_) => &[],
        }
    }

    /// Its index in [`OPTIONS`].
    pub(super) fn place(&self) -> usize {
        OPTIONS
            .iter()
            .position(|row| row.key == self.key)
            .unwrap_or(OPTIONS.len())
    }

    /// Whether the row has this name: its key, or another of PyTorch's keys.
    fn is_called(&self, name: &str) -> bool {
        self.key == name || self.torch_keys().contains(&name)
    }
}

/// The row with this key, or with this one of PyTorch's keys.
#[must_use]
pub fn find(key: &str) -> Option<&'static OptionRow> {
    OPTIONS.iter().find(|row| row.is_called(key))
}

/// The number of options.
const COUNT: usize =
    own::ROWS.len() + paddle::ROWS.len() + pytorch::ROWS.len() + no_effect::ROWS.len();

/// All options: first our own, then those with a framework's name, and at the
/// end those without an effect.
pub static OPTIONS: &[OptionRow] = &joined();

const fn joined() -> [OptionRow; COUNT] {
    let mut rows = [BLANK; COUNT];
    let mut at = 0;
    let rooms = [own::ROWS, paddle::ROWS, pytorch::ROWS, no_effect::ROWS];
    let mut room = 0;
    while room < rooms.len() {
        let mut row = 0;
        while row < rooms[room].len() {
            rows[at] = rooms[room][row];
            row += 1;
            at += 1;
        }
        room += 1;
    }
    rows
}

/// The defaults of a row's fields.
const BLANK: OptionRow = OptionRow {
    key: "",
    paddle: None,
    torch: Torch::No,
    schedulers: &[],
    role: Role::NoEffect(""),
    kind: "",
    accepted: "",
    help: "",
    meant: |_| None,
    by_default: "",
    late: false,
    idle: |_| None,
    read: |_, _| Reading::Unreadable,
};

/// Stores a value that was read.
pub(super) fn set<T>(field: &mut T, value: Option<T>) -> Reading {
    match value {
        Some(value) => {
            *field = value;
            Reading::Set
        }
        None => Reading::Unreadable,
    }
}

/// The result of reading a text for an option without an effect.
fn kept(readable: bool) -> Reading {
    if readable {
        Reading::Kept
    } else {
        Reading::Unreadable
    }
}

/// Why an option of chunks that are taken in advance is idle.
const IN_ADVANCE: fn(&Settings) -> Option<&'static str> = |s| {
    let takes = s.config.strategy == StrategyKind::NaiveBestFit;
    (!takes).then_some("only strategy naive_best_fit takes chunks in advance")
};

/// Why an option of chunks that are taken when they are needed is idle.
const AS_NEEDED: fn(&Settings) -> Option<&'static str> = |s| {
    let grows = matches!(
        s.config.strategy,
        StrategyKind::AutoGrowth | StrategyKind::Mapped
    );
    (!grows).then_some("only the strategies auto_growth and mapped take chunks as needed")
};

/// Why an option of the pool is idle.
const POOLED: fn(&Settings) -> Option<&'static str> = |s| {
    let passes = s.config.strategy == StrategyKind::Passthrough;
    passes.then_some("under strategy passthrough every request goes to the driver")
};

/// Why an option of the recording is idle.
const RECORDED: fn(&Settings) -> Option<&'static str> =
    |s| (s.record.file.is_none()).then_some("nothing is recorded (option record)");

/// The kind of a boolean.
pub(super) const BOOLEAN: &str = "boolean";
const BOOLEANS: &str = "True, true, TRUE, 1, False, false, FALSE, 0";
const SHARE: &str = "a size such as 16G or 512MiB, a share up to 100% such as 0.5 or 50%, or none";
const MEBIBYTES: &str = "a whole number of MiB from 0 to 17592186044415";
const MEBIBYTES_OR_NONE: &str = "a whole number of MiB from 0 to 17592186044415, or none";
const ZERO_TO_ONE: &str = "a number from 0 to 1";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_unique_and_aliases_lead_to_options() {
        let mut seen = HashSet::new();
        for row in OPTIONS {
            assert!(seen.insert(row.key), "{} stands twice", row.key);
            assert!(
                row.key
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{}",
                row.key
            );
            assert!(!row.key.is_empty() && !row.help.is_empty() && !row.accepted.is_empty());
            assert!(
                matches!(row.target().role, Role::Own(_)) || matches!(row.role, Role::NoEffect(_)),
                "{}",
                row.key
            );
            if let Role::NoEffect(why) = row.role {
                assert!(!why.is_empty(), "{}", row.key);
            }
            if let Some(flag) = row.paddle {
                assert_eq!(flag.strip_prefix("FLAGS_"), Some(row.key));
            }
            if let Torch::Keys(keys) = row.torch {
                assert_eq!(keys.first(), Some(&row.key));
                for other in keys.iter().skip(1) {
                    assert!(seen.insert(other), "{other} stands twice");
                }
            }
        }
    }

    #[test]
    fn every_default_can_be_written_as_an_option() {
        for row in OPTIONS
            .iter()
            .filter(|row| matches!(row.role, Role::Own(_)))
        {
            let mut settings = Settings::default();
            assert_ne!(
                (row.read)(&mut settings, &row.default_value()),
                Reading::Unreadable,
                "{}: {}",
                row.key,
                row.default_value()
            );
            assert_eq!(settings, Settings::default(), "{}", row.key);
        }
    }
}
