//! The kernels and globals of a module image.
//!
//! Invariant: of PTX text, exactly the entries and globals that it declares
//! exist; of any other image (a binary) nothing is known, and every kernel name
//! is assumed to exist. Cost: linear in the text.

use std::ffi::{CStr, c_void};

use vramalloc_core::Code;

use crate::ffi::INVALID_IMAGE;

/// A kernel that PTX declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Offset and size of each parameter.
    pub(crate) parameters: Vec<(u64, u64)>,
}

/// The contents of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// Whether every kernel name is assumed to exist.
    pub(crate) opaque: bool,
    pub(crate) entries: Vec<Entry>,
    /// Name and size of each global.
    pub(crate) globals: Vec<(String, u64)>,
}

const ELF: &[u8] = b"\x7fELF";
/// The first bytes of a fat binary, and of the record that points to one.
const FAT: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();

impl Image {
    /// Reads the image at an address that a caller passed.
    pub(crate) fn at(start: *const c_void) -> Result<Image, Code> {
        if start.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let first = crate::ffi::bytes_at(start, 4);
        if first == ELF || first == FAT || first == WRAPPER {
            return Ok(Image {
                opaque: true,
                ..Image::default()
            });
        }
        // SAFETY: an image that is no binary is NUL-terminated text, by the
        // driver's interface.
        let text = unsafe { CStr::from_ptr(start.cast()) };
        Image::of_text(&text.to_string_lossy()).ok_or(INVALID_IMAGE)
    }

    /// Reads PTX; `None` if the text is none.
    pub(crate) fn of_text(text: &str) -> Option<Image> {
        let text = without_comments(text);
        if !text.contains(".version") {
            return None;
        }
        Some(Image {
            opaque: false,
            entries: entries(&text),
            globals: globals(&text),
        })
    }
}

fn without_comments(text: &str) -> String {
    let mut rest = String::with_capacity(text.len());
    let mut left = text;
    while let Some(at) = left.find("/*") {
        rest.push_str(left.get(..at).unwrap_or(""));
        let after = left.get(at + 2..).unwrap_or("");
        left = after.find("*/").map_or("", |end| &after[end + 2..]);
    }
    rest.push_str(left);
    let lines = rest.lines().map(|l| l.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

fn entries(text: &str) -> Vec<Entry> {
    let after = text.split(".entry").skip(1);
    after
        .filter_map(|rest| {
            let end = rest.find(['(', '{'])?;
            let name = rest.get(..end)?.trim().to_owned();
            let list = match rest.get(end..=end)? {
                "(" => rest.get(end + 1..end + rest.get(end..)?.find(')')?)?,
                _ => "",
            };
            Some(Entry {
                name,
                parameters: parameters(list),
            })
        })
        .collect()
}

fn parameters(list: &str) -> Vec<(u64, u64)> {
    let mut at = 0_u64;
    let mut all = Vec::new();
    for declaration in list.split(',').filter(|d| d.contains(".param")) {
        let (size, align) = layout(declaration);
        at = at.next_multiple_of(align.max(1));
        all.push((at, size));
        at += size;
    }
    all
}

fn globals(text: &str) -> Vec<(String, u64)> {
    let statements = text.split(';').filter_map(|s| {
        let at = s.find(".global").filter(|_| !s.contains(".extern"))?;
        let declaration = s.get(at..)?.split('=').next()?;
        // Not an instruction such as `ld.global.u32`.
        declaration.strip_prefix(".global")?.strip_prefix(' ')?;
        let name = declaration.split_whitespace().last()?;
        let name = name.split('[').next()?.to_owned();
        Some((name, layout(declaration).0))
    });
    statements.collect()
}

/// Size and alignment of `.align 8 .b8 name[16]` or `.u64 name`.
fn layout(declaration: &str) -> (u64, u64) {
    let mut unit = 8;
    let mut align = None;
    let mut words = declaration.split_whitespace();
    while let Some(word) = words.next() {
        if word == ".align" {
            align = words.next().and_then(|n| n.parse().ok());
        } else if let Some(bits) = word
            .strip_prefix(['.'])
            .and_then(|w| w.strip_prefix(['u', 's', 'f', 'b']))
            && let Ok(bits) = bits.parse::<u64>()
        {
            unit = bits / 8;
        }
    }
    let count = declaration.split('[').nth(1).map_or(Some(1), |n| {
        let digits = n.split(']').next()?;
        digits.trim().parse::<u64>().ok()
    });
    (unit * count.unwrap_or(1), align.unwrap_or(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        // .entry not_this()
        .version 8.0
        .target sm_90
        .visible .global .align 4 .u32 counter;
        .global .align 8 .b8 table[64] = {1, 2};
        .visible .entry fill(
            .param .u64 ptr,
            .param .u32 value,
            .param .u64 count,
            .param .align 16 .b8 more[24]
        )
        { ld.global.u32 %r1, [%rd1]; ret; }
        .entry none() { ret; }
    ";

    #[test]
    fn entries_with_their_parameters_and_globals_are_found() {
        let image = Image::of_text(TEXT).unwrap();
        let names: Vec<_> = image.entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["fill", "none"]);
        let parameters = [(0, 8), (8, 4), (16, 8), (32, 24)];
        assert_eq!(image.entries[0].parameters, parameters);
        assert_eq!(image.entries[1].parameters, []);
        let globals = [("counter".to_owned(), 4), ("table".to_owned(), 64)];
        assert_eq!(image.globals, globals);
    }

    #[test]
    fn other_text_is_no_image() {
        assert_eq!(Image::of_text("hello"), None);
    }
}
