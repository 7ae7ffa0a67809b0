//! A Parquet file of texts and their vectors: a row group a window, plain and uncompressed, metadata last.
//! Holds the rows of one window; numbers do not compress, so it does not try.

use super::{
    OutputError, Sink,
    journal::{Group, Record},
    row::{Layout, Row},
    thrift::{Struct, put_varint},
};

pub(super) const MAGIC: &[u8] = b"PAR1";

const INT64: i32 = 2;
const FLOAT: i32 = 4;
const BYTE_ARRAY: i32 = 6;
const REQUIRED: i32 = 0;
const OPTIONAL: i32 = 1;
const REPEATED: i32 = 2;
const UTF8: i32 = 0;
const LIST: i32 = 3;
const PLAIN: i32 = 0;
const RLE: i32 = 3;

pub(super) struct Parquet {
    sink: Sink,
    columns: Vec<Column>,
    /// Groups that are written, those of an earlier run too.
    groups: Vec<Group>,
    /// Rows of the group that is not yet written.
    rows: u64,
    dimensions: usize,
}

struct Column {
    what: What,
    /// Of the rows of the group that is not yet written.
    values: Vec<u8>,
    /// For an optional column: which of the rows have a value.
    is_there: Vec<bool>,
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
        let (mut groups, mut dimensions) = (Vec::new(), 0);
        match &mut sink {
            Sink::Once(destination) => destination.checked(|out| out.write_all(MAGIC))?,
            Sink::Part(part) => {
                (groups, dimensions) = (part.groups().to_vec(), part.dimensions());
                part.write_prefix(MAGIC)?;
            }
        }
        let columns = [
            (true, What::Index),
            (layout.with_file, What::File),
            (layout.with_line, What::Line),
            (true, What::Id),
            (layout.with_text, What::Text),
            (true, What::Embedding),
        ];
        let columns = columns.into_iter().filter(|(is_wanted, _)| *is_wanted);
        let columns = columns.map(|(_, what)| Column { what, values: Vec::new(), is_there: Vec::new() }).collect();
        Ok(Self { sink, columns, groups, rows: 0, dimensions })
    }

    pub(super) fn write_row(&mut self, row: &Row<'_>) {
        self.dimensions = row.vector.len();
        self.rows += 1;
        self.columns.iter_mut().for_each(|column| column.push(row));
    }

    /// Writes the rows since the last call as one group.
    pub(super) fn commit(&mut self, at: Record) -> Result<(), OutputError> {
        let mut sizes = Vec::with_capacity(self.columns.len());
        for column in &mut self.columns {
            let (levels, count) = column.levels(self.rows, self.dimensions);
            let header = page_header(levels.len() + column.values.len(), count);
            let values = std::mem::take(&mut column.values);
            column.is_there.clear();
            self.sink.checked(|out| {
                out.write_all(&header)?;
                out.write_all(&levels)?;
                out.write_all(&values)
            })?;
            sizes.push((header.len() + levels.len() + values.len()) as u64);
            // Its memory is for the next group.
            column.values = values;
            column.values.clear();
        }
        self.groups.push(Group { rows: std::mem::take(&mut self.rows), columns: sizes.clone() });
        self.sink.commit(Record { dimensions: self.dimensions, columns: sizes, ..at })
    }

    pub(super) fn finish(mut self) -> Result<(), OutputError> {
        let metadata = self.metadata().end();
        self.sink.checked(|out| {
            out.write_all(&metadata)?;
            out.write_all(&(metadata.len() as u32).to_le_bytes())?;
            out.write_all(MAGIC)
        })?;
        self.sink.finish()
    }

    fn metadata(&self) -> Struct {
        let root = Struct::default().text(4, "magray").i32(5, self.columns.len() as i32);
        let schema: Vec<Struct> =
            std::iter::once(root).chain(self.columns.iter().flat_map(|column| column.what.schema())).collect();
        let mut offset = MAGIC.len() as u64;
        let groups: Vec<Struct> = self.groups.iter().map(|group| self.group_metadata(group, &mut offset)).collect();
        Struct::default()
            .i32(1, 2)
            .structures(2, schema.into_iter())
            .i64(3, self.groups.iter().map(|group| group.rows).sum())
            .structures(4, groups.into_iter())
            .text(6, concat!("magray version ", env!("CARGO_PKG_VERSION")))
    }

    fn group_metadata(&self, group: &Group, offset: &mut u64) -> Struct {
        let mut chunks = Vec::with_capacity(self.columns.len());
        for (column, bytes) in self.columns.iter().zip(&group.columns) {
            let count = match column.what {
                What::Embedding => group.rows * self.dimensions as u64,
                _ => group.rows,
            };
            let metadata = Struct::default()
                .i32(1, column.what.kind())
                .i32s(2, &[PLAIN, RLE])
                .texts(3, column.what.path())
                .i32(4, 0)
                .i64(5, count)
                .i64(6, *bytes)
                .i64(7, *bytes)
                .i64(9, *offset);
            chunks.push(Struct::default().i64(2, *offset).structure(3, metadata));
            *offset += bytes;
        }
        Struct::default().structures(1, chunks.into_iter()).i64(2, group.columns.iter().sum()).i64(3, group.rows)
    }
}

