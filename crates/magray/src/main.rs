//! The program `magray`.
//! Has nothing of its own: the library speaks, which the wheel's program starts as well.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    magray::run().into()
}
