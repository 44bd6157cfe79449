//! The call stacks that a recording has told, and the files that these name.
//!
//! Invariant: a stack counts as known once its definition is in the recording. Where
//! older events are lost, all is told anew; a file keeps its number for good, as stacks
//! of before are named by it.

use std::collections::{BTreeMap, BTreeSet};

use super::mark::{Mark, Place, RecordFrame};
use crate::stats::StackId;

/// See the module.
#[derive(Default)]
pub(super) struct Known {
    /// Which telling they are of.
    telling: u32,
    stacks: BTreeSet<u32>,
    /// The files that were told, by their numbers.
    told: BTreeSet<u32>,
    objects: BTreeMap<(String, String), u32>,
}

impl Known {
    /// Whether a stack was told since what there is was told anew so often.
    pub(super) fn is_known(&mut self, telling: u32, stack: u32) -> bool {
        if self.telling != telling {
            self.telling = telling;
            self.stacks.clear();
            self.told.clear();
        }
        self.stacks.contains(&stack)
    }

    /// The marks that define a stack. It is known from now on: they are to be written
    /// before anybody looks.
    pub(super) fn define(&mut self, stack: StackId, places: Vec<Place>) -> Vec<Mark> {
        let mut marks = Vec::new();
        let frames = places
            .into_iter()
            .map(|place| self.frame(place, &mut marks))
            .collect();
        marks.push(Mark::Stack { stack, frames });
        self.stacks.extend(stack.number());
        marks
    }

    fn frame(&mut self, place: Place, marks: &mut Vec<Mark>) -> RecordFrame {
        match place {
            Place::Object {
                file,
                build_id,
                offset,
            } => {
                let next = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
                let key = (file.clone(), build_id.clone());
                let object = *self.objects.entry(key).or_insert(next);
                if self.told.insert(object) {
                    marks.push(Mark::Object {
                        object,
                        file,
                        build_id,
                    });
                }
                RecordFrame::Object { object, offset }
            }
            Place::Address(address) => RecordFrame::Address(address),
            Place::Python {
                file,
                line,
                function,
            } => RecordFrame::Python {
                file,
                line,
                function,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(number: u32, file: &str) -> (StackId, Vec<Place>) {
        let place = Place::Object {
            file: file.to_owned(),
            build_id: String::new(),
            offset: 0,
        };
        (StackId::new(number), vec![place])
    }

    #[test]
    fn a_file_that_is_told_anew_has_the_number_that_it_had() {
        let mut known = Known::default();
        let mut numbers = |telling, number, file| {
            assert!(!known.is_known(telling, number));
            let (id, places) = stack(number, file);
            let marks = known.define(id, places);
            assert!(known.is_known(telling, number));
            let object = |mark: &Mark| match mark {
                Mark::Object { object, .. } => Some(*object),
                _ => None,
            };
            marks.iter().filter_map(object).collect::<Vec<u32>>()
        };
        assert_eq!(numbers(0, 1, "a"), [0]);
        assert_eq!(numbers(0, 2, "b"), [1]);
        assert!(numbers(0, 3, "a").is_empty());
        assert_eq!(numbers(1, 2, "b"), [1]);
        assert_eq!(numbers(1, 4, "c"), [2]);
        assert_eq!(numbers(1, 1, "a"), [0]);
    }
}
