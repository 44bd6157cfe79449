//! What each option does to the memory of the device, one file per family.

mod finish;
mod garbage;
mod rounding;
mod shortage;
mod splitting;
mod surplus;
