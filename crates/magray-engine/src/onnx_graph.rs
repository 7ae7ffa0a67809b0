//! Reads what an ONNX file says of its graph: inputs, outputs, files beside it, and how its numbers are quantised.
//! Computes nothing, copies no weights, and reads no file but this one.

use std::collections::{HashMap, HashSet};
use std::io;

/// What is known of a graph without running it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Graph {
    /// What must be given.
    pub(crate) inputs: Vec<Port>,
    /// What comes out.
    pub(crate) outputs: Vec<Port>,
    /// Rows of the table that the token ids index, where one is found.
    pub(crate) vocab: Option<usize>,
    /// Files beside it that hold weights, as it names them.
    pub(crate) external: Vec<String>,
    /// Whether activations are quantised by their range in the whole batch, so that a text's answer depends on the others.
    pub(crate) quantises_by_batch: bool,
    /// Whether it has 8-bit weights.
    pub(crate) is_quantised: bool,
}

/// An input or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) element: Element,
    /// By dimension its size, where that is fixed.
    pub(crate) dims: Vec<Option<usize>>,
}

/// The numbers of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    I32,
    I64,
    Other(u64),
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let element = match self.element {
            Element::F32 => "f32".to_owned(),
            Element::F16 => "f16".to_owned(),
            Element::I32 => "i32".to_owned(),
            Element::I64 => "i64".to_owned(),
            Element::Other(code) => format!("type {code}"),
        };
        let dims: Vec<String> = self.dims.iter().map(|dim| dim.map_or("?".to_owned(), |dim| dim.to_string())).collect();
        write!(f, "{} ({element} [{}])", self.name, dims.join(", "))
    }
}

/// Why a file is no graph.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GraphError {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("it is no ONNX model, or is cut: {0}")]
    Corrupt(&'static str),
}

/// Graphs inside of graphs, such as the branches of an `If`.
const DEPTH_MAX: usize = 8;
/// Names of tensors and files.
const NAME_BYTES_MAX: usize = 4096;
/// More inputs, outputs or dimensions than any model has.
const PORTS_MAX: usize = 1024;
/// More weights and nodes than any model has.
const ITEMS_MAX: usize = 1 << 20;

impl Graph {
    /// Reads the bytes of a file.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, GraphError> {
        let mut reading = Reading::default();
        let mut has_graph = false;
        for field in Fields(bytes) {
            match field? {
                (7, Field::Bytes(graph)) if !has_graph => {
                    has_graph = true;
                    reading.graph(graph, 0)?;
                }
                (25, Field::Bytes(function)) => reading.function(function)?,
                _ => {}
            }
        }
        if !has_graph {
            return Err(GraphError::Corrupt("there is no graph"));
        }
        Ok(reading.end())
    }
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    graph: Graph,
    /// The first dimension of each weight of the outermost graph.
    rows: HashMap<String, usize>,
    /// Tensors that are the token ids, in whatever shape.
    ids: HashSet<String>,
    items: usize,
}

impl Reading {
    fn end(mut self) -> Graph {
        // Old files list weights among the inputs.
        self.graph.inputs.retain(|input| !self.rows.contains_key(&input.name));
        self.graph.external.sort();
        self.graph.external.dedup();
        self.graph
    }

    fn count(&mut self) -> Result<(), GraphError> {
        self.items += 1;
        if self.items > ITEMS_MAX { Err(GraphError::Corrupt("it has more parts than any model")) } else { Ok(()) }
    }

    fn graph(&mut self, bytes: &[u8], depth: usize) -> Result<(), GraphError> {
        if depth > DEPTH_MAX {
            return Err(GraphError::Corrupt("its graphs are nested too deep"));
        }
        // Weights come after the nodes that use them.
        for field in Fields(bytes) {
            match field? {
                (5, Field::Bytes(tensor)) => {
                    let (name, rows) = self.tensor(tensor)?;
                    if depth == 0 {
                        self.rows.insert(name, rows);
                    }
                }
                (15, Field::Bytes(sparse)) => self.sparse(sparse)?,
                (11, Field::Bytes(input)) if depth == 0 => push_port(&mut self.graph.inputs, input)?,
                (12, Field::Bytes(output)) if depth == 0 => push_port(&mut self.graph.outputs, output)?,
                _ => {}
            }
        }
        for field in Fields(bytes) {
            if let (1, Field::Bytes(node)) = field? {
                self.node(node, depth)?;
            }
        }
        Ok(())
    }

