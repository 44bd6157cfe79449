//! The line of an instruction, from the table that a code object has.
//!
//! Whatever the bytes are, the answer is a line or none.

/// The line at so many bytes into the instructions, by the table of 3.11 and later:
/// entries of some instructions each, the first byte of each marked by its highest
/// bit, with the change of the line from the entry before.
pub(super) fn of_3_11(table: &[u8], first_line: u32, at: i64) -> Option<u32> {
    const NO_COLUMNS: u8 = 13;
    const LONG: u8 = 14;
    const NO_LINE: u8 = 15;
    let (mut line, mut end) = (i64::from(first_line), 0);
    let mut rest = table;
    while let [head, tail @ ..] = rest {
        let (kind, units) = (head >> 3 & 15, i64::from(head & 7) + 1);
        line += match kind {
            NO_COLUMNS | LONG => signed(tail)?,
            10..=12 => i64::from(kind - 10),
            _ => 0,
        };
        end += 2 * units;
        if at < end {
            let line = u32::try_from(line).ok();
            return line.filter(|_| kind != NO_LINE);
        }
        let next = tail.iter().position(|byte| byte & 0x80 != 0);
        rest = tail.get(next?..)?;
    }
    None
}

/// A number of six bits a byte, the lowest first, whose lowest bit is its sign.
fn signed(bytes: &[u8]) -> Option<i64> {
    let (mut number, mut shift) = (0_i64, 0);
    for byte in bytes {
        number |= i64::from(byte & 63) << shift;
        shift += 6;
        if byte & 64 == 0 {
            let half = number >> 1;
            return Some(if number & 1 == 1 { -half } else { half });
        }
        if shift > 54 {
            break;
        }
    }
    None
}

/// The same by the table of 3.10: pairs of how many bytes of instructions come, and
/// by how much their line differs from that before; -128: they have none.
pub(super) fn of_3_10(table: &[u8], first_line: u32, at: i64) -> Option<u32> {
    let (mut line, mut end) = (i64::from(first_line), 0);
    for pair in table.chunks_exact(2) {
        let &[bytes, change] = pair else {
            return None;
        };
        let is_none = change.cast_signed() == i8::MIN;
        end += i64::from(bytes);
        if !is_none {
            line += i64::from(change.cast_signed());
        }
        if at < end {
            return u32::try_from(line).ok().filter(|_| !is_none);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_3_11_are_found() {
        // Short form, 2 units; one line further, 1 unit; 300 lines back, 8 units;
        // none, 1 unit.
        let back = 300 << 1 | 1;
        let [low, high] = [back & 63 | 64, back >> 6].map(|byte| u8::try_from(byte).unwrap());
        let head = |kind: u8, units: u8| 0x80 | kind << 3 | (units - 1);
        let table = [
            head(3, 2),
            0x11,
            head(11, 1),
            1,
            2,
            head(13, 8),
            low,
            high,
            head(15, 1),
        ];
        for (at, line) in [
            (0, Some(500)),
            (3, Some(500)),
            (4, Some(501)),
            (6, Some(201)),
            (21, Some(201)),
            (22, None),
            (24, None),
        ] {
            assert_eq!(of_3_11(&table, 500, at), line, "{at}");
        }
        assert_eq!(of_3_11(&table[..7], 500, 6), None);
    }

    #[test]
    fn lines_of_3_10_are_found() {
        let table = [4, 1, 2, 0x80, 6, 0xfe, 0, 9, 2, 1];
        for (at, line) in [
            (0, Some(11)),
            (3, Some(11)),
            (4, None),
            (6, Some(9)),
            (11, Some(9)),
            (12, Some(19)),
            (14, None),
        ] {
            assert_eq!(of_3_10(&table, 10, at), line, "{at}");
        }
    }

    #[test]
    fn any_bytes_have_a_line_or_none() {
        let mut random = 1_u64;
        for length in 0..600 {
            let table: Vec<u8> = std::iter::repeat_with(|| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                random.to_le_bytes()[7]
            })
            .take(length)
            .collect();
            for at in [-2, 0, 7, 400, i64::MAX / 2] {
                let _any = (of_3_10(&table, u32::MAX, at), of_3_11(&table, u32::MAX, at));
            }
        }
    }
}
