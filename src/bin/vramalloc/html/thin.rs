//! Memory over time in a bounded number of steps.
//!
//! A step stands for a number of changes that follow each other. Of each are kept, as
//! they were, the moments of the most and the least live memory, of the most that was
//! taken and of the most in limbo, and the last; and who held memory when the most was
//! live and at the last. So what is shown of any range of steps has been so, and the end
//! of a range is as it ended. Cost: some 50 ns a change.

use std::collections::{BTreeSet, HashMap};

use super::model::Timeline;

/// A place at a moment.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) time: u64,
    pub(crate) live: u64,
    pub(crate) limbo: u64,
    pub(crate) reserved: u64,
    /// What CUDA itself gave.
    pub(crate) past: u64,
}

impl Moment {
    fn taken(&self) -> u64 {
        self.reserved.saturating_add(self.past)
    }
}

/// The extremes of a step, each with its number among all moments.
#[derive(Copy, Clone)]
struct Extremes {
    most_live: (u64, Moment),
    least_live: (u64, Moment),
    most_taken: (u64, Moment),
    most_limbo: (u64, Moment),
    last: (u64, Moment),
}

/// Who held memory when the most of a step was live, and at its last moment.
struct HeldInStep {
    /// Where in the moments the most was live.
    at: usize,
    /// What changed until then since the step before.
    changes: Vec<(u32, i64)>,
    /// Where in the moments the last is.
    end: usize,
    /// What changed from the most to the last.
    rest: Vec<(u32, i64)>,
}

impl HeldInStep {
    /// The moments, and what changed since the one before.
    fn known(&self) -> impl Iterator<Item = (usize, &[(u32, i64)])> {
        let last = (self.end > self.at).then_some((self.end, &*self.rest));
        std::iter::once((self.at, &*self.changes)).chain(last)
    }
}

/// See the module.
pub(crate) struct Thinner {
    per_step: u64,
    /// How many moments the step has that is being filled.
    filled: u64,
    extremes: Option<Extremes>,
    moments: Vec<Moment>,
    seen: u64,
    held: Vec<HeldInStep>,
    /// What changed in this step: up to its most, and since then.
    changed: HashMap<u32, i64>,
    since: Vec<(u32, i64)>,
}

/// Who held memory is known of so many steps at least, where there are as many.
const FEWEST_HELD: usize = 256;

/// From so many changes on, those of one holder are made one.
const MANY: usize = 8192;

impl Thinner {
    /// For about so many changes, in so many steps.
    pub(crate) fn new(changes: u64, steps: usize) -> Thinner {
        let steps = u64::try_from(steps).unwrap_or(u64::MAX).max(1);
        Thinner {
            per_step: changes.div_ceil(steps).max(1),
            filled: 0,
            extremes: None,
            moments: Vec::new(),
            seen: 0,
            held: Vec::new(),
            changed: HashMap::new(),
            since: Vec::new(),
        }
    }

    /// The place is so from now on; with what changed of holders.
    pub(crate) fn push(&mut self, moment: Moment, changes: &[(u32, i64)]) {
        self.since.extend_from_slice(changes);
        let now = (self.seen, moment);
        self.seen += 1;
        let is_most = match &mut self.extremes {
            None => {
                self.extremes = Some(Extremes {
                    most_live: now,
                    least_live: now,
                    most_taken: now,
                    most_limbo: now,
                    last: now,
                });
                true
            }
            Some(extremes) => extremes.take(now),
        };
        if is_most {
            for (holder, bytes) in self.since.drain(..) {
                *self.changed.entry(holder).or_default() += bytes;
            }
        } else if self.since.len() >= MANY {
            self.since = summed(self.since.drain(..));
        }
        self.filled += 1;
        if self.filled >= self.per_step {
            self.end_step();
        }
    }

    fn end_step(&mut self) {
        let Some(extremes) = self.extremes.take() else {
            return;
        };
        self.filled = 0;
        let mut kept = extremes.all();
        kept.sort_unstable_by_key(|(number, _)| *number);
        let mut last = None;
        let mut at = self.moments.len();
        for (number, moment) in kept {
            if last.replace(number) == Some(number) {
                continue;
            }
            if number == extremes.most_live.0 {
                at = self.moments.len();
            }
            self.moments.push(moment);
        }
        self.held.push(HeldInStep {
            at,
            changes: summed(self.changed.drain()),
            end: self.moments.len() - 1,
            rest: summed(self.since.drain(..)),
        });
    }

    /// How many changes of holders there are.
    pub(crate) fn changes(&self) -> usize {
        let steps = self.held.iter().flat_map(HeldInStep::known);
        steps.map(|(_, changes)| changes.len()).sum()
    }

