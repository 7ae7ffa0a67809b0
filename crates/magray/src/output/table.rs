//! Tables in Parquet's format: plain values in groups of rows, metadata last; columns of texts can be packed by zstd.
//! Holds the values of one group. Reads nothing.

use std::io::{self, Write};

use super::thrift::{Struct, put_varint};

pub(crate) const MAGIC: &[u8] = b"PAR1";

const REQUIRED: i32 = 0;
const OPTIONAL: i32 = 1;
const REPEATED: i32 = 2;
const LIST: i32 = 3;
const PLAIN: i32 = 0;
const RLE: i32 = 3;
const UNCOMPRESSED: i32 = 0;
const ZSTD: i32 = 6;
const ZSTD_LEVEL: i32 = 1;

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U32,
    I64,
    F32,
    Text,
    Json,
}

/// A part of a schema.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    name: String,
    repetition: i32,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Leaf { kind: Kind, is_packed: bool },
    Group { is_list: bool, fields: Vec<Node> },
}

impl Node {
    pub(crate) fn leaf(name: &str, kind: Kind) -> Self {
        Self { name: name.to_owned(), repetition: REQUIRED, what: What::Leaf { kind, is_packed: false } }
    }

    pub(crate) fn group(name: &str, fields: Vec<Self>) -> Self {
        Self { name: name.to_owned(), repetition: REQUIRED, what: What::Group { is_list: false, fields } }
    }

    pub(crate) fn list(name: &str, mut element: Self) -> Self {
        "element".clone_into(&mut element.name);
        let mut list = Self::group("list", vec![element]);
        list.repetition = REPEATED;
        Self { name: name.to_owned(), repetition: REQUIRED, what: What::Group { is_list: true, fields: vec![list] } }
    }

    pub(crate) fn optional(mut self) -> Self {
        self.repetition = OPTIONAL;
        self
    }

    pub(crate) fn packed(mut self) -> Self {
        if let What::Leaf { is_packed, .. } = &mut self.what {
            *is_packed = true;
        }
        self
    }

    fn schema(&self, elements: &mut Vec<Struct>) {
        match &self.what {
            What::Leaf { kind, .. } => {
                let element = Struct::default().i32(1, kind.physical()).i32(3, self.repetition).text(4, &self.name);
                elements.push(match kind.converted() {
                    Some(converted) => element.i32(6, converted),
                    None => element,
                });
            }
            What::Group { is_list, fields } => {
                let element = Struct::default().i32(3, self.repetition).text(4, &self.name).i32(5, fields.len() as i32);
                elements.push(if *is_list { element.i32(6, LIST) } else { element });
                fields.iter().for_each(|field| field.schema(elements));
            }
        }
    }

    /// Adds the columns below, whose parents have these names and levels.
    fn columns(&self, path: &[String], (mut definition, mut repetition): (u8, u8), columns: &mut Vec<Column>) {
        let path = [path, std::slice::from_ref(&self.name)].concat();
        definition += u8::from(self.repetition != REQUIRED);
        repetition += u8::from(self.repetition == REPEATED);
        match &self.what {
            What::Leaf { kind, is_packed } => {
                columns.push(Column {
                    path,
                    kind: *kind,
                    is_packed: *is_packed,
                    definition_max: definition,
                    repetition_max: repetition,
                    values: Vec::new(),
                    definitions: Runs::default(),
                    repetitions: Runs::default(),
                    count: 0,
                });
            }
            What::Group { fields, .. } => {
                fields.iter().for_each(|field| field.columns(&path, (definition, repetition), columns));
            }
        }
    }
}

impl Kind {
    fn physical(self) -> i32 {
        match self {
            Self::U32 => 1,
            Self::I64 => 2,
            Self::F32 => 4,
            Self::Text | Self::Json => 6,
        }
    }

    /// What the values mean, where their bytes alone do not say it.
    fn converted(self) -> Option<i32> {
        match self {
            Self::I64 | Self::F32 => None,
            Self::Text => Some(0),
            Self::U32 => Some(13),
            Self::Json => Some(19),
        }
    }
}

/// A column's values of the group that is not yet written.
pub(crate) struct Column {
    path: Vec<String>,
    kind: Kind,
    is_packed: bool,
    definition_max: u8,
    repetition_max: u8,
    values: Vec<u8>,
    /// How much of the path of each value is there.
    definitions: Runs,
    /// Which list of the path each value goes on with; 0 where a row begins.
    repetitions: Runs,
    count: u64,
}

