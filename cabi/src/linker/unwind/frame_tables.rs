//! The rule of a place, from the tables that compilers emit for exceptions.
//!
//! They are read where they lie (`.eh_frame_hdr` and `.eh_frame`, by `gimli`).
//! What takes more than [`rules`](super::rules) can say is unknown: there the
//! stack is cut. Cost: some 20 us for a place, once; 4 KiB of the stack.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Operation,
    ReaderOffset, Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression,
    UnwindSection as _, UnwindTableRow, X86_64,
};

use super::maps;
use super::modules::Module;
use super::rules::{Base, Next, Saved};

type Section = EhFrame<EndianSlice<'static, LittleEndian>>;

/// Room for what one function's table says, on the stack. There are 17 registers
/// that such a table names.
struct OnStack;

impl<T: ReaderOffset> UnwindContextStorage<T> for OnStack {
    type Rules = [(Register, RegisterRule<T>); 20];
    type Stack = [UnwindTableRow<T, Self>; 3];
}

/// What comes after a place in an object.
pub(super) fn next(module: &'static Module, place: usize) -> Next {
    read(module, place).unwrap_or(Next::Unknown)
}

#[inline(never)]
fn read(module: &'static Module, place: usize) -> Option<Next> {
    let range = module.unwind.clone()?;
    // SAFETY: a part of an object that is loaded, as it is in its file; its code
    // is on this thread's stack.
    let header = unsafe { maps::bytes(range.clone()) };
    let bases = BaseAddresses::default().set_eh_frame_hdr(range.start as u64);
    let header = EhFrameHdr::new(header, LittleEndian)
        .parse(&bases, 8)
        .ok()?;
    let start = usize::try_from(header.eh_frame_ptr().direct().ok()?).ok()?;
    if !range.contains(&start) {
        return None;
    }
    // SAFETY: as above; the linker puts one before the other in one part.
    let section = Section::new(unsafe { maps::bytes(start..range.end) }, LittleEndian);
    let bases = bases.set_eh_frame(start as u64);
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let row = header.table()?.unwind_info_for_address(
        &section,
        &bases,
        &mut context,
        place as u64,
        Section::cie_from_offset,
    );
    understood(row.ok()?, &section)
}

/// What a row says, as far as it is of the usual kind.
fn understood(row: &UnwindTableRow<usize, OnStack>, section: &Section) -> Option<Next> {
    match row.register(X86_64::RA) {
        Some(RegisterRule::Undefined) => return Some(Next::Nothing),
        Some(RegisterRule::Offset(-8)) => {}
        _ => return None,
    }
    let base = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let offset = i32::try_from(*offset).ok()?;
            match *register {
                X86_64::RSP => Base::StackPointer(offset),
                X86_64::RBP => Base::FramePointer(offset),
                _ => return None,
            }
        }
        CfaRule::Expression(expression) => {
            let (offset, is_behind) = from_frame_pointer(expression, section)?;
            is_behind.then_some(Base::Behind(offset))?
        }
    };
    let words = |offset: i64| {
        (offset % 8 == 0)
            .then(|| i16::try_from(offset / 8).ok())
            .flatten()
    };
    let saved = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => Saved::Unchanged,
        Some(RegisterRule::Offset(offset)) => words(offset).map_or(Saved::Lost, Saved::At),
        Some(RegisterRule::Expression(expression)) => {
            let found = from_frame_pointer(&expression, section);
            let at = found.filter(|(_, is_behind)| !is_behind);
            at.and_then(|(offset, _)| words(offset.into()))
                .map_or(Saved::Lost, Saved::AtPointer)
        }
        Some(_) => Saved::Lost,
    };
    Some(Next::Caller(base, saved))
}

/// The offset from the frame pointer that an expression gives, and whether what
/// is meant is the word that lies there: as functions have it that align their
/// stack.
fn from_frame_pointer(
    expression: &UnwindExpression<usize>,
    section: &Section,
) -> Option<(i32, bool)> {
    let encoding = gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 4,
    };
    let mut operations = expression.get(section).ok()?.operations(encoding);
    let Operation::RegisterOffset {
        register: X86_64::RBP,
        offset,
        ..
    } = operations.next().ok()??
    else {
        return None;
    };
    let offset = i32::try_from(offset).ok()?;
    match operations.next().ok()? {
        None => Some((offset, false)),
        Some(Operation::Deref {
            size: 8,
            space: false,
            ..
        }) => operations.next().ok()?.is_none().then_some((offset, true)),
        Some(_) => None,
    }
}
