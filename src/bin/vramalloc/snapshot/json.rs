//! Writes a structure as JSON, with one line for each entry of a list.

use std::fmt::Write;

use super::shape::Sink;

/// JSON that is being written.
pub(super) struct Json {
    text: String,
}

impl Json {
    pub(super) fn new() -> Json {
        Json {
            text: String::new(),
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push('\n');
        self.text
    }
}

impl Sink for Json {
    fn dictionary(&mut self, fill: impl FnOnce(&mut Self)) {
        self.text.push('{');
        fill(self);
        self.text.push('}');
    }

    fn key(&mut self, key: &str) {
        if !self.text.ends_with('{') {
            self.text.push_str(", ");
        }
        self.text(key);
        self.text.push_str(": ");
    }

    fn list<T>(&mut self, entries: impl Iterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.text.push('[');
        for (at, entry) in entries.enumerate() {
            self.text.push_str(if at > 0 { ",\n" } else { "\n" });
            write(self, entry);
        }
        self.text.push(']');
    }

    fn text(&mut self, text: &str) {
        // A text can always be quoted.
        let quoted = serde_json::to_string(text).unwrap_or_default();
        self.text.push_str(&quoted);
    }

    fn number(&mut self, number: i64) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{number}");
    }

    fn real(&mut self, number: f64) {
        let _ = write!(self.text, "{number:?}");
    }

    fn flag(&mut self, flag: bool) {
        self.text.push_str(if flag { "true" } else { "false" });
    }

    fn pair(&mut self, first: i64, second: i64) {
        let _ = write!(self.text, "[{first}, {second}]");
    }
}
