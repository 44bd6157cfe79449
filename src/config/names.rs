//! Values that have a name, and their names.

use super::{FreeSync, Import, OomReport, StackChoice, StrategyKind};

/// The values that have a name, with their names.
pub(super) type Names<T> = &'static [(&'static str, T)];

/// `strategy`.
pub(super) const STRATEGIES: Names<StrategyKind> = &[
    ("naive_best_fit", StrategyKind::NaiveBestFit),
    ("auto_growth", StrategyKind::AutoGrowth),
    ("mapped", StrategyKind::Mapped),
    ("passthrough", StrategyKind::Passthrough),
];

/// The name of a strategy.
pub(crate) fn strategy_name(kind: StrategyKind) -> &'static str {
    let found = STRATEGIES.iter().find(|(_, named)| *named == kind);
    found.map_or("", |(name, _)| name)
}

/// The names of the strategies.
pub fn strategies() -> impl Iterator<Item = &'static str> {
    STRATEGIES.iter().map(|(name, _)| *name)
}

/// `free_sync`.
pub(super) const FREE_SYNCS: Names<FreeSync> = &[
    ("deferred", FreeSync::Deferred),
    ("strict", FreeSync::Strict),
    ("immediate", FreeSync::Immediate),
];

/// The names of the values of `free_sync`.
pub fn free_syncs() -> impl Iterator<Item = &'static str> {
    FREE_SYNCS.iter().map(|(name, _)| *name)
}

/// `oom_report`.
pub(super) const OOM_REPORTS: Names<OomReport> = &[
    ("off", OomReport::Off),
    ("summary", OomReport::Summary),
    ("full", OomReport::Full),
];

/// `stacks`.
pub(super) const STACKS: Names<StackChoice> = &[
    ("off", StackChoice::Off),
    ("sampled", StackChoice::Sampled),
    ("all", StackChoice::All),
];

/// `record_full`: whether the oldest events make room.
pub(super) const WHEN_FULL: Names<bool> = &[("stop", false), ("ring", true)];

/// `import`.
pub(super) const IMPORTS: Names<Import> = &[
    ("auto", Import::Auto),
    ("always", Import::Always),
    ("never", Import::Never),
];

/// `control`, `room`.
pub(super) const ON_OFF: Names<bool> = &[("on", true), ("off", false)];

/// `managed`: whether it counts.
pub(super) const COUNTED: Names<bool> = &[("counted", true), ("uncounted", false)];

/// `nvml`: whether its answers are changed where a limit is in force.
pub(super) const LIMITED: Names<bool> = &[("limited", true), ("off", false)];

/// `no_cuda_memory_caching`: the texts that PyTorch recognises.
pub(super) const SWITCH: Names<bool> = &[("1", true), ("0", false)];

/// The spellings of a boolean, including those that the frameworks accept.
const BOOLEANS: Names<bool> = &[
    ("True", true),
    ("true", true),
    ("TRUE", true),
    ("1", true),
    ("False", false),
    ("false", false),
    ("FALSE", false),
    ("0", false),
];

/// The value with this name.
pub(super) fn named<T: Copy>(names: Names<T>, text: &str) -> Option<T> {
    names
        .iter()
        .find(|(name, _)| *name == text)
        .map(|&(_, value)| value)
}

/// The (first) name of this value.
pub(super) fn name_of<T: PartialEq>(names: Names<T>, value: &T) -> String {
    names
        .iter()
        .find(|(_, of)| of == value)
        .map_or_else(String::new, |(name, _)| (*name).to_owned())
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    named(BOOLEANS, text)
}

/// A boolean, as both frameworks read it.
pub(super) fn show_boolean(value: bool) -> String {
    name_of(BOOLEANS, &value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_as_the_frameworks_spell_them() {
        assert_eq!(boolean("True"), Some(true));
        assert_eq!(boolean("0"), Some(false));
        assert_eq!(boolean("yes"), None);
    }
}
