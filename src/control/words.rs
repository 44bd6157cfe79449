//! Texts and numbers as words.

/// Adds a text: its length in bytes, then at most so many words. What does not
/// fit is cut off, between two characters.
pub(super) fn pack(to: &mut Vec<u64>, text: &str, most: usize) {
    let text = cut(text, 8 * most);
    to.push(text.len() as u64);
    to.extend(text.as_bytes().chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes
            .iter_mut()
            .zip(chunk)
            .for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(bytes)
    }));
}

/// The longest beginning of a text that has no more bytes.
fn cut(text: &str, most: usize) -> &str {
    let fits = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=most.min(text.len())).rev().find(fits);
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// Words to be read one after the other; `None` where they end too soon.
pub(super) struct Reader<'a>(pub(super) &'a [u64]);

impl<'a> Reader<'a> {
    pub(super) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*word)
    }

    pub(super) fn words(&mut self, count: usize) -> Option<&'a [u64]> {
        let (words, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(words)
    }

    /// What `pack` wrote. What is no text is replaced.
    pub(super) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.word()?).ok()?;
        let words = self.words(length.div_ceil(8))?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = bytes.get(..length)?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// The high and the low half.
pub(super) fn halves(number: u128) -> (u64, u64) {
    let [high, low] = [number >> 64, number & u128::from(u64::MAX)];
    let half = |number| u64::try_from(number).unwrap_or(u64::MAX);
    (half(high), half(low))
}

pub(super) fn joined(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}
