//! `magray worker`: the process that holds a GPU for another magray, which starts it and sends it all it needs.
//! Not for people: it takes no flags and answers nothing that they could read.

use crate::{exit::Failure, interrupt};

pub(crate) fn run() -> Result<(), Failure> {
    // What a signal to the whole group means for this process is for the one that started it to decide. Until it is
    // confined a signal ends it: what takes signals is a thread, and that would stay outside the sandbox.
    Ok(magray_engine::serve(interrupt::ignore)?)
}
