//! The command `vramalloc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    vramalloc_command::main()
}
