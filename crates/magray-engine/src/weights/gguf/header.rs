//! Reads the header of a GGUF file: what it says of its model, and where its tensors lie.
//! Takes every number in it for a lie until the file's own length bears it out; keeps places of arrays and strings, not copies.

use std::{
    collections::{BTreeMap, btree_map::Entry as Slot},
    ops::Range,
    path::{Path, PathBuf},
};

use magray_core::BlockFormat;

use super::{
    WeightsError,
    cursor::{Cursor, Ended},
};

const MAGIC: &[u8; 4] = b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];

// Several times what the largest published models have.
const TENSORS_MAX: u64 = 1 << 17;
const VALUES_MAX: u64 = 1 << 14;
const KEY_BYTES_MAX: usize = 1 << 10;
const DIMENSIONS_MAX: u32 = 4;
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;
/// A number of a tensor's shape: no product of two overflows.
const DIMENSION_MAX: u64 = 1 << 31;

/// What a header says.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) values: BTreeMap<String, Value>,
    pub(super) tensors: BTreeMap<String, Entry>,
}

/// Where a tensor lies and what it is.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) format: BlockFormat,
    /// The outermost first; the file has the innermost first.
    pub(super) shape: Vec<usize>,
    /// Its bytes in the whole file.
    pub(super) range: Range<usize>,
}

/// A value of the header.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    /// The bytes of a string in the file; they are UTF-8.
    Text(Range<usize>),
    Array(Array),
}

/// An array of a header, all inside the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub(super) kind: Kind,
    pub(super) count: usize,
    pub(super) range: Range<usize>,
}

/// The types of values, by their numbers in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Text,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Bytes of a value, where all have the same.
    fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::Array => None,
        }
    }
}

/// A tensor's form by its number in the file, or the name of one that is known and not read.
fn format(number: u32) -> Result<BlockFormat, String> {
    let name = match number {
        0 => return Ok(BlockFormat::F32),
        1 => return Ok(BlockFormat::F16),
        2 => return Ok(BlockFormat::Q4_0),
        3 => return Ok(BlockFormat::Q4_1),
        6 => return Ok(BlockFormat::Q5_0),
        7 => return Ok(BlockFormat::Q5_1),
        8 => return Ok(BlockFormat::Q8_0),
        10 => return Ok(BlockFormat::Q2K),
        11 => return Ok(BlockFormat::Q3K),
        12 => return Ok(BlockFormat::Q4K),
        13 => return Ok(BlockFormat::Q5K),
        14 => return Ok(BlockFormat::Q6K),
        30 => return Ok(BlockFormat::Bf16),
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        other => return Err(format!("number {other}")),
    };
    Err(name.to_owned())
}

/// Reads the header of a whole file.
pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<Header, WeightsError> {
    Reader { file, cursor: Cursor::new(bytes) }.header()
}

struct Reader<'a> {
    file: &'a Path,
    cursor: Cursor<'a>,
}

/// A tensor as its line of the header says, before its place is checked.
struct Claim {
    name: String,
    format: BlockFormat,
    shape: Vec<usize>,
    offset: u64,
    bytes: usize,
}