impl Column {
    pub(crate) fn push_i64(&mut self, value: i64) {
        self.levels(1, 0, self.definition_max);
        self.values.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn push_text(&mut self, text: &str) {
        self.levels(1, 0, self.definition_max);
        self.values.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.values.extend_from_slice(text.as_bytes());
    }

    /// Adds a list of numbers. `begins`: 0 for the first of a row, else the level of the list that it is a further element of.
    pub(crate) fn push_list<const N: usize>(&mut self, begins: u8, numbers: impl Iterator<Item = [u8; N]>) {
        let bytes_before = self.values.len();
        numbers.for_each(|number| self.values.extend_from_slice(&number));
        match ((self.values.len() - bytes_before) / N) as u64 {
            0 => self.levels(1, begins, self.definition_max - 1),
            count => {
                self.levels(1, begins, self.definition_max);
                self.levels(count - 1, self.repetition_max, self.definition_max);
            }
        }
    }

    /// A row of which only the first `definition` optional or repeated parts of the path are there.
    pub(crate) fn push_none(&mut self, definition: u8) {
        self.levels(1, 0, definition);
    }

    /// Bytes of the values that are held.
    pub(crate) fn bytes(&self) -> usize {
        self.values.len()
    }

    fn levels(&mut self, count: u64, repetition: u8, definition: u8) {
        self.repetitions.push(count, repetition);
        self.definitions.push(count, definition);
        self.count += count;
    }

    /// Writes the values as one page.
    fn write(&mut self, out: &mut dyn Write) -> io::Result<Chunk> {
        let (repetitions, definitions) = (self.repetitions.take(), self.definitions.take());
        let mut parts: Vec<&[u8]> = Vec::new();
        parts.extend((self.repetition_max > 0).then_some(&*repetitions));
        parts.extend((self.definition_max > 0).then_some(&*definitions));
        parts.push(&self.values);
        let plain_bytes = parts.iter().map(|part| part.len()).sum();
        let packed = if self.is_packed { Some(zstd::bulk::compress(&parts.concat(), ZSTD_LEVEL)?) } else { None };
        if let Some(packed) = &packed {
            parts = vec![packed];
        }
        let bytes = parts.iter().map(|part| part.len()).sum();
        let mut checksum = crc32fast::Hasher::new();
        parts.iter().for_each(|part| checksum.update(part));
        let header = page_header(plain_bytes, bytes, self.count, checksum.finalize())?;
        out.write_all(&header)?;
        parts.iter().try_for_each(|part| out.write_all(part))?;
        let chunk = Chunk {
            values: std::mem::take(&mut self.count),
            bytes: (header.len() + bytes) as u64,
            plain_bytes: (header.len() + plain_bytes) as u64,
        };
        // Its memory is for the next group.
        self.values.clear();
        Ok(chunk)
    }
}

/// What is written of a column of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Chunk {
    pub(crate) values: u64,
    pub(crate) bytes: u64,
    pub(crate) plain_bytes: u64,
}

pub(crate) struct Table {
    schema: Vec<Node>,
    columns: Vec<Column>,
    /// Groups that are written: their rows and columns.
    groups: Vec<(u64, Vec<Chunk>)>,
}

impl Table {
    pub(crate) fn new(schema: Vec<Node>) -> Self {
        let mut columns = Vec::new();
        schema.iter().for_each(|node| node.columns(&[], (0, 0), &mut columns));
        Self { schema, columns, groups: Vec::new() }
    }

    /// One for each leaf of the schema. Every row adds to every one of them.
    pub(crate) fn columns(&mut self) -> &mut [Column] {
        &mut self.columns
    }

    /// A group that an earlier run wrote.
    pub(crate) fn add_group(&mut self, rows: u64, chunks: Vec<Chunk>) {
        self.groups.push((rows, chunks));
    }

    /// Writes the rows since the last group as one.
    pub(crate) fn write_group(&mut self, rows: u64, out: &mut dyn Write) -> io::Result<&[Chunk]> {
        let chunks = self.columns.iter_mut().map(|column| column.write(out)).collect::<io::Result<Vec<_>>>()?;
        self.groups.push((rows, chunks));
        Ok(self.groups.last().map_or(&[], |(_, chunks)| chunks))
    }

    /// Ends a file that began with [`MAGIC`]. `entries`: what the file says of itself.
    pub(crate) fn write_end(&self, entries: &[(&str, &str)], out: &mut dyn Write) -> io::Result<()> {
        let metadata = self.metadata(entries);
        let length = u32::try_from(metadata.len()).map_err(|_| io::Error::other("the metadata is over 4 GiB"))?;
        out.write_all(&metadata)?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(MAGIC)
    }

