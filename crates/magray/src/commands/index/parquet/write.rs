//! Writes points as a Parquet file, a group of rows at a time.
//! Texts and payloads are packed; numbers of vectors do not shrink, and are not.

use serde_json::Value;

use super::{ID, PAYLOAD, SETTINGS, TEXT, VectorKind, vector_column, vector_kinds};
use crate::{
    exit::Failure,
    output::{Column, Destination, Kind, MAGIC, Node, Table},
};

/// A group of rows is written when it has so much.
const GROUP_BYTES: usize = 8 << 20;
const GROUP_ROWS: u64 = 16_384;

pub(crate) struct PointsWriter {
    out: Destination,
    table: Table,
    settings: String,
    text_field: Option<String>,
    vectors: Vec<(String, VectorKind)>,
    /// Rows of the group that is not written yet.
    rows: u64,
}

impl PointsWriter {
    pub(crate) fn start(mut out: Destination, settings: &Value) -> Result<Self, Failure> {
        let vectors = vector_kinds(settings);
        let mut schema = vec![
            Node::leaf(ID, Kind::Text).packed(),
            Node::leaf(TEXT, Kind::Text).optional().packed(),
            Node::leaf(PAYLOAD, Kind::Json).packed(),
        ];
        schema.extend(vectors.iter().map(|(name, kind)| node(&vector_column(name), *kind)));
        out.checked(|out| out.write_all(MAGIC))?;
        let text_field = settings["text_field"].as_str().map(str::to_owned);
        Ok(Self { out, table: Table::new(schema), settings: settings.to_string(), text_field, vectors, rows: 0 })
    }

    /// Writes a point as Qdrant's API shows it.
    pub(crate) fn write(&mut self, mut point: Value) -> Result<(), Failure> {
        let mut columns = self.table.columns().iter_mut();
        let mut next = || columns.next().expect("the table was made with a column for each");
        match &point["id"] {
            Value::String(id) => next().push_text(id),
            id => next().push_text(&id.to_string()),
        }
        let mut payload = match point["payload"].take() {
            Value::Object(payload) => payload,
            _ => serde_json::Map::new(),
        };
        // A text that is none stays in the payload.
        let text = self.text_field.as_ref().filter(|field| payload.get(*field).is_some_and(Value::is_string));
        match text.and_then(|field| payload.remove(field)) {
            Some(Value::String(text)) => next().push_text(&text),
            _ => next().push_none(0),
        }
        next().push_text(&Value::Object(payload).to_string());
        for (name, kind) in &self.vectors {
            let vector = match &point["vector"] {
                Value::Object(named) => named.get(name),
                one @ Value::Array(_) if name.is_empty() => Some(one),
                _ => None,
            };
            match kind {
                VectorKind::Dense => push_floats(next(), vector),
                VectorKind::Multi => push_rows(next(), vector),
                VectorKind::Sparse => {
                    push_indices(next(), vector.map(|vector| &vector["indices"]));
                    push_floats(next(), vector.map(|vector| &vector["values"]));
                }
            }
        }
        self.rows += 1;
        let bytes: usize = self.table.columns().iter().map(|column| column.bytes()).sum();
        if bytes >= GROUP_BYTES || self.rows >= GROUP_ROWS { self.flush() } else { Ok(()) }
    }

    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        if self.rows > 0 {
            self.flush()?;
        }
        let Self { mut out, table, settings, .. } = self;
        out.checked(|out| table.write_end(&[(SETTINGS, &settings)], out))?;
        Ok(out.finish()?)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let (rows, table) = (std::mem::take(&mut self.rows), &mut self.table);
        Ok(self.out.checked(|out| table.write_group(rows, out).map(drop))?)
    }
}

fn node(name: &str, kind: VectorKind) -> Node {
    let floats = |name: &str| Node::list(name, Node::leaf("element", Kind::F32));
    let node = match kind {
        VectorKind::Dense => floats(name),
        VectorKind::Multi => Node::list(name, floats("element")),
        VectorKind::Sparse => {
            Node::group(name, vec![Node::list("indices", Node::leaf("element", Kind::U32)), floats("values")])
        }
    };
    node.optional()
}

fn push_floats(column: &mut Column, list: Option<&Value>) {
    match list {
        Some(list) => column.push_list(0, floats(list)),
        None => column.push_none(0),
    }
}

fn push_indices(column: &mut Column, list: Option<&Value>) {
    let index = |value: &Value| (value.as_u64().unwrap_or_default() as u32).to_le_bytes();
    match list {
        Some(list) => column.push_list(0, elements(list).iter().map(index)),
        None => column.push_none(0),
    }
}

fn push_rows(column: &mut Column, vector: Option<&Value>) {
    match vector.map(elements) {
        Some([]) => column.push_none(1),
        Some(rows) => {
            for (at, row) in rows.iter().enumerate() {
                column.push_list(u8::from(at > 0), floats(row));
            }
        }
        None => column.push_none(0),
    }
}

fn floats(list: &Value) -> impl Iterator<Item = [u8; 4]> + '_ {
    elements(list).iter().map(|value| (value.as_f64().unwrap_or_default() as f32).to_le_bytes())
}

fn elements(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
