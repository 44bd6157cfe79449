//! What the dynamic linker knows: the objects that are loaded, the functions in
//! them, and which library called us.

pub(crate) mod callers;
pub(crate) mod objects;
pub(crate) mod resolve;
pub(crate) mod unwind;
