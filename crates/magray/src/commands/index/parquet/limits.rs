//! Looks at the structures of a Parquet file before its reader does, and refuses those that would take all memory or stack.
//! Reads lengths and counts, no values.

use std::{
    fs::File,
    io::{self, Cursor, Read, Seek, SeekFrom},
};

use parquet::{
    errors::{ParquetError, Result},
    file::reader::{ChunkReader, Length},
};

/// Footers of tables with thousands of columns and groups have some MiB.
const FOOTER_BYTES_MAX: u64 = 64 << 20;
const COLUMNS_MAX: i64 = 4_096;
const SCHEMA_DEPTH_MAX: usize = 64;
/// Usual pages have 1 MiB.
const PAGE_BYTES_MAX: i64 = 256 << 20;
const PAGE_VALUES_MAX: i64 = 1 << 25;
const PAGE_HEADER_BYTES_MAX: u64 = 64 << 10;
/// The length of the footer and the name of the format.
const TAIL_BYTES: u64 = 8;
/// Structures of Parquet lie within each other less deep.
const STRUCTURE_DEPTH_MAX: usize = 16;

/// A file that gives no page and no footer above the limits.
pub(super) struct Limited {
    file: File,
    bytes: u64,
}

impl Limited {
    pub(super) fn open(file: File) -> Result<Self> {
        let bytes = file.metadata()?.len();
        let limited = Self { file, bytes };
        let Some(tail_at) = bytes.checked_sub(TAIL_BYTES) else {
            return Err(refused(format!("{bytes} bytes are too few")));
        };
        let tail = limited.get_bytes(tail_at, TAIL_BYTES as usize)?;
        let length = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]).into();
        if &tail[4..] != b"PAR1" {
            return Err(refused("its end is not that of a Parquet file; it may have been cut short"));
        }
        let Some(at) = tail_at.checked_sub(length).filter(|_| length <= FOOTER_BYTES_MAX) else {
            return Err(refused(format!("its footer should have {length} bytes")));
        };
        check_footer(&limited.get_bytes(at, length as usize)?).map_err(refused)?;
        Ok(limited)
    }

    fn at(&self, start: u64) -> Result<File> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    }
}

impl Length for Limited {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Limited {
    type T = PageHeader;

    /// The reader asks for this where a page begins and for the last bytes of the file, and sometimes reads none of it.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let is_tail = start.checked_add(TAIL_BYTES) == Some(self.bytes);
        Ok(PageHeader { file: self.file.try_clone()?, start, is_tail, bytes: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<bytes::Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return Err(refused("a part of it lies behind its end; it may have been cut short"));
        }
        let mut buffer = Vec::with_capacity(length);
        self.at(start)?.take(length as u64).read_to_end(&mut buffer)?;
        if buffer.len() < length {
            return Err(refused("it became shorter while it was read"));
        }
        Ok(buffer.into())
    }
}

/// The bytes of a page's header, which is looked at before the first of them is read.
pub(super) struct PageHeader {
    file: File,
    start: u64,
    is_tail: bool,
    bytes: Option<Cursor<Vec<u8>>>,
}

impl Read for PageHeader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(bytes) = &mut self.bytes {
            return bytes.read(buffer);
        }
        let mut header = Vec::new();
        self.file.seek(SeekFrom::Start(self.start))?;
        self.file.by_ref().take(PAGE_HEADER_BYTES_MAX).read_to_end(&mut header)?;
        if !self.is_tail {
            check_page_header(&header).map_err(io::Error::other)?;
        }
        self.bytes.insert(Cursor::new(header)).read(buffer)
    }
}

fn refused(reason: impl Into<String>) -> ParquetError {
    ParquetError::General(reason.into())
}

/// The tree of the schema is read by recursion, with memory for as many children as an element says it has.
fn check_footer(footer: &[u8]) -> Result<(), String> {
    let (mut elements, mut open, mut failure) = (0, Vec::new(), None);
    let mut see = |path: &[i64], value: i64| match path {
        [2] => elements = value,
        [2, _, 5] if failure.is_none() => {
            open.push((path[1], value));
            failure = match value {
                0..=COLUMNS_MAX => None,
                _ => Some(format!("a group of columns should have {value}; {COLUMNS_MAX} are read")),
            };
        }
        _ => {}
    };
    walk(footer, &mut see)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    if elements > 4 * COLUMNS_MAX {
        return Err(format!("its schema has {elements} parts; {} are read", 4 * COLUMNS_MAX));
    }
    // Depth-first: each element takes one place in the group that is open and may open another.
    let mut groups: Vec<i64> = Vec::new();
    let mut counts = open.into_iter().peekable();
    for element in 0..elements {
        while groups.last() == Some(&0) {
            groups.pop();
        }
        if let Some(left) = groups.last_mut() {
            *left -= 1;
        }
        while let Some((_, children)) = counts.next_if(|(at, _)| *at == element) {
            groups.push(children);
        }
        if groups.len() > SCHEMA_DEPTH_MAX {
            return Err(format!("its columns lie more than {SCHEMA_DEPTH_MAX} deep"));
        }
    }
    Ok(())
}