impl Reader<'_> {
    fn corrupt(&self, reason: impl Into<String>) -> WeightsError {
        WeightsError::Corrupt { file: PathBuf::from(self.file), reason: reason.into() }
    }

    fn ended(&self, what: &str) -> WeightsError {
        self.corrupt(format!("it ends inside {what}: it has {} bytes", self.cursor.len()))
    }

    fn header(mut self) -> Result<Header, WeightsError> {
        if self.cursor.array::<4>().ok().as_ref() != Some(MAGIC) {
            return Err(self.corrupt("it does not begin with 'GGUF'"));
        }
        let version = u32::from_le_bytes(self.bytes("its version")?);
        if VERSIONS.contains(&version.swap_bytes()) {
            return Err(self.corrupt("its numbers are big-endian: convert it for little-endian machines"));
        }
        if !VERSIONS.contains(&version) {
            return Err(self.corrupt(format!("it has version {version} of its format, and 2 and 3 are read")));
        }
        let tensors = self.count("tensors", TENSORS_MAX)?;
        let values = self.count("values", VALUES_MAX)?;
        let values = self.values(values)?;
        let alignment = match values.get("general.alignment") {
            None => ALIGNMENT_DEFAULT,
            Some(&Value::Unsigned(n)) if n.is_power_of_two() && (8..=ALIGNMENT_MAX).contains(&n) => n,
            Some(_) => return Err(self.corrupt("general.alignment is no power of two from 8 to 1048576")),
        };
        let mut claims = Vec::new();
        for _ in 0..tensors {
            claims.push(self.claim()?);
        }
        let start = (self.cursor.position() as u64).next_multiple_of(alignment);
        Ok(Header { values, tensors: self.places(claims, start, alignment)? })
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], WeightsError> {
        self.cursor.array().map_err(|Ended| self.ended(what))
    }

    fn count(&mut self, what: &str, most: u64) -> Result<u64, WeightsError> {
        let count = u64::from_le_bytes(self.bytes("its counts")?);
        if count > most {
            return Err(self.corrupt(format!("it claims to have {count} {what}, and {most} is the most that is read")));
        }
        Ok(count)
    }

    /// A name, short enough to be shown.
    fn name(&mut self, what: &str) -> Result<String, WeightsError> {
        let range = self.cursor.text().map_err(|Ended| self.ended(what))?;
        if range.len() > KEY_BYTES_MAX {
            return Err(self.corrupt(format!("{what} has {} bytes, and {KEY_BYTES_MAX} is the most", range.len())));
        }
        let text = std::str::from_utf8(self.cursor.at(range));
        text.map(str::to_owned).map_err(|_| self.corrupt(format!("{what} is not UTF-8")))
    }

    fn values(&mut self, count: u64) -> Result<BTreeMap<String, Value>, WeightsError> {
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let key = self.name("the name of a value")?;
            let kind = self.kind(&key)?;
            let value = self.value(&key, kind)?;
            match values.entry(key) {
                Slot::Vacant(slot) => slot.insert(value),
                Slot::Occupied(slot) => return Err(self.corrupt(format!("it has the value '{}' twice", slot.key()))),
            };
        }
        Ok(values)
    }

    fn kind(&mut self, key: &str) -> Result<Kind, WeightsError> {
        let number = u32::from_le_bytes(self.bytes("the type of a value")?);
        let kind = usize::try_from(number).ok().and_then(|number| Kind::ALL.get(number));
        kind.copied().ok_or_else(|| self.corrupt(format!("the value '{key}' has a type that is not known ({number})")))
    }

    fn value(&mut self, key: &str, kind: Kind) -> Result<Value, WeightsError> {
        let what = format!("the value '{key}'");
        Ok(match kind {
            Kind::U8 => Value::Unsigned(u64::from(u8::from_le_bytes(self.bytes(&what)?))),
            Kind::U16 => Value::Unsigned(u64::from(u16::from_le_bytes(self.bytes(&what)?))),
            Kind::U32 => Value::Unsigned(u64::from(u32::from_le_bytes(self.bytes(&what)?))),
            Kind::U64 => Value::Unsigned(u64::from_le_bytes(self.bytes(&what)?)),
            Kind::I8 => Value::Signed(i64::from(i8::from_le_bytes(self.bytes(&what)?))),
            Kind::I16 => Value::Signed(i64::from(i16::from_le_bytes(self.bytes(&what)?))),
            Kind::I32 => Value::Signed(i64::from(i32::from_le_bytes(self.bytes(&what)?))),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.bytes(&what)?)),
            Kind::F32 => Value::Float(f64::from(f32::from_le_bytes(self.bytes(&what)?))),
            Kind::F64 => Value::Float(f64::from_le_bytes(self.bytes(&what)?)),
            Kind::Bool => match self.bytes(&what)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(self.corrupt(format!("{what} is {other}, which is neither true nor false"))),
            },
            Kind::Text => Value::Text(self.text(&what)?),
            Kind::Array => Value::Array(self.array(key, &what)?),
        })
    }

    fn text(&mut self, what: &str) -> Result<Range<usize>, WeightsError> {
        let range = self.cursor.text().map_err(|Ended| self.ended(what))?;
        match std::str::from_utf8(self.cursor.at(range.clone())) {
            Ok(_) => Ok(range),
            Err(_) => Err(self.corrupt(format!("{what} is not UTF-8"))),
        }
    }

    fn array(&mut self, key: &str, what: &str) -> Result<Array, WeightsError> {
        let kind = self.kind(key)?;
        let claimed = u64::from_le_bytes(self.bytes(what)?);
        let count = usize::try_from(claimed).map_err(|_| self.ended(what))?;
        let start = self.cursor.position();
        match kind.size() {
            Some(size) => {
                let bytes = count.checked_mul(size).ok_or_else(|| self.ended(what))?;
                self.cursor.skip(bytes).map_err(|Ended| self.ended(what))?;
            }
            None if kind == Kind::Array => return Err(self.corrupt(format!("{what} is an array of arrays"))),
            None => {
                for _ in 0..count {
                    self.text(what)?;
                }
            }
        }
        Ok(Array { kind, count, range: start..self.cursor.position() })
    }

    fn claim(&mut self) -> Result<Claim, WeightsError> {
        let name = self.name("the name of a tensor")?;
        let what = format!("what it says of tensor '{name}'");
        let dimensions = u32::from_le_bytes(self.bytes(&what)?);
        if dimensions > DIMENSIONS_MAX {
            return Err(
                self.corrupt(format!("tensor '{name}' claims to have {dimensions} dimensions, and 4 is the most"))
            );
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = u64::from_le_bytes(self.bytes(&what)?);
            if !(1..=DIMENSION_MAX).contains(&size) {
                return Err(self.corrupt(format!("tensor '{name}' claims to have a dimension of {size}")));
            }
            shape.push(size as usize);
        }
        let number = u32::from_le_bytes(self.bytes(&what)?);
        let offset = u64::from_le_bytes(self.bytes(&what)?);
        let format = match format(number) {
            Ok(format) => format,
            Err(found) => return Err(WeightsError::UnreadFormat { name, file: self.file.to_owned(), found }),
        };
        let columns = shape.first().copied().unwrap_or(1);
        let row = format.bytes_of(columns).ok_or_else(|| {
            let numbers = format.numbers();
            self.corrupt(format!(
                "tensor '{name}' has rows of {columns} numbers, and blocks of {format} have {numbers}"
            ))
        })?;
        let rows = shape.iter().skip(1).try_fold(1usize, |rows, size| rows.checked_mul(*size));
        let bytes = rows.and_then(|rows| rows.checked_mul(row)).filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes =
            bytes.ok_or_else(|| self.corrupt(format!("tensor '{name}' claims more bytes than can be counted")))?;
        shape.reverse();
        Ok(Claim { name, format, shape, offset, bytes })
    }

    /// The tensors at their places, each inside the file and apart from the others.
    fn places(&self, claims: Vec<Claim>, start: u64, alignment: u64) -> Result<BTreeMap<String, Entry>, WeightsError> {
        let mut tensors = BTreeMap::new();
        let mut ranges = Vec::with_capacity(claims.len());
        for Claim { name, format, shape, offset, bytes } in claims {
            if !offset.is_multiple_of(alignment) {
                return Err(self.corrupt(format!("tensor '{name}' begins at {offset}, no multiple of {alignment}")));
            }
            let begin = start.saturating_add(offset);
            let end = begin.saturating_add(bytes as u64);
            let found = self.cursor.len() as u64;
            if end > found {
                return Err(WeightsError::Truncated { file: self.file.to_owned(), tensor: name, expected: end, found });
            }
            let range = begin as usize..end as usize;
            ranges.push((range.start, range.end, name.clone()));
            match tensors.entry(name) {
                Slot::Vacant(slot) => slot.insert(Entry { format, shape, range }),
                Slot::Occupied(slot) => return Err(self.corrupt(format!("it has the tensor '{}' twice", slot.key()))),
            };
        }
        ranges.sort();
        for pair in ranges.windows(2) {
            let ((_, end, first), (next, _, second)) = (&pair[0], &pair[1]);
            if next < end {
                return Err(self.corrupt(format!("the tensors '{first}' and '{second}' overlap")));
            }
        }
        Ok(tensors)
    }
}
