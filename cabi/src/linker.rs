//! What the linker knows: the objects that are loaded, the functions in them,
//! who has called, and whether look-ups come by here.

pub(crate) mod callers;
pub(crate) mod objects;
pub(crate) mod reach;
pub(crate) mod resolve;
pub(crate) mod stacks;
pub(crate) mod unwind;
