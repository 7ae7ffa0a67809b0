//! Speaks Python: the module `magray._magray`, which the classes of the package `magray` are written over.
//! Prints nothing, reads no settings and no environment, and never holds the interpreter while it computes or waits.

mod collections;
mod encoding;
mod engine;
mod failure;
mod generation;
mod leaving;
mod numbers;
mod pending;
#[cfg(feature = "program")]
mod program;
mod waiting;

#[pyo3::pymodule(name = "_magray")]
mod native {
    #[pymodule_export]
    use crate::collections::Collections;
    #[pymodule_export]
    use crate::engine::{Engine, find_model};
    #[pymodule_export]
    use crate::failure::{Busy, Cancelled, DeviceError, Forked, MagrayError, WorkerLost};
    #[pymodule_export]
    use crate::generation::Answers;
    #[pymodule_export]
    use crate::leaving::{after_fork, close};
    #[pymodule_export]
    use crate::numbers::Numbers;
    #[pymodule_export]
    use crate::pending::Pending;
    #[pymodule_export]
    use crate::waiting::Wakeups;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
