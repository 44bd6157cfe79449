//! A file that a program wrote: statistics or a recording.
//!
//! What is read of it does not depend on which of the two it is.

use std::io::{self, Read, Seek};

use vramalloc_core::recording::is_recording;

use super::recording;
use super::snapshot::made::Made;
use super::snapshot::steps::Steps;
use super::stacks::Stacks;
use super::symbols::Symbols;

/// As many bytes as tell a recording from statistics, and more.
const START: u64 = 64;

/// A file that was opened.
pub(crate) enum Input<R> {
    Statistics(Vec<u8>),
    Recording(R),
}

impl<R: Read + Seek> Input<R> {
    /// Reads statistics. A recording, which can be larger than memory, is read as it
    /// is needed.
    pub(crate) fn of(mut file: R) -> io::Result<Input<R>> {
        let mut bytes = Vec::new();
        Read::by_ref(&mut file)
            .take(START)
            .read_to_end(&mut bytes)?;
        if is_recording(&bytes) {
            return Ok(Input::Recording(file));
        }
        file.read_to_end(&mut bytes)?;
        Ok(Input::Statistics(bytes))
    }

    /// Statistics; those of a recording have the peaks of devices, and who held them
    /// by call stack and by size.
    pub(crate) fn into_statistics(self) -> Result<Vec<u8>, String> {
        match self {
            Input::Statistics(bytes) => Ok(bytes),
            Input::Recording(file) => Ok(recording::statistics(file)?.to_string().into_bytes()),
        }
    }

    pub(crate) fn stacks(self, symbols: &mut Symbols) -> Result<Stacks, String> {
        Stacks::of_file(&self.into_statistics()?, symbols)
    }

    /// How much devices held over time.
    pub(crate) fn steps(self) -> Result<Steps, String> {
        match self {
            Input::Statistics(bytes) => Steps::of(&bytes),
            Input::Recording(file) => recording::steps(file),
        }
    }

    pub(crate) fn snapshot(self, symbols: &mut Symbols) -> Result<Made, String> {
        match self {
            Input::Statistics(bytes) => Made::of(&bytes, symbols),
            Input::Recording(file) => {
                recording::snapshot(file, recording::EVENTS as usize, symbols)
            }
        }
    }
}