impl Column {
    fn push(&mut self, row: &Row<'_>) {
        let text = |values: &mut Vec<u8>, text: &str| {
            values.extend_from_slice(&(text.len() as u32).to_le_bytes());
            values.extend_from_slice(text.as_bytes());
        };
        let place = row.place;
        match self.what {
            What::Index => self.values.extend_from_slice(&row.index.to_le_bytes()),
            What::Line => self.values.extend_from_slice(&place.map_or(0, |place| place.line).to_le_bytes()),
            What::File => text(&mut self.values, place.and_then(|place| place.file).unwrap_or_default()),
            What::Text => text(&mut self.values, row.text),
            What::Embedding => row.vector.iter().for_each(|value| self.values.extend_from_slice(&value.to_le_bytes())),
            What::Id => {
                self.is_there.push(row.id.is_some());
                match row.id {
                    Some(serde_json::Value::String(id)) => text(&mut self.values, id),
                    Some(id) => text(&mut self.values, &id.to_string()),
                    None => {}
                }
            }
        }
    }

    /// The levels that say which values are there and where lists begin, and how many values there are.
    fn levels(&self, rows: u64, dimensions: usize) -> (Vec<u8>, u64) {
        match self.what {
            What::Id => (level_block(self.is_there.iter().map(|is_there| (1, u8::from(*is_there)))), rows),
            What::Embedding => {
                let values = dimensions as u64;
                let begins = (0..rows).flat_map(|_| [(1, 0), (values - 1, 1)]);
                let mut levels = level_block(begins);
                levels.extend(level_block(std::iter::once((rows * values, 1))));
                (levels, rows * values)
            }
            What::Index | What::File | What::Line | What::Text => (Vec::new(), rows),
        }
    }
}

impl What {
    fn kind(self) -> i32 {
        match self {
            Self::Index | Self::Line => INT64,
            Self::File | Self::Id | Self::Text => BYTE_ARRAY,
            Self::Embedding => FLOAT,
        }
    }

    fn path(self) -> &'static [&'static str] {
        match self {
            Self::Index => &["index"],
            Self::File => &["file"],
            Self::Line => &["line"],
            Self::Id => &["id"],
            Self::Text => &["text"],
            Self::Embedding => &["embedding", "list", "element"],
        }
    }

    fn schema(self) -> Vec<Struct> {
        let name = self.path()[0];
        let column = |repetition| Struct::default().i32(1, self.kind()).i32(3, repetition);
        match self {
            Self::Index | Self::Line => vec![column(REQUIRED).text(4, name)],
            Self::File | Self::Text => vec![column(REQUIRED).text(4, name).i32(6, UTF8)],
            Self::Id => vec![column(OPTIONAL).text(4, name).i32(6, UTF8)],
            Self::Embedding => vec![
                Struct::default().i32(3, REQUIRED).text(4, name).i32(5, 1).i32(6, LIST),
                Struct::default().i32(3, REPEATED).text(4, "list").i32(5, 1),
                column(REQUIRED).text(4, "element"),
            ],
        }
    }
}

/// Levels of one bit as runs of equal ones, with their length before them.
fn level_block(runs: impl Iterator<Item = (u64, u8)>) -> Vec<u8> {
    let mut block = vec![0; 4];
    let mut put = |(count, level): (u64, u8)| {
        if count > 0 {
            put_varint(&mut block, count << 1);
            block.push(level);
        }
    };
    let mut open = (0, 0);
    for (count, level) in runs {
        if level == open.1 {
            open.0 += count;
        } else {
            put(open);
            open = (count, level);
        }
    }
    put(open);
    let length = block.len() as u32 - 4;
    block[..4].copy_from_slice(&length.to_le_bytes());
    block
}

fn page_header(bytes: usize, values: u64) -> Vec<u8> {
    let data = Struct::default().i32(1, values as i32).i32(2, PLAIN).i32(3, RLE).i32(4, RLE);
    Struct::default().i32(1, 0).i32(2, bytes as i32).i32(3, bytes as i32).structure(5, data).end()
}
