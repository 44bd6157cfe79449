//! Names that cannot be guessed, for files that only their maker knows.

/// A name that cannot be guessed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key(pub(crate) [u8; 16]);

impl Key {
    /// Why there is no key.
    pub(crate) const NONE: &str = "the system gives no random numbers";

    /// A new key; `None` if the system gives no random numbers.
    pub(crate) fn random() -> Option<Key> {
        let mut key = [0_u8; 16];
        // SAFETY: the buffer has room for that many bytes.
        let filled = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
        (usize::try_from(filled) == Ok(key.len())).then_some(Key(key))
    }

    /// As part of a file's name: 32 hexadecimal digits.
    pub(crate) fn text(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what `text` wrote, and nothing else.
    pub(crate) fn read(text: &str) -> Option<Key> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut key = [0_u8; 16];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != key.len() || !rest.is_empty() {
            return None;
        }
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written_and_nothing_else_is() {
        let key = Key::random().unwrap();
        assert_eq!(Key::read(&key.text()), Some(key));
        for bad in [
            "",
            "0",
            &"g".repeat(32),
            &"A".repeat(32),
            &"a".repeat(31),
            &"a".repeat(34),
        ] {
            assert_eq!(Key::read(bad), None, "{bad}");
        }
    }
}
