//! Writes a structure as a Python pickle.
//!
//! It uses only what the viewer of `PyTorch`'s page can read: protocol 4
//! without frames, and of its opcodes those named here. Lists are filled in
//! batches, because the viewer takes a batch as the arguments of one call.
//! Texts are memoized; lists and dictionaries never are, because the viewer
//! changes them.

use std::collections::HashMap;

use super::shape::Sink;

const PROTO: u8 = 0x80;
const PROTOCOL: u8 = 4;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const SETITEMS: u8 = b'u';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
const TUPLE2: u8 = 0x86;
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const BINFLOAT: u8 = b'G';
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

/// How many entries are added to a list at a time.
const BATCH: usize = 1000;

/// A pickle that is being written.
pub(super) struct Pickle {
    bytes: Vec<u8>,
    /// The memo numbers of the texts so far.
    texts: HashMap<String, u32>,
}

impl Pickle {
    pub(super) fn new() -> Pickle {
        Pickle {
            bytes: vec![PROTO, PROTOCOL],
            texts: HashMap::new(),
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(STOP);
        self.bytes
    }

    fn put(&mut self, opcode: u8, argument: &[u8]) {
        self.bytes.push(opcode);
        self.bytes.extend_from_slice(argument);
    }
}

impl Sink for Pickle {
    fn dictionary(&mut self, fill: impl FnOnce(&mut Self)) {
        self.put(EMPTY_DICT, &[MARK]);
        fill(self);
        self.bytes.push(SETITEMS);
    }

    fn key(&mut self, key: &str) {
        self.text(key);
    }

    fn list<T>(&mut self, entries: impl Iterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.bytes.push(EMPTY_LIST);
        let mut count = 0;
        for entry in entries {
            if count == 0 {
                self.bytes.push(MARK);
            }
            write(self, entry);
            count += 1;
            if count == BATCH {
                self.bytes.push(APPENDS);
                count = 0;
            }
        }
        if count > 0 {
            self.bytes.push(APPENDS);
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(&number) = self.texts.get(text) {
            return match u8::try_from(number) {
                Ok(number) => self.put(BINGET, &[number]),
                Err(_) => self.put(LONG_BINGET, &number.to_le_bytes()),
            };
        }
        match u8::try_from(text.len()) {
            Ok(length) => self.put(SHORT_BINUNICODE, &[length]),
            Err(_) => {
                // No text has 4 GiB.
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.put(BINUNICODE, &length.to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(MEMOIZE);
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.insert(text.to_owned(), number);
    }

    fn number(&mut self, number: i64) {
        if let Ok(number) = u8::try_from(number) {
            self.put(BININT1, &[number]);
        } else if let Ok(number) = u16::try_from(number) {
            self.put(BININT2, &number.to_le_bytes());
        } else if let Ok(number) = i32::try_from(number) {
            self.put(BININT, &number.to_le_bytes());
        } else {
            self.put(LONG1, &[8]);
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn real(&mut self, number: f64) {
        self.put(BINFLOAT, &number.to_be_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.bytes.push(if flag { NEWTRUE } else { NEWFALSE });
    }

    fn pair(&mut self, first: i64, second: i64) {
        self.number(first);
        self.number(second);
        self.bytes.push(TUPLE2);
    }
}
