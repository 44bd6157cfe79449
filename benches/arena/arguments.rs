//! The arguments of a question, and the arenas that they ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use vramalloc_core::Arena;
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::page_map::PageMap;

use vramalloc_benches::driver::{Costless, arena_over, arena_with};
use vramalloc_benches::workload::ALL_SIZES;

/// The pairs `name=value`.
pub(crate) struct Arguments(BTreeMap<String, String>);

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Arguments {
        let pairs = words.filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Arguments(pairs.collect())
    }

    pub(crate) fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).map_or(default, String::as_str)
    }

    pub(crate) fn number(&self, name: &str, default: u64) -> u64 {
        let text = self.text(name, "");
        if text.is_empty() {
            return default;
        }
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    }

    /// How many times the largest size is double the smallest.
    pub(crate) fn doublings(&self) -> f64 {
        self.doublings_or(ALL_SIZES)
    }

    /// The same with this default.
    pub(crate) fn doublings_or(&self, default: f64) -> f64 {
        self.text("doublings", "").parse().unwrap_or(default)
    }

    /// An arena over a driver that costs nothing, except for events
    /// (`event_ns`).
    pub(crate) fn arena(&self) -> Arena<Costless> {
        let driver = Costless::new(0, self.number("event_ns", 0));
        arena_with(driver, 0, &Config::default(), &Arc::new(PageMap::new()))
    }

    pub(crate) fn count(&self, name: &str, default: u64) -> usize {
        usize::try_from(self.number(name, default)).unwrap()
    }
}

/// An arena with the default options over a driver that costs nothing.
pub(crate) fn costless_arena(event_ns: u64) -> Arena<Costless> {
    let map = Arc::new(PageMap::new());
    arena_over(Costless::new(0, event_ns), 0, StrategyKind::default(), &map)
}
