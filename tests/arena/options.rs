//! What each option does to the memory of the device, one file per family.

mod rounding;
mod splitting;