    fn metadata(&self, entries: &[(&str, &str)]) -> Vec<u8> {
        let mut schema = vec![Struct::default().text(4, "magray").i32(5, self.schema.len() as i32)];
        self.schema.iter().for_each(|node| node.schema(&mut schema));
        let mut offset = MAGIC.len() as u64;
        let groups: Vec<Struct> =
            self.groups.iter().map(|(rows, chunks)| self.group_metadata(*rows, chunks, &mut offset)).collect();
        let mut metadata = Struct::default()
            .i32(1, 2)
            .structures(2, schema.into_iter())
            .i64(3, self.groups.iter().map(|(rows, _)| rows).sum())
            .structures(4, groups.into_iter());
        if !entries.is_empty() {
            let entry = |(key, value): &(&str, &str)| Struct::default().text(1, key).text(2, value);
            metadata = metadata.structures(5, entries.iter().map(entry));
        }
        metadata.text(6, concat!("magray version ", env!("CARGO_PKG_VERSION"))).end()
    }

    fn group_metadata(&self, rows: u64, chunks: &[Chunk], offset: &mut u64) -> Struct {
        let mut shown = Vec::with_capacity(chunks.len());
        for (column, chunk) in self.columns.iter().zip(chunks) {
            let metadata = Struct::default()
                .i32(1, column.kind.physical())
                .i32s(2, &[PLAIN, RLE])
                .texts(3, &column.path)
                .i32(4, if column.is_packed { ZSTD } else { UNCOMPRESSED })
                .i64(5, chunk.values)
                .i64(6, chunk.plain_bytes)
                .i64(7, chunk.bytes)
                .i64(9, *offset);
            shown.push(Struct::default().i64(2, *offset).structure(3, metadata));
            *offset += chunk.bytes;
        }
        let plain_bytes = chunks.iter().map(|chunk| chunk.plain_bytes).sum();
        Struct::default().structures(1, shown.into_iter()).i64(2, plain_bytes).i64(3, rows)
    }
}

/// Levels below 256 as runs of equal ones.
#[derive(Default)]
struct Runs {
    bytes: Vec<u8>,
    open: (u64, u8),
}

impl Runs {
    fn push(&mut self, count: u64, level: u8) {
        if level == self.open.1 {
            self.open.0 += count;
        } else if count > 0 {
            self.close();
            self.open = (count, level);
        }
    }

    fn close(&mut self) {
        if self.open.0 > 0 {
            put_varint(&mut self.bytes, self.open.0 << 1);
            self.bytes.push(self.open.1);
        }
        self.open.0 = 0;
    }

    /// The runs behind their length.
    fn take(&mut self) -> Vec<u8> {
        self.close();
        let runs = std::mem::take(&mut self.bytes);
        [&(runs.len() as u32).to_le_bytes(), &*runs].concat()
    }
}

fn page_header(plain_bytes: usize, bytes: usize, values: u64, checksum: u32) -> io::Result<Vec<u8>> {
    let too_large = |_| io::Error::other("the rows of a group have more than 2 GiB in one column");
    let number = |bytes: usize| i32::try_from(bytes).map_err(too_large);
    let data = Struct::default().i32(1, number(values as usize)?).i32(2, PLAIN).i32(3, RLE).i32(4, RLE);
    let header = Struct::default().i32(1, 0).i32(2, number(plain_bytes)?).i32(3, number(bytes)?);
    Ok(header.i32(4, checksum as i32).structure(5, data).end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_runs_behind_their_length() {
        let mut runs = Runs::default();
        [(2, 1), (0, 3), (1, 1), (200, 0)].into_iter().for_each(|(count, level)| runs.push(count, level));
        assert_eq!(runs.take(), [5, 0, 0, 0, 6, 1, 0x90, 3, 0]);
        assert_eq!(runs.take(), [0; 4]);
    }

    #[test]
    fn columns_know_their_path_and_levels() {
        let words = Node::group(
            "words",
            vec![Node::list("i", Node::leaf("", Kind::U32)), Node::list("v", Node::leaf("", Kind::F32))],
        );
        let many = Node::list("many", Node::list("", Node::leaf("", Kind::F32))).optional();
        let mut table = Table::new(vec![Node::leaf("id", Kind::Text), words.optional(), many]);
        let shown: Vec<_> = table
            .columns()
            .iter()
            .map(|column| (column.path.join("."), column.definition_max, column.repetition_max))
            .collect();
        let expected = [
            ("id", 0, 0),
            ("words.i.list.element", 2, 1),
            ("words.v.list.element", 2, 1),
            ("many.list.element.list.element", 3, 2),
        ];
        assert_eq!(shown, expected.map(|(path, definition, repetition)| (path.to_owned(), definition, repetition)));
    }
}