fn check_page_header(header: &[u8]) -> Result<(), String> {
    let mut failure = None;
    let mut see = |path: &[i64], value: i64| {
        let (name, max) = match path {
            [2 | 3] => ("bytes", PAGE_BYTES_MAX),
            [5 | 7 | 8, 1] => ("values", PAGE_VALUES_MAX),
            _ => return,
        };
        if !(0..=max).contains(&value) {
            failure.get_or_insert(format!("a page should have {value} {name}; at most {max} are read"));
        }
    };
    walk(header, &mut see)?;
    failure.map_or(Ok(()), Err)
}

/// Shows the integers and the lengths of lists of a structure in Thrift's compact protocol, by the numbers of the fields
/// and the places in lists that lead to them.
fn walk(bytes: &[u8], see: &mut dyn FnMut(&[i64], i64)) -> Result<(), String> {
    let mut walk = Walk { bytes, path: Vec::new(), see };
    walk.structure().ok_or_else(|| "its metadata is damaged".to_owned())
}

struct Walk<'a> {
    bytes: &'a [u8],
    path: Vec<i64>,
    see: &'a mut dyn FnMut(&[i64], i64),
}

/// `None`: the bytes are no such thing.
impl Walk<'_> {
    fn structure(&mut self) -> Option<()> {
        let mut field = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => self.zigzag()?,
                step => field + i64::from(step),
            };
            self.path.push(field);
            // The value of a boolean field is in its kind.
            if !matches!(head & 15, 1 | 2) {
                self.value(head & 15)?;
            }
            self.path.pop();
        }
    }

    fn value(&mut self, kind: u8) -> Option<()> {
        match kind {
            1..=3 => self.skip(1),
            4..=6 => {
                let value = self.zigzag()?;
                (self.see)(&self.path, value);
                Some(())
            }
            7 => self.skip(8),
            8 => {
                let length = self.varint()?;
                self.skip(length)
            }
            9 | 10 => self.list(),
            12 if self.path.len() < STRUCTURE_DEPTH_MAX => self.structure(),
            // Parquet has no maps in its metadata.
            _ => None,
        }
    }

    fn list(&mut self) -> Option<()> {
        let head = self.byte()?;
        let length = match head >> 4 {
            15 => self.varint()?,
            length => length.into(),
        };
        if length > self.bytes.len() as u64 || self.path.len() >= STRUCTURE_DEPTH_MAX {
            return None;
        }
        (self.see)(&self.path, length as i64);
        for at in 0..length {
            self.path.push(at as i64);
            self.value(head & 15)?;
            self.path.pop();
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn skip(&mut self, length: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(length).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_lists_are_shown_by_their_paths() {
        // Field 1: -1; field 2: a list of two structures with the fields 4 (text) and 5; field 3: a boolean.
        let bytes = [0x15, 1, 0x19, 0x2c, 0x48, 1, b'a', 0x15, 4, 0, 0x55, 6, 0, 0x11, 0];
        let mut seen = Vec::new();
        walk(&bytes, &mut |path, value| seen.push((path.to_vec(), value))).unwrap();
        assert_eq!(seen, [(vec![1], -1), (vec![2], 2), (vec![2, 0, 5], 2), (vec![2, 1, 5], 3)]);
        for length in 0..bytes.len() {
            assert!(walk(&bytes[..length], &mut |_, _| ()).is_err(), "{length}");
        }
    }

    /// A footer with a schema of such groups within each other, the number of children of each as given.
    fn footer(children: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x29, 0xfc];
        let mut length = children.len() as u64;
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        children.iter().for_each(|count| bytes.extend([0x55, count << 1, 0]));
        bytes.push(0);
        bytes
    }

    #[test]
    fn schemas_that_would_take_all_stack_or_memory_are_refused() {
        assert_eq!(check_footer(&footer(&[1; 60])), Ok(()));
        assert!(check_footer(&footer(&[1; 70])).unwrap_err().contains("deep"));
        assert!(check_footer(&footer(&[1; 16_000])).unwrap_err().contains("deep"));
        assert!(check_footer(&footer(&[1; 100_000])).unwrap_err().contains("parts"));
        // A root with 2^31 - 1 children.
        let bytes = [0x29, 0x1c, 0x55, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0];
        assert!(check_footer(&bytes).unwrap_err().contains("2147483647"));
        // Many groups beside each other are not deep.
        let mut beside = vec![60];
        (0..60).for_each(|_| beside.extend([2, 0, 0]));
        assert_eq!(check_footer(&footer(&beside)), Ok(()));
    }

    #[test]
    fn pages_above_the_limits_are_refused() {
        let header = |bytes: u8, values: u8| vec![0x15, 0, 0x15, bytes, 0x15, 2, 0x2c, 0x15, values, 0, 0];
        assert_eq!(check_page_header(&header(2, 2)), Ok(()));
        assert!(check_page_header(&header(1, 2)).unwrap_err().contains("-1 bytes"));
        assert!(check_page_header(&header(2, 1)).unwrap_err().contains("-1 values"));
        let bomb = [0x15, 0, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0];
        assert!(check_page_header(&bomb).unwrap_err().contains("2147483647 bytes"));
        assert!(check_page_header(&[]).is_err());
    }
}
