//! Reading a recording, from the oldest event in it to the newest.
//!
//! Invariant: whatever the file holds, and wherever it is cut off, what is read is
//! whole events that were written, and what is missing is counted. Cost: some 10 ns an
//! event, and a block in memory.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use super::block::{Decoded, Decoder};
use super::form::{BLOCK, BYTES, In, MAGIC, SEALED, VERSION, block, head, long, sum_of, word};
use super::mark::Mark;
use super::tend::Standing;
use crate::stats::Event;

/// What was recorded, of which arena, by which thread and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The number of its arena; none before any was named.
    pub arena: Option<u32>,
    /// The number of the thread, in the order in which threads were recorded first.
    pub thread: u32,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// What.
    pub found: Found,
}

/// An event, or a mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Of a block or a segment.
    Event {
        /// What happened.
        event: Event,
        /// It did not happen then: the block or the segment was there already, and
        /// `true` where the program had freed it.
        told: Option<bool>,
    },
    /// Anything else.
    Mark(Mark),
}

/// Why a file cannot be read at all.
#[derive(Debug)]
pub enum Unreadable {
    /// It is no recording.
    NotOne,
    /// It is one of a later version.
    Version(u32),
    /// It is cut off within what it begins with.
    Head,
    /// The system does not let it be read.
    System(io::Error),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::NotOne => f.write_str("it is no recording"),
            Unreadable::Version(version) => write!(
                f,
                "it is a recording of version {version}; this program reads version {VERSION}"
            ),
            Unreadable::Head => f.write_str("it is cut off before its first event"),
            Unreadable::System(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Unreadable {
        Unreadable::System(error)
    }
}

/// Whether a file that begins so is a recording.
#[must_use]
pub fn is_recording(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

/// What was read so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Events of blocks and segments, without what was told anew.
    pub events: u64,
    /// Blocks of the file that were read.
    pub blocks: u64,
    /// Bytes of events and marks.
    pub bytes: u64,
    /// Blocks whose checksum is wrong or that hold something else than events: what
    /// is behind that in the block is left out.
    pub damaged: u64,
    /// Blocks that are missing between others.
    pub missing: u64,
    /// Frees of blocks whose allocation is not there.
    pub unknown: u64,
    /// The file is cut off.
    pub is_cut: bool,
}

/// See the module.
pub struct RecordReader<R> {
    file: R,
    ring: u64,
    standing: Standing,
    lost: u64,
    text: String,
    /// The number of each block and its place in the file, the oldest first.
    blocks: std::vec::IntoIter<(u64, u64)>,
    first: u64,
    last: u64,
    bytes: Vec<u8>,
    /// Where the next event is in them, and where they end.
    at: usize,
    end: usize,
    /// They are cut off with the file.
    is_cut_here: bool,
    decoder: Decoder,
    totals: Totals,
}

impl<R: Read + Seek> RecordReader<R> {
    /// Reads what a recording begins with.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn open(mut file: R) -> Result<RecordReader<R>, Unreadable> {
        file.rewind()?;
        let mut bytes = Vec::new();
        file.by_ref().take(BLOCK).read_to_end(&mut bytes)?;
        if !is_recording(&bytes) {
            return Err(Unreadable::NotOne);
        }
        let version = word(&bytes, head::VERSION);
        if bytes.len() < head::TEXT {
            return Err(Unreadable::Head);
        }
        if version != VERSION || u64::from(word(&bytes, head::BLOCK)) != BLOCK {
            return Err(Unreadable::Version(version));
        }
        let length = word(&bytes, head::LENGTH) as usize;
        let text = head::TEXT.checked_add(length);
        let text = text.and_then(|end| bytes.get(head::TEXT..end));
        let Some(text) = text.filter(|text| crc32fast::hash(text) == word(&bytes, head::SUM))
        else {
            return Err(Unreadable::Head);
        };
        let text = String::from_utf8_lossy(text).into_owned();
        let (blocks, there) = index(&mut file)?;
        let is_cut = there < u64::from(word(&bytes, head::BLOCKS)) || bytes.len() < BYTES;
        let first = blocks.first().map_or(1, |&(sequence, _)| sequence);
        Ok(RecordReader {
            file,
            ring: u64::from(word(&bytes, head::RING)),
            standing: Standing::of(word(&bytes, head::STANDING)).unwrap_or(Standing::Running),
            lost: u64::from(word(&bytes, head::LOST)),
            text,
            first,
            last: first.saturating_sub(1),
            blocks: blocks.into_iter(),
            bytes,
            at: 0,
            end: 0,
            is_cut_here: false,
            decoder: Decoder::new(),
            totals: Totals {
                is_cut,
                ..Totals::default()
            },
        })
    }

