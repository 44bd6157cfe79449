//! A snapshot in both forms, made from a file's contents. All of them are in
//! memory.

use super::super::symbols::Symbols;
use super::json::Json;
use super::pickle::Pickle;
use super::read::Statistics;
use super::replay::Replayed;
use super::shape;

/// See the module.
pub(crate) struct Made {
    /// The form that `PyTorch`'s tools open.
    pub(crate) pickle: Vec<u8>,
    /// The same structure as JSON.
    pub(crate) json: String,
    /// The summary line.
    pub(crate) summary: String,
}

impl Made {
    /// # Errors
    /// One line that says what is wrong with the file.
    pub(crate) fn of(bytes: &[u8], symbols: &mut Symbols) -> Result<Made, String> {
        let mut statistics = Statistics::parse(bytes)?;
        let stacks = statistics.take_stacks(symbols);
        let replayed = Replayed::new(&statistics.snapshot);
        let mut pickle = Pickle::new();
        shape::write(&statistics, &replayed, &stacks, &mut pickle);
        let mut json = Json::new();
        shape::write(&statistics, &replayed, &stacks, &mut json);
        Ok(Made {
            pickle: pickle.finish(),
            json: json.finish(),
            summary: replayed.summary(),
        })
    }
}
