//! The call stacks as a file of statistics has them.
//!
//! Numbers that name nothing are left out when they are used; a file that was
//! cut or edited by hand is shown as far as it goes.

use std::path::PathBuf;

use serde::Deserialize;

use super::super::symbols::{Binary, demangled};

/// The key `call_stacks`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CallStacks {
    /// The mean distance of samples; 0 if every request was taken.
    pub(crate) sample_bytes: u64,
    pub(crate) cut: u64,
    pub(crate) untaken: u64,
    pub(crate) dropped: u64,
    pub(crate) taken: u64,
    pub(crate) python: Interpreter,
    objects: Vec<LoadedFile>,
    frames: Vec<Frame>,
    stacks: Vec<FrameList>,
    pub(crate) live: Vec<Weight>,
    pub(crate) peak: Vec<Weight>,
    pub(crate) failed: Vec<Weight>,
}

/// What is said of Python.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Interpreter {
    pub(crate) version: Option<String>,
    /// Why its frames are not read.
    pub(crate) reason: Option<String>,
}

/// What a stack holds; estimates if not every request was taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Weight {
    pub(crate) stack: Option<u64>,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Deserialize)]
struct LoadedFile {
    file: String,
    build_id: Option<String>,
}

/// A place, of the program's code or of Python's.
#[derive(Debug, Deserialize)]
struct Frame {
    object: Option<usize>,
    offset: Option<u64>,
    file: Option<String>,
    line: Option<u32>,
    function: Option<String>,
}

/// A call stack: its number, and its places by theirs, the innermost first.
#[derive(Debug, Deserialize)]
pub(crate) struct FrameList {
    pub(super) stack: u64,
    pub(super) frames: Vec<usize>,
}

/// The call stacks in the key `snapshot` of older libraries. The rest of the
/// snapshot, which can be large, is skipped.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OldStacks {
    pub(crate) frames: Vec<OldFrame>,
    pub(crate) stacks: Vec<FrameList>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OldFrame {
    object: String,
    offset: u64,
    name: Option<String>,
}

/// What both forms say.
#[derive(Default)]
pub(super) struct Raw {
    pub(super) objects: Vec<Binary>,
    pub(super) frames: Vec<RawFrame>,
    pub(super) stacks: Vec<FrameList>,
}

/// A place before its name is found.
pub(super) enum RawFrame {
    Python {
        file: String,
        line: u32,
        function: String,
    },
    Native {
        object: usize,
        offset: u64,
        /// As it is written, if the file has it.
        name: Option<String>,
    },
    /// Code of no file.
    Unknown { address: u64 },
}

/// More places than a call stack of the library has.
const MOST_FRAMES: usize = 128;

/// Checks that stacks name frames that are there, for those who write them many
/// times.
///
/// # Errors
/// The stack that does not.
pub(crate) fn check(frames: usize, stacks: &[FrameList]) -> Result<(), String> {
    for stack in stacks {
        let known = stack.frames.iter().all(|&frame| frame < frames);
        if !known || stack.frames.len() > MOST_FRAMES {
            return Err(format!(
                "call stack {} names frames that are not there, or too many",
                stack.stack
            ));
        }
    }
    Ok(())
}

impl CallStacks {
    /// # Errors
    /// As of [`check`].
    pub(crate) fn check(&self) -> Result<(), String> {
        check(self.frames.len(), &self.stacks)
    }

    /// Takes the places out.
    pub(super) fn take_raw(&mut self) -> Raw {
        let object = |LoadedFile { file, build_id }| Binary {
            file: PathBuf::from(file),
            build_id,
        };
        let frame = |frame: Frame| match (frame.file, frame.object) {
            (Some(file), _) => RawFrame::Python {
                file,
                line: frame.line.unwrap_or(0),
                function: frame.function.unwrap_or_default(),
            },
            (None, Some(object)) => RawFrame::Native {
                object,
                offset: frame.offset.unwrap_or(0),
                name: None,
            },
            (None, None) => RawFrame::Unknown {
                address: frame.offset.unwrap_or(0),
            },
        };
        Raw {
            objects: std::mem::take(&mut self.objects)
                .into_iter()
                .map(object)
                .collect(),
            frames: std::mem::take(&mut self.frames)
                .into_iter()
                .map(frame)
                .collect(),
            stacks: std::mem::take(&mut self.stacks),
        }
    }
}

impl OldStacks {
    pub(super) fn into_raw(self) -> Raw {
        let mut numbers = std::collections::HashMap::new();
        let mut objects = Vec::new();
        let frame = |frame: OldFrame| {
            if frame.object.is_empty() {
                return RawFrame::Unknown {
                    address: frame.offset,
                };
            }
            let object = *numbers.entry(frame.object).or_insert_with_key(|file| {
                objects.push(Binary {
                    file: PathBuf::from(file),
                    build_id: None,
                });
                objects.len() - 1
            });
            RawFrame::Native {
                object,
                offset: frame.offset,
                name: frame.name.map(|name| demangled(name.as_bytes())),
            }
        };
        let frames = self.frames.into_iter().map(frame).collect();
        Raw {
            frames,
            objects,
            stacks: self.stacks,
        }
    }
}