    /// The JSON object that says of what it is a recording.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How it stood when it was written last.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Events that found no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether older events make room for new ones.
    pub fn is_ring(&self) -> bool {
        self.ring > 0
    }

    /// Whether they have: the recording does not begin where the process did.
    pub fn begins_late(&self) -> bool {
        self.first > 1
    }

    /// What was read so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The next event or mark; none at the end.
    ///
    /// # Errors
    /// What the system answers.
    #[inline]
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        loop {
            let rest = self.bytes.get(self.at..self.end).unwrap_or_default();
            let mut read = In { rest };
            let step = self.decoder.step(&mut read);
            self.at = self.end - read.rest.len();
            match step {
                Decoded::Entry(entry) => {
                    let is_event = matches!(entry.found, Found::Event { told: None, .. });
                    self.totals.events += u64::from(is_event);
                    return Ok(Some(entry));
                }
                Decoded::Unknown => self.totals.unknown += 1,
                Decoded::Broken => {
                    // An event that is cut off with the file is none.
                    self.totals.damaged += u64::from(!self.is_cut_here);
                    self.at = self.end;
                }
                Decoded::End => {
                    if !self.next_block()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Reads the next block that can be read; false where there is none.
    fn next_block(&mut self) -> io::Result<bool> {
        loop {
            let Some((sequence, at)) = self.blocks.next() else {
                return Ok(false);
            };
            self.file.seek(SeekFrom::Start(at))?;
            self.bytes.clear();
            self.file
                .by_ref()
                .take(BLOCK)
                .read_to_end(&mut self.bytes)?;
            if long(&self.bytes, block::SEQUENCE) != sequence {
                // A ring that goes on has made room for newer ones there.
                continue;
            }
            self.totals.missing += sequence.saturating_sub(self.last.saturating_add(1));
            self.last = sequence;
            let said = word(&self.bytes, block::LENGTH);
            let length = (said & !SEALED) as usize;
            let end = block::EVENTS.saturating_add(length);
            let is_cut = end > self.bytes.len();
            let is_whole = said & SEALED == 0
                || is_cut
                || sum_of(&self.bytes, length) == word(&self.bytes, block::SUM);
            if !is_whole || end > BYTES {
                self.totals.damaged += 1;
                continue;
            }
            self.totals.is_cut |= is_cut;
            self.is_cut_here = is_cut;
            self.totals.blocks += 1;
            self.end = end.min(self.bytes.len());
            self.at = block::EVENTS.min(self.end);
            self.totals.bytes += (self.end - self.at) as u64;
            self.decoder.restart(&self.bytes);
            return Ok(true);
        }
    }
}

/// The number and the place of each block that was used, the oldest first; and how many
/// blocks there are.
fn index<R: Read + Seek>(file: &mut R) -> Result<(Vec<(u64, u64)>, u64), Unreadable> {
    let mut blocks = Vec::new();
    let mut at = BLOCK;
    loop {
        file.seek(SeekFrom::Start(at))?;
        let mut start = Vec::with_capacity(block::EVENTS);
        file.by_ref()
            .take(block::EVENTS as u64)
            .read_to_end(&mut start)?;
        if start.len() < block::EVENTS {
            break;
        }
        let sequence = long(&start, block::SEQUENCE);
        if sequence > 0 {
            blocks.push((sequence, at));
        }
        at += BLOCK;
    }
    blocks.sort_unstable();
    Ok((blocks, at / BLOCK - 1))
}
