//! What is shown of a recording's history in the end, with the names of those who held
//! memory.

use std::collections::{BTreeSet, HashMap};

use vramalloc_core::stats::{SIZE_CLASSES, size_class_limit};

use super::{History, Holder, OTHERS};
use crate::html::model::{PageRoom, Peak, ProcessShown};
use crate::html::names::Names;
use crate::stacks::{CallStacks, Stacks};
use crate::symbols::Symbols;
use crate::units;

impl History {
    /// Puts what was kept into the process that is shown.
    pub(super) fn finish(
        mut self,
        last_us: u64,
        room: PageRoom,
        shown: &mut ProcessShown,
        (symbols, shows_all): (&mut Symbols, bool),
    ) {
        self.latest = self.latest.max(last_us.saturating_sub(self.began_us));
        (0..self.places.len()).for_each(|place| self.push(place, &[]));
        let places = std::mem::take(&mut self.places);
        let mut order: Vec<usize> = (0..places.len()).collect();
        let changes: Vec<usize> = places.iter().map(|place| place.thinner.changes()).collect();
        // Those with few changes leave their room to the others.
        order.sort_by_key(|&at| changes.get(at));
        let mut left = room.changes;
        let mut shares = vec![0; places.len()];
        for (n, &at) in order.iter().enumerate() {
            let share = left / (order.len() - n);
            if let (Some(given), Some(&asked)) = (shares.get_mut(at), changes.get(at)) {
                *given = share;
                left -= share.min(asked);
            }
        }
        let places = places.into_iter().zip(shares);
        let places = places.map(|(place, share)| {
            let mut shown = place.shown;
            let timeline = place.thinner.into_timeline(share, OTHERS);
            let most = |column: &[u64]| column.iter().copied().max().unwrap_or(0);
            shown.peaks = Peak {
                live: most(&timeline.live),
                reserved: most(&timeline.reserved),
                past: most(&timeline.past),
                failures: shown.failures_left_out + shown.failures.len() as u64,
            };
            shown.timeline = Some(timeline);
            shown
        });
        shown.places = places.collect();
        let mut used = BTreeSet::new();
        for place in &mut shown.places {
            // Chunks have no more holders than there are otherwise.
            place.each_holder_of_lists(|holder| {
                used.insert(holder);
                Some(holder)
            });
        }
        let numbers = self.named(&used, room, shown, (symbols, shows_all));
        for place in &mut shown.places {
            place.each_holder_of_lists(|holder| numbers.get(&holder).copied());
            place.each_holder_of_chunks(|holder| numbers.get(&holder).copied());
        }
        let hidden = self.books.sums.len().saturating_sub(shown.places.len());
        if hidden > 0 {
            let places = units::count(hidden as u64, "place");
            shown
                .notes
                .push(format!("{places} that held less are left out"));
        }
    }

    /// The numbers in the page of these holders, which get their names there.
    fn named(
        &self,
        used: &BTreeSet<u32>,
        room: PageRoom,
        shown: &mut ProcessShown,
        (symbols, shows_all): (&mut Symbols, bool),
    ) -> HashMap<u32, u32> {
        let stack = |holder: &Holder| match holder {
            Holder::Stack(stack) => stack.number(),
            Holder::Size(_) => None,
        };
        let asked = self.holders.iter().filter(|(_, n)| used.contains(*n));
        let asked: BTreeSet<u32> = asked.filter_map(|(holder, _)| stack(holder)).collect();
        let written = self.told.written_of(|number| asked.contains(&number));
        let said: Option<CallStacks> = serde_json::from_value(written).ok();
        let stacks = Stacks::new(said, None, self.began_us / 1_000_000, symbols);
        let stacks = stacks.with_all(shows_all);
        let are = if self.has_stacks {
            "call stack"
        } else {
            "size class"
        };
        let mut names = Names::new(are, room.names);
        let mut numbers = HashMap::new();
        let mut holders: Vec<(&Holder, u32)> = self.holders.iter().map(|(h, n)| (h, *n)).collect();
        holders.sort_unstable_by_key(|(_, number)| *number);
        for (holder, number) in holders {
            if used.contains(&number) {
                let places = places_of(*holder, &stacks);
                let name = names.holder(places.iter().map(String::as_str));
                numbers.insert(number, name);
            }
        }
        if used.contains(&OTHERS) {
            let name = format!("(other {are}s, which held less)");
            numbers.insert(OTHERS, names.holder([name.as_str()].into_iter()));
        }
        shown.holders = names.into_holders();
        if !self.has_stacks && !shown.places.is_empty() {
            shown.notes.push(
                "The recording has no call stacks, so requests are told apart by their size; \
                 vramalloc run --option stacks=all --option record=%e.%p.rec records them."
                    .to_owned(),
            );
        }
        numbers
    }
}

/// The names of the places of a holder, the outermost first.
fn places_of(holder: Holder, stacks: &Stacks) -> Vec<String> {
    match holder {
        Holder::Stack(stack) => {
            let Some(number) = stack.number() else {
                return vec!["(no call stack)".to_owned()];
            };
            let shown = stacks.shown(u64::from(number));
            let mut places: Vec<String> = shown.iter().map(|place| place.text()).collect();
            places.reverse();
            match places.is_empty() {
                true => vec!["(a call stack that is not in the file)".to_owned()],
                false => places,
            }
        }
        Holder::Size(class) if class + 1 < SIZE_CLASSES => {
            let bound = units::bytes(size_class_limit(class).get());
            vec![format!("requests up to {bound}")]
        }
        Holder::Size(_) => vec!["larger requests".to_owned()],
    }
}
