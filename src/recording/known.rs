//! The call stacks that a recording has told, and the files that these name.
//!
//! Invariant: a stack counts as known once its definition is in the recording. Where
//! older events are lost, all is told anew.

use std::collections::{BTreeMap, BTreeSet};

use super::mark::{Mark, Place, RecordFrame};
use crate::stats::StackId;

/// See the module.
#[derive(Default)]
pub(super) struct Known {
    /// Which telling they are of.
    telling: u32,
    stacks: BTreeSet<u32>,
    objects: BTreeMap<(String, String), u32>,
}

impl Known {
    /// Whether a stack was told since what there is was told anew so often.
    pub(super) fn is_known(&mut self, telling: u32, stack: u32) -> bool {
        if self.telling != telling {
            *self = Known {
                telling,
                ..Known::default()
            };
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
                let key = (file, build_id);
                let object = match self.objects.get(&key) {
                    Some(&object) => object,
                    None => {
                        marks.push(Mark::Object {
                            object: next,
                            file: key.0.clone(),
                            build_id: key.1.clone(),
                        });
                        self.objects.insert(key, next);
                        next
                    }
                };
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
