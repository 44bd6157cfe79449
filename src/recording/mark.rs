//! What a recording tells besides the events of blocks.
//!
//! Invariant: a mark says its length, so that a reader skips those that it does not
//! know.

use super::form::{In, Out};
use crate::address::Bytes;
use crate::stats::StackId;

/// A place in the program's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a file that was loaded.
    Object {
        /// Its path.
        file: String,
        /// Its build id in hexadecimal digits; empty where it has none.
        build_id: String,
        /// The address of the call in that file, as its own tables count.
        offset: u64,
    },
    /// At an address of the process, which came from no file.
    Address(u64),
    /// A line of Python.
    Python {
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// The function.
        function: String,
    },
}

/// A place in the definition of a call stack, with an object by its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordFrame {
    /// In an object.
    Object {
        /// The number of its [`Mark::Object`].
        object: u32,
        /// See [`Place::Object`].
        offset: u64,
    },
    /// See [`Place::Address`].
    Address(u64),
    /// See [`Place::Python`].
    Python {
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// The function.
        function: String,
    },
}

/// See the module. The numbers are those of docs/recording.md.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// An arena: its number and a JSON object that says what it is.
    Arena {
        /// By this number events name it.
        arena: u32,
        /// What it is.
        text: String,
    },
    /// A file with code.
    Object {
        /// By this number frames name it.
        object: u32,
        /// Its path.
        file: String,
        /// See [`Place::Object`].
        build_id: String,
    },
    /// A call stack.
    Stack {
        /// By this number events name it.
        stack: StackId,
        /// Its places, the innermost first.
        frames: Vec<RecordFrame>,
    },
    /// This many events before this one are not in the recording.
    Gap(u64),
    /// What all arenas hold is told from here, or was told up to here.
    Telling {
        /// Whether it begins.
        begins: bool,
    },
    /// A request failed for want of memory.
    Oom {
        /// As in [`Event`](crate::stats::Event).
        size: Bytes,
        /// See [`Action::Oom`](crate::stats::Action::Oom).
        device_free: Bytes,
        /// The call stack, if call stacks are taken.
        stack: StackId,
    },
    /// A batch of freed blocks has its fence.
    Fence(u64),
    /// The fence of this batch was reached, and of all older ones.
    Reached(u64),
    /// A call of the program waited for the device.
    Waited {
        /// For so long.
        ns: u64,
        /// Of that, because more was in limbo than its budget allows.
        budget_ns: u64,
    },
    /// The driver gave no memory.
    Refused {
        /// For so much.
        size: Bytes,
        /// CUDA's code.
        code: u32,
    },
    /// A stream begins or ends a capture.
    Capture {
        /// Whether it begins.
        begins: bool,
        /// The stream's handle.
        stream: u64,
    },
    /// A scope of the C API begins or ends on this thread.
    Scope {
        /// Whether it begins.
        begins: bool,
    },
    /// An option was changed.
    Option {
        /// Which.
        key: String,
        /// Its value since.
        value: String,
    },
    /// Memory that is not used was asked back from the arenas of a device.
    Trim,
    /// The context of an arena has ended, with all memory in it.
    Ended,
}

impl Mark {
    /// Writes its number, and what it says.
    pub(super) fn write(&self, out: &mut Out) -> u8 {
        match self {
            Mark::Arena { arena, text } => {
                out.number(u64::from(*arena));
                out.text(text);
                1
            }
            Mark::Object {
                object,
                file,
                build_id,
            } => {
                out.number(u64::from(*object));
                out.text(file);
                out.text(build_id);
                2
            }
            Mark::Stack { stack, frames } => {
                out.number(stack_number(*stack));
                out.number(frames.len() as u64);
                frames.iter().for_each(|frame| frame.write(out));
                3
            }
            Mark::Gap(lost) => one(out, *lost, 4),
            Mark::Telling { begins } => one(out, u64::from(*begins), 5),
            Mark::Oom {
                size,
                device_free,
                stack,
            } => {
                out.number(size.get());
                out.number(device_free.get());
                one(out, stack_number(*stack), 6)
            }
            Mark::Fence(number) => one(out, *number, 7),
            Mark::Reached(number) => one(out, *number, 8),
            Mark::Waited { ns, budget_ns } => {
                out.number(*ns);
                one(out, *budget_ns, 9)
            }
            Mark::Refused { size, code } => {
                out.number(size.get());
                one(out, u64::from(*code), 10)
            }
            Mark::Capture { begins, stream } => {
                out.number(u64::from(*begins));
                one(out, *stream, 11)
            }
            Mark::Scope { begins } => one(out, u64::from(*begins), 12),
            Mark::Option { key, value } => {
                out.text(key);
                out.text(value);
                13
            }
            Mark::Trim => 14,
            Mark::Ended => 15,
        }
    }

