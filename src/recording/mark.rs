//! What a recording tells besides the events of blocks.
//!
//! Invariant: a mark says its length, so that a reader skips those that it does not
//! know.

use super::form::{In, Out};
use crate::address::Bytes;
use crate::stats::{Family, StackId};

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

/// What an arena is asked for besides memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ArenaOrder {
    /// [`Arena::flush`](crate::Arena::flush).
    Flush = 1,
    /// [`Arena::give_back_idle`](crate::Arena::give_back_idle).
    GiveBackIdle = 2,
    /// [`Arena::give_back_when_quiet`](crate::Arena::give_back_when_quiet).
    GiveBackWhenQuiet = 3,
    /// [`Arena::give_room`](crate::Arena::give_room).
    GiveRoom = 4,
    /// [`Arena::grow_plainly`](crate::Arena::grow_plainly).
    GrowPlainly = 5,
    /// [`Arena::mem_info`](crate::Arena::mem_info).
    MemInfo = 6,
}

impl ArenaOrder {
    /// The word in what is read of a recording.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            ArenaOrder::Flush => "flush",
            ArenaOrder::GiveBackIdle => "give_back_idle",
            ArenaOrder::GiveBackWhenQuiet => "give_back_when_quiet",
            ArenaOrder::GiveRoom => "give_room",
            ArenaOrder::GrowPlainly => "grow_plainly",
            ArenaOrder::MemInfo => "mem_info",
        }
    }

    fn of(number: u64) -> Option<ArenaOrder> {
        let all = [
            ArenaOrder::Flush,
            ArenaOrder::GiveBackIdle,
            ArenaOrder::GiveBackWhenQuiet,
            ArenaOrder::GiveRoom,
            ArenaOrder::GrowPlainly,
            ArenaOrder::MemInfo,
        ];
        all.into_iter().find(|order| *order as u64 == number)
    }
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
    /// The driver was asked what the device has.
    Memory {
        /// Bytes that it could hand out.
        free: Bytes,
        /// Bytes of the device.
        total: Bytes,
        /// What the process has of it, in all arenas and past them.
        reserved: Bytes,
    },
    /// Addresses were reserved for a range.
    Reserved {
        /// The first.
        address: u64,
        /// How many.
        size: Bytes,
    },
    /// So many units were created by a call whose next was refused.
    Created(u64),
    /// The arena was asked for something besides memory.
    Order(ArenaOrder),
    /// What virtual memory can do, before the arena takes the first of it.
    Mapping {
        /// See [`MappingTraits`](crate::driver::mapping::MappingTraits); nothing where
        /// there is none.
        granule: Bytes,
        /// See there.
        unmaps_runs: bool,
    },
    /// Whether the device had nothing to do, or soon would not, where that was asked.
    Quiet(bool),
    /// How the fence was reached that the next mark of the arena says is: where this
    /// is missing, a call that needed memory asked for it.
    Seen(FenceSeen),
    /// So much was asked for by the request that the next mark of the arena says failed:
    /// that counts whole blocks.
    Wanted(Bytes),
    /// The program has memory of a device past the arenas, which no event tells of: told
    /// once for each device and family.
    Past {
        /// The device's ordinal.
        device: u32,
        /// The functions that took it.
        family: Family,
    },
}

/// How it is seen that a fence is reached.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FenceSeen {
    /// A free asked.
    InFree = 1,
    /// It was waited for.
    ByWaiting = 2,
}

impl FenceSeen {
    /// The word in what is read of a recording.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            FenceSeen::InFree => "in_free",
            FenceSeen::ByWaiting => "by_waiting",
        }
    }

    fn of(number: u64) -> Option<FenceSeen> {
        let all = [FenceSeen::InFree, FenceSeen::ByWaiting];
        all.into_iter().find(|seen| *seen as u64 == number)
    }
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
            Mark::Memory {
                free,
                total,
                reserved,
            } => {
                out.number(free.get());
                out.number(total.get());
                one(out, reserved.get(), 16)
            }
            Mark::Reserved { address, size } => {
                out.number(*address);
                one(out, size.get(), 17)
            }
            Mark::Created(units) => one(out, *units, 18),
            Mark::Order(order) => one(out, *order as u64, 19),
            Mark::Mapping {
                granule,
                unmaps_runs,
            } => {
                out.number(granule.get());
                one(out, u64::from(*unmaps_runs), 20)
            }
            Mark::Quiet(is_quiet) => one(out, u64::from(*is_quiet), 21),
            Mark::Seen(seen) => one(out, *seen as u64, 22),
            Mark::Wanted(request) => one(out, request.get(), 23),
            Mark::Past { device, family } => {
                out.number(u64::from(*device));
                out.text(family.key());
                24
            }
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
            16 => Mark::Memory {
                free: Bytes::new(read.number()?),
                total: Bytes::new(read.number()?),
                reserved: Bytes::new(read.number()?),
            },
            17 => Mark::Reserved {
                address: read.number()?,
                size: Bytes::new(read.number()?),
            },
            18 => Mark::Created(read.number()?),
            19 => Mark::Order(ArenaOrder::of(read.number()?)?),
            20 => Mark::Mapping {
                granule: Bytes::new(read.number()?),
                unmaps_runs: read.number()? != 0,
            },
            21 => Mark::Quiet(read.number()? != 0),
            22 => Mark::Seen(FenceSeen::of(read.number()?)?),
            23 => Mark::Wanted(Bytes::new(read.number()?)),
            24 => Mark::Past {
                device: read.small()?,
                family: Family::with_key(&read.text()?)?,
            },
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
