//! The names of those who held memory, each once.

use std::collections::HashMap;

use super::model::HolderNames;

/// Names in the making.
pub(crate) struct Names {
    holders: HolderNames,
    numbers: HashMap<String, u32>,
    /// Bytes that further names may have.
    room: usize,
    /// What stands for names for which there was no room.
    rest: Option<u32>,
}

/// The longest name, in characters.
const LONGEST: usize = 400;

impl Names {
    /// No names yet; at most about so many bytes of them.
    pub(crate) fn new(are: &'static str, room: usize) -> Names {
        Names {
            holders: HolderNames {
                are,
                ..HolderNames::default()
            },
            numbers: HashMap::new(),
            room,
            rest: None,
        }
    }

    /// A new holder, by the names of its places, the outermost first. Its number.
    pub(crate) fn holder<'a>(&mut self, places: impl Iterator<Item = &'a str>) -> u32 {
        let places: Vec<u32> = places.map(|name| self.number(name)).collect();
        self.holders.stacks.push(places);
        u32::try_from(self.holders.stacks.len() - 1).unwrap_or(u32::MAX)
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        if name.len() > self.room {
            return match self.rest {
                Some(rest) => rest,
                None => {
                    let rest = self.add("(no room for more names)");
                    self.rest = Some(rest);
                    rest
                }
            };
        }
        self.room -= name.len();
        let number = self.add(name);
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn add(&mut self, name: &str) -> u32 {
        let name = match name.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
            None => name.to_owned(),
        };
        self.holders.names.push(name);
        u32::try_from(self.holders.names.len() - 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn into_holders(self) -> HolderNames {
        self.holders
    }
}
