//! The program `magray` in the library of the package: `program.c`, a file of its own in a wheel, starts it.
//! Touches no interpreter: there is none in that process.

use std::ffi::c_int;

/// Runs the program with the words of the process; returns its exit code.
// `unsafe` because a name could be another function's: this one is of this package alone.
#[unsafe(no_mangle)]
extern "C" fn magray_main() -> c_int {
    magray::run().into()
}
