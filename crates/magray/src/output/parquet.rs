//! A Parquet file of texts and their vectors: a row group a window, plain and uncompressed.
//! Holds the rows of one window; numbers do not compress, so it does not try.

use super::{
    OutputError, Sink,
    journal::{Group, Record},
    row::{Layout, Row},
    table::{Chunk, Column, Kind, MAGIC, Node, Table},
};

pub(super) struct Parquet {
    sink: Sink,
    columns: Vec<What>,
    table: Table,
    /// Rows of the group that is not yet written.
    rows: u64,
    dimensions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Index,
    File,
    Line,
    Id,
    Text,
    Embedding,
}

impl Parquet {
    pub(super) fn start(mut sink: Sink, layout: Layout) -> Result<Self, OutputError> {
        let columns = [
            (true, What::Index),
            (layout.with_file, What::File),
            (layout.with_line, What::Line),
            (true, What::Id),
            (layout.with_text, What::Text),
            (true, What::Embedding),
        ];
        let columns = columns.into_iter().filter(|(is_wanted, _)| *is_wanted);
        let columns: Vec<What> = columns.map(|(_, what)| what).collect();
        let mut table = Table::new(columns.iter().map(|what| what.node()).collect());
        let mut dimensions = 0;
        match &mut sink {
            Sink::Once(destination) => destination.checked(|out| out.write_all(MAGIC))?,
            Sink::Part(part) => {
                dimensions = part.dimensions();
                for group in part.groups() {
                    table.add_group(group.rows, chunks(&columns, group, dimensions));
                }
                part.write_prefix(MAGIC)?;
            }
        }
        Ok(Self { sink, columns, table, rows: 0, dimensions })
    }

    pub(super) fn write_row(&mut self, row: &Row<'_>) {
        self.dimensions = row.vector.len();
        self.rows += 1;
        self.columns.iter().zip(self.table.columns()).for_each(|(what, column)| what.push(row, column));
    }

    /// Writes the rows since the last call as one group.
    pub(super) fn commit(&mut self, at: Record) -> Result<(), OutputError> {
        let (rows, table) = (std::mem::take(&mut self.rows), &mut self.table);
        let mut columns = Vec::with_capacity(self.columns.len());
        self.sink.checked(|out| {
            columns.extend(table.write_group(rows, out)?.iter().map(|chunk| chunk.bytes));
            Ok(())
        })?;
        self.sink.commit(Record { dimensions: self.dimensions, columns, ..at })
    }

    pub(super) fn finish(mut self) -> Result<(), OutputError> {
        self.sink.checked(|out| self.table.write_end(&[], out))?;
        self.sink.finish()
    }
}

/// What an earlier run wrote of a group.
fn chunks(columns: &[What], group: &Group, dimensions: usize) -> Vec<Chunk> {
    let chunk = |(what, bytes): (&What, &u64)| {
        let values = match what {
            What::Embedding => group.rows * dimensions as u64,
            _ => group.rows,
        };
        Chunk { values, bytes: *bytes, plain_bytes: *bytes }
    };
    columns.iter().zip(&group.columns).map(chunk).collect()
}

impl What {
    fn node(self) -> Node {
        match self {
            Self::Index => Node::leaf("index", Kind::I64),
            Self::File => Node::leaf("file", Kind::Text),
            Self::Line => Node::leaf("line", Kind::I64),
            Self::Id => Node::leaf("id", Kind::Text).optional(),
            Self::Text => Node::leaf("text", Kind::Text),
            Self::Embedding => Node::list("embedding", Node::leaf("element", Kind::F32)),
        }
    }

    fn push(self, row: &Row<'_>, column: &mut Column) {
        let place = row.place;
        match self {
            Self::Index => column.push_i64(row.index as i64),
            Self::Line => column.push_i64(place.map_or(0, |place| place.line) as i64),
            Self::File => column.push_text(place.and_then(|place| place.file).unwrap_or_default()),
            Self::Text => column.push_text(row.text),
            Self::Embedding => column.push_list(0, row.vector.iter().map(|value| value.to_le_bytes())),
            Self::Id => match row.id {
                Some(serde_json::Value::String(id)) => column.push_text(id),
                Some(id) => column.push_text(&id.to_string()),
                None => column.push_none(0),
            },
        }
    }
}
