//! Recordings as docs/recording.md says that they are, written without the library.

/// The size of the head, and the most bytes of a block.
const BLOCK: usize = 64 << 10;

/// When each recording begins, in microseconds since 1970.
pub const BEGAN_US: u64 = 1_000_000_000;

/// Flags of an event: a time follows; a call stack does; it is there already; the
/// address itself follows.
const TIME: u8 = 8;
const STACK: u8 = 16;
const THERE: u8 = 32;
const ADDRESS: u8 = 64;

/// A recording in the making, in one block.
pub struct RecordedFile {
    /// A JSON object that says of what it is.
    text: String,
    events: Vec<u8>,
    sizes: u64,
}

/// What happens in it.
#[derive(Copy, Clone, Debug)]
pub enum Step<'a> {
    /// What follows is of this arena.
    Arena(u64),
    /// What follows is of this thread.
    Thread(u64),
    /// An arena's number, and a JSON object that says what it is.
    IsArena(u64, &'a str),
    /// The number of a call stack, and its places in Python.
    IsStack(u64, &'a [(&'a str, u64, &'a str)]),
    /// Address, size and call stack.
    Alloc(u64, u64, Option<u64>),
    /// Address and size, as for the next two.
    Free(u64, u64),
    /// The device is done with a freed block.
    Completed(u64, u64),
    /// Memory is taken from the driver.
    Segment(u64, u64),
    /// A block of this address and size is there already; a segment is.
    IsAlloc(u64, u64),
    IsSegment(u64, u64),
    /// This many events were lost.
    Gap(u64),
    /// All that is there begins to be told, or was told.
    Telling(bool),
    /// A request of this size and call stack failed.
    Oom(u64, Option<u64>),
    /// An option has another value.
    Option(&'a str, &'a str),
}

impl RecordedFile {
    /// An empty one.
    pub fn new(text: &str) -> RecordedFile {
        RecordedFile {
            text: text.to_owned(),
            events: Vec::new(),
            sizes: 0,
        }
    }

    /// Adds what happened so many microseconds after the step before.
    #[must_use]
    pub fn after(mut self, us: u64, step: Step<'_>) -> RecordedFile {
        let stack = |stack: Option<u64>| stack.map_or(0, |number| number + 1);
        match step {
            Step::Arena(arena) => self.event(6, &[arena]),
            Step::Thread(thread) => self.event(7, &[thread]),
            Step::IsArena(number, is) => {
                let mut said = numbers(&[number]);
                said.extend(text(is));
                self.mark(us, 1, &said);
            }
            Step::IsStack(number, places) => {
                let mut said = numbers(&[number + 1, places.len() as u64]);
                for (file, line, function) in places {
                    said.push(2);
                    said.extend(text(file));
                    said.extend(numbers(&[*line]));
                    said.extend(text(function));
                }
                self.mark(us, 3, &said);
            }
            Step::Alloc(address, size, of) => {
                let listed = self.listed();
                let flags = TIME | STACK | ADDRESS;
                self.event(1 | flags, &[us, listed, size, address, stack(of)]);
            }
            Step::IsAlloc(address, size) => {
                let listed = self.listed();
                let flags = TIME | THERE | ADDRESS;
                self.event(1 | flags, &[us, listed, size, address]);
            }
            Step::IsSegment(address, size) => self.event(4 | TIME | THERE, &[us, address, size]),
            Step::Gap(lost) => self.mark(us, 4, &numbers(&[lost])),
            Step::Telling(begins) => self.mark(us, 5, &numbers(&[begins.into()])),
            Step::Free(address, size) => self.event(2 | TIME, &[us, address, size]),
            Step::Option(key, value) => {
                self.mark(us, 13, &[text(key), text(value)].concat());
            }
            Step::Completed(address, size) => self.event(3 | TIME, &[us, address, size]),
            Step::Segment(address, size) => self.event(4 | TIME, &[us, address, size]),
            Step::Oom(size, of) => self.mark(us, 6, &numbers(&[size, 0, stack(of)])),
        }
        self
    }

    /// The number of a size, which has one of its own each time, as it may.
    fn listed(&mut self) -> u64 {
        self.sizes += 1;
        self.sizes - 1
    }

    fn event(&mut self, kind: u8, said: &[u64]) {
        self.events.push(kind);
        self.events.extend(numbers(said));
    }

    fn mark(&mut self, us: u64, code: u8, said: &[u8]) {
        self.event(TIME, &[us]);
        self.events.push(code);
        self.events.extend(numbers(&[said.len() as u64]));
        self.events.extend(said);
    }

    /// The file of a process that has ended.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"vramrec\n".to_vec();
        let words = [
            1,
            64 << 10,
            0,
            1,
            0,
            word(self.text.len()),
            crc(self.text.as_bytes()),
            1,
        ];
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        file.resize(64, 0);
        file.extend(self.text.as_bytes());
        file.resize(BLOCK, 0);
        file.extend(1u64.to_le_bytes());
        file.extend(word(self.events.len()).to_le_bytes());
        // The checksum of a block that is not complete does not count.
        file.extend(0u32.to_le_bytes());
        file.extend(BEGAN_US.to_le_bytes());
        file.extend([0; 8]);
        file.extend(&self.events);
        file.resize(2 * BLOCK, 0);
        file
    }
}

fn word(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Numbers in bytes of seven bits, the lowest first, each but the last with its
/// highest bit set.
fn numbers(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &number in numbers {
        let mut rest = number;
        while rest > 0x7f {
            bytes.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = numbers(&[text.len() as u64]);
    bytes.extend(text.as_bytes());
    bytes
}

fn crc(bytes: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum()
}