    /// The steps, with at most so many changes of holders. Where there are more, who held
    /// memory is kept of fewer moments, the last among them, and then what those hold that
    /// held least is summed up as `others`.
    pub(crate) fn into_timeline(mut self, most_changes: usize, others: u32) -> Timeline {
        self.end_step();
        while self.changes() > most_changes && self.held.len() > FEWEST_HELD {
            self.halve();
        }
        let kept = kept_holders(&self.held, most_changes);
        let column = |of: fn(&Moment) -> u64| self.moments.iter().map(of).collect::<Vec<u64>>();
        let moments = || self.held.iter().flat_map(HeldInStep::known);
        let held = moments().map(|(_, changes)| {
            let known = |holder: u32| {
                if kept.contains(&holder) {
                    holder
                } else {
                    others
                }
            };
            let changes = changes.iter().map(|&(one, bytes)| (known(one), bytes));
            let pairs = summed(changes).into_iter();
            pairs
                .flat_map(|(one, bytes)| [i64::from(one), bytes])
                .collect()
        });
        Timeline {
            per_step: self.per_step,
            changes: self.seen,
            time: column(|moment| moment.time),
            live: column(|moment| moment.live),
            limbo: column(|moment| moment.limbo),
            reserved: column(|moment| moment.reserved),
            past: column(|moment| moment.past),
            tells_past: false,
            at: moments().map(|(at, _)| at).collect(),
            held: held.collect(),
        }
    }
}

impl Thinner {
    /// Makes one of two steps that follow each other: the most is that of the one with
    /// more.
    fn halve(&mut self) {
        let live = |at: usize| self.moments.get(at).map(|moment| moment.live);
        let mut kept: Vec<HeldInStep> = Vec::new();
        let mut steps = std::mem::take(&mut self.held).into_iter();
        while let Some(first) = steps.next() {
            let Some(second) = steps.next() else {
                kept.push(first);
                break;
            };
            let between = first.rest.into_iter().chain(second.changes);
            kept.push(if live(second.at) > live(first.at) {
                HeldInStep {
                    changes: summed(first.changes.into_iter().chain(between)),
                    ..second
                }
            } else {
                HeldInStep {
                    at: first.at,
                    changes: first.changes,
                    end: second.end,
                    rest: summed(between.chain(second.rest)),
                }
            });
        }
        self.held = kept;
    }
}

impl Extremes {
    /// Whether this moment has more live memory than all before.
    fn take(&mut self, now: (u64, Moment)) -> bool {
        let (_, moment) = now;
        self.last = now;
        if moment.live < self.least_live.1.live {
            self.least_live = now;
        }
        if moment.taken() > self.most_taken.1.taken() {
            self.most_taken = now;
        }
        if moment.limbo > self.most_limbo.1.limbo {
            self.most_limbo = now;
        }
        let is_most = moment.live > self.most_live.1.live;
        if is_most {
            self.most_live = now;
        }
        is_most
    }

    fn all(&self) -> [(u64, Moment); 5] {
        [
            self.most_live,
            self.least_live,
            self.most_taken,
            self.most_limbo,
            self.last,
        ]
    }
}

/// The changes of each holder as one, without those that come to nothing, in the order
/// of the holders.
fn summed(changes: impl Iterator<Item = (u32, i64)>) -> Vec<(u32, i64)> {
    let mut changes: Vec<(u32, i64)> = changes.collect();
    changes.sort_unstable_by_key(|(holder, _)| *holder);
    changes.dedup_by(|(holder, bytes), (last, sum)| {
        let is_same = holder == last;
        if is_same {
            *sum = sum.saturating_add(*bytes);
        }
        is_same
    });
    changes.retain(|(_, bytes)| *bytes != 0);
    changes
}