    fn function(&mut self, bytes: &[u8]) -> Result<(), GraphError> {
        for field in Fields(bytes) {
            if let (7, Field::Bytes(node)) = field? {
                self.node(node, 1)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, bytes: &[u8], depth: usize) -> Result<(), GraphError> {
        self.count()?;
        let (mut inputs, mut outputs, mut kind) = (Vec::new(), Vec::new(), "");
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(name)) if inputs.len() < 2 => inputs.push(text(name)?),
                (2, Field::Bytes(name)) if outputs.is_empty() => outputs.push(text(name)?),
                (4, Field::Bytes(name)) => kind = text(name)?,
                (5, Field::Bytes(attribute)) => self.attribute(attribute, depth)?,
                _ => {}
            }
        }
        let is_ids = |name: &&str| *name == "input_ids" || self.ids.contains(*name);
        match (kind, &inputs[..]) {
            ("Gather" | "EmbedLayerNormalization", [table, ids]) if depth == 0 && is_ids(ids) => {
                self.graph.vocab = self.graph.vocab.or(self.rows.get(*table).copied());
            }
            ("Cast" | "Identity" | "Reshape" | "Unsqueeze" | "Squeeze" | "Flatten", [first, ..])
                if depth == 0 && is_ids(first) =>
            {
                self.ids.extend(outputs.first().map(|&name| name.to_owned()));
            }
            ("DynamicQuantizeLinear" | "DynamicQuantizeMatMul" | "DynamicQuantizeLSTM", _) => {
                self.graph.quantises_by_batch = true;
                self.graph.is_quantised = true;
            }
            ("DequantizeLinear" | "MatMulInteger" | "QLinearMatMul" | "QAttention", _) => {
                self.graph.is_quantised = true
            }
            _ => {}
        }
        Ok(())
    }

    fn attribute(&mut self, bytes: &[u8], depth: usize) -> Result<(), GraphError> {
        for field in Fields(bytes) {
            match field? {
                (5 | 10, Field::Bytes(tensor)) => drop(self.tensor(tensor)?),
                (6 | 11, Field::Bytes(graph)) => self.graph(graph, depth + 1)?,
                (22 | 23, Field::Bytes(sparse)) => self.sparse(sparse)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn sparse(&mut self, bytes: &[u8]) -> Result<(), GraphError> {
        for field in Fields(bytes) {
            if let (1 | 2, Field::Bytes(tensor)) = field? {
                self.tensor(tensor)?;
            }
        }
        Ok(())
    }

    /// The name of a tensor and its first dimension; notes the file that it lies in.
    fn tensor(&mut self, bytes: &[u8]) -> Result<(String, usize), GraphError> {
        self.count()?;
        let (mut name, mut rows, mut location) = ("", None, None);
        for field in Fields(bytes) {
            match field? {
                (1, Field::Number(dim)) => rows = rows.or(Some(dim)),
                (1, Field::Bytes(packed)) => rows = rows.or(Cursor(packed).varint().ok()),
                (8, Field::Bytes(text_bytes)) => name = text(text_bytes)?,
                (13, Field::Bytes(entry)) => {
                    if let ("location", value) = key_and_value(entry)? {
                        location = Some(value);
                    }
                }
                _ => {}
            }
        }
        self.graph.external.extend(location.map(str::to_owned));
        Ok((name.to_owned(), rows.and_then(|rows| usize::try_from(rows).ok()).unwrap_or(0)))
    }
}

fn key_and_value(bytes: &[u8]) -> Result<(&str, &str), GraphError> {
    let (mut key, mut value) = ("", "");
    for field in Fields(bytes) {
        match field? {
            (1, Field::Bytes(bytes)) => key = text(bytes)?,
            (2, Field::Bytes(bytes)) => value = text(bytes)?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn push_port(ports: &mut Vec<Port>, bytes: &[u8]) -> Result<(), GraphError> {
    if ports.len() >= PORTS_MAX {
        return Err(GraphError::Corrupt("it has more inputs or outputs than any model"));
    }
    let mut port = Port { name: String::new(), element: Element::Other(0), dims: Vec::new() };
    for field in Fields(bytes) {
        match field? {
            (1, Field::Bytes(name)) => port.name = text(name)?.to_owned(),
            (2, Field::Bytes(kind)) => {
                for field in Fields(kind) {
                    if let (1, Field::Bytes(tensor)) = field? {
                        tensor_type(tensor, &mut port)?;
                    }
                }
            }
            _ => {}
        }
    }
    ports.push(port);
    Ok(())
}

fn tensor_type(bytes: &[u8], port: &mut Port) -> Result<(), GraphError> {
    for field in Fields(bytes) {
        match field? {
            (1, Field::Number(code)) => {
                port.element = match code {
                    1 => Element::F32,
                    6 => Element::I32,
                    7 => Element::I64,
                    10 => Element::F16,
                    other => Element::Other(other),
                };
            }
            (2, Field::Bytes(shape)) => {
                for field in Fields(shape) {
                    let (1, Field::Bytes(dim)) = field? else { continue };
                    if port.dims.len() >= PORTS_MAX {
                        return Err(GraphError::Corrupt("a tensor has more dimensions than any model's"));
                    }
                    let mut size = None;
                    for field in Fields(dim) {
                        if let (1, Field::Number(fixed)) = field? {
                            size = usize::try_from(fixed).ok();
                        }
                    }
                    port.dims.push(size);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Result<&str, GraphError> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(GraphError::Corrupt("a name in it is longer than any"));
    }
    std::str::from_utf8(bytes).map_err(|_| GraphError::Corrupt("a name in it is no text"))
}

/// The value of a field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a fixed length: no field that is read here.
    Fixed,
}

/// The fields of a message in protobuf's form, each with its number. Ends after the first that is cut.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), GraphError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut cursor = Cursor(self.0);
        let field = cursor.field();
        self.0 = if field.is_ok() { cursor.0 } else { &[] };
        Some(field)
    }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn field(&mut self) -> Result<(u64, Field<'a>), GraphError> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = self.varint()?;
                Field::Bytes(
                    self.take(usize::try_from(length).map_err(|_| GraphError::Corrupt("a part without end"))?)?,
                )
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return Err(GraphError::Corrupt("a part of no known kind")),
        };
        Ok((tag >> 3, field))
    }

    fn varint(&mut self) -> Result<u64, GraphError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(GraphError::Corrupt("it ends inside of a number"))?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(GraphError::Corrupt("a number in it does not end"))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], GraphError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(GraphError::Corrupt("it ends inside of a part"))?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
pub(crate) mod tests;
