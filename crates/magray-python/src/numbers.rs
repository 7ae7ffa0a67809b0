//! Numbers that numpy looks at where they are: the array that it makes holds this object, and nothing is copied.
//! Never reads the numbers again: from then on they are the array's.

use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyclass(frozen, module = "magray._magray")]
pub(crate) struct Numbers {
    /// Keeps the memory.
    _values: Vec<f32>,
    address: usize,
    shape: Vec<usize>,
}

impl Numbers {
    /// A table of rows.
    pub(crate) fn table(values: Vec<f32>, columns: usize) -> Self {
        let rows = values.len() / columns.max(1);
        Self::new(values, vec![rows, columns])
    }

    fn new(mut values: Vec<f32>, shape: Vec<usize>) -> Self {
        let address = values.as_mut_ptr() as usize;
        Self { _values: values, address, shape }
    }
}

#[pymethods]
impl Numbers {
    #[getter]
    fn __array_interface__<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let described = PyDict::new(python);
        described.set_item("version", 3)?;
        described.set_item("typestr", if cfg!(target_endian = "little") { "<f4" } else { ">f4" })?;
        described.set_item("shape", pyo3::types::PyTuple::new(python, &self.shape)?)?;
        described.set_item("data", (self.address, false))?;
        Ok(described)
    }
}