    /// Reads what a mark of this number says; none where that is no such mark, or it
    /// is not known.
    pub(super) fn read(code: u8, bytes: &[u8]) -> Option<Mark> {
        let mut read = In { rest: bytes };
        let read = &mut read;
        Some(match code {
            1 => Mark::Arena {
                arena: read.small()?,
                text: read.text()?,
            },
            2 => Mark::Object {
                object: read.small()?,
                file: read.text()?,
                build_id: read.text()?,
            },
            3 => {
                let stack = stack_of(read.number()?)?;
                let count = read.number()?;
                let mut frames = Vec::new();
                for _ in 0..count {
                    frames.push(RecordFrame::read(read)?);
                }
                Mark::Stack { stack, frames }
            }
            4 => Mark::Gap(read.number()?),
            5 => Mark::Telling {
                begins: read.number()? != 0,
            },
            6 => Mark::Oom {
                size: Bytes::new(read.number()?),
                device_free: Bytes::new(read.number()?),
                stack: stack_of(read.number()?)?,
            },
            7 => Mark::Fence(read.number()?),
            8 => Mark::Reached(read.number()?),
            9 => Mark::Waited {
                ns: read.number()?,
                budget_ns: read.number()?,
            },
            10 => Mark::Refused {
                size: Bytes::new(read.number()?),
                code: read.small()?,
            },
            11 => Mark::Capture {
                begins: read.number()? != 0,
                stream: read.number()?,
            },
            12 => Mark::Scope {
                begins: read.number()? != 0,
            },
            13 => Mark::Option {
                key: read.text()?,
                value: read.text()?,
            },
            14 => Mark::Trim,
            15 => Mark::Ended,
            _ => return None,
        })
    }
}

fn one(out: &mut Out, number: u64, code: u8) -> u8 {
    out.number(number);
    code
}

/// A call stack as a number, from 1; 0 for none.
pub(super) fn stack_number(stack: StackId) -> u64 {
    stack.number().map_or(0, |number| u64::from(number) + 1)
}

pub(super) fn stack_of(number: u64) -> Option<StackId> {
    let Some(number) = number.checked_sub(1) else {
        return Some(StackId::NONE);
    };
    u32::try_from(number).ok().map(StackId::new)
}

impl RecordFrame {
    fn write(&self, out: &mut Out) {
        match self {
            RecordFrame::Object { object, offset } => {
                out.byte(0);
                out.number(u64::from(*object));
                out.number(*offset);
            }
            RecordFrame::Address(address) => {
                out.byte(1);
                out.number(*address);
            }
            RecordFrame::Python {
                file,
                line,
                function,
            } => {
                out.byte(2);
                out.text(file);
                out.number(u64::from(*line));
                out.text(function);
            }
        }
    }

    fn read(read: &mut In<'_>) -> Option<RecordFrame> {
        Some(match read.byte()? {
            0 => RecordFrame::Object {
                object: read.small()?,
                offset: read.number()?,
            },
            1 => RecordFrame::Address(read.number()?),
            2 => RecordFrame::Python {
                file: read.text()?,
                line: read.small()?,
                function: read.text()?,
            },
            _ => return None,
        })
    }
}