/// The holders that ever held most, as many as have at most so many changes.
fn kept_holders(held: &[HeldInStep], most_changes: usize) -> BTreeSet<u32> {
    /// What a holder held, the most of it, and how often it changed.
    #[derive(Default)]
    struct Rank {
        now: i64,
        most: i64,
        changes: usize,
    }
    let mut ranks: HashMap<u32, Rank> = HashMap::new();
    let changes = held.iter().flat_map(HeldInStep::known);
    for (holder, bytes) in changes.flat_map(|(_, changes)| changes) {
        let rank = ranks.entry(*holder).or_default();
        rank.now = rank.now.saturating_add(*bytes);
        rank.most = rank.most.max(rank.now);
        rank.changes += 1;
    }
    let mut ranks: Vec<(u32, Rank)> = ranks.into_iter().collect();
    ranks.sort_unstable_by_key(|(holder, rank)| (std::cmp::Reverse(rank.most), *holder));
    let mut left = most_changes;
    let kept = ranks.into_iter().take_while(|(_, rank)| {
        let has_room = left >= rank.changes;
        left = left.saturating_sub(rank.changes);
        has_room
    });
    kept.map(|(holder, _)| holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: u32 = 99;

    /// What happens to a place with so many holders: the moment, and the change.
    fn story(changes: u64, holders: u32) -> Vec<(Moment, [(u32, i64); 1])> {
        let mut held = vec![0i64; holders as usize];
        let mut seed = 7u64;
        let mut story = Vec::new();
        for n in 0..changes {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let holder = u32::try_from((seed >> 33) % u64::from(holders)).unwrap();
            let sum = &mut held[holder as usize];
            let change = i64::try_from(seed >> 54).unwrap().max(1);
            let change = if *sum > change && seed & 4096 > 0 {
                -change
            } else {
                change
            };
            *sum += change;
            let live = held.iter().sum::<i64>().cast_unsigned();
            let moment = Moment {
                time: n,
                live,
                limbo: (seed >> 40) % 100,
                reserved: live + (seed >> 50) % 512,
                past: 0,
            };
            story.push((moment, [(holder, change)]));
        }
        story
    }

    fn thinned(story: &[(Moment, [(u32, i64); 1])], steps: usize, room: usize) -> Timeline {
        let mut thinner = Thinner::new(story.len() as u64, steps);
        for (moment, change) in story {
            thinner.push(*moment, change);
        }
        thinner.into_timeline(room, OTHERS)
    }

    /// What each holder held at the moments of which that is known.
    fn held(line: &Timeline) -> Vec<(usize, BTreeSet<(i64, i64)>)> {
        let mut now = std::collections::BTreeMap::new();
        let steps = line.at.iter().zip(&line.held);
        let at = |(&at, changes): (&usize, &Vec<i64>)| {
            for pair in changes.chunks(2) {
                *now.entry(pair[0]).or_insert(0) += pair[1];
            }
            let held = now.iter().filter(|(_, bytes)| **bytes != 0);
            (at, held.map(|(holder, bytes)| (*holder, *bytes)).collect())
        };
        steps.map(at).collect()
    }

    #[test]
    fn few_changes_are_kept_one_by_one() {
        let story = story(500, 9);
        let line = thinned(&story, 2000, usize::MAX);
        assert_eq!((line.per_step, line.changes), (1, 500));
        let live: Vec<u64> = story.iter().map(|(moment, _)| moment.live).collect();
        assert_eq!(line.live, live);
        assert_eq!(line.at.len(), 500);
    }

    /// Whatever range of steps is looked at, its extremes are there, as they were.
    #[test]
    fn the_extremes_of_each_step_stay() {
        let story = story(10_007, 9);
        let line = thinned(&story, 100, usize::MAX);
        assert!(line.time.len() <= 500 && line.time.is_sorted());
        for step in story.chunks(usize::try_from(line.per_step).unwrap()) {
            let (from, to) = (step[0].0.time, step[step.len() - 1].0.time);
            let kept = (0..line.time.len()).filter(|&n| (from..=to).contains(&line.time[n]));
            let kept: Vec<usize> = kept.collect();
            let was = |of: fn(&Moment) -> u64| step.iter().map(move |(moment, _)| of(moment));
            let is = |column: &[u64]| kept.iter().map(|&n| column[n]).collect::<Vec<u64>>();
            assert_eq!(is(&line.live).iter().max(), was(|m| m.live).max().as_ref());
            assert_eq!(is(&line.live).iter().min(), was(|m| m.live).min().as_ref());
            assert_eq!(
                is(&line.reserved).iter().max(),
                was(|m| m.reserved).max().as_ref()
            );
            assert_eq!(
                is(&line.limbo).iter().max(),
                was(|m| m.limbo).max().as_ref()
            );
        }
    }

    /// Whatever range of steps is looked at, its end is there, with who held memory then.
    #[test]
    fn the_last_of_each_step_stays() {
        let story = story(10_007, 9);
        let line = thinned(&story, 100, usize::MAX);
        let held = held(&line);
        for step in story.chunks(usize::try_from(line.per_step).unwrap()) {
            let (last, _) = step[step.len() - 1];
            let at = line.time.partition_point(|&time| time <= last.time) - 1;
            assert_eq!((line.time[at], line.live[at]), (last.time, last.live));
            assert!(held.iter().any(|(known, _)| *known == at), "{at}");
        }
    }

    /// With all holders, with fewer moments, and with fewer holders.
    #[test]
    fn what_holders_hold_is_what_was_live() {
        let story = story(20_000, 40);
        let most = story.iter().map(|(moment, _)| moment.live).max();
        for (room, fewest) in [(usize::MAX, 1000), (12_000, 256), (3000, 128), (300, 128)] {
            let line = thinned(&story, 1000, room);
            let held = held(&line);
            assert!(held.len() >= fewest, "{room}: {}", held.len());
            for (at, held) in &held {
                let sum: i64 = held.iter().map(|(_, bytes)| bytes).sum();
                assert_eq!(sum.cast_unsigned(), line.live[*at], "{room}");
                assert!(held.iter().all(|(_, bytes)| *bytes > 0));
            }
            // The peak and the end are among them, and nobody has more changes than there is room for.
            let known = held.iter().map(|(at, _)| line.live[*at]).max();
            assert_eq!(known, most, "{room}");
            assert_eq!(line.at.last(), Some(&(line.live.len() - 1)), "{room}");
            let changes: usize = line.held.iter().map(|changes| changes.len() / 2).sum();
            assert!(
                changes <= room.saturating_add(line.held.len()),
                "{room}: {changes}"
            );
        }
    }
}
