//! The handles that we make, and what they stand for.
//!
//! A *token* is 64 bytes of ours: two random keys that cannot be guessed. They
//! name a file that only the user can read. It holds the *record*: the driver's
//! handle of the allocation, and where in it the block lies. The driver knows
//! no such handle and refuses a token. Invariant: a record is read as it was
//! written, or not at all.

use crate::process::key::Key;
use crate::types::CUipcMemHandle;

/// Begins a token and a record. As the process id or the number in a driver's
/// handle it would be far out of range.
const MARK: [u8; 16] = *b"vramalloc-ipc-v1";

/// Length of CUDA's handle.
const HANDLE: usize = 64;

/// The 64 bytes of a handle, opaque to everyone but their maker.
pub(crate) type HandleBytes = [u8; HANDLE];

/// The bytes of CUDA's handle.
pub(crate) fn bytes_of(handle: &CUipcMemHandle) -> HandleBytes {
    handle
        .reserved
        .map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()))
}

/// CUDA's handle of these bytes.
pub(crate) fn handle_of(bytes: HandleBytes) -> CUipcMemHandle {
    CUipcMemHandle {
        reserved: bytes.map(|byte| std::ffi::c_char::from_ne_bytes(byte.to_ne_bytes())),
    }
}

/// Names a block that a process lets others use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    /// The process.
    pub(crate) process: Key,
    /// The block.
    pub(crate) block: Key,
}

impl Token {
    /// Reads a token; `None` if the handle is the driver's own.
    pub(crate) fn read(handle: &HandleBytes) -> Option<Token> {
        let mut fields = Fields(handle);
        let (mark, process, block) = (fields.take()?, fields.take()?, fields.take()?);
        (mark == MARK && fields.0 == [0; 16]).then_some(Token {
            process: Key(process),
            block: Key(block),
        })
    }

    /// The handle that the program gets.
    pub(crate) fn handle(self) -> HandleBytes {
        let mut handle = [0; HANDLE];
        fill(&mut handle, &[&MARK, &self.process.0, &self.block.0]);
        handle
    }

    /// The name of the record's file.
    pub(crate) fn file(self) -> String {
        format!("{}.{}", self.process.text(), self.block.text())
    }
}

/// Where a block lies that another process may use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The driver's handle of the allocation around it.
    pub(crate) handle: HandleBytes,
    /// How far into the allocation the block starts.
    pub(crate) offset: u64,
    /// Size of the block.
    pub(crate) size: u64,
}

impl Record {
    /// Length of a record's file.
    pub(crate) const LENGTH: usize = 16 + 16 + HANDLE + 8 + 8;

    /// The content of the file of `token`.
    pub(crate) fn bytes(&self, token: Token) -> [u8; Record::LENGTH] {
        let mut bytes = [0; Record::LENGTH];
        let (offset, size) = (self.offset.to_le_bytes(), self.size.to_le_bytes());
        fill(
            &mut bytes,
            &[&MARK, &token.block.0, &self.handle, &offset, &size],
        );
        bytes
    }

    /// Reads what `bytes` wrote for the same token; the block must have an end.
    pub(crate) fn read(bytes: &[u8], token: Token) -> Option<Record> {
        let mut fields = Fields(bytes);
        let (mark, block) = (fields.take()?, Key(fields.take()?));
        let record = Record {
            handle: fields.take()?,
            offset: u64::from_le_bytes(fields.take()?),
            size: u64::from_le_bytes(fields.take()?),
        };
        let whole = mark == MARK && block == token.block && fields.0.is_empty();
        (whole && record.end().is_some()).then_some(record)
    }

    /// How far into the allocation the block ends.
    pub(crate) fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.size)
    }
}

/// Bytes to be read one field after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}

/// Writes one field after the other.
fn fill(bytes: &mut [u8], fields: &[&[u8]]) {
    let mut to = bytes.iter_mut();
    for byte in fields.iter().copied().flatten() {
        if let Some(to) = to.next() {
            *to = *byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            process: Key::random().unwrap(),
            block: Key::random().unwrap(),
        }
    }

    #[test]
    fn tokens_are_read_as_they_were_written() {
        let (one, other) = (token(), token());
        assert_ne!(one, other);
        assert_eq!(Token::read(&one.handle()), Some(one));
        assert_eq!(bytes_of(&handle_of(one.handle())), one.handle());
    }

    #[test]
    fn a_driver_s_own_handle_is_no_token() {
        assert_eq!(Token::read(&[0; 64]), None);
        assert_eq!(Token::read(&[255; 64]), None);
        for place in (0..16).chain(48..64) {
            let mut handle = token().handle();
            handle[place] ^= 1;
            assert_eq!(Token::read(&handle), None, "byte {place}");
        }
    }

    #[test]
    fn a_record_is_whole_or_nothing() {
        let token = token();
        let record = Record {
            handle: [7; 64],
            offset: 1536,
            size: 1024,
        };
        let bytes = record.bytes(token);
        assert_eq!(Record::read(&bytes, token), Some(record));
        assert_eq!(Record::read(&bytes, super::tests::token()), None);
        for length in 0..bytes.len() {
            assert_eq!(Record::read(&bytes[..length], token), None, "{length}");
        }
        assert_eq!(Record::read(&[&bytes[..], &[0]].concat(), token), None);
        let endless = Record {
            offset: u64::MAX,
            ..record
        };
        assert_eq!(Record::read(&endless.bytes(token), token), None);
    }
}
