//! Opens the file of a graph in ONNX form without reading its weights.
//! Knows nothing of its form.

use crate::onnx_graph::{Graph, GraphError};
use magray_device::MappedFile;
use std::path::Path;

/// What the file at this path says of its graph.
pub(crate) fn open(file: &Path) -> Result<Graph, GraphError> {
    // An empty file cannot be mapped.
    if std::fs::metadata(file)?.len() == 0 {
        return Err(GraphError::Corrupt("it is empty"));
    }
    Graph::read(&MappedFile::open(file)?)
}
