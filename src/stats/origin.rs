//! Where in a program a request was made.

use crate::library::LibraryId;
use crate::stats::StackId;

/// See the module.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) library: LibraryId,
    pub(crate) stack: StackId,
}
