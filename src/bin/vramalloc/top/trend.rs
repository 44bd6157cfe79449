//! What processes had in the last minutes, as small pictures.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::look::{Look, WatchedId};

/// How far back a picture goes.
const SPAN_MS: u64 = 300_000;

/// The most moments that are kept of a device: three in a second.
const MOST: usize = 900;

/// What a process had of a device, by time.
#[derive(Default)]
pub(super) struct Trends(BTreeMap<(WatchedId, u64), VecDeque<(u64, u64)>>);

impl Trends {
    /// Adds a look, and forgets processes that are gone.
    pub(super) fn add(&mut self, look: &Look) {
        let mut seen = BTreeSet::new();
        for process in &look.processes {
            seen.insert(process.identity());
            for device in process.devices() {
                let key = (process.identity(), device.ordinal);
                let moments = self.0.entry(key).or_default();
                let used = device.live.saturating_add(device.past).get();
                moments.push_back((look.at_ms, used));
                let is_old = |&(at, _): &(u64, u64)| look.at_ms.saturating_sub(at) > SPAN_MS;
                while moments.len() > MOST || moments.front().is_some_and(is_old) {
                    moments.pop_front();
                }
            }
        }
        self.0.retain(|(process, _), _| seen.contains(process));
    }

    /// A picture of so many columns, the last moment to the right, as high as the
    /// most that there was; blank where nothing is known.
    pub(super) fn picture(
        &self,
        process: WatchedId,
        device: u64,
        columns: usize,
        steps: &[char],
    ) -> String {
        let Some(moments) = self.0.get(&(process, device)) else {
            return " ".repeat(columns);
        };
        // Columns stand for fixed times, so that a picture moves as a whole.
        let width = (SPAN_MS / u64::try_from(columns.max(1)).unwrap_or(1)).max(1);
        let now = moments.back().map_or(0, |&(at, _)| at / width);
        let mut most: Vec<Option<u64>> = vec![None; columns];
        for &(at, used) in moments {
            let back = usize::try_from(now.saturating_sub(at / width)).unwrap_or(usize::MAX);
            let place = columns.checked_sub(back.saturating_add(1));
            if let Some(column) = place.and_then(|place| most.get_mut(place)) {
                *column = (*column).max(Some(used));
            }
        }
        let top = most.iter().flatten().max().copied().unwrap_or(0);
        most.into_iter()
            .map(|used| used.map_or(' ', |used| step(used, top, steps)))
            .collect()
    }
}

/// The lowest step stands for nothing, the highest for the most.
fn step(used: u64, top: u64, steps: &[char]) -> char {
    let last = steps.len().saturating_sub(1);
    let scaled = u128::from(used) * last as u128;
    let at = scaled.div_ceil(u128::from(top.max(1)));
    let at = usize::try_from(at).unwrap_or(last).min(last);
    steps.get(at).copied().unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::super::super::look::tests::watched;
    use super::*;

    const STEPS: [char; 5] = ['0', '1', '2', '3', '4'];

    fn look(at_ms: u64, mib: u64) -> Look {
        Look {
            at_ms,
            processes: vec![watched(1, "a", &[(0, [mib, 0, 0, 0])])],
            ..Look::default()
        }
    }

    #[test]
    fn a_picture_is_as_high_as_the_most() {
        let mut trends = Trends::default();
        for (at, mib) in [
            (0, 400),
            (1_000, 0),
            (60_000, 100),
            (120_000, 400),
            (240_000, 1),
        ] {
            trends.add(&look(at, mib));
        }
        let process = look(0, 0).processes[0].identity();
        assert_eq!(trends.picture(process, 0, 5, &STEPS), "414 1");
        assert_eq!(trends.picture(process, 0, 0, &STEPS), "");
        assert_eq!(trends.picture(process, 7, 3, &STEPS), "   ");
        trends.add(&look(310_000, 200));
        assert_eq!(trends.picture(process, 0, 5, &STEPS), "14 12");
        trends.add(&Look::default());
        assert_eq!(trends.picture(process, 0, 2, &STEPS), "  ");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut trends = Trends::default();
        for at in 0..2_000 {
            trends.add(&look(at, 1));
        }
        assert!(trends.0.values().all(|moments| moments.len() == MOST));
    }
}
